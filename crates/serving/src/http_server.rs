//! The REST port: connections, encryption, encodings of bodies.

use crate::connections::{Listener, accept};
use crate::front::Front;
use crate::page;
use crate::rest::{self, Request, Response, RestOptions};
use crate::trace::{Traced, Traces};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use ferroflow_base::{Code, Result, Status, invalid_argument, resource_exhausted};
use ferroflow_rpc::{BoxedStream, TlsAcceptor, deadline_exceeded, secured};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use opentelemetry::KeyValue;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Responses from this size are compressed for clients that accept it, bytes.
const COMPRESSED: usize = 1024;
/// How long a connection may have no complete request: idle ones and those that send headers slowly end.
const IDLE: Duration = Duration::from_secs(300);

/// Serves until `stop` is ready, then lets requests finish.
pub(crate) async fn serve(
    listener: TcpListener,
    pages: axum::Router,
    tls: Option<TlsAcceptor>,
    stop: impl Future<Output = ()>,
) {
    let begin = |raw, watcher| {
        let (pages, tls) = (pages.clone(), tls.clone());
        tokio::spawn(async move {
            match TcpListener::open(raw) {
                Ok(stream) => {
                    if let Some(stream) = secured(stream, tls.as_ref()).await {
                        connection(stream, pages, watcher).await;
                    }
                }
                Err(e) => tracing::warn!("a connection was not served: {e}"),
            }
        });
    };
    accept(listener, stop, begin).await;
}

/// Serves one client.
async fn connection(stream: BoxedStream, pages: axum::Router, watcher: Watcher) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    if let Err(e) = watcher.watch(served).await {
        tracing::debug!("a connection ended: {e}");
    }
}

#[derive(Clone)]
struct Pages {
    front: Arc<Front>,
    options: RestOptions,
}

