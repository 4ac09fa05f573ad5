//! SavedModels that TensorFlow wrote give TensorFlow's answers.

#[path = "../../kernels/tests/json/tensors.rs"]
mod json;

use ferroflow_runtime::{CompileOptions, SavedModel, SessionOptions, Tensor};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saved_models");
    models.join(name)
}

fn options(optimize: bool) -> SessionOptions {
    let compile = match optimize {
        true => CompileOptions::all(),
        false => CompileOptions::none(),
    };
    SessionOptions {
        threads: 2,
        compile,
    }
}

fn tensors(json: &Json) -> Vec<(String, Tensor)> {
    let entries = json.as_object().expect("an object").iter();
    entries
        .map(|(key, t)| (key.clone(), json::tensor(t).expect("a tensor")))
        .collect()
}

/// Runs the steps of a model in order.
fn check(name: &str) {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).expect("it is there");
    let steps: Vec<Json> = serde_json::from_str(&text).expect("JSON");
    for optimize in [true, false] {
        let model = SavedModel::open(&folder(name), &["serve"], options(optimize))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        for step in &steps[1..] {
            let signature = step["signature"].as_str().expect("a name");
            let inputs = tensors(&step["inputs"]);
            let feeds: Vec<(&str, Tensor)> = inputs
                .iter()
                .map(|(k, t)| (k.as_str(), t.clone()))
                .collect();
            let got = model
                .run(signature, &feeds)
                .unwrap_or_else(|e| panic!("{name} {signature}: {e}"));
            let wanted = tensors(&step["outputs"]);
            let tolerance = step["tol"].as_f64().expect("a number");
            assert_eq!(got.len(), wanted.len(), "{name} {signature}");
            for ((key, got), (wanted_key, wanted)) in got.iter().zip(&wanted) {
                assert_eq!(key, wanted_key, "{name} {signature}");
                if let Err(e) = json::compare(wanted, got, tolerance) {
                    panic!("{name} {signature} {key}, optimized: {optimize}: {e}");
                }
            }
        }
    }
}

#[test]
fn models_give_tensorflows_answers() {
    let models = std::fs::read_dir(folder("")).expect("models");
    let mut names: Vec<String> = models
        .map(|e| {
            e.expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        check(&name);
    }
}
