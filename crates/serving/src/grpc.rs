//! The gRPC services: path → message → [`Front`].

use crate::connections::{ConnectionThreads, Listener, accept};
use crate::front::{Entry, Front};
use crate::reflection::reflect;
use crate::trace::Traced;
use bytes::Bytes;
use ferroflow_base::{Code, Result, Status, not_found};
use ferroflow_model::proto::health::health_check_response::ServingStatus;
use ferroflow_model::proto::health::{HealthCheckRequest, HealthCheckResponse};
use ferroflow_rpc::{
    AnyMessage, Boxed, BoxedStream, Frames, HttpRequest, HttpResponse, TlsAcceptor, answer, beside,
    blocking, parse, secured, serve_connection, to_tonic, unary_frames, unknown,
};
use hyper_util::server::graceful::Watcher;
use opentelemetry::KeyValue;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, ServerStreamingService};

const PREDICTION: &str = "tensorflow.serving.PredictionService";
const MODEL: &str = "tensorflow.serving.ModelService";
const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Names of the services, in the health service and in reflection.
pub(crate) const SERVICES: [&str; 4] = [PREDICTION, MODEL, HEALTH, REFLECTION];

/// The scheme of a token.
const BEARER: &[u8] = b"Bearer ";

/// How often a connection without calls is asked whether its client lives.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Methods that name spans.
const METHODS: [&str; 7] = [
    "Predict",
    "Classify",
    "Regress",
    "MultiInference",
    "GetModelMetadata",
    "GetModelStatus",
    "HandleReloadConfigRequest",
];

/// Calls that a connection may have open before it counts as one that many clients share.
const MANY: usize = 2;
/// Calls that take longer, of a connection with many, leave the thread of the connection.
const LONG: Duration = Duration::from_micros(20);
/// Messages of this size take long enough to hold up other connections of their thread, bytes.
const LARGE: usize = 1 << 20;

/// How often a watched state is looked at.
const WATCH: Duration = Duration::from_millis(500);

/// All services of a server.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) front: Arc<Front>,
    /// Largest request, bytes.
    pub(crate) max_message: usize,
    /// The calls of the connection.
    pub(crate) streams: Arc<Streams>,
}

/// The calls of a connection, all of which arrive on one thread.
#[derive(Default)]
pub(crate) struct Streams {
    open: AtomicUsize,
    /// How long the last one kept its thread busy, nanoseconds.
    took: AtomicU64,
}

impl Streams {
    /// Returns whether other threads should handle the next call, since several have come at once that take long.
    fn are_many(&self) -> bool {
        let took = Duration::from_nanos(self.took.load(Ordering::Relaxed));
        self.open.load(Ordering::Relaxed) > MANY && took > LONG
    }
}

/// A call of a connection that is open.
struct OpenCall(Arc<Streams>);

impl OpenCall {
    fn new(streams: Arc<Streams>) -> OpenCall {
        streams.open.fetch_add(1, Ordering::Relaxed);
        OpenCall(streams)
    }

