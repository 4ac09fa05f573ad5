//! [`Traces`]: spans of requests for an OpenTelemetry collector.
//!
//! A request that is sampled has the spans
//!
//! ```text
//! request                 the whole call; its parent is the client's span (`traceparent`)
//! ├── queue               from the arrival of the step until a thread takes it
//! └── batch               merging, running and splitting, if requests are merged
//!     └── step            the graph
//! ```
//!
//! Each request of a batch has its own `batch` span; their attribute `ferroflow.batch.id` is the same.

use crate::trace_http::{self, Collector};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_rpc::tls_connector;
use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    SpanBuilder, SpanKind, Status as SpanStatus, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{
    Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use std::future::Future;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// How long the collector may take to accept spans.
const EXPORT: Duration = Duration::from_secs(5);
/// How long the server, when it ends, waits for the collector.
const LAST_EXPORT: Duration = Duration::from_secs(3);

/// How spans are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceProtocol {
    /// OTLP over gRPC.
    #[default]
    Grpc,
    /// OTLP's protos over HTTP.
    Http,
}

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The address of the collector's OTLP receiver, for instance `http://localhost:4317` for gRPC and
    /// `http://localhost:4318` for HTTP, where an address without a path gets `/v1/traces`.
    pub endpoint: String,
    /// How spans are sent.
    pub protocol: TraceProtocol,
    /// The share of requests with spans, from 0 to 1. The decision of a client that sends its own takes precedence.
    pub rate: f64,
    /// PEM text of the authorities that sign the certificate of an `https` endpoint.
    pub authorities: Option<Vec<u8>>,
}

/// Spans of requests.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// What is wrong with an address.
type Wrong = Box<dyn std::error::Error + Send + Sync>;

const NO_AUTHORITY: &str = "an https address needs the certificate of its authority";

fn over_grpc(options: &TraceOptions) -> std::result::Result<SpanExporter, Wrong> {
    let mut endpoint = Endpoint::from_shared(options.endpoint.clone())?;
    match (endpoint.uri().scheme_str(), &options.authorities) {
        (Some("http"), _) => {}
        (Some("https"), Some(authorities)) => {
            let root = Certificate::from_pem(authorities);
            let tls = ClientTlsConfig::new().ca_certificate(root);
            endpoint = endpoint.tls_config(tls)?;
        }
        (Some("https"), None) => return Err(NO_AUTHORITY.into()),
        _ => return Err("expected http://HOST:PORT or https://HOST:PORT".into()),
    }
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_channel(endpoint.connect_lazy())
        .with_timeout(EXPORT)
        .build()?;
    Ok(exporter)
}

fn over_http(options: &TraceOptions) -> std::result::Result<SpanExporter, Wrong> {
    let url = trace_http::url(&options.endpoint).map_err(|e| e.message().to_string())?;
    let tls = match (url.scheme_str(), &options.authorities) {
        (Some("https"), Some(authorities)) => Some(tls_connector(authorities)?),
        (Some("https"), None) => return Err(NO_AUTHORITY.into()),
        _ => None,
    };
    let collector = Collector {
        runtime: Handle::current(),
        tls,
        timeout: EXPORT,
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(collector)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.to_string())
        .with_timeout(EXPORT)
        .build()?;
    Ok(exporter)
}

impl Traces {
    /// Connects to the collector, when there are spans to send. Must be called within an async runtime, which sends them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the address, the rate or the certificate is unusable.
    pub(crate) fn new(options: &TraceOptions) -> Result<Traces> {
        if !(0.0..=1.0).contains(&options.rate) {
            return Err(invalid_argument!(
                "the rate of traces must be between 0 and 1; was {}",
                options.rate
            ));
        }
        let exporter = match options.protocol {
            TraceProtocol::Grpc => over_grpc(options),
            TraceProtocol::Http => over_http(options),
        };
        let exporter = exporter.map_err(|e| {
            invalid_argument!("the collector's address '{}': {e}", options.endpoint)
        })?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("ferroflow");
        }
        let sampler = Sampler::TraceIdRatioBased(options.rate);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .build();
        let tracer = provider.tracer("ferroflow-serving");
        Ok(Traces { provider, tracer })
    }

    /// Sends the last spans.
    pub(crate) fn shutdown(&self) {
        if let Err(e) = self.provider.shutdown_with_timeout(LAST_EXPORT) {
            tracing::warn!("the last traces were not sent: {e}");
        }
    }

    /// Runs a request in a span, if it is sampled. `error` returns what is wrong with a response.
    pub(crate) async fn request<R>(
        &self,
        headers: &HeaderMap,
        name: String,
        attributes: Vec<KeyValue>,
        request: impl Future<Output = R>,
        outcome: impl FnOnce(&R, &Traced),
    ) -> R {
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        let span = self.tracer.build_with_context(builder, &parent);
        let context = parent.with_span(span);
        if !context.span().is_recording() {
            return request.await;
        }
        let traced = Traced {
            tracer: self.tracer.clone(),
            context,
        };
        let result = CURRENT.scope(traced.clone(), request).await;
        outcome(&result, &traced);
        traced.end();
        result
    }
}

tokio::task_local! {
    static CURRENT: Traced;
}

/// A span in progress. It ends with [`Traced::end`], or when it is dropped.
#[derive(Clone)]
pub(crate) struct Traced {
    tracer: SdkTracer,
    context: Context,
}

impl Traced {
    /// The span of the request that this task handles, if it is sampled.
    pub(crate) fn current() -> Option<Traced> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Does `work`, for another task than the one that handles the request, within its span, if it has one.
    pub(crate) async fn within<T>(span: Option<Traced>, work: impl Future<Output = T>) -> T {
        match span {
            Some(span) => CURRENT.scope(span, work).await,
            None => work.await,
        }
    }

    /// Begins a span within this one.
    pub(crate) fn child(&self, name: &'static str, began: SystemTime) -> Traced {
        let builder = SpanBuilder::from_name(name).with_start_time(began);
        let span = self.tracer.build_with_context(builder, &self.context);
        Traced {
            tracer: self.tracer.clone(),
            context: self.context.with_span(span),
        }
    }

    /// Ends the span.
    pub(crate) fn end(&self) {
        self.context.span().end();
    }

    /// Records the time from `began` to now, in which the request waited.
    pub(crate) fn waited(&self, began: SystemTime) {
        self.child("queue", began).end();
    }

    /// Changes the name.
    pub(crate) fn rename(&self, name: String) {
        self.context.span().update_name(name);
    }

    /// Adds an attribute.
    pub(crate) fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.context.span().set_attribute(KeyValue::new(key, value));
    }

    /// Marks the span as failed.
    pub(crate) fn failed(&self, message: String) {
        self.context.span().set_status(SpanStatus::error(message));
    }

    /// Ends the span with the error of a result, if there is one.
    pub(crate) fn end_with<R>(&self, result: &Result<R>) {
        if let Err(e) = result {
            self.fail(e);
        }
        self.end();
    }

    fn fail(&self, error: &Status) {
        self.set("error.type", error.code().name());
        self.failed(error.message().to_string());
    }
}

/// Runs `f`, a step, in a span within each of these.
pub(crate) fn step<R>(within: &[Traced], f: impl FnOnce() -> Result<R>) -> Result<R> {
    if within.is_empty() {
        return f();
    }
    let began = SystemTime::now();
    let spans: Vec<Traced> = within.iter().map(|s| s.child("step", began)).collect();
    let result = f();
    spans.iter().for_each(|s| s.end_with(&result));
    result
}
