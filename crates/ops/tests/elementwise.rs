//! Elementwise ops, reductions and segments without rows, and inputs that only malformed models
//! have.

use ferroflow_base::{Code, Result};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, Element, Shape, Tensor};

/// Returns the first output of an op on shared inputs; type attrs follow from the inputs' dtypes.
fn run(op: &str, attrs: Attrs, inputs: &[Tensor]) -> Result<Tensor> {
    Ok(ferroflow_testkit::op::run(registry(), op, &attrs, inputs.to_vec())?.swap_remove(0))
}

fn typed(pairs: &[(&'static str, DType)]) -> Attrs {
    pairs.iter().fold(Attrs::default(), |a, (name, dtype)| {
        a.with(*name, AttrValue::Type(*dtype))
    })
}

fn vector<T: Element>(values: &[T]) -> Tensor {
    Tensor::vector(values).expect("small")
}

fn floats(op: &str, inputs: &[&[f32]]) -> Vec<f32> {
    let inputs: Vec<Tensor> = inputs.iter().map(|x| vector(x)).collect();
    let out = run(op, typed(&[("T", DType::Float)]), &inputs).expect(op);
    out.slice::<f32>().expect("float").to_vec()
}

#[test]
fn gradients() {
    let (g, x) = ([1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 6.0, 7.0]);
    assert_eq!(floats("ReluGrad", &[&g, &x]), [0.0, 2.0, 3.0, 4.0]);
    assert_eq!(floats("Relu6Grad", &[&g, &x]), [0.0, 2.0, 0.0, 0.0]);
    assert_eq!(floats("LeakyReluGrad", &[&g, &x]), [0.2, 2.0, 3.0, 4.0]);
    assert_eq!(
        floats("EluGrad", &[&g, &[-0.5, 1.0, 2.0, 3.0]]),
        [0.5, 2.0, 3.0, 4.0]
    );
    assert_eq!(floats("SoftsignGrad", &[&[8.0], &[-1.0]]), [2.0]);
    assert_eq!(floats("SigmoidGrad", &[&[0.25], &[2.0]]), [0.375]);
    assert_eq!(floats("TanhGrad", &[&[0.5], &[2.0]]), [1.5]);
    assert_eq!(floats("SqrtGrad", &[&[2.0], &[3.0]]), [0.75]);
    assert_eq!(floats("RsqrtGrad", &[&[2.0], &[1.0]]), [-4.0]);
    assert_eq!(floats("ReciprocalGrad", &[&[2.0], &[1.0]]), [-4.0]);
}

#[test]
fn special_functions() {
    let near = |got: Vec<f32>, expected: f32| assert!((got[0] - expected).abs() < 1e-5, "{got:?}");
    near(floats("Zeta", &[&[2.0], &[1.0]]), 1.644_934);
    near(floats("Zeta", &[&[2.0], &[-0.5]]), 8.934_802);
    near(floats("Polygamma", &[&[1.0], &[1.0]]), 1.644_934);
    near(floats("Polygamma", &[&[0.0], &[1.0]]), -0.577_215_7);
    assert!(floats("Zeta", &[&[2.0], &[-1e9 + 0.5]])[0].is_infinite());
    near(floats("Igamma", &[&[1e30], &[1e30]]), 0.5);
    near(floats("Igammac", &[&[2e6], &[2e6]]), 0.499_906);
}

#[test]
fn counting() {
    let bits = run(
        "PopulationCount",
        typed(&[("T", DType::Int16)]),
        &[vector(&[-1i16, 0, 5])],
    );
    assert_eq!(
        bits.expect("int16").slice::<u8>().expect("uint8"),
        [16, 0, 2]
    );
    let attrs = typed(&[("T", DType::Float)]).with("k", AttrValue::Int(2));
    let top = run("TopK", attrs, &[vector(&[1.0f32, f32::NAN, 3.0, 2.0])]).expect("k fits");
    assert_eq!(top.slice::<f32>().expect("float"), [3.0, 2.0]);
    let types = [
        ("T", DType::Float),
        ("Tidx", DType::Int32),
        ("Tsegmentids", DType::Int32),
    ];
    let types = typed(&types).with("Tnumsegments", AttrValue::Type(DType::Int32));
    let inputs = [
        vector(&[1.0f32, 2.0, 4.0]),
        vector(&[2, 0]),
        vector(&[0, 0]),
        Tensor::scalar(3),
    ];
    let sums = run("SparseSegmentSumWithNumSegments", types, &inputs).expect("valid ids");
    assert_eq!(sums.slice::<f32>().expect("float"), [5.0, 0.0, 0.0]);
}

#[test]
fn hostile_inputs_are_errors() {
    let code = |r: Result<Tensor>| r.expect_err("must fail").code();
    // Empty tensors whose broadcast shape has too many elements.
    let a = Tensor::zeros(DType::Float, Shape::from([1 << 40, 1, 0])).expect("empty");
    let b = Tensor::zeros(DType::Float, Shape::from([1, 1 << 40, 0])).expect("empty");
    let float = || typed(&[("T", DType::Float)]);
    assert_eq!(code(run("AddV2", float(), &[a, b])), Code::InvalidArgument);
    let ids = typed(&[("T", DType::Float), ("Tindices", DType::Int64)]);
    let huge = [vector(&[1.0f32]), vector(&[i64::MAX - 1])];
    assert_eq!(
        code(run("SegmentSum", ids.clone(), &huge)),
        Code::ResourceExhausted
    );
    let wrapping = [vector(&[1.0f32]), vector(&[i64::MAX])];
    assert_eq!(
        code(run("SegmentSum", ids, &wrapping)),
        Code::InvalidArgument
    );
    let axes = typed(&[("T", DType::Float), ("Tidx", DType::Int64)]);
    let min = [vector(&[1.0f32]), vector(&[i64::MIN])];
    assert_eq!(code(run("Sum", axes, &min)), Code::InvalidArgument);
    let ints = |op, a: i32, b: i32| {
        run(
            op,
            typed(&[("T", DType::Int32)]),
            &[Tensor::scalar(a), Tensor::scalar(b)],
        )
    };
    for op in [
        "Div",
        "FloorDiv",
        "FloorMod",
        "TruncateDiv",
        "TruncateMod",
        "Mod",
    ] {
        assert!(ints(op, 1, 0).is_err(), "{op}");
        assert!(ints(op, i32::MIN, -1).is_ok(), "{op}");
    }
    assert!(ints("LeftShift", 1, 1000).is_ok());
    assert!(ints("Pow", 3, i32::MAX).is_ok());
    assert_eq!(code(ints("Pow", 3, -1)), Code::InvalidArgument);
    let empty = Tensor::zeros(DType::Float, Shape::from([0, 1 << 31, 1 << 31])).expect("empty");
    assert!(run("MatrixInverse", float(), &[empty]).is_ok());
}

#[test]
fn quantized_numbers_are_cast_and_compared() {
    use DType::{Bool, Complex64, Double, Float, Half, Int8, Int32, Qint8, Qint32, Quint8};
    let cast = |x: &Tensor, to: DType| {
        let attrs = typed(&[("SrcT", x.dtype()), ("DstT", to)]);
        run("Cast", attrs, std::slice::from_ref(x)).unwrap_or_else(|e| panic!("{to}: {e}"))
    };
    let x = vector(&[-1f32, 2.7, 0.0, 100.0]);
    for (quantized, want) in [
        (Qint8, [-1f32, 2.0, 0.0, 100.0]),
        (Quint8, [0.0, 2.0, 0.0, 100.0]),
        (Qint32, [-1.0, 2.0, 0.0, 100.0]),
    ] {
        let q = cast(&x, quantized);
        assert_eq!(q.dtype(), quantized);
        assert_eq!(cast(&q, Float).slice::<f32>().unwrap(), want);
        for other in [Half, Double, Int8, Int32, Complex64] {
            let there = cast(&q, other);
            assert_eq!(
                cast(&cast(&there, quantized), Float)
                    .slice::<f32>()
                    .unwrap(),
                want
            );
        }
        let truths = cast(&q, Bool);
        assert_eq!(truths.slice::<bool>().unwrap(), want.map(|x| x != 0.0));
        let attrs = || {
            let exact = AttrValue::Bool(true);
            typed(&[("T", quantized)]).with("incompatible_shape_error", exact)
        };
        let zero = cast(&vector(&[0f32]), quantized);
        for (op, is_zero) in [("Equal", true), ("NotEqual", false)] {
            let found = run(op, attrs(), &[q.clone(), zero.clone()]).unwrap();
            assert_eq!(
                found.slice::<bool>().unwrap(),
                want.map(|x| (x == 0.0) == is_zero)
            );
        }
    }
}
