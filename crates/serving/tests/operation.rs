//! Batching, limits, logs and metrics.

use crate::support;

use ferroflow_model::proto::health::{HealthCheckRequest, HealthCheckResponse};
use ferroflow_model::proto::serving::*;
use ferroflow_model::{
    RecordCompression, RecordReader, RecordWriter, decode, encode, message_from_text,
};
use ferroflow_runtime::{DType, Shape, Tensor};
use ferroflow_serving::{Batcher, Metrics, ModelSource, Parameters, RequestLogConfig, Step};
use ferroflow_testkit::folder::Folder;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use support::{World, models, options};

fn half() -> ModelSource {
    ModelSource::latest("half", &models().join("half"))
}

fn parameters(text: &str) -> Result<Parameters, String> {
    let proto = message_from_text("tensorflow.serving.BatchingParameters", text).unwrap();
    let proto: BatchingParameters = decode(&proto).unwrap();
    Parameters::from_proto(&proto, 1).map_err(|e| e.message().to_string())
}

#[test]
fn batching_parameters_are_checked() {
    let good = parameters(
        "max_batch_size { value: 8 } batch_timeout_micros { value: 500 } allowed_batch_sizes: 2 \
         allowed_batch_sizes: 8 num_batch_threads { value: 3 } pad_variable_length_inputs: true",
    )
    .unwrap();
    assert_eq!(
        (good.max_batch_size, good.threads, good.allowed_sizes),
        (8, 3, vec![2, 8])
    );
    assert_eq!(
        (good.timeout, good.max_enqueued_batches),
        (Duration::from_micros(500), 10)
    );
    for (text, error) in [
        (
            "allowed_batch_sizes: 4 allowed_batch_sizes: 2",
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
        (
            "max_batch_size { value: 8 } allowed_batch_sizes: 4",
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
        (
            "max_batch_size { value: 0 }",
            "batching parameters must be at least 1; was 0",
        ),
    ] {
        assert_eq!(parameters(text).unwrap_err(), error);
    }
}

/// Merges requests in one batch, which is closed when it is full; compares the results or errors.
fn check_batch(
    parameters: &str,
    requests: &[Tensor],
    signature: &str,
    expected: &[Result<Tensor, &str>],
) {
    let world = World::new(options(vec![
        half(),
        ModelSource::latest("many", &models().join("many")),
    ]));
    let model = if signature.is_empty() { "half" } else { "many" };
    let spec = ModelSpec {
        name: model.to_string(),
        ..Default::default()
    };
    let servable = world.front.manager.find(Some(&spec)).unwrap();
    let metrics = Arc::new(Metrics::default());
    let batcher = Batcher::start(
        self::parameters(parameters).unwrap(),
        false,
        metrics.clone(),
    );
    let submit = |x: &Tensor| {
        let key = servable.program(if signature.is_empty() {
            "serving_default"
        } else {
            signature
        });
        let key = key.unwrap().ports.inputs[0].key.clone();
        let step = Step::predict(servable.clone(), signature, &[&key], |_| Some(x), &[])?;
        batcher.submit(step)
    };
    let waiting: Vec<_> = requests.iter().map(submit).collect();
    for (i, (waiting, expected)) in waiting.into_iter().zip(expected).enumerate() {
        let result = waiting.and_then(|w| w.block());
        match (result, expected) {
            (Ok(result), Ok(expected)) => {
                assert!(result[0].same_value(expected), "{i}: {}", result[0])
            }
            (Err(e), Err(expected)) => assert!(e.message().contains(expected), "{i}: {e}"),
            (result, _) => panic!("{i}: {:?}", result.map(|r| r[0].to_string())),
        }
    }
    let has_run = expected.iter().any(Result::is_ok);
    assert_eq!(
        metrics.text().contains("ferroflow_batches{model_name="),
        has_run
    );
}

const FULL: &str = "max_batch_size { value: 4 } batch_timeout_micros { value: 3600000000 }";

#[test]
fn requests_are_merged() {
    let x = |v: &[f32]| Tensor::vector(v).unwrap();
    check_batch(
        FULL,
        &[x(&[2.0]), x(&[4.0, 6.0]), x(&[8.0])],
        "",
        &[Ok(x(&[4.0])), Ok(x(&[5.0, 6.0])), Ok(x(&[7.0]))],
    );
    let padded = "max_batch_size { value: 8 } allowed_batch_sizes: 4 allowed_batch_sizes: 8";
    check_batch(
        padded,
        &[x(&[2.0, 4.0, 6.0])],
        "",
        &[Ok(x(&[4.0, 5.0, 6.0]))],
    );
    let large = "max_batch_size { value: 2 }";
    check_batch(
        large,
        &[x(&[1.0, 2.0, 3.0])],
        "",
        &[Err("Task size 3 is larger than maximum input batch size 2")],
    );
    let split = "max_batch_size { value: 2 } max_execution_batch_size { value: 2 } enable_large_batch_splitting { value: true }";
    check_batch(
        split,
        &[x(&[2.0, 4.0, 6.0])],
        "",
        &[Ok(x(&[4.0, 5.0, 6.0]))],
    );
}

#[test]
fn bad_requests_fail_alone() {
    let n = |v: i32| Tensor::vector(&[v]).unwrap();
    let expected = [Ok(n(2)), Err("n must be positive"), Ok(n(6)), Ok(n(8))];
    check_batch(FULL, &[n(1), n(-1), n(3), n(4)], "checked", &expected);
}

#[test]
fn a_full_queue_refuses_at_once() {
    let x = Tensor::vector(&[2.0f32]).unwrap();
    // No thread takes the batches, as all wait for the timeout.
    let waits = "max_batch_size { value: 1 } max_enqueued_batches { value: 1 }";
    let world = World::new(options(vec![half()]));
    let spec = ModelSpec {
        name: "half".to_string(),
        ..Default::default()
    };
    let servable = world.front.manager.find(Some(&spec)).unwrap();
    let parameters = Parameters {
        threads: 0,
        ..parameters(waits).unwrap()
    };
    let batcher = Batcher::start(parameters, false, Arc::default());
    let submit = || {
        let step = Step::predict(servable.clone(), "", &["x"], |_| Some(&x), &[]).unwrap();
        batcher.submit(step).map(|_| ())
    };
    submit().unwrap();
    let error = submit().unwrap_err();
    assert_eq!(error.code().name(), "RESOURCE_EXHAUSTED");
    let text = "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and max_enqueued_batches=1";
    assert_eq!(error.message(), text);
}

#[test]
fn a_server_batches() {
    let mut options = options(vec![half()]);
    let text = "max_batch_size { value: 2 } batch_timeout_micros { value: 100 }";
    options.batching = Some((parameters(text).unwrap(), true));
    let world = World::new(options);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                assert_eq!(
                    world.predict("half"),
                    (200, "{\n    \"predictions\": [4.0\n    ]\n}".to_string())
                )
            });
        }
    });
    assert!(
        world
            .front
            .metrics
            .text()
            .contains("ferroflow_batched_requests{model_name=\"half\"} 8")
    );
}

