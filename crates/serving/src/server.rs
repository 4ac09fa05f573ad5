//! [`Server`]: listens, serves, drains.

use crate::batching::{Batcher, Parameters};
use crate::config::{ModelSource, read_models};
use crate::front::{Front, FrontOptions};
use crate::grpc::{Health, ModelService, PredictionService, Reflection, ReflectionAlpha, Services};
use crate::manager::{ManagerOptions, ModelManager};
use crate::metrics::{Metrics, Recent};
use crate::request_log::RequestLogs;
use crate::rest::{Request, Response, RestOptions};
use crate::{page, rest};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::serve::ListenerExt;
use ferroflow_base::{Code, Result, Status, invalid_argument, resource_exhausted};
use ferroflow_rpc::{Calls, MAX_STEPS, TlsPem, deadline_exceeded, finish, tls_config};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::TcpIncoming;

/// Flow control window of a connection, bytes.
const WINDOW: u32 = 8 << 20;
/// Responses from this size are compressed for clients that accept it, bytes.
const COMPRESSED: usize = 1024;

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address of the gRPC services, if any; port 0 selects a free one.
    pub grpc: Option<SocketAddr>,
    /// The address of the REST API, if any.
    pub rest: Option<SocketAddr>,
    /// Encrypts gRPC connections, if set.
    pub tls: Option<TlsPem>,
    /// Largest gRPC request, bytes.
    pub max_message: usize,
    /// Options of the REST API.
    pub rest_options: RestOptions,
    /// Options of both protocols.
    pub front: FrontOptions,
    /// The manager's options.
    pub manager: ManagerOptions,
    /// How requests are merged, if they are, and whether models may have parameters of their own.
    pub batching: Option<(Parameters, bool)>,
    /// The models, if no file lists them.
    pub models: Vec<ModelSource>,
    /// The file that lists the models.
    pub model_config: Option<PathBuf>,
    /// How often the file is read again; never if zero.
    pub config_poll: Duration,
    /// How often new versions are searched; once if zero.
    pub version_poll: Duration,
    /// How long requests may run after the server was asked to stop.
    pub grace: Duration,
}

/// A server that listens; [`Server::run`] serves.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    grpc: Option<(TcpListener, SocketAddr)>,
    rest: Option<(TcpListener, SocketAddr)>,
    tls: Option<ServerTlsConfig>,
    front: Arc<Front>,
    options: ServerOptions,
}

fn unavailable(what: &str, e: impl std::fmt::Display) -> Status {
    Status::new(Code::Unavailable, format!("{what}: {e}"))
}

impl Server {
    /// Listens at the addresses of `options` and loads the models.
    ///
    /// # Errors
    /// UNAVAILABLE if an address cannot be bound; INVALID_ARGUMENT if the certificate, the key or the configuration is
    /// unusable. Models that cannot be loaded are reported in the log and by their status.
    pub fn bind(options: ServerOptions) -> Result<Server> {
        let tls = options.tls.clone().map(tls_config);
        let sources = match &options.model_config {
            Some(path) => read_models(path)?,
            None => options.models.clone(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().max(2)))
            .max_blocking_threads(MAX_STEPS)
            .thread_name("ferroflow-serve")
            .enable_all()
            .build()
            .map_err(|e| unavailable("cannot start threads", e))?;
        let bind = |at: SocketAddr| -> Result<(TcpListener, SocketAddr)> {
            let failed = |e| unavailable(&format!("cannot listen at {at}"), e);
            let listener = runtime.block_on(TcpListener::bind(at)).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((listener, address))
        };
        let grpc = options.grpc.map(bind).transpose()?;
        let rest = options.rest.map(bind).transpose()?;
        let metrics = Arc::new(Metrics::default());
        let logs = RequestLogs::new(metrics.clone());
        logs.set(&sources);
        let batching = options.batching.clone();
        let front = Arc::new(Front {
            manager: ModelManager::new(options.manager.clone(), metrics.clone()),
            calls: Calls::new().map_err(|e| unavailable("cannot start threads", e))?,
            recent: Recent::default(),
            options: options.front.clone(),
            batcher: batching.map(|(p, own)| Batcher::start(p, own, metrics.clone())),
            is_stopping: Default::default(),
            logs,
            metrics,
        });
        if let Err(e) = front.manager.set_models(sources) {
            tracing::error!("{e}");
        }
        Ok(Server {
            runtime,
            grpc,
            rest,
            tls,
            front,
            options,
        })
    }

