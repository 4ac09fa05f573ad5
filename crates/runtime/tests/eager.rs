//! Ops at once: what rows of small programs give, and what does not fit.

use ferroflow_runtime::eager::{AttrValue, Attrs, Eager, TensorHandle};
use ferroflow_runtime::{Code, DType, Result, Shape, Tensor};

fn handle<const N: usize>(dims: &[usize], values: [f32; N]) -> TensorHandle {
    Tensor::from_slice(Shape::from(dims), &values)
        .unwrap()
        .into()
}

fn ints(values: &[i32]) -> TensorHandle {
    Tensor::from_slice([values.len()], values).unwrap().into()
}

fn scalar(value: i32) -> TensorHandle {
    Tensor::scalar(value).into()
}

type Program = fn(&Eager) -> Result<TensorHandle>;

/// Results of each program: shape and values.
const PROGRAMS: &[(&str, Program, &[usize], &[f32])] = &[
    (
        "add",
        |e| e.add(handle(&[2], [1.0, 2.0]), handle(&[], [0.5])),
        &[2],
        &[1.5, 2.5],
    ),
    (
        "sub",
        |e| e.sub(handle(&[2], [1.0, 2.0]), handle(&[2], [3.0, 5.0])),
        &[2],
        &[-2.0, -3.0],
    ),
    (
        "mul",
        |e| e.mul(handle(&[1, 2], [2.0, 3.0]), handle(&[2, 1], [1.0, 10.0])),
        &[2, 2],
        &[2.0, 3.0, 20.0, 30.0],
    ),
    (
        "div",
        |e| e.div(handle(&[1], [1.0]), handle(&[1], [4.0])),
        &[1],
        &[0.25],
    ),
    (
        "matmul",
        |e| e.matmul(handle(&[1, 2], [3.0, 4.0]), handle(&[2, 1], [5.0, 6.0])),
        &[1, 1],
        &[39.0],
    ),
    (
        "relu of neg",
        |e| e.relu(e.neg(handle(&[2], [1.0, -2.0]))?),
        &[2],
        &[0.0, 2.0],
    ),
    (
        "sum",
        |e| e.sum(handle(&[2, 2], [1.0, 2.0, 3.0, 4.0]), ints(&[1])),
        &[2],
        &[3.0, 7.0],
    ),
    (
        "mean",
        |e| e.mean(handle(&[2, 2], [1.0, 2.0, 3.0, 4.0]), ints(&[0, 1])),
        &[],
        &[2.5],
    ),
    (
        "reshape",
        |e| e.reshape(handle(&[2], [1.0, 2.0]), ints(&[2, 1])),
        &[2, 1],
        &[1.0, 2.0],
    ),
    (
        "transpose",
        |e| e.transpose(handle(&[1, 2], [1.0, 2.0]), ints(&[1, 0])),
        &[2, 1],
        &[1.0, 2.0],
    ),
    (
        "gather",
        |e| e.gather(handle(&[3], [1.0, 2.0, 3.0]), ints(&[2, 0]), scalar(0)),
        &[2],
        &[3.0, 1.0],
    ),
    (
        "argmax, cast",
        |e| {
            e.cast(
                e.argmax(handle(&[1, 3], [1.0, 9.0, 3.0]), scalar(1))?,
                DType::Float,
            )
        },
        &[1],
        &[1.0],
    ),
    (
        "softmax",
        |e| e.softmax(handle(&[1, 2], [0.0, 0.0])),
        &[1, 2],
        &[0.5, 0.5],
    ),
    (
        "where both are",
        |e| e.maximum(handle(&[2], [1.0, 5.0]), handle(&[], [3.0])),
        &[2],
        &[3.0, 5.0],
    ),
    (
        "Identity has no kernel",
        |e| first(e, "Identity", vec![handle(&[1], [7.0])], Attrs::default()),
        &[1],
        &[7.0],
    ),
    (
        "types and counts are inferred",
        |e| {
            first(
                e,
                "AddN",
                vec![
                    handle(&[1], [1.0]),
                    handle(&[1], [2.0]),
                    handle(&[1], [4.0]),
                ],
                Attrs::default(),
            )
        },
        &[1],
        &[7.0],
    ),
    (
        "a list that comes before a single input",
        |e| {
            first(
                e,
                "ConcatV2",
                vec![handle(&[1], [1.0]), handle(&[2], [2.0, 3.0]), scalar(0)],
                Attrs::default(),
            )
        },
        &[3],
        &[1.0, 2.0, 3.0],
    ),
    (
        "attrs",
        |e| {
            let attrs = Attrs::default().with("transpose_b", AttrValue::Bool(true));
            first(
                e,
                "MatMul",
                vec![handle(&[1, 2], [3.0, 4.0]), handle(&[1, 2], [5.0, 6.0])],
                attrs,
            )
        },
        &[1, 1],
        &[39.0],
    ),
];

fn first(e: &Eager, op: &str, inputs: Vec<TensorHandle>, attrs: Attrs) -> Result<TensorHandle> {
    Ok(e.execute(op, inputs, &attrs)?.remove(0))
}

#[test]
fn programs_give_what_they_should() {
    for threads in [1, 3] {
        let eager = Eager::new(threads);
        for _ in 0..2 {
            for (name, program, dims, values) in PROGRAMS {
                let got = program(&eager).and_then(|h| h.get());
                let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(got.shape().dims(), *dims, "{name}");
                assert_eq!(got.slice::<f32>().unwrap(), *values, "{name}");
            }
        }
    }
}

