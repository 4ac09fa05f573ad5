//! Execution on 8-bit codes: the networks of `tests/graphs/int8.jsonl`, whose tensors are rounded to steps,
//! against TensorFlow's answers, and a network of floats that is calibrated.

use ferroflow_runtime::{
    Calibration, CompileOptions, CompileRequest, CompiledModel, Int8, Session, SessionOptions,
    Shape, Signature, Tensor,
};
use ferroflow_testkit::random::noise;
use ferroflow_testkit::{cases, tensors};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Cases with the step of their results and the nodes of codes that they must become.
const CASES: &[(&str, f32, &str)] = &[
    (
        "convolutions/none",
        16.0 / 255.0,
        "_Int8Conv2D:2 _Int8Dequantize:1 _Int8Quantize:1",
    ),
    (
        "residuals_of_channels/none",
        24.0 / 255.0,
        "_Int8Combine:1 _Int8Conv2D:2 _Int8DepthwiseConv2d:1 _Int8Dequantize:1 _Int8Quantize:1",
    ),
    ("products/none", 0.1, "_Int8Dense:2 _Int8Quantize:1"),
    (
        "pools_joined_and_reshaped/none",
        16.0 / 255.0,
        "ConcatV2:1 MaxPool:1 PadV2:1 Reshape:1 _Int8Combine:2 _Int8Conv2D:1 _Int8Dense:1 \
         _Int8Dequantize:1 _Int8Quantize:1",
    ),
    (
        "symmetric_steps/none",
        6.0 / 127.0,
        "_Int8Conv2D:2 _Int8Dequantize:1 _Int8Quantize:1",
    ),
];

fn options() -> SessionOptions {
    SessionOptions {
        threads: 2,
        ..Default::default()
    }
}

/// A signature with these feeds, its results and what it returned.
struct Step {
    signature: Signature,
    args: Vec<Tensor>,
    expected: Tensor,
}

fn step(case: &Json) -> Step {
    let step = &case["steps"][0];
    let feeds = step["feeds"].as_object().expect("feeds");
    Step {
        signature: Signature {
            feeds: feeds.keys().cloned().collect(),
            fetches: vec![step["fetches"][0].as_str().expect("a name").to_string()],
            targets: vec![],
        },
        args: feeds
            .values()
            .map(|v| tensors::tensor(v).expect("a tensor"))
            .collect(),
        expected: tensors::tensor(&step["outputs"][0]).expect("a tensor"),
    }
}

/// Returns how often the nodes of an op are in a model, without those of constants and arguments.
fn ops(model: &CompiledModel) -> String {
    let ops: &BTreeMap<String, usize> = &model.summary().ops;
    let ops = ops
        .iter()
        .filter(|(op, _)| !["_Arg", "Const"].contains(&&***op));
    let ops = ops.map(|(op, n)| format!("{op}:{n}"));
    ops.collect::<Vec<_>>().join(" ")
}

/// The part of the results that are as expected; the others are at most two steps away.
fn equal_part(got: &Tensor, expected: &Tensor, step: f32, what: &str) -> f32 {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (got, expected) = (
        got.slice::<f32>().unwrap(),
        expected.slice::<f32>().unwrap(),
    );
    let gaps = got.iter().zip(expected).map(|(a, b)| (a - b).abs() / step);
    let far = gaps.clone().fold(0.0, f32::max);
    assert!(far < 2.01, "{what}: {far} steps away");
    gaps.filter(|gap| *gap < 0.3).count() as f32 / got.len() as f32
}