    /// Handles the call.
    async fn handle<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut took = Duration::ZERO;
        let done = std::future::poll_fn(|cx| {
            let began = Instant::now();
            let polled = work.as_mut().poll(cx);
            took += began.elapsed();
            polled
        });
        let done = done.await;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.took.store(nanos, Ordering::Relaxed);
        done
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves the clients of `listener` on `threads` until `stop` is ready, then lets requests finish.
pub(crate) async fn serve<L: Listener>(
    listener: L,
    services: Services,
    tls: Option<TlsAcceptor>,
    threads: &ConnectionThreads,
    stop: impl Future<Output = ()>,
) {
    let begin = |raw, watcher| {
        let (services, tls) = (services.clone(), tls.clone());
        threads.spawn(async move {
            let stream = match L::open(raw) {
                Ok(stream) => stream,
                Err(e) => return tracing::warn!("a connection was not served: {e}"),
            };
            if let Some(stream) = secured(stream, tls.as_ref()).await {
                connection(stream, services, watcher).await;
            }
        });
    };
    accept(listener, stop, begin).await;
}

/// Serves one client.
async fn connection(stream: BoxedStream, services: Services, watcher: Watcher) {
    let services = Services {
        streams: Arc::default(),
        ..services
    };
    let call = move |request| services.call(request);
    let served = serve_connection(stream, Box::new(call), KEEP_ALIVE, PATIENCE, watcher);
    if let Err(e) = served.await {
        tracing::debug!("a connection ended: {e}");
    }
}

impl Services {
    /// Answers a call.
    fn call(&self, request: HttpRequest) -> Boxed<std::result::Result<HttpResponse, Infallible>> {
        let front = &self.front;
        if let Err(e) = front.authorize(request.headers()) {
            let refused = to_tonic(&e).into_http();
            return Box::pin(async { Ok(refused) });
        }
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let service = path.split_once('/').map_or("", |(service, _)| service);
        let mut known = SERVICES.into_iter().chain([REFLECTION_ALPHA]);
        let service = known.find(|s| *s == service);
        let traced = front.traces.is_some().then(|| {
            let method = path.rsplit('/').next();
            let method = METHODS.iter().find(|m| method == Some(**m));
            (*method.unwrap_or(&"_OTHER"), request.headers().clone())
        });
        let services = self.clone();
        let answered = answer(&front.calls, request, |method, request| match service {
            Some(PREDICTION) => services.prediction(method, request),
            Some(MODEL) => services.model(method, request),
            Some(HEALTH) => services.health(method, request),
            Some(REFLECTION | REFLECTION_ALPHA) => services.reflection(method, request),
            _ => unknown(),
        });
        match (service, traced) {
            (Some(name @ (PREDICTION | MODEL)), Some((method, headers))) => {
                let front = front.clone();
                Box::pin(async move { in_span(&front, &headers, (name, method), answered).await })
            }
            _ => answered,
        }
    }
}

/// Answers a call in a span, if it is sampled.
async fn in_span(
    front: &Front,
    headers: &http::HeaderMap,
    (service, method): (&'static str, &'static str),
    answered: Boxed<std::result::Result<HttpResponse, Infallible>>,
) -> std::result::Result<HttpResponse, Infallible> {
    let Some(traces) = &front.traces else {
        return answered.await;
    };
    let attributes = vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", service),
        KeyValue::new("rpc.method", method),
    ];
    let name = format!("{service}/{method}");
    let report = |answer: &std::result::Result<HttpResponse, Infallible>, span: &Traced| {
        let Ok(answer) = answer else { return };
        // Successful responses have their status at the end.
        let status = tonic::Status::from_header_map(answer.headers());
        let code = status.as_ref().map_or(0, |s| s.code() as i64);
        span.set("rpc.grpc.status_code", code);
        if let Some(status) = status.filter(|_| code != 0) {
            span.failed(status.message().to_string());
        }
    };
    traces
        .request(headers, name, attributes, answered, report)
        .await
}

impl Services {
    /// A method that reads a message and writes one. A large message is read, and its call handled, away from the threads
    /// of connections, which it would hold up; so are calls of one connection that come at once and take long.
    fn run<Q, R, F, A>(self, request: HttpRequest, method: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Arc<Front>, Q) -> A + Send + 'static,
        A: Future<Output = Result<R>> + Send + 'static,
    {
        let (front, max, call) = (self.front, self.max_message, OpenCall::new(self.streams));
        let handler = move |frame: Bytes| {
            let leaves = frame.len() >= LARGE || call.0.are_many();
            let threads = front.threads.clone();
            let answered = async move {
                let answer = async { method(front, parse(frame)?).await.map_err(|e| to_tonic(&e)) };
                Ok(Box::new(call.handle(answer).await?) as AnyMessage)
            };
            if !leaves {
                return Ok(Box::pin(answered) as Boxed<_>);
            }
            let answered = Traced::within(Traced::current(), answered);
            Ok(Box::pin(async move { beside(&threads, answered).await }) as Boxed<_>)
        };
        unary_frames(request, max, Box::new(handler))
    }

    fn prediction(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let entry = Entry::Grpc;
        match method {
            "Predict" => self.run(
                request,
                move |f, q| async move { f.predict(q, entry).await },
            ),
            "Classify" => self.run(
                request,
                move |f, q| async move { f.classify(q, entry).await },
            ),
            "Regress" => self.run(
                request,
                move |f, q| async move { f.regress(q, entry).await },
            ),
            "MultiInference" => self.run(request, move |f, q| async move {
                f.multi_inference(q, entry).await
            }),
            "GetModelMetadata" => self.run(request, |f, q| async move { f.metadata(&q) }),
            _ => unknown(),
        }
    }