/// What does not fit is told at once: code, and a part of the message.
const ERRORS: &[(&str, Program, Code, &str)] = &[
    (
        "no such op",
        |e| first(e, "Nonsense", vec![], Attrs::default()),
        Code::NotFound,
        "Nonsense",
    ),
    (
        "types",
        |e| e.add(handle(&[1], [1.0]), ints(&[1])),
        Code::InvalidArgument,
        "input #1(zero-based) was expected to be a float tensor",
    ),
    (
        "too few inputs",
        |e| first(e, "MatMul", vec![handle(&[1, 1], [1.0])], Attrs::default()),
        Code::InvalidArgument,
        "expects 2 inputs",
    ),
    (
        "shapes",
        |e| e.matmul(handle(&[1, 2], [1.0, 2.0]), handle(&[1, 2], [1.0, 2.0])),
        Code::InvalidArgument,
        "",
    ),
    (
        "no such attr",
        |e| {
            first(
                e,
                "Relu",
                vec![handle(&[1], [1.0])],
                Attrs::default().with("x", AttrValue::Int(1)),
            )
        },
        Code::InvalidArgument,
        "no attr 'x'",
    ),
    (
        "a type that nothing says",
        |e| first(e, "Cast", vec![handle(&[1], [1.0])], Attrs::default()),
        Code::NotFound,
        "DstT",
    ),
    (
        "a type without kernel",
        |e| e.relu(TensorHandle::from(Tensor::string("x"))),
        Code::InvalidArgument,
        "",
    ),
    (
        "what engines do",
        |e| {
            first(
                e,
                "NextIteration",
                vec![handle(&[1], [1.0])],
                Attrs::default(),
            )
        },
        Code::Unimplemented,
        "outside a graph",
    ),
];

#[test]
fn what_does_not_fit_is_an_error_at_once() {
    let eager = Eager::new(2);
    for (name, program, code, part) in ERRORS {
        let error = program(&eager).map(|_| ()).expect_err(name);
        assert_eq!(error.code(), *code, "{name}: {error}");
        assert!(error.to_string().contains(part), "{name}: {error}");
    }
}

fn large(value: f32) -> TensorHandle {
    Tensor::from_slice([256, 256], &[value; 256 * 256])
        .unwrap()
        .into()
}

/// Large ops run in the pool; waiting threads help.
#[test]
fn chains_of_large_ops_come_later() {
    for threads in [1, 2, 4] {
        let eager = Eager::new(threads);
        let mut x = large(1.0);
        for i in 0..50 {
            x = match i % 2 {
                0 => eager.matmul(&x, large(1.0 / 256.0)).unwrap(),
                _ => eager.add(&x, large(1.0)).unwrap(),
            };
            assert_eq!(x.dtype(), DType::Float);
            assert_eq!(x.shape().to_full(), Some(Shape::from([256, 256])));
        }
        let sum = eager.mean(&x, ints(&[0, 1])).unwrap();
        assert_eq!(sum.get().unwrap().to_scalar::<f32>().unwrap(), 26.0);
    }
}

/// An error that only running finds goes to everything that reads its result, and nowhere else.
#[test]
fn late_errors_follow_the_values() {
    let eager = Eager::new(2);
    let bad = eager
        .reshape(large(1.0), ints(&[3, -1]))
        .map(|h| (h.clone(), eager.relu(h)));
    // Known sizes are checked at once, with the same error.
    let error = match bad {
        Err(e) => e,
        Ok((_, after)) => after.and_then(|h| h.get()).unwrap_err(),
    };
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let checked = Attrs::default().with("message", AttrValue::str("bad numbers"));
    let infinite = eager.div(large(1.0), handle(&[], [0.0])).unwrap();
    let checked = eager
        .execute("CheckNumerics", [&infinite], &checked)
        .unwrap();
    let after = eager.add(&checked[0], large(1.0)).unwrap();
    let error = after.get().unwrap_err();
    assert!(error.to_string().contains("bad numbers"), "{error}");
    assert!(infinite.get().is_ok());
}

/// Assignments and reads happen in the order of the calls, whatever their sizes.
#[test]
fn effects_keep_their_order() {
    for threads in [1, 3] {
        let eager = Eager::new(threads);
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(DType::Float))
            .with("shape", AttrValue::Shape(Default::default()))
            .with("shared_name", AttrValue::str("v"));
        let none: [TensorHandle; 0] = [];
        let v = eager
            .execute("VarHandleOp", none, &attrs)
            .unwrap()
            .remove(0);
        let read = Attrs::default().with("dtype", AttrValue::Type(DType::Float));
        let mut seen = Vec::new();
        for i in 0..20 {
            let value = match i % 2 {
                0 => large(i as f32),
                _ => handle(&[1], [i as f32]),
            };
            eager
                .execute("AssignVariableOp", [&v, &value], &Attrs::default())
                .unwrap();
            seen.push(
                eager
                    .execute("ReadVariableOp", [&v], &read)
                    .unwrap()
                    .remove(0),
            );
        }
        eager.wait();
        for (i, value) in seen.iter().enumerate() {
            assert_eq!(value.get().unwrap().slice::<f32>().unwrap()[0], i as f32);
        }
    }
}