fn body(status: u16, answer: (u16, String, Vec<u8>)) -> String {
    let text = String::from_utf8_lossy(&answer.2).into_owned();
    assert_eq!(answer.0, status, "{}{text}", answer.1);
    text
}

#[test]
fn bodies_have_limits_and_encodings() {
    let mut options = options(vec![half()]);
    options.rest_options.max_body = 2000;
    options.rest_options.cors = true;
    let world = World::new(options);
    let predict = "POST /v1/models/half:predict HTTP/1.1";
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let gzipped = format!("{predict}\r\nContent-Encoding: gzip");
    let good = b"{\"instances\": [2]}";
    assert!(body(200, world.http(&gzipped, &gzip(good))).contains("4.0"));
    assert!(body(400, world.http(&gzipped, good)).contains("not gzip"));
    assert!(
        body(413, world.http(&gzipped, &gzip(&[b' '; 3000]))).contains("larger than 2000 bytes")
    );
    assert!(body(413, world.http(predict, &[b' '; 3000])).contains("larger than 2000 bytes"));
    assert!(
        body(
            400,
            world.http(&format!("{predict}\r\nContent-Encoding: br"), good)
        )
        .contains("br is not supported")
    );
    let many = format!("{{\"instances\": [{}2]}}", "2, ".repeat(400));
    let answer = world.http(
        &format!("{predict}\r\nAccept-Encoding: gzip"),
        many.as_bytes(),
    );
    assert!(
        answer.1.contains("content-encoding: gzip")
            && answer.1.contains("access-control-allow-origin: *"),
        "{}",
        answer.1
    );
    assert_eq!(answer.2[..2], [0x1f, 0x8b]);
    let preflight = world.http(
        "OPTIONS /v1/models/half:predict HTTP/1.1\r\nOrigin: https://a.example",
        b"",
    );
    assert_eq!(preflight.0, 200);
    assert!(
        body(
            400,
            world.http("OPTIONS /v1/models/half:predict HTTP/1.1", b"")
        )
        .contains("Origin header is missing in CORS preflight")
    );
}

