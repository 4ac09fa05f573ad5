//! Training graphs that TensorFlow made: every loss of 200 steps is TensorFlow's
//! (`oracle/training_losses.py` writes `tests/training`). `GPU=1` trains on NVIDIA's GPU, where one is.

use ferroflow_model::GraphFile;
use ferroflow_runtime::{
    DeviceSet, Graph, Session, SessionOptions, Signature, StreamDevices, Tensor, import_graph,
    registry, set_tf32,
};
use serde_json::Value as Json;
use std::path::Path;

const TASK: &str = "/job:test/replica:0/task:0";

/// A GPU and a CPU, if there is a GPU.
fn with_gpu() -> Option<SessionOptions> {
    set_tf32(false);
    let gpu = match StreamDevices::gpus(TASK, 1, &Default::default()) {
        Ok(gpu) => gpu,
        Err(e) => {
            println!("skipped: {e}");
            return None;
        }
    };
    let mut names: Vec<String> = gpu.names().map(str::to_string).collect();
    names.push(format!("{TASK}/device:CPU:0"));
    Some(SessionOptions {
        devices: DeviceSet {
            names,
            soft: true,
            kernels: gpu.kernels(),
            ..Default::default()
        },
        stream_devices: gpu,
        ..Default::default()
    })
}

/// The graph of a run, and its losses.
fn stored(name: &str) -> (Graph, Vec<f64>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training");
    let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).expect("a stored run");
    let json: Json = serde_json::from_str(&text).expect("valid JSON");
    let digits = json["hex"].as_str().expect("a graph");
    let bytes = (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().expect("hexadecimal digits");
    let file = GraphFile::from_bytes(bytes).expect("a GraphDef");
    let graph = import_graph(&file.graph, None, registry()).expect("imports");
    let losses = json["losses"].as_array().expect("losses");
    assert_eq!(losses.len(), 200);
    let losses = losses.iter().map(|l| l.as_f64().expect("a number"));
    (graph, losses.collect())
}

fn check(name: &str) {
    let options = match std::env::var_os("GPU") {
        Some(_) => with_gpu(),
        None => Some(SessionOptions::default()),
    };
    let Some(options) = options else { return };
    let (graph, losses) = stored(name);
    let session = Session::new(graph, options);
    session.run(&[], &[], &["init"]).expect("initial values");
    let mut worst = 0f64;
    for (i, want) in losses.into_iter().enumerate() {
        let step = [("step:0", Tensor::scalar(i as i32))];
        let got = session.run(&step, &["loss:0"], &["train"]).expect("trains");
        let got = f64::from(got[0].to_scalar::<f32>().expect("a scalar"));
        let off = (got - want).abs() / want;
        worst = worst.max(off);
        assert!(off <= 1e-3, "step {i}: {got}, TensorFlow's {want}");
    }
    println!("{name}: the worst is off by {worst:.1e}");
}

/// What TensorFlow computes with the host, too: shapes, and the data that these graphs make themselves.
fn is_of_host(op: &str) -> bool {
    matches!(op, "NoOp" | "Const" | "_Arg" | "_Retval")
}

#[test]
fn steps_of_training_are_on_the_gpu() {
    let Some(options) = with_gpu() else { return };
    let small = [
        "small_mlp",
        "small_cnn",
        "small_norm",
        "small_attention",
        "small_lstm",
    ];
    for name in small {
        let session = Session::new(stored(name).0, options.clone());
        let signature = Signature {
            feeds: vec!["step:0".into()],
            fetches: vec!["loss:0".into()],
            targets: vec!["train".into()],
        };
        let placed = session.explain_placement(Some(&signature)).expect("places");
        let with_host = placed
            .iter()
            .filter(|n| n.device.contains("CPU") && !is_of_host(&n.op));
        let with_host: Vec<String> = with_host.map(ToString::to_string).collect();
        assert!(with_host.is_empty(), "{name}: {}", with_host.join("\n"));
    }
}

#[test]
fn small_perceptron() {
    check("small_mlp");
}

#[test]
fn small_convolutional() {
    check("small_cnn");
}

#[test]
fn small_normalized() {
    check("small_norm");
}

#[test]
fn small_attention() {
    check("small_attention");
}

#[test]
fn small_lstm() {
    check("small_lstm");
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
