//! Training graphs that TensorFlow made: every loss of 200 steps is TensorFlow's
//! (`oracle/training_losses.py` writes `tests/training`).

use ferroflow_model::GraphFile;
use ferroflow_runtime::{Session, SessionOptions, Tensor, import_graph, registry};
use serde_json::Value as Json;
use std::path::Path;

fn check(name: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training");
    let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).expect("a stored run");
    let json: Json = serde_json::from_str(&text).expect("valid JSON");
    let digits = json["hex"].as_str().expect("a graph");
    let bytes = (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().expect("hexadecimal digits");
    let file = GraphFile::from_bytes(bytes).expect("a GraphDef");
    let graph = import_graph(&file.graph, None, registry()).expect("imports");
    let session = Session::new(graph, SessionOptions::default());
    session.run(&[], &[], &["init"]).expect("initial values");
    let losses = json["losses"].as_array().expect("losses");
    assert_eq!(losses.len(), 200);
    let mut worst = 0f64;
    for (i, want) in losses.iter().enumerate() {
        let want = want.as_f64().expect("a number");
        let step = [("step:0", Tensor::scalar(i as i32))];
        let got = session.run(&step, &["loss:0"], &["train"]).expect("trains");
        let got = f64::from(got[0].to_scalar::<f32>().expect("a scalar"));
        let off = (got - want).abs() / want;
        worst = worst.max(off);
        assert!(off <= 1e-3, "step {i}: {got}, TensorFlow's {want}");
    }
    println!("{name}: the worst is off by {worst:.1e}");
}

#[test]
fn small_perceptron() {
    check("small_mlp");
}

#[test]
fn small_convolutional() {
    check("small_cnn");
}

/// 784-512-512-10, batches of 128.
#[test]
#[ignore = "a minute without optimisation"]
fn perceptron() {
    check("mlp");
}

/// Two convolutions of 5 x 5 with 32 and 64 filters, batches of 64.
#[test]
#[ignore = "minutes without optimisation"]
fn convolutional() {
    check("cnn");
}