    fn model(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        match method {
            "GetModelStatus" => self.run(request, |f, q| async move { f.status(&q) }),
            // Loads models.
            "HandleReloadConfigRequest" => self.run(request, |f, q| async move {
                let threads = f.calls.control().clone();
                blocking(&threads, move |_| f.reload(q)).await
            }),
            _ => unknown(),
        }
    }

    fn health(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        match method {
            "Check" => self.run(request, |f, q: HealthCheckRequest| async move {
                let status = f.health(&q.service);
                let status = status.ok_or_else(|| not_found!("unknown service"))?;
                Ok(HealthCheckResponse {
                    status: status as i32,
                })
            }),
            "Watch" => {
                let front = self.front.clone();
                let mut grpc = Grpc::new(Frames);
                Box::pin(async move { grpc.server_streaming(Watch(front), request).await })
            }
            _ => unknown(),
        }
    }

    fn reflection(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        match method {
            "ServerReflectionInfo" => reflect(request),
            _ => unknown(),
        }
    }
}

/// `grpc.health.v1.Health.Watch`: the state, and each change of it.
struct Watch(Arc<Front>);

impl ServerStreamingService<Bytes> for Watch {
    type Response = AnyMessage;
    type ResponseStream =
        Pin<Box<dyn Stream<Item = std::result::Result<AnyMessage, tonic::Status>> + Send>>;
    type Future = Boxed<std::result::Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let service = match parse::<HealthCheckRequest>(request.into_inner()) {
            Ok(request) => request.service,
            Err(e) => return Box::pin(async { Err(e) }),
        };
        let front = self.0.clone();
        let mut last = None;
        let changes = IntervalStream::new(tokio::time::interval(WATCH)).filter_map(move |_| {
            let status = front
                .health(&service)
                .unwrap_or(ServingStatus::ServiceUnknown);
            let is_new = last.replace(status) != Some(status);
            is_new.then(|| {
                let status = status as i32;
                Ok(Box::new(HealthCheckResponse { status }) as AnyMessage)
            })
        });
        let stream: Self::ResponseStream = Box::pin(changes);
        Box::pin(async { Ok(tonic::Response::new(stream)) })
    }
}

impl Front {
    /// The state of a service, of the server if the name is empty; `None` if there is no such service. A service serves
    /// if all models do.
    pub(crate) fn health(&self, service: &str) -> Option<ServingStatus> {
        let short = service.rsplit('.').next().unwrap_or_default();
        let names = SERVICES
            .iter()
            .map(|s| s.rsplit('.').next().unwrap_or_default());
        if !service.is_empty() && !{ names }.any(|n| n == short) {
            return None;
        }
        Some(match self.is_ready() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        })
    }

    /// Returns whether every model has an available version.
    pub(crate) fn is_ready(&self) -> bool {
        let models = self.manager.models();
        !self.is_stopping() && models.iter().all(|(_, is_available)| *is_available)
    }

    /// Checks the token of a request.
    ///
    /// # Errors
    /// UNAUTHENTICATED if the server has a token and the request has another one or none.
    pub(crate) fn authorize(&self, headers: &http::HeaderMap) -> Result<()> {
        let Some(token) = &self.options.bearer_token else {
            return Ok(());
        };
        let given = headers.get(http::header::AUTHORIZATION);
        let given = given.map_or(&b""[..], |v| v.as_bytes());
        let (scheme, given) = given.split_at_checked(BEARER.len()).unwrap_or_default();
        let given = match scheme.eq_ignore_ascii_case(BEARER) {
            true => given,
            false => &[],
        };
        // All bytes are compared, so that the time tells nothing of the token.
        let differences = given
            .iter()
            .zip(token.as_bytes())
            .fold(0, |d, (a, b)| d | (a ^ b));
        match given.len() == token.len() && differences == 0 {
            true => Ok(()),
            false => Err(Status::new(
                Code::Unauthenticated,
                "the request has no valid bearer token",
            )),
        }
    }
}