#[test]
fn the_server_reports_its_health_and_metrics() {
    let world = World::new(options(vec![
        half(),
        ModelSource::latest("gone", "/nowhere".as_ref()),
    ]));
    let health = |service: &str| {
        let request = HealthCheckRequest {
            service: service.to_string(),
        };
        let answer: Result<HealthCheckResponse, _> =
            world.call("/grpc.health.v1.Health/Check", request);
        answer.map(|r| r.status).map_err(|e| e.code())
    };
    assert_eq!(health(""), Ok(2), "a model is missing");
    world.front.manager.set_models(vec![half()]).unwrap();
    assert_eq!(health(""), Ok(1));
    assert_eq!(health("tensorflow.serving.PredictionService"), Ok(1));
    assert_eq!(health("ModelService"), Ok(1));
    assert_eq!(health("other"), Err(tonic::Code::NotFound));
    assert_eq!(world.json("GET", "/readyz", "").0, 200);
    world.predict("half");
    world.predict("nope");
    let (_, metrics) = world.json("GET", "/monitoring/prometheus/metrics", "");
    for line in [
        ":tensorflow:serving:request_count{model_name=\"half\",status=\"OK\"} 1",
        ":tensorflow:serving:request_count{model_name=\"nope\",status=\"NOT_FOUND\"} 1",
        ":tensorflow:serving:request_latency_count{model_name=\"half\",API=\"Predict\",entrypoint=\"REST\"} 1",
        "# TYPE :tensorflow:serving:runtime_latency histogram",
        ":tensorflow:serving:runtime_latency_bucket{model_name=\"half\",API=\"Predict\",runtime=\"ferroflow\",le=\"+Inf\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
    let (status, overview) = world.json("GET", "/ferroflow/overview", "");
    assert_eq!(
        (status, overview.contains("\"signatures\"")),
        (200, true),
        "{overview}"
    );
    let (status, page) = world.json("GET", "/", "");
    assert_eq!((status, page.contains("<!doctype html>")), (200, true));
}

#[test]
fn sampled_requests_are_logged_and_replayed() {
    let folder = Folder::new("logs");
    let prefix = folder.0.join("log");
    let mut source = half();
    source.log = Some(RequestLogConfig {
        prefix: prefix.clone(),
        rate: 0.5,
    });
    let world = World::new(options(vec![source]));
    for _ in 0..10 {
        world.predict("half");
    }
    let log = std::fs::read_dir(&folder.0)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut reader = RecordReader::open(&log, RecordCompression::None).unwrap();
    let mut records: Vec<PredictionLog> = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        records.push(decode(&record).unwrap());
    }
    assert_eq!(records.len(), 5);
    let Some(prediction_log::LogType::PredictLog(log)) = &records[0].log_type else {
        panic!("{:?}", records[0]);
    };
    let response = log.response.as_ref().unwrap();
    assert_eq!(response.outputs["y"].float_val, [4.0]);

    // The log is a file of warm-up requests.
    let model = folder.0.join("m");
    let version = model.join("1");
    copy_model(&version);
    let extra = version.join("assets.extra");
    std::fs::create_dir_all(&extra).unwrap();
    let path = extra.join("tf_serving_warmup_requests");
    let mut writer = RecordWriter::create(&path, RecordCompression::None).unwrap();
    records
        .iter()
        .for_each(|r| writer.write(&encode(r)).unwrap());
    writer.finish().unwrap();
    let world = World::new(options(vec![ModelSource::latest("m", &model)]));
    assert_eq!(world.predict("m").0, 200);
    let metrics = world.front.metrics.text();
    assert!(
        metrics.contains(&format!(
            "model_warmup_records_read{{model_path=\"{}\",status=\"OK\"}} 5",
            version.display()
        )),
        "{metrics}"
    );

    std::fs::write(&path, b"rubbish").unwrap();
    let world = World::new(options(vec![ModelSource::latest("m", &model)]));
    assert_eq!(
        world.predict("m").0,
        404,
        "a version that cannot be warmed up does not serve"
    );
}

