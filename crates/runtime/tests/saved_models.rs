//! SavedModels that TensorFlow wrote give TensorFlow's answers.

use ferroflow_testkit::random::Rng;
use ferroflow_testkit::tensors as json;

use ferroflow_runtime::{Code, CompileOptions, DType, Result, SavedModel, SessionOptions, Tensor};
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
        ..Default::default()
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
    let text = std::fs::read_to_string(folder(name).join("expected.json")).expect("it exists");
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

fn opened(name: &str) -> SavedModel {
    SavedModel::open(&folder(name), &["serve"], options(true)).expect("opens")
}

#[test]
fn signatures_say_what_they_take() {
    let model = opened("vocabulary");
    let names: Vec<&str> = model.signatures().keys().map(String::as_str).collect();
    assert_eq!(names, ["serving_default"]);
    let signature = model.signature("serving_default").expect("there");
    let words = signature.input("words").expect("there");
    assert_eq!(
        (words.dtype, words.shape.to_string().as_str()),
        (DType::String, "[?]")
    );
    let keys: Vec<&str> = signature.outputs.iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["ids", "size", "vectors", "words"]);
    assert_eq!(signature.output("ids").expect("there").dtype, DType::Int64);
    assert_eq!(signature.method_name, "tensorflow/serving/predict");
}

/// Signatures that need an unknown op fail; all others run.
#[test]
fn unsupported_ops_matter_to_who_needs_them() {
    let model = opened("stateful");
    let decode = model.run("decode", &[("audio", Tensor::string("RIFF"))]);
    let e = decode.expect_err("no TPUCompilationResult");
    assert_eq!(e.code(), Code::NotFound);
    assert!(
        e.message()
            .contains("Op type not registered 'TPUCompilationResult'"),
        "{e}"
    );
    assert!(
        model
            .left_out()
            .values()
            .any(|op| op == "TPUCompilationResult")
    );
    let x = Tensor::vector(&[1.0f32, 1.0]).expect("small");
    assert!(model.run("add", &[("x", x)]).is_ok());
}

#[test]
fn wrong_requests_are_errors() {
    let model = opened("simple_save_resource");
    let x = || Tensor::zeros(DType::Float, [1, 3].into()).expect("small");
    let code = |signature: &str, feeds: &[(&str, Tensor)]| {
        let e = model.run(signature, feeds).expect_err("must fail");
        e.code()
    };
    assert_eq!(code("nope", &[("x", x())]), Code::NotFound);
    assert_eq!(code("serving_default", &[]), Code::InvalidArgument);
    assert_eq!(
        code("serving_default", &[("y", x())]),
        Code::InvalidArgument
    );
    let ints = Tensor::vector(&[1i32]).expect("small");
    assert_eq!(
        code("serving_default", &[("x", ints)]),
        Code::InvalidArgument
    );
    assert!(model.run("serving_default", &[("x", x())]).is_ok());
    let open = |name: &str, tags: &[&str]| {
        let opened = SavedModel::open(&folder(name), tags, options(true));
        opened.err().expect("must fail")
    };
    let e = open("simple_save_resource", &["serve", "gpu"]);
    assert_eq!(e.code(), Code::NotFound);
    assert!(
        e.message()
            .contains("matching supplied tags: { gpu serve }"),
        "{e}"
    );
    assert_eq!(open("nope", &["serve"]).code(), Code::NotFound);
}

/// A copy of a model in a folder of its own that is removed afterwards.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str, what: &str) -> Copy {
        let to = format!("ferroflow-model-{}-{what}", std::process::id());
        let to = std::env::temp_dir().join(to);
        copy_folder(&folder(name), &to);
        Copy(to)
    }

    fn open(&self) -> Result<SavedModel> {
        SavedModel::open(&self.0, &["serve"], options(true))
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        let to = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy_folder(&path, &to),
            false => _ = std::fs::copy(&path, &to).expect("copied"),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn missing_and_damaged_files_are_named() {
    let model = Copy::new("vocabulary", "assets");
    let asset = model.0.join("assets/vocabulary.txt");
    std::fs::remove_file(&asset).expect("was there");
    let e = model.open().err().expect("no asset");
    assert_eq!(e.code(), Code::NotFound);
    assert!(
        e.to_string().contains("vocabulary.txt") && e.to_string().contains("init op"),
        "{e}"
    );

    let model = Copy::new("simple_save_ref", "data");
    let data = model.0.join("variables/variables.data-00000-of-00001");
    let mut bytes = std::fs::read(&data).expect("readable");
    bytes[5] ^= 1;
    std::fs::remove_file(&data).expect("was there");
    std::fs::write(&data, bytes).expect("writable");
    let e = model.open().err().expect("damaged");
    assert_eq!(e.code(), Code::DataLoss, "{e}");
    assert!(e.to_string().contains("Checksum does not match"), "{e}");
    std::fs::remove_file(&data).expect("was there");
    assert_eq!(model.open().err().expect("no data").code(), Code::NotFound);

    // Without variables the model opens, as in TensorFlow; using one is an error.
    let model = Copy::new("simple_save_ref", "none");
    std::fs::remove_dir_all(model.0.join("variables")).expect("was there");
    let opened = model.open().expect("opens");
    let x = Tensor::zeros(DType::Float, [1, 3].into()).expect("small");
    let e = opened
        .run("serving_default", &[("x", x)])
        .expect_err("no variables");
    assert_eq!(e.code(), Code::FailedPrecondition, "{e}");
    assert!(
        e.message()
            .starts_with("Attempting to use uninitialized value "),
        "{e}"
    );
}

/// Whatever a damaged `saved_model.pb` says, opening it ends with a model or an error.
#[test]
fn damaged_models_do_not_panic() {
    let model = Copy::new("simple_save_resource", "mangled");
    let path = model.0.join("saved_model.pb");
    let whole = std::fs::read(&path).expect("readable");
    let mut random = Rng(99);
    for i in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        if i % 5 == 0 {
            bytes.truncate(whole.len() * i / 300);
        }
        std::fs::remove_file(&path).expect("was there");
        std::fs::write(&path, bytes).expect("writable");
        if let Ok(opened) = model.open() {
            let x = Tensor::zeros(DType::Float, [1, 3].into()).expect("small");
            let _ = opened.run("serving_default", &[("x", x)]);
        }
    }
}

/// Many threads change and read one variable; nothing is lost.
#[test]
fn threads_share_variables() {
    let model = opened("stateful");
    let one = Tensor::vector(&[1.0f32, 0.0]).expect("small");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    model.run("add", &[("x", one.clone())]).expect("runs");
                }
            });
        }
    });
    let last = model.run("add", &[("x", one)]).expect("runs");
    assert_eq!(last[0].1.slice::<f32>().expect("floats"), [402.0, 2.0]);
}