#[test]
fn rounded_networks_run_on_codes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs/int8.jsonl");
    let text = std::fs::read_to_string(folder).expect("the cases exist");
    let mut n_run = 0;
    for line in text.lines().filter(|l| l.starts_with("{\"name\"")) {
        let case: Json = serde_json::from_str(line).expect("valid JSON");
        let name = case["name"].as_str().expect("a name");
        let (_, size, expected_ops) = CASES
            .iter()
            .find(|(n, ..)| *n == name)
            .unwrap_or_else(|| panic!("{name} is not in the table"));
        let graph = cases::graph(&case).expect("a graph");
        let step = step(&case);
        let session = Session::from_bytes(graph.clone(), options()).expect("valid");
        let request = CompileRequest {
            signature: step.signature.clone(),
            int8: Some(Calibration::default()),
            ..Default::default()
        };
        let file = session.compile_to_bytes(&request).expect("compiles");
        let model = CompiledModel::from_bytes(&file, options()).expect("opens");
        assert_eq!(ops(&model), *expected_ops, "{name}");
        let feeds = step.signature.feeds.iter().map(String::as_str);
        let feeds: Vec<_> = feeds.zip(step.args.iter().cloned()).collect();
        let got = model.run(&feeds).expect("runs");
        let equal = equal_part(&got[0].1, &step.expected, *size, name);
        assert!(equal > 0.85, "{name}: {equal} equal");
        // A session computes the same.
        let compile = CompileOptions {
            int8: Int8::On(Arc::default()),
            ..CompileOptions::all()
        };
        let options = SessionOptions {
            compile,
            ..options()
        };
        let session = Session::from_bytes(graph, options).expect("valid");
        let fetches = [step.signature.fetches[0].as_str()];
        let same = session.run(&feeds, &fetches, &[]).expect("runs");
        assert_eq!(
            same[0].slice::<f32>().unwrap(),
            got[0].1.slice::<f32>().unwrap(),
            "{name}"
        );
        n_run += 1;
    }
    assert_eq!(n_run, CASES.len());
}

fn constant(name: &str, dims: &[usize], seed: u32) -> String {
    let n: usize = dims.iter().product();
    let size = (2.0 / (n / dims[dims.len() - 1]) as f32).sqrt();
    let values = noise(n, seed).into_iter().map(|v| v * size);
    let values: String = values.map(|v| format!(" float_val: {v}")).collect();
    let dims: String = dims
        .iter()
        .map(|d| format!(" dim {{ size: {d} }}"))
        .collect();
    format!(
        "node {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} \
         attr {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{{dims} }}{values} }} \
         }} }} }}\n"
    )
}

fn node(name: &str, op: &str, inputs: &[&str], attrs: &str) -> String {
    let inputs: String = inputs.iter().map(|i| format!(" input: '{i}'")).collect();
    format!(
        "node {{ name: '{name}' op: '{op}'{inputs} attr {{ key: 'T' value {{ type: DT_FLOAT }} }} \
         {attrs} }}\n"
    )
}

const WINDOW: &str = "attr { key: 'strides' value { list { i: 1 i: 1 i: 1 i: 1 } } } \
    attr { key: 'padding' value { s: 'SAME' } }";

/// A convolution, an inverted residual block, and a product.
fn network() -> String {
    let placeholder = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } \
        attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 6 } dim { size: 6 } \
        dim { size: 3 } } } } }\n";
    let dims = "node { name: 'dims' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: \
        'value' value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: -1 int_val: \
        576 } } } }\n";
    [
        placeholder.to_string(),
        dims.to_string(),
        constant("w0", &[3, 3, 3, 16], 1),
        constant("b0", &[16], 2),
        constant("w1", &[1, 1, 16, 48], 3),
        constant("w2", &[3, 3, 48, 1], 4),
        constant("w3", &[1, 1, 48, 16], 5),
        constant("b3", &[16], 6),
        constant("w4", &[576, 10], 7),
        node("c0", "Conv2D", &["x", "w0"], WINDOW),
        node("a0", "BiasAdd", &["c0", "b0"], ""),
        node("r0", "Relu", &["a0"], ""),
        node("c1", "Conv2D", &["r0", "w1"], WINDOW),
        node("r1", "Relu6", &["c1"], ""),
        node("c2", "DepthwiseConv2dNative", &["r1", "w2"], WINDOW),
        node("r2", "Relu6", &["c2"], ""),
        node("c3", "Conv2D", &["r2", "w3"], WINDOW),
        node("a3", "BiasAdd", &["c3", "b3"], ""),
        node("sum", "AddV2", &["a3", "r0"], ""),
        node("flat", "Reshape", &["sum", "dims"], ""),
        node("y", "MatMul", &["flat", "w4"], ""),
    ]
    .concat()
}

