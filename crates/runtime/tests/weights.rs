//! Compiled models whose weights are stored in fewer bits.

use ferroflow_functors::prepack::packing;
use ferroflow_runtime::{
    CompileRequest, CompiledModel, DType, Precision, Result, Session, SessionOptions, Shape,
    Signature, Tensor,
};
use ferroflow_testkit::random::noise;

fn constant(name: &str, dims: &[usize], seed: u32) -> String {
    let values: String = noise(dims.iter().product(), seed)
        .iter()
        .map(|v| format!("float_val: {v} "))
        .collect();
    let dims: String = dims
        .iter()
        .map(|d| format!("dim {{ size: {d} }} "))
        .collect();
    format!(
        "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} \
         attr {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ {dims} }} {values} }} }} }} }}\n"
    )
}

/// A convolution, one with a group for each channel, and two products, one of a transposed matrix.
fn network() -> String {
    let window = "attr { key: 'strides' value { list { i: 1 i: 1 i: 1 i: 1 } } } \
                  attr { key: 'padding' value { s: 'SAME' } }";
    let node = |name: &str, op: &str, inputs: [&str; 2], attrs: &str| {
        let inputs = inputs.map(|i| format!("input: '{i}' ")).concat();
        let ty = "attr { key: 'T' value { type: DT_FLOAT } }";
        format!("node {{ name: '{name}' op: '{op}' {inputs} {ty} {attrs} }}\n")
    };
    let x = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } \
             attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 5 } dim { size: 5 } \
             dim { size: 8 } } } } }\n";
    let axes = "node { name: 'axes' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } \
                attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } \
                int_val: 1 int_val: 2 } } } }\n\
                node { name: 'mean' op: 'Mean' input: 'deep' input: 'axes' \
                attr { key: 'T' value { type: DT_FLOAT } } attr { key: 'Tidx' value { type: DT_INT32 } } }\n";
    let turned = "attr { key: 'transpose_b' value { b: true } }";
    [
        x.to_string(),
        constant("filter", &[3, 3, 8, 32], 1),
        constant("deep_filter", &[7, 7, 1, 32], 2),
        constant("bias", &[32], 3),
        constant("inner", &[32, 64], 4),
        constant("outer", &[20, 64], 5),
        node("conv", "Conv2D", ["x", "filter"], window),
        node("sum", "BiasAdd", ["conv", "bias"], ""),
        node("deep", "Conv2D", ["sum", "deep_filter"], window),
        axes.to_string(),
        node("a", "MatMul", ["mean", "inner"], ""),
        node("y", "MatMul", ["a", "outer"], turned),
    ]
    .concat()
}

fn options() -> SessionOptions {
    SessionOptions {
        threads: 2,
        ..Default::default()
    }
}

#[test]
fn narrow_weights_are_small_and_near() {
    let session = Session::from_text(&network(), options()).unwrap();
    let x = Tensor::from_slice(Shape::from([3, 5, 5, 8]), &noise(600, 9)).unwrap();
    let exact = session.run(&[("x:0", x.clone())], &["y:0"], &[]).unwrap();
    let exact = exact[0].slice::<f32>().unwrap();
    let peak = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
    // Bits of a weight, and how much of the largest result may be lost, and is.
    for (precision, bits, most, least) in [
        (Precision::Full, 32, 1e-6, -1.0),
        (Precision::Half, 16, 2e-3, 1e-7),
        (Precision::Bfloat16, 16, 2e-2, 1e-5),
        (Precision::Int8, 8, 3e-2, 1e-5),
    ] {
        let request = CompileRequest {
            signature: Signature {
                feeds: vec!["x:0".into()],
                fetches: vec!["y:0".into()],
                targets: vec![],
            },
            plain: true,
            weights: precision,
            ..Default::default()
        };
        let file = session.compile_to_bytes(&request).unwrap();
        let weights = 9 * 8 * 32 + 49 * 32 + 32 * 64 + 20 * 64;
        assert!(file.len() > weights * bits / 8, "{precision:?}");
        assert!(
            file.len() < weights * bits / 8 + 12_000,
            "{precision:?}: {}",
            file.len()
        );
        let model = CompiledModel::from_bytes(&file, options()).unwrap();
        for _ in 0..2 {
            let y = model.run(&[("x:0", x.clone())]).unwrap();
            let y = y[0].1.slice::<f32>().unwrap();
            let gaps = y.iter().zip(exact).map(|(a, b)| (a - b).abs() / peak);
            let gap = gaps.fold(0.0, f32::max);
            assert!(gap <= most && gap > least, "{precision:?}: {gap}");
        }
        let stored = &model.summary().bytes_by_dtype;
        let narrow = match precision {
            Precision::Full => "float32",
            Precision::Half => "float16",
            Precision::Bfloat16 => "bfloat16",
            Precision::Int8 => "int8",
        };
        assert!(stored[narrow] >= weights * bits / 8, "{stored:?}");
    }
}

/// Runs the network with products in `precision`, twice: from its graph, and from a file with packed weights.
fn in_precision(precision: DType, x: &Tensor) -> Result<[Vec<f32>; 2]> {
    let mut options = options();
    options.compile.precision = Some(precision);
    let session = Session::from_text(&network(), options.clone())?;
    let y = session.run(&[("x:0", x.clone())], &["y:0"], &[])?;
    let request = CompileRequest {
        signature: Signature {
            feeds: vec!["x:0".into()],
            fetches: vec!["y:0".into()],
            targets: vec![],
        },
        ..Default::default()
    };
    let file = session.compile_to_bytes(&request)?;
    let model = CompiledModel::from_bytes(&file, options)?;
    assert!(model.is_packed());
    let from_file = model.run(&[("x:0", x.clone())])?;
    let floats = |t: &Tensor| t.slice::<f32>().map(<[f32]>::to_vec);
    Ok([floats(&y[0])?, floats(&from_file[0].1)?])
}

#[test]
fn products_in_bfloat16() {
    let x = Tensor::from_slice(Shape::from([3, 5, 5, 8]), &noise(600, 9)).unwrap();
    let session = Session::from_text(&network(), options()).unwrap();
    let exact = session.run(&[("x:0", x.clone())], &["y:0"], &[]).unwrap();
    let exact = exact[0].slice::<f32>().unwrap();
    let peak = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
    let [y, from_file] = in_precision(DType::Bfloat16, &x).unwrap();
    assert_eq!(y, from_file);
    let gap = |y: &[f32]| {
        let gaps = y.iter().zip(exact).map(|(a, b)| (a - b).abs() / peak);
        gaps.fold(0.0, f32::max)
    };
    match packing(true).ends_with("+bf16") {
        true => assert!(gap(&y) < 2e-2 && gap(&y) > 1e-5, "{}", gap(&y)),
        false => assert_eq!(y, exact),
    }
    let error = in_precision(DType::Half, &x).unwrap_err().to_string();
    assert!(
        error.contains("INVALID_ARGUMENT") && error.contains("bfloat16 or float"),
        "{error}"
    );
}
