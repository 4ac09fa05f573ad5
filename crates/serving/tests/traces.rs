//! Spans of requests, as a collector receives them.

use crate::support;

use ferroflow_model::proto::serving::*;
use ferroflow_model::tensor_to_proto;
use ferroflow_runtime::Tensor;
use ferroflow_serving::{ModelSource, Parameters, TraceOptions, TraceProtocol};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{World, models, options};

/// A collector that keeps what it receives.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.keep(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn keep(&self, request: ExportTraceServiceRequest) {
        for group in request.resource_spans {
            for attribute in group.resource.unwrap_or_default().attributes {
                if attribute.key == "service.name" {
                    let name = attribute.value.and_then(|v| v.value);
                    self.services.lock().unwrap().push(text(name));
                }
            }
            for scope in group.scope_spans {
                self.spans.lock().unwrap().extend(scope.spans);
            }
        }
    }

    /// Listens; returns the address.
    fn start(&self, runtime: &tokio::runtime::Runtime, protocol: TraceProtocol) -> String {
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        match protocol {
            TraceProtocol::Grpc => {
                let server = tonic::transport::Server::builder()
                    .add_service(TraceServiceServer::new(self.clone()));
                let incoming = tonic::transport::server::TcpIncoming::from(listener);
                runtime.spawn(server.serve_with_incoming(incoming));
            }
            TraceProtocol::Http => {
                let collector = self.clone();
                let receive = move |headers: http::HeaderMap, body: axum::body::Bytes| async move {
                    assert_eq!(headers["content-type"], "application/x-protobuf");
                    collector.keep(ExportTraceServiceRequest::decode(body).unwrap());
                };
                let pages = axum::Router::new().route("/v1/traces", axum::routing::post(receive));
                runtime.spawn(async { axum::serve(listener, pages).await });
            }
        }
        endpoint
    }
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::StringValue(s)) => s,
        Some(Value::IntValue(n)) => n.to_string(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|a| a.key == key);
    text(found.and_then(|a| a.value.clone()?.value))
}

/// A client's request and its own trace, `traceparent`.
enum Request<'a> {
    Rest(&'a str, &'a str),
    Grpc(&'a str),
}

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn send(world: &World, request: &Request, parent: Option<&str>) {
    match request {
        Request::Rest(path, body) => {
            let mut head = format!("POST {path} HTTP/1.1");
            if let Some(parent) = parent {
                head.push_str(&format!("\r\ntraceparent: {parent}"));
            }
            world.http(&head, body.as_bytes());
        }
        Request::Grpc(model) => {
            let x = tensor_to_proto(&Tensor::vector(&[2.0f32]).unwrap()).unwrap();
            let mut request = tonic::Request::new(PredictRequest {
                model_spec: Some(ModelSpec {
                    name: model.to_string(),
                    ..Default::default()
                }),
                inputs: [("x".to_string(), x)].into(),
                output_filter: Vec::new(),
            });
            if let Some(parent) = parent {
                let metadata = request.metadata_mut();
                metadata.insert("traceparent", parent.parse().unwrap());
            }
            let path = "/tensorflow.serving.PredictionService/Predict";
            let _ = world.call::<PredictRequest, PredictResponse>(path, request);
        }
    }
}

/// Sends a request to a server that traces at a rate, and returns its spans, the longest one first.
fn spans(
    protocol: TraceProtocol,
    rate: f64,
    batching: Option<Parameters>,
    request: &Request,
    parent: Option<&str>,
) -> Vec<Span> {
    let collector = Collector::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let endpoint = collector.start(&runtime, protocol);
    let mut options = options(vec![ModelSource::latest("half", &models().join("half"))]);
    options.batching = batching.map(|b| (b, false));
    options.traces = Some(TraceOptions {
        endpoint,
        protocol,
        rate,
        authorities: None,
    });
    let mut world = World::new(options);
    send(&world, request, parent);
    // The last spans are sent when the server ends.
    world.stop();
    let services = collector.services.lock().unwrap();
    assert!(services.iter().all(|s| s == "ferroflow"), "{services:?}");
    let mut spans = std::mem::take(&mut *collector.spans.lock().unwrap());
    spans.sort_by_key(|s| (s.start_time_unix_nano, u64::MAX - s.end_time_unix_nano));
    spans
}

/// Sends a request and compares the spans, each with the name of its parent.
fn check(
    batching: Option<Parameters>,
    request: Request,
    parent: Option<&str>,
    expected: &[(&str, &str)],
) {
    for protocol in [TraceProtocol::Grpc, TraceProtocol::Http] {
        check_over(protocol, batching.clone(), &request, parent, expected);
    }
}