    /// The address of the gRPC services, if any.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, address)| *address)
    }

    /// The address of the REST API, if any.
    pub fn rest_address(&self) -> Option<SocketAddr> {
        self.rest.as_ref().map(|(_, address)| *address)
    }

    /// The methods, for use without a connection.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Serves until `stop` is ready; then reports that it does not serve, accepts no new calls and lets running
    /// requests finish.
    ///
    /// # Errors
    /// INTERNAL if serving fails.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let (front, options) = (self.front.clone(), self.options);
        start_polling(&front, &options);
        let (stopped, stopping) = tokio::sync::watch::channel(false);
        let grpc = self.grpc.map(|(listener, _)| {
            let services = Services {
                front: front.clone(),
                max_message: options.max_message,
            };
            (listener, services)
        });
        let tls = self.tls;
        let served = self.runtime.block_on(async {
            tokio::spawn(front.clone().record_totals());
            let signalled = front.clone();
            tokio::spawn(async move {
                stop.await;
                signalled
                    .is_stopping
                    .store(true, std::sync::atomic::Ordering::Relaxed);
                let _ = stopped.send(true);
            });
            let ended = |mut stopping: tokio::sync::watch::Receiver<bool>| async move {
                let _ = stopping.wait_for(|s| *s).await;
            };
            let rpc = async {
                match grpc {
                    Some((listener, services)) => {
                        serve_grpc(listener, services, tls, ended(stopping.clone())).await
                    }
                    None => {
                        ended(stopping.clone()).await;
                        Ok(())
                    }
                }
            };
            let pages = async {
                match self.rest {
                    Some((listener, _)) => {
                        let pages = router(front.clone(), options.rest_options.clone());
                        let listener = listener.tap_io(|io| drop(io.set_nodelay(true)));
                        let served = axum::serve(listener, pages);
                        let served = served.with_graceful_shutdown(ended(stopping.clone()));
                        served.await.map_err(|e| unavailable("serving failed", e))
                    }
                    None => {
                        ended(stopping.clone()).await;
                        Ok(())
                    }
                }
            };
            let late = async {
                ended(stopping.clone()).await;
                finish(&front.calls, options.grace).await;
            };
            tokio::select! {
                served = async { tokio::try_join!(rpc, pages) } => served.map(|_| ()),
                () = late => Ok(()),
            }
        });
        if let Some(batcher) = &front.batcher {
            batcher.stop();
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        served
    }
}

async fn serve_grpc(
    listener: TcpListener,
    services: Services,
    tls: Option<ServerTlsConfig>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut builder = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    if let Some(tls) = tls {
        let configured = builder.tls_config(tls);
        builder = configured.map_err(|e| invalid_argument!("TLS: {e}"))?;
    }
    let router = builder
        .add_service(PredictionService(services.clone()))
        .add_service(ModelService(services.clone()))
        .add_service(Health(services.clone()))
        .add_service(Reflection(services.clone()))
        .add_service(ReflectionAlpha(services));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = router.serve_with_incoming_shutdown(incoming, stop).await;
    served.map_err(|e| unavailable("serving failed", e))
}

/// Starts the threads that search for versions and read the configuration again.
fn start_polling(front: &Arc<Front>, options: &ServerOptions) {
    let every = |interval: Duration, mut action: Box<dyn FnMut(&Front) + Send>| {
        if interval.is_zero() {
            return;
        }
        // The thread ends with the server.
        let front = Arc::downgrade(front);
        let poll = move || {
            loop {
                std::thread::sleep(interval);
                match front.upgrade() {
                    Some(front) => action(&front),
                    None => return,
                }
            }
        };
        if let Err(e) = std::thread::Builder::new()
            .name("ferroflow-poll".into())
            .spawn(poll)
        {
            tracing::error!("cannot start a thread: {e}");
        }
    };
    every(options.version_poll, Box::new(|front| front.manager.poll()));
    if let Some(path) = options.model_config.clone() {
        let mut last = std::fs::read(&path).ok();
        let reload = move |front: &Front| {
            let text = std::fs::read(&path).ok();
            if text == last {
                return;
            }
            last = text;
            let read = read_models(&path).and_then(|sources| {
                front.logs.set(&sources);
                front.manager.set_models(sources)
            });
            if let Err(e) = read {
                tracing::error!("{} was not applied: {e}", path.display());
            }
        };
        every(options.config_poll, Box::new(reload));
    }
}

#[derive(Clone)]
struct Pages {
    front: Arc<Front>,
    options: RestOptions,
}

fn router(front: Arc<Front>, options: RestOptions) -> axum::Router {
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
    let cors = pages.options.cors;
    let timeout = pages.options.timeout;
    let answered = tokio::time::timeout(timeout, answer(pages, request)).await;
    let response = answered.unwrap_or_else(|_| Response::error(&deadline_exceeded()));
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
        Err(e) => Response::error(&e),
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
