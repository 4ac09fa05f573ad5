//! Corrupted and hostile requests of both protocols: the server answers or returns an error, and keeps serving.
//!
//! The fuzz targets `fuzz/fuzz_targets/serving_json.rs` and `serving_messages.rs` look for new cases; what they find is
//! kept in `tests/mangled`.

use crate::support;

use ferroflow_model::proto::serving::*;
use ferroflow_model::tensor_to_proto;
use ferroflow_runtime::Tensor;
use ferroflow_serving::{Entry, ModelSource};
use ferroflow_testkit::random::Rng;
use prost::Message;
use std::path::Path;
use support::{World, models, options};

/// `bytes` with some of them changed, cut off or repeated.
fn mangled(bytes: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // What means something to the readers is more often met.
    let marks = b"{}[]\",:-0123456789eE+.\\ntfbNI \xff\x00";
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let piece = bytes.get(at..).unwrap_or_default().to_vec();
                bytes.extend(piece);
            }
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.insert(at, marks[random.below(marks.len())]),
            4 if !bytes.is_empty() => bytes[at] = marks[random.below(marks.len())],
            _ if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            _ => {}
        }
    }
    bytes
}

fn world() -> World {
    World::new(options(vec![
        ModelSource::latest("half", &models().join("half")),
        ModelSource::latest("many", &models().join("many")),
    ]))
}

const VERBS: [&str; 6] = [
    "/v1/models/half:predict",
    "/v1/models/half:classify",
    "/v1/models/half:regress",
    "/v1/models/many:predict",
    "/v1/models/many/versions/7:predict",
    "/v1/models/half/labels/x:predict",
];

/// Sends a body to every method of the REST API. Answers are JSON, and no error is the server's own.
fn post(world: &World, body: &[u8]) {
    for path in VERBS {
        let request = ferroflow_serving::Request {
            method: "POST",
            path,
            body,
        };
        let response = world.runtime.block_on(world.front.rest(request));
        let shown = String::from_utf8_lossy(body);
        assert!(response.status.as_u16() < 500, "{path}: {shown}");
        let is_error = response.status.as_u16() != 200;
        let text = String::from_utf8(response.body).unwrap();
        assert_eq!(is_error, text.contains("\"error\""), "{shown}: {text}");
    }
}

/// Hands a message to every method of the gRPC services that can decode it.
fn call(world: &World, bytes: &[u8]) {
    let front = &world.front;
    world.runtime.block_on(async {
        if let Ok(request) = PredictRequest::decode(bytes) {
            let _ = front.predict(request, Entry::Grpc).await;
        }
        if let Ok(request) = ClassificationRequest::decode(bytes) {
            let _ = front.classify(request, Entry::Grpc).await;
        }
        if let Ok(request) = RegressionRequest::decode(bytes) {
            let _ = front.regress(request, Entry::Grpc).await;
        }
        if let Ok(request) = MultiInferenceRequest::decode(bytes) {
            let _ = front.multi_inference(request, Entry::Grpc).await;
        }
        if let Ok(request) = GetModelMetadataRequest::decode(bytes) {
            let _ = front.metadata(&request);
        }
        if let Ok(request) = GetModelStatusRequest::decode(bytes) {
            let _ = front.status(&request);
        }
    });
}

fn check_alive(world: &World) {
    let (status, body) = world.predict("half");
    assert_eq!((status, body.contains("4.0")), (200, true), "{body}");
}

#[test]
fn damaged_bodies() {
    let bodies = [
        r#"{"instances": [1.0, 2.5e0, -3]}"#,
        r#"{"signature_name": "serving_default", "instances": [{"x": 1.0}, {"x": 2}]}"#,
        r#"{"inputs": {"x": [[1, 2], [3, 4]]}}"#,
        r#"{"inputs": {"b": [true], "i": [1], "s_bytes": [{"b64": "aGFsbG8="}]}}"#,
        r#"{"signature_name": "classify", "examples": [{"x": 1.0}, {"x": NaN}]}"#,
        r#"{"signature_name": "regress", "context": {"c": 1}, "examples": [{"x": [1.0, Infinity], "s": "text é"}]}"#,
    ];
    let world = world();
    let mut random = Rng(3);
    for round in 0..1500 {
        let body = bodies[round % bodies.len()].as_bytes();
        post(&world, &mangled(body, &mut random));
    }
    check_alive(&world);
}