fn check_over(
    protocol: TraceProtocol,
    batching: Option<Parameters>,
    request: &Request,
    parent: Option<&str>,
    expected: &[(&str, &str)],
) {
    let found = spans(protocol, 1.0, batching, request, parent);
    let name = |id: &[u8]| {
        let parent = found.iter().find(|s| s.span_id == id);
        match parent {
            Some(parent) => parent.name.clone(),
            None if id.is_empty() => String::new(),
            None => id.iter().map(|b| format!("{b:02x}")).collect(),
        }
    };
    let mut names: Vec<(String, String)> = found
        .iter()
        .map(|s| (s.name.clone(), name(&s.parent_span_id)))
        .collect();
    names.sort();
    let mut expected: Vec<(String, String)> = expected
        .iter()
        .map(|(name, parent)| (name.to_string(), parent.to_string()))
        .collect();
    expected.sort();
    assert_eq!(names, expected);
    for span in &found {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert_eq!(span.trace_id, found[0].trace_id);
        if parent == Some(SAMPLED) {
            assert_eq!(span.trace_id[..2], [0x0a, 0xf7]);
        }
    }
    let with_model = found.iter().find(|s| s.name == "step").map(|_| {
        let request = found.iter().find(|s| s.name.contains('/')).unwrap();
        (
            attribute(request, "ferroflow.model"),
            attribute(request, "ferroflow.version"),
        )
    });
    let half = ("half".to_string(), "2".to_string());
    assert!(with_model.is_none_or(|m| m == half));
}

const GOOD: &str = "{\"instances\": [2]}";
const REST: &str = "POST /v1/models/{model}:predict";
const GRPC: &str = "tensorflow.serving.PredictionService/Predict";

#[test]
fn requests_have_spans() {
    let batching = || {
        Some(Parameters {
            adaptive: false,
            ..Parameters::adaptive(1)
        })
    };
    let rest = || Request::Rest("/v1/models/half:predict", GOOD);
    // The first step of a signature runs on a thread of its own.
    let alone = |parent: &'static str| [(REST, parent), ("queue", REST), ("step", REST)];
    check(None, rest(), None, &alone(""));
    check(None, rest(), Some(SAMPLED), &alone("b7ad6b7169203331"));
    let merged = |name: &'static str, parent: &'static str| {
        [
            (name, parent),
            ("queue", name),
            ("batch", name),
            ("step", "batch"),
        ]
    };
    check(batching(), rest(), None, &merged(REST, ""));
    check(
        batching(),
        Request::Grpc("half"),
        Some(SAMPLED),
        &merged(GRPC, "b7ad6b7169203331"),
    );
    check(None, rest(), Some(UNSAMPLED), &[]);
    check(None, rest(), Some("rubbish"), &alone(""));
    let classify = Request::Rest(
        "/v1/models/half:classify",
        "{\"signature_name\": \"classify\", \"examples\": [{\"x\": 1}]}",
    );
    let name = "POST /v1/models/{model}:classify";
    check(None, classify, None, &[(name, ""), ("step", name)]);
    check(None, Request::Grpc("nope"), None, &[(GRPC, "")]);
    check(None, Request::Rest("/rubbish", ""), None, &[("POST", "")]);
}

#[test]
fn errors_are_recorded() {
    let found = spans(
        TraceProtocol::Http,
        1.0,
        None,
        &Request::Rest("/v1/models/nope:predict", GOOD),
        None,
    );
    assert_eq!(attribute(&found[0], "http.response.status_code"), "404");
    let status = found[0].status.clone().unwrap();
    assert!(status.message.contains("Servable not found"), "{status:?}");
    let grpc = TraceProtocol::Grpc;
    let found = spans(grpc, 1.0, None, &Request::Grpc("nope"), None);
    assert_eq!(attribute(&found[0], "rpc.grpc.status_code"), "5");
    let status = found[0].status.clone().unwrap();
    assert_eq!(
        status.message,
        "Servable not found for request: Latest(nope)"
    );
}

#[test]
fn the_rate_decides() {
    let request = Request::Rest("/v1/models/half:predict", GOOD);
    for protocol in [TraceProtocol::Grpc, TraceProtocol::Http] {
        assert!(spans(protocol, 0.0, None, &request, None).is_empty());
        assert_eq!(spans(protocol, 0.0, None, &request, Some(SAMPLED)).len(), 3);
    }
}

#[test]
fn a_server_without_its_collector_serves() {
    for protocol in [TraceProtocol::Grpc, TraceProtocol::Http] {
        let mut options = options(vec![ModelSource::latest("half", &models().join("half"))]);
        options.traces = Some(TraceOptions {
            endpoint: "http://127.0.0.1:1".to_string(),
            protocol,
            rate: 1.0,
            authorities: None,
        });
        let mut world = World::new(options);
        assert_eq!(world.predict("half").0, 200);
        let began = std::time::Instant::now();
        world.stop();
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn unusable_options_are_refused() {
    for (endpoint, rate, expected) in [
        (
            "http://localhost:4317",
            1.5,
            "must be between 0 and 1; was 1.5",
        ),
        (
            "http://localhost:4317",
            f64::NAN,
            "must be between 0 and 1; was NaN",
        ),
        ("localhost:4317", 1.0, "expected http://HOST:PORT"),
        ("", 1.0, "the collector's address ''"),
        (
            "https://localhost:4317",
            1.0,
            "needs the certificate of its authority",
        ),
    ] {
        for protocol in [TraceProtocol::Grpc, TraceProtocol::Http] {
            let mut options = options(Vec::new());
            options.traces = Some(TraceOptions {
                endpoint: endpoint.to_string(),
                protocol,
                rate,
                authorities: None,
            });
            let error = ferroflow_serving::Server::bind(options).err().unwrap();
            assert_eq!(error.code().name(), "INVALID_ARGUMENT");
            assert!(error.message().contains(expected), "{endpoint}: {error}");
        }
    }
}