#[test]
fn floats_are_calibrated() {
    let session = Session::from_text(&network(), options()).expect("valid");
    let input = |n: usize, seed| {
        Tensor::from_slice(Shape::from([n, 6, 6, 3]), &noise(n * 108, seed)).expect("fits")
    };
    let signature = Signature {
        feeds: vec!["x:0".into()],
        fetches: vec!["y:0".into()],
        targets: vec![],
    };
    let compiled = |feeds: Vec<Vec<Tensor>>| {
        let request = CompileRequest {
            signature: signature.clone(),
            int8: Some(Calibration {
                feeds,
                ..Default::default()
            }),
            ..Default::default()
        };
        let file = session.compile_to_bytes(&request).expect("compiles");
        CompiledModel::from_bytes(&file, options()).expect("opens")
    };
    let model = compiled(vec![vec![input(30, 11)], vec![input(1, 12)]]);
    let expected = "Reshape:1 _Int8Conv2D:3 _Int8Dense:1 _Int8DepthwiseConv2d:1 _Int8Quantize:1";
    assert_eq!(ops(&model), expected);
    let x = input(50, 99);
    let exact = session
        .run(&[("x:0", x.clone())], &["y:0"], &[])
        .expect("runs");
    let exact = exact[0].slice::<f32>().unwrap();
    let peak = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
    let got = model.run(&[("x:0", x)]).expect("runs");
    let got = got[0].1.slice::<f32>().unwrap();
    let gap = exact
        .iter()
        .zip(got)
        .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(gap < 0.04 * peak && gap > 1e-5 * peak, "{gap} of {peak}");
    // Without feeds no range is known, and nothing changes.
    let ops = ops(&compiled(Vec::new()));
    assert!(!ops.contains("_Int8"), "{ops}");
}

/// A convolution that expands few channels with signs reads them in finer steps than 256, as do those of sums of them.
#[test]
fn linear_bottlenecks_have_two_codes() {
    let placeholder = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } \
        attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 6 } dim { size: 6 } \
        dim { size: 8 } } } } }\n";
    // Weights on steps lose nothing.
    let values: Vec<f32> = noise(8 * 48, 1)
        .iter()
        .map(|x| (x * 127.0).round())
        .collect();
    let values: String = values.iter().map(|v| format!(" float_val: {v}")).collect();
    let steps = format!(
        "node {{ name: 'w0' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} attr {{ key: 'value' \
         value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ dim {{ size: 1 }} dim {{ size: 1 }} dim {{ size: 8 }} \
         dim {{ size: 48 }} }}{values} }} }} }} }}\n"
    );
    let graph = [
        placeholder.to_string(),
        steps,
        constant("w1", &[1, 1, 48, 8], 2),
        constant("w2", &[1, 1, 8, 48], 3),
        node("wide", "Conv2D", &["x", "w0"], WINDOW),
        node("act", "Relu6", &["wide"], ""),
        node("narrow", "Conv2D", &["act", "w1"], WINDOW),
        node("sum", "AddV2", &["narrow", "x"], ""),
        node("y", "Conv2D", &["sum", "w2"], WINDOW),
    ]
    .concat();
    let session = Session::from_text(&graph, options()).expect("valid");
    let x = Tensor::from_slice(Shape::from([20, 6, 6, 8]), &noise(20 * 288, 31)).expect("fits");
    for (fetch, expected) in [
        ("wide:0", "_Int8Conv2D:1 _Int8Quantize:1"),
        ("y:0", "_Int8Conv2D:3 _Int8Quantize:2"),
    ] {
        let request = CompileRequest {
            signature: Signature {
                feeds: vec!["x:0".into()],
                fetches: vec![fetch.into()],
                targets: vec![],
            },
            int8: Some(Calibration {
                feeds: vec![vec![x.clone()]],
                two_codes: true,
            }),
            ..Default::default()
        };
        let file = session.compile_to_bytes(&request).expect("compiles");
        let model = CompiledModel::from_bytes(&file, options()).expect("opens");
        assert_eq!(ops(&model), expected, "{fetch}");
        if fetch == "wide:0" {
            let exact = session.run(&[("x:0", x.clone())], &[fetch], &[]);
            let exact = exact.expect("runs");
            let exact = exact[0].slice::<f32>().unwrap();
            let got = model.run(&[("x:0", x.clone())]).expect("runs");
            let got = got[0].1.slice::<f32>().unwrap();
            let squares = exact.iter().zip(got).map(|(a, b)| (a - b).powi(2));
            let gap = (squares.sum::<f32>() / exact.len() as f32).sqrt();
            // What 256 steps would lose in eight products with weights of 73 in the mean.
            let lost = 2.0 / 255.0 / 12f32.sqrt() * 8f32.sqrt() * 73.0;
            assert!(gap < 0.3 * lost, "{gap} of {lost}");
        }
    }
}