/// Good messages of each method.
fn messages() -> Vec<Vec<u8>> {
    let spec = |signature: &str| {
        Some(ModelSpec {
            name: "half".to_string(),
            signature_name: signature.to_string(),
            ..Default::default()
        })
    };
    let x = tensor_to_proto(&Tensor::vector(&[1.0f32, 2.0]).unwrap()).unwrap();
    let predict = PredictRequest {
        model_spec: spec(""),
        inputs: [("x".to_string(), x)].into(),
        output_filter: vec!["y".to_string()],
    };
    // An Example with the feature x: [1.5].
    let example = b"\x0a\x0e\x0a\x0c\x0a\x01x\x12\x07\x12\x05\x0d\x00\x00\xc0\x3f";
    let mut list = b"\x0a\x12\x0a\x10".to_vec();
    list.extend(example);
    let input = Input::decode(&list[..]).unwrap_or_default();
    let classify = ClassificationRequest {
        model_spec: spec("classify"),
        input: Some(input.clone()),
    };
    let regress = RegressionRequest {
        model_spec: spec("regress"),
        input: Some(input.clone()),
    };
    let several = MultiInferenceRequest {
        tasks: vec![
            InferenceTask {
                model_spec: spec("regress"),
                method_name: "tensorflow/serving/regress".to_string(),
            };
            2
        ],
        input: Some(input),
    };
    vec![
        predict.encode_to_vec(),
        classify.encode_to_vec(),
        regress.encode_to_vec(),
        several.encode_to_vec(),
    ]
}

#[test]
fn damaged_messages() {
    let world = world();
    let messages = messages();
    let mut random = Rng(5);
    for round in 0..3000 {
        call(
            &world,
            &mangled(&messages[round % messages.len()], &mut random),
        );
    }
    check_alive(&world);
}

#[test]
fn corpus() {
    let world = world();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mangled");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus exists") {
        let bytes = std::fs::read(entry.expect("readable").path()).expect("readable");
        post(&world, &bytes);
        call(&world, &bytes);
        n += 1;
    }
    assert!(n > 0);
    check_alive(&world);
}

#[test]
fn hostile_bodies() {
    let world = world();
    let nested = |open: &str, close: &str, n: usize| {
        format!("{{\"instances\": {}{}}}", open.repeat(n), close.repeat(n))
    };
    for body in [
        nested("[", "]", 100_000),
        nested("{\"x\":", "}", 100_000),
        format!(
            "{{\"instances\": [{}1{}]}}",
            "[".repeat(300),
            "]".repeat(300)
        ),
        format!("{{\"instances\": [1{}]}}", "0".repeat(100_000)),
        format!("{{\"instances\": [1e{}]}}", "9".repeat(50)),
        format!("{{\"inputs\": \"{}\"}}", "\\u0000".repeat(10_000)),
        "\u{feff}{\"instances\": [1]}".to_string(),
    ] {
        post(&world, body.as_bytes());
    }
    // Shapes that promise more than there is.
    let mut request = PredictRequest::decode(&messages()[0][..]).unwrap();
    for dims in [vec![i64::MAX; 4], vec![1 << 40], vec![-1], vec![0; 300]] {
        let x = request.inputs.get_mut("x").unwrap();
        x.tensor_shape = Some(ferroflow_model::proto::TensorShapeProto {
            dim: dims
                .iter()
                .map(|&size| ferroflow_model::proto::tensor_shape_proto::Dim {
                    size,
                    name: String::new(),
                })
                .collect(),
            unknown_rank: false,
        });
        let front = &world.front;
        let answer = front.predict(request.clone(), Entry::Grpc);
        let error = world.runtime.block_on(answer).map(|_| ());
        assert!(error.is_err(), "{dims:?}");
    }
    check_alive(&world);
}