/// The routes of the REST port.
pub(crate) fn router(front: Arc<Front>, options: RestOptions) -> axum::Router {
    let metrics_path = options.metrics_path.clone();
    let metrics = |State(pages): State<Pages>| async move {
        ([(CONTENT_TYPE, "text/plain")], pages.front.metrics.text())
    };
    let ready = |State(pages): State<Pages>| async move {
        match pages.front.is_ready() {
            true => (StatusCode::OK, "ok\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        }
    };
    axum::Router::new()
        .route("/", get(|| async { axum::response::Html(page::PAGE) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/ferroflow/overview", get(overview))
        .route(&metrics_path, get(metrics))
        .fallback(api)
        .with_state(Pages { front, options })
}

async fn overview(State(pages): State<Pages>, headers: HeaderMap) -> axum::response::Response {
    match pages.front.authorize(&headers) {
        Ok(()) => {
            let json = pages.front.overview().to_string();
            ([(CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(e) => to_http(Response::error(&e), false),
    }
}

/// A request of the REST API.
async fn api(
    State(pages): State<Pages>,
    request: axum::extract::Request,
) -> axum::response::Response {
    // Counted, so that the server waits for it when it stops.
    let call = pages.front.calls.begin();
    let accepts_gzip = request
        .headers()
        .get(ACCEPT_ENCODING)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.split(',').any(|e| e.trim().starts_with("gzip")));
    let (cors, timeout) = (pages.options.cors, pages.options.timeout);
    let front = pages.front.clone();
    let span = front.traces.as_ref().map(|t| (t, Span::of(&request)));
    let answered = async {
        let answered = tokio::time::timeout(timeout, answer(pages, request)).await;
        answered.unwrap_or_else(|_| Response::error(&deadline_exceeded()))
    };
    let response = match span {
        Some((traces, span)) => span.around(traces, answered).await,
        None => answered.await,
    };
    let mut response = to_http(response, accepts_gzip);
    if cors {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("POST, GET"),
        );
        headers.insert(
            ACCESS_CONTROL_ALLOW_HEADERS,
            HeaderValue::from_static("Content-Type"),
        );
    }
    drop(call);
    response
}

/// The span of a request of the REST API.
struct Span {
    headers: HeaderMap,
    method: &'static str,
    path: String,
}

impl Span {
    fn of(request: &axum::extract::Request) -> Span {
        Span {
            headers: request.headers().clone(),
            method: match *request.method() {
                Method::GET => "GET",
                Method::POST => "POST",
                Method::OPTIONS => "OPTIONS",
                _ => "_OTHER",
            },
            path: request.uri().path().to_string(),
        }
    }

    async fn around(self, traces: &Traces, answered: impl Future<Output = Response>) -> Response {
        let attributes = vec![
            KeyValue::new("http.request.method", self.method),
            KeyValue::new("url.path", self.path),
        ];
        let report = |response: &Response, span: &Traced| {
            let status = response.status.as_u16();
            span.set("http.response.status_code", i64::from(status));
            if status >= 400 {
                span.failed(String::from_utf8_lossy(&response.body).into_owned());
            }
        };
        let name = self.method.to_string();
        traces
            .request(&self.headers, name, attributes, answered, report)
            .await
    }
}

async fn answer(pages: Pages, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method == Method::OPTIONS {
        let origin = parts.headers.get(ORIGIN).map_or(&b""[..], |v| v.as_bytes());
        let is_web = origin.starts_with(b"http://") || origin.starts_with(b"https://");
        return match is_web {
            true => Response {
                status: StatusCode::OK,
                body: Vec::new(),
            },
            false => Response::error(&ferroflow_base::failed_precondition!(
                "Origin header is missing in CORS preflight"
            )),
        };
    }
    let read = async {
        pages.front.authorize(&parts.headers)?;
        let body = axum::body::to_bytes(body, pages.options.max_body).await;
        let body = body.map_err(|e| unreadable(&e, pages.options.max_body))?;
        uncompressed(&parts.headers, body, pages.options.max_body)
    };
    match read.await {
        Ok(body) => {
            let request = Request {
                method: parts.method.as_str(),
                path: parts.uri.path(),
                body: &body,
            };
            pages.front.rest(request).await
        }
        Err(e) => Response {
            status: match e.code() {
                Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
                code => rest::http_status(code),
            },
            ..Response::error(&e)
        },
    }
}

fn unreadable(e: &axum::Error, max: usize) -> Status {
    match std::error::Error::source(e).is_some_and(|s| s.is::<http_body_util::LengthLimitError>()) {
        true => resource_exhausted!("the body is larger than {max} bytes, the most it may have"),
        false => invalid_argument!("the body cannot be read: {e}"),
    }
}

/// Returns the body without gzip.
fn uncompressed(headers: &HeaderMap, body: Bytes, max: usize) -> Result<Bytes> {
    match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(body),
        Some(b"gzip") => {
            let mut out = Vec::new();
            let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
            let read = GzDecoder::new(&body[..]).take(limit).read_to_end(&mut out);
            read.map_err(|e| invalid_argument!("the body is not gzip: {e}"))?;
            match out.len() > max {
                true => Err(resource_exhausted!(
                    "the body is larger than {max} bytes, the most it may have"
                )),
                false => Ok(out.into()),
            }
        }
        Some(other) => Err(invalid_argument!(
            "the content encoding {} is not supported",
            String::from_utf8_lossy(other)
        )),
    }
}

fn to_http(response: rest::Response, accepts_gzip: bool) -> axum::response::Response {
    let mut body = response.body;
    let mut is_compressed = false;
    if accepts_gzip && body.len() >= COMPRESSED {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let written = encoder.write_all(&body).and_then(|()| encoder.finish());
        if let Ok(smaller) = written {
            (body, is_compressed) = (smaller, true);
        }
    }
    let mut http = axum::response::Response::new(Body::from(body));
    *http.status_mut() = response.status;
    let headers = http.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    http
}
