//! The gRPC services: path → message → [`Front`].

use crate::front::{Entry, Front};
use crate::reflection::reflect;
use crate::trace::Traced;
use bytes::Bytes;
use ferroflow_base::{Code, Result, Status, not_found};
use ferroflow_model::proto::health::health_check_response::ServingStatus;
use ferroflow_model::proto::health::{HealthCheckRequest, HealthCheckResponse};
use ferroflow_rpc::{
    AnyMessage, Boxed, Frames, HttpRequest, HttpResponse, answer, blocking, parse, to_tonic, unary,
    unknown,
};
use opentelemetry::KeyValue;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, NamedService, ServerStreamingService};

/// Names of the services, in the health service and in reflection.
pub(crate) const SERVICES: [&str; 4] = [
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];

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

/// How often a watched state is looked at.
const WATCH: Duration = Duration::from_millis(500);

/// All services of a server.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) front: Arc<Front>,
    /// Largest request, bytes.
    pub(crate) max_message: usize,
}

macro_rules! service {
    ($service:ident, $name:literal, $dispatch:ident, $is_traced:literal) => {
        #[doc = concat!("`", $name, "`.")]
        #[derive(Clone)]
        pub(crate) struct $service(pub(crate) Services);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl tower_service::Service<HttpRequest> for $service {
            type Response = HttpResponse;
            type Error = Infallible;
            type Future = Boxed<std::result::Result<HttpResponse, Infallible>>;

            fn poll_ready(
                &mut self,
                _: &mut Context<'_>,
            ) -> Poll<std::result::Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: HttpRequest) -> Self::Future {
                let services = self.0.clone();
                if let Err(e) = services.front.authorize(request.headers()) {
                    let refused = to_tonic(&e).into_http();
                    return Box::pin(async { Ok(refused) });
                }
                let front = services.front.clone();
                let is_traced = $is_traced && front.traces.is_some();
                let traced = is_traced.then(|| {
                    let method = request.uri().path().rsplit('/').next();
                    let method = METHODS.iter().find(|m| method == Some(**m));
                    (*method.unwrap_or(&"_OTHER"), request.headers().clone())
                });
                let answered = answer(&front.calls, request, |method, request| {
                    services.$dispatch(method, request)
                });
                match traced {
                    Some((method, headers)) => Box::pin(async move {
                        in_span(&front, &headers, ($name, method), answered).await
                    }),
                    None => answered,
                }
            }
        }
    };
}
service!(
    PredictionService,
    "tensorflow.serving.PredictionService",
    prediction,
    true
);
service!(ModelService, "tensorflow.serving.ModelService", model, true);
service!(Health, "grpc.health.v1.Health", health, false);
service!(
    Reflection,
    "grpc.reflection.v1.ServerReflection",
    reflection,
    false
);
service!(
    ReflectionAlpha,
    "grpc.reflection.v1alpha.ServerReflection",
    reflection,
    false
);

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
    /// A method that runs a step.
    fn run<Q, R, F, A>(self, request: HttpRequest, method: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Arc<Front>, Q) -> A + Send + 'static,
        A: Future<Output = Result<R>> + Send + 'static,
    {
        let max = self.max_message;
        unary(request, max, move |message: Q| async move {
            method(self.front, message).await.map_err(|e| to_tonic(&e))
        })
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
        let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
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