fn copy_model(to: &std::path::Path) {
    std::fs::create_dir_all(to.join("variables")).unwrap();
    for file in [
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    ] {
        std::fs::copy(models().join("half/1").join(file), to.join(file)).unwrap();
    }
}

#[test]
fn late_requests_end_at_their_deadline() {
    let mut options = options(vec![half()]);
    let text = "max_batch_size { value: 4 } batch_timeout_micros { value: 3600000000 }";
    options.batching = Some((parameters(text).unwrap(), false));
    let world = World::new(options);
    let x = Tensor::zeros(DType::Float, Shape::from([1])).unwrap();
    let mut request = tonic::Request::new(PredictRequest {
        model_spec: Some(ModelSpec {
            name: "half".to_string(),
            ..Default::default()
        }),
        inputs: [(
            "x".to_string(),
            ferroflow_model::tensor_to_proto(&x).unwrap(),
        )]
        .into(),
        output_filter: Vec::new(),
    });
    request.set_timeout(Duration::from_millis(200));
    let error = world.runtime.block_on(async {
        let channel =
            tonic::transport::Channel::from_shared(format!("http://{}", world.grpc)).unwrap();
        let mut grpc = tonic::client::Grpc::new(channel.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(
            "/tensorflow.serving.PredictionService/Predict",
        );
        let codec = tonic_prost::ProstCodec::<PredictRequest, PredictResponse>::default();
        grpc.unary(request, path, codec).await.unwrap_err()
    });
    assert_eq!(
        (error.code(), error.message()),
        (tonic::Code::DeadlineExceeded, "Deadline Exceeded")
    );
}

#[test]
fn reflection_describes_the_services() {
    use ferroflow_model::proto::reflection::*;
    let world = World::new(options(vec![half()]));
    let ask = |question| {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        };
        let answer: Vec<ServerReflectionResponse> = world.runtime.block_on(async {
            let channel =
                tonic::transport::Channel::from_shared(format!("http://{}", world.grpc)).unwrap();
            let mut grpc = tonic::client::Grpc::new(channel.connect().await.unwrap());
            grpc.ready().await.unwrap();
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            );
            let codec = tonic_prost::ProstCodec::<
                    ServerReflectionRequest,
                    ServerReflectionResponse,
                >::default();
            let questions = tokio_stream::once(request);
            let mut stream = grpc
                .streaming(tonic::Request::new(questions), path, codec)
                .await
                .unwrap()
                .into_inner();
            let mut answers = Vec::new();
            while let Some(answer) = stream.message().await.unwrap() {
                answers.push(answer);
            }
            answers
        });
        answer
            .into_iter()
            .next()
            .and_then(|a| a.message_response)
            .unwrap()
    };
    use server_reflection_request::MessageRequest as Ask;
    use server_reflection_response::MessageResponse as Answer;
    let Answer::ListServicesResponse(list) = ask(Ask::ListServices(String::new())) else {
        panic!()
    };
    assert!(
        list.service
            .iter()
            .any(|s| s.name == "tensorflow.serving.PredictionService")
    );
    for symbol in [
        "tensorflow.serving.PredictionService.Predict",
        "tensorflow.TensorProto",
    ] {
        let Answer::FileDescriptorResponse(file) =
            ask(Ask::FileContainingSymbol(symbol.to_string()))
        else {
            panic!("{symbol}")
        };
        assert!(!file.file_descriptor_proto[0].is_empty());
    }
    assert!(matches!(
        ask(Ask::FileContainingSymbol("no.Such".to_string())),
        Answer::ErrorResponse(_)
    ));
}