/// What products lose in the mean, with all that is before them on codes, is in their biases.
#[test]
fn means_survive_the_rounding_of_tensors() {
    let session = Session::from_text(&network(), options()).expect("valid");
    // More rows than are corrected together.
    let x = Tensor::from_slice(Shape::from([40, 6, 6, 3]), &noise(40 * 108, 21)).expect("fits");
    let request = CompileRequest {
        signature: Signature {
            feeds: vec!["x:0".into()],
            fetches: vec!["y:0".into()],
            targets: vec![],
        },
        int8: Some(Calibration {
            feeds: vec![vec![x.clone()]],
            ..Default::default()
        }),
        ..Default::default()
    };
    let file = session.compile_to_bytes(&request).expect("compiles");
    let model = CompiledModel::from_bytes(&file, options()).expect("opens");
    let exact = session.run(&[("x:0", x.clone())], &["y:0"], &[]);
    let exact = exact.expect("runs");
    let got = model.run(&[("x:0", x)]).expect("runs");
    let (exact, got) = (exact[0].slice::<f32>(), got[0].1.slice::<f32>());
    let (mut means, mut size) = ([0f32; 10], 0f32);
    for (i, (a, b)) in exact.unwrap().iter().zip(got.unwrap()).enumerate() {
        means[i % 10] += (a - b) / 40.0;
        size += (a - b).abs() / 400.0;
    }
    let mean = means.iter().fold(0f32, |m, x| m.max(x.abs()));
    println!("{mean} of {size}");
    assert!(mean < 0.15 * size, "{mean} of {size}");
}

/// The rounding of weights moves no mean: what it takes from the sums of the calibration's inputs is in the bias.
#[test]
fn means_survive_the_rounding_of_weights() {
    const VALID: &str = "attr { key: 'strides' value { list { i: [1, 1, 1, 1] } } }
        attr { key: 'padding' value { s: 'VALID' } }";
    let graph = [
        "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }
            attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 4 } dim { size: 4 } dim { size: 32 } } } } }"
            .to_string(),
        constant("w0", &[1, 1, 32, 8], 1),
        constant("w1", &[3, 3, 32, 1], 2),
        node("conv", "Conv2D", &["x", "w0"], VALID),
        node("depthwise", "DepthwiseConv2dNative", &["x", "w1"], VALID),
    ]
    .concat();
    let session = Session::from_text(&graph, options()).expect("valid");
    // Far from zero, so that errors of weights do not cancel.
    let values: Vec<f32> = noise(20 * 512, 3).iter().map(|x| x + 3.0).collect();
    let x = Tensor::from_slice(Shape::from([20, 4, 4, 32]), &values).expect("fits");
    for (name, n) in [("conv:0", 8), ("depthwise:0", 32)] {
        let request = CompileRequest {
            signature: Signature {
                feeds: vec!["x:0".into()],
                fetches: vec![name.into()],
                targets: vec![],
            },
            int8: Some(Calibration {
                feeds: vec![vec![x.clone()]],
                ..Default::default()
            }),
            ..Default::default()
        };
        let file = session.compile_to_bytes(&request).expect("compiles");
        let model = CompiledModel::from_bytes(&file, options()).expect("opens");
        let exact = session.run(&[("x:0", x.clone())], &[name], &[]);
        let exact = exact.expect("runs");
        let exact = exact[0].slice::<f32>().unwrap();
        let got = model.run(&[("x:0", x.clone())]).expect("runs");
        let got = got[0].1.slice::<f32>().unwrap();
        let (mut means, mut most) = (vec![0f32; n], 0f32);
        for (i, (a, b)) in exact.iter().zip(got).enumerate() {
            means[i % n] += (a - b) * n as f32 / exact.len() as f32;
            most = most.max((a - b).abs());
        }
        let mean = means.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(mean < 0.15 * most, "{name}: {mean} of {most}");
    }
}
