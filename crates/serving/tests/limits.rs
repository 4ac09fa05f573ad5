//! What the server does with requests that are too many, too large, too slow or abandoned.

use crate::support;

use ferroflow_model::proto::serving::*;
use ferroflow_model::tensor_to_proto;
use ferroflow_runtime::{DType, Shape, Tensor};
use ferroflow_serving::{ModelSource, Parameters, Servable, ServerOptions};
use ferroflow_testkit::folder::Folder;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{World, models, options};

/// A model whose steps wait for a value that nothing sends.
const WAITS: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'queue' op: 'FIFOQueueV2'
           attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
    node { name: 'value' op: 'QueueDequeueV2' input: 'queue'
           attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
    node { name: 'y' op: 'AddV2' input: 'x' input: 'value' attr { key: 'T' value { type: DT_FLOAT } } }";

fn half() -> ModelSource {
    ModelSource::latest("half", &models().join("half"))
}

fn waits(folder: &Folder) -> ModelSource {
    let path = folder.0.join("waits.pbtxt");
    std::fs::write(&path, WAITS).unwrap();
    ModelSource::latest("waits", &path)
}

fn request(model: &str, elements: usize) -> PredictRequest {
    let x = Tensor::zeros(DType::Float, Shape::from([elements])).unwrap();
    PredictRequest {
        model_spec: Some(ModelSpec {
            name: model.to_string(),
            ..Default::default()
        }),
        inputs: [("x".to_string(), tensor_to_proto(&x).unwrap())].into(),
        output_filter: Vec::new(),
    }
}

fn predict(
    world: &World,
    request: impl tonic::IntoRequest<PredictRequest>,
) -> Result<PredictResponse, (tonic::Code, String)> {
    let path = "/tensorflow.serving.PredictionService/Predict";
    let answer = world.call(path, request);
    answer.map_err(|e: tonic::Status| (e.code(), e.message().to_string()))
}

/// The head of a request of the model `waits` or `half` with a body of this many bytes.
fn head(model: &str, length: usize) -> String {
    format!(
        "POST /v1/models/{model}:predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

const BODY: &str = "{\"instances\": [2]}";

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn servable(world: &World, model: &str) -> Arc<Servable> {
    let spec = request(model, 0).model_spec;
    world.front.manager.find(spec.as_ref()).unwrap()
}

#[test]
fn abandoned_requests_are_cancelled() {
    let folder = Folder::new("abandoned");
    let world = World::new(options(vec![waits(&folder)]));
    let version = Arc::downgrade(&servable(&world, "waits"));
    // A deadline.
    let mut late = tonic::Request::new(request("waits", 1));
    late.set_timeout(Duration::from_millis(100));
    let error = predict(&world, late).unwrap_err();
    assert_eq!(error.0, tonic::Code::DeadlineExceeded);
    // A client of the REST API that disconnects.
    let mut stream = world.connect();
    stream
        .write_all(head("waits", BODY.len()).as_bytes())
        .unwrap();
    stream.write_all(BODY.as_bytes()).unwrap();
    until("the request arrives", || world.front.calls.under_way() == 1);
    drop(stream);
    until("the request ends", || world.front.calls.under_way() == 0);
    // The version is freed when its last step has ended.
    world.front.manager.set_models(Vec::new()).unwrap();
    until("the steps end", || version.upgrade().is_none());
}

#[test]
fn requests_beyond_the_limit_fail_at_once() {
    let folder = Folder::new("many_requests");
    let mut options = options(vec![waits(&folder), half()]);
    options.front.max_running = Some(1);
    let world = World::new(options);
    assert_eq!(world.predict("half").0, 200);
    // A running request would refuse the next one.
    until("the request ends", || world.front.calls.under_way() == 0);
    let mut stream = world.connect();
    stream
        .write_all(head("waits", BODY.len()).as_bytes())
        .unwrap();
    stream.write_all(BODY.as_bytes()).unwrap();
    until("the request arrives", || world.front.calls.under_way() == 1);
    assert_eq!(world.predict("half").0, 429);
    let expected = "the server runs 1 requests already";
    assert!(world.predict("half").1.contains(expected));
    let error = predict(&world, request("half", 1)).unwrap_err();
    assert_eq!(
        error,
        (tonic::Code::ResourceExhausted, expected.to_string())
    );
    drop(stream);
    until("the request ends", || world.predict("half").0 == 200);
}

#[test]
fn messages_have_a_limit() {
    let world = World::new(options(vec![half()]));
    assert!(predict(&world, request("half", 1000)).is_ok());
    let error = predict(&world, request("half", 1 << 20)).unwrap_err();
    assert_eq!(error.0, tonic::Code::ResourceExhausted, "{}", error.1);
    assert!(error.1.contains("1048576"), "{}", error.1);
    assert!(predict(&world, request("half", 1000)).is_ok());
}

#[test]
fn slow_bodies_end_at_the_time_limit() {
    let mut options = options(vec![half()]);
    options.rest_options.timeout = Duration::from_millis(200);
    let world = World::new(options);
    let mut stream = world.connect();
    stream
        .write_all(head("half", BODY.len()).as_bytes())
        .unwrap();
    stream.write_all(&BODY.as_bytes()[..3]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("Deadline Exceeded"), "{answer}");
    assert_eq!(world.predict("half").0, 200);
}

/// Stops a server while a request runs; returns whether the request succeeded, and how long the server took to end.
fn stop_while(mut options: ServerOptions, model: &str, grace: Duration) -> (bool, Duration) {
    options.grace = grace;
    let mut world = World::new(options);
    let mut stream = world.connect();
    stream
        .write_all(head(model, BODY.len()).as_bytes())
        .unwrap();
    stream.write_all(BODY.as_bytes()).unwrap();
    until("the request arrives", || world.front.calls.under_way() == 1);
    let began = Instant::now();
    world.stop();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    (answer.starts_with("HTTP/1.1 200 "), began.elapsed())
}

#[test]
fn running_requests_end_before_the_server() {
    let folder = Folder::new("drain");
    let mut merged = options(vec![half()]);
    let parameters = Parameters {
        timeout: Duration::from_millis(400),
        adaptive: false,
        ..Parameters::adaptive(1)
    };
    merged.batching = Some((parameters, false));
    let (is_answered, _) = stop_while(merged, "half", Duration::from_secs(600));
    assert!(is_answered);
    let hangs = options(vec![waits(&folder)]);
    let (is_answered, took) = stop_while(hangs, "waits", Duration::from_millis(100));
    assert!(!is_answered && took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn an_unusable_cache_does_not_stop_a_model() {
    let folder = Folder::new("no_cache");
    let file = folder.0.join("file");
    std::fs::write(&file, b"").unwrap();
    let mut options = options(vec![half()]);
    options.manager.load.cache = Some(file.join("cache"));
    options.manager.warmup_steps = 3;
    let world = World::new(options);
    assert_eq!(world.predict("half").0, 200);
}

/// A model, files that are removed or, with a number, cut to that part, and what the status says.
type Damaged<'a> = (&'a str, &'a [(&'a str, Option<usize>)], &'a str);

#[test]
fn damaged_models_are_reported() {
    let folder = Folder::new("damaged");
    let source = models().join("half/1");
    let whole = |name: &str| std::fs::read(source.join(name)).unwrap();
    let data = "variables/variables.data-00000-of-00001";
    let rows: [Damaged; 5] = [
        (
            "no variables",
            &[("variables/variables.index", None)],
            "variables",
        ),
        ("no data", &[(data, None)], "variables.data"),
        ("half of the data", &[(data, Some(2))], "variables.data"),
        (
            "half of the index",
            &[("variables/variables.index", Some(2))],
            "variables.index",
        ),
        (
            "half of the graph",
            &[("saved_model.pb", Some(2))],
            "saved_model.pb",
        ),
    ];
    let mut sources = vec![half()];
    for (name, damages, _) in &rows {
        let version = folder.0.join(name).join("1");
        std::fs::create_dir_all(version.join("variables")).unwrap();
        for file in ["saved_model.pb", "variables/variables.index", data] {
            let bytes = whole(file);
            let damage = damages.iter().find(|(f, _)| *f == file).map(|(_, d)| *d);
            match damage {
                Some(None) => {}
                Some(Some(n)) => {
                    std::fs::write(version.join(file), &bytes[..bytes.len() / n]).unwrap()
                }
                None => std::fs::write(version.join(file), &bytes).unwrap(),
            }
        }
        sources.push(ModelSource::latest(name, &folder.0.join(name)));
    }
    let world = World::new(options(sources));
    for (name, _, expected) in rows {
        let path = name.replace(' ', "%20");
        assert_eq!(world.predict(&path).0, 404, "{name}");
        let (_, status) = world.json("GET", &format!("/v1/models/{path}"), "");
        assert!(
            status.contains("END") && status.contains(expected),
            "{name}: {status}"
        );
    }
    assert_eq!(world.predict("half").0, 200);
}
