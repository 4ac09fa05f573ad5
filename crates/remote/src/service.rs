//! The gRPC methods: HTTP path → message → [`Master`].

use crate::calls::Calls;
use crate::eager::EagerService;
use crate::master::Master;
use crate::master_session::deadline_exceeded;
use crate::status::{message, to_tonic};
use crate::wire::Wire;
use crate::worker::Worker;
use ferroflow_base::{Result, internal};
use ferroflow_model::proto::{
    EnqueueRequest, EnqueueResponse, MarkRecvFinishedRequest, MarkRecvFinishedResponse,
    RunCallableRequest, RunGraphRequest, RunGraphResponse, RunStepRequest, RunStepResponse,
};
use ferroflow_runtime::CancelToken;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};

type HttpRequest = http::Request<Body>;
type HttpResponse = http::Response<Body>;
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// `tensorflow.MasterService`.
#[derive(Clone)]
pub(crate) struct MasterService(pub(crate) Endpoint);

/// `tensorflow.WorkerService`.
#[derive(Clone)]
pub(crate) struct WorkerService(pub(crate) Endpoint);

impl NamedService for MasterService {
    const NAME: &'static str = "tensorflow.MasterService";
}

impl NamedService for WorkerService {
    const NAME: &'static str = "tensorflow.WorkerService";
}

/// `tensorflow.eager.EagerService`.
#[derive(Clone)]
pub(crate) struct EagerEndpoint(pub(crate) Endpoint);

impl NamedService for EagerEndpoint {
    const NAME: &'static str = "tensorflow.eager.EagerService";
}

/// The state of all services.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) master: Arc<Master>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) eager: Arc<EagerService>,
    /// Largest request, bytes.
    pub(crate) max_message: usize,
    pub(crate) calls: Arc<Calls>,
}

macro_rules! service {
    ($service:ident, $dispatch:ident) => {
        impl tower_service::Service<HttpRequest> for $service {
            type Response = HttpResponse;
            type Error = Infallible;
            type Future = Boxed<Result<HttpResponse, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: HttpRequest) -> Self::Future {
                let endpoint = self.0.clone();
                let path = request.uri().path();
                let method = path.rsplit('/').next().unwrap_or_default().to_string();
                let deadline = client_timeout(request.headers()).and_then(deadline_within);
                let call = endpoint.calls.begin();
                let answered = endpoint.$dispatch(&method, request);
                // The call is over when its response has been sent.
                let held = move |body: Body| {
                    Body::new(body.map_frame(move |frame| {
                        let _ = &call;
                        frame
                    }))
                };
                Box::pin(async move { Ok(with_deadline(deadline, answered).await.map(held)) })
            }
        }
    };
}
service!(MasterService, dispatch_master);
service!(WorkerService, dispatch_worker);
service!(EagerEndpoint, dispatch_eager);

/// How much earlier than the client's deadline the server may answer.
const EARLY: Duration = Duration::from_millis(20);

/// Returns the deadline of a call that arrives now with this timeout. It is earlier than that of tonic,
/// which reads the same header a moment before and answers CANCELLED.
fn deadline_within(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit - (limit / 5).min(EARLY))
}

/// Returns DEADLINE_EXCEEDED at the client's deadline, so that the result is the same whichever side's
/// timer fires first.
async fn with_deadline(deadline: Option<Instant>, answered: Boxed<HttpResponse>) -> HttpResponse {
    let Some(deadline) = deadline else {
        return answered.await;
    };
    let answered = tokio::time::timeout_at(deadline, answered).await;
    answered.unwrap_or_else(|_| to_tonic(&deadline_exceeded()).into_http())
}

/// Parses `grpc-timeout`: up to eight digits and a unit (gRPC over HTTP/2).
fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

impl Endpoint {
    fn dispatch_master(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let m = self.master.clone();
        match method {
            "RunStep" => self.step(request),
            "RunCallable" => self.callable(request),
            "CreateSession" => {
                self.cancellable(request, move |r, cancel| m.create_session(r, cancel))
            }
            "ExtendSession" => self.control(request, move |r| m.extend_session(r)),
            "PartialRunSetup" => self.control(request, move |r| m.partial_run_setup(r)),
            "CloseSession" => self.control(request, move |r| m.close_session(r)),
            "ListDevices" => self.control(request, move |r| m.list_devices(r)),
            "Reset" => self.control(request, move |r| Ok(m.reset(r))),
            "MakeCallable" => self.control(request, move |r| m.make_callable(r)),
            "ReleaseCallable" => self.control(request, move |r| m.release_callable(r)),
            _ => unknown(),
        }
    }

    fn dispatch_eager(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let e = self.eager.clone();
        match method {
            "StreamingEnqueue" => self.stream(request),
            "Enqueue" => self.waiting(request, move |r, cancel| e.enqueue(r, cancel)),
            "RunComponentFunction" => self.waiting(request, move |r, cancel| {
                e.run_component_function(r, cancel)
            }),
            "CreateContext" => self.control(request, move |r| e.create_context(r)),
            "UpdateContext" => self.control(request, move |r| e.update_context(r)),
            "WaitQueueDone" => self.control(request, move |r| e.wait_queue_done(r)),
            "KeepAlive" => self.control(request, move |r| e.keep_alive(r)),
            "CloseContext" => self.control(request, move |r| Ok(e.close_context(r))),
            _ => unknown(),
        }
    }

    fn dispatch_worker(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let w = self.worker.clone();
        match method {
            "RunGraph" => self.run_graph(request),
            "RecvTensor" => self.unary(request, move |r| async move {
                w.recv_tensor(r).await.map_err(|e| to_tonic(&e))
            }),
            "CleanupGraph" => self.unary(request, move |r| async move { Ok(w.cleanup_graph(r)) }),
            "GetStatus" => self.unary(request, move |r| async move { Ok(w.get_status(r)) }),
            "RegisterGraph" => self.control(request, move |r| w.register_graph(r)),
            "DeregisterGraph" => self.control(request, move |r| w.deregister_graph(r)),
            "CreateWorkerSession" => self.control(request, move |r| w.create_worker_session(r)),
            "DeleteWorkerSession" => self.control(request, move |r| Ok(w.delete_worker_session(r))),
            "CleanupAll" => self.control(request, move |r| Ok(w.cleanup_all(r))),
            "MarkRecvFinished" => self.unary(request, |_: MarkRecvFinishedRequest| async {
                Ok(MarkRecvFinishedResponse {})
            }),
            _ => unknown(),
        }
    }
}

impl Endpoint {
    /// A method that runs no step. Its threads are not those of steps, which may block.
    fn control<Q, R, F>(self, request: HttpRequest, handler: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Q) -> Result<R> + Send + 'static,
    {
        self.cancellable(request, move |message, _| handler(message))
    }

    /// As [`Endpoint::control`], for a method that waits; its token is cancelled when the client hangs up.
    fn cancellable<Q, R, F>(self, request: HttpRequest, handler: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Q, &CancelToken) -> Result<R> + Send + 'static,
    {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        self.unary(request, move |message: Q| async move {
            let ran = blocking(calls.control(), master, move |_, cancel| {
                handler(message, cancel)
            });
            ran.await.map_err(|e| to_tonic(&e))
        })
    }

    /// Runs a step on a thread that may block.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if too many steps block.
    async fn blocking_step<R: Send + 'static>(
        master: Arc<Master>,
        calls: Arc<Calls>,
        step: impl FnOnce(&Master, &CancelToken) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let _permit = calls.begin_step()?;
        blocking(&Handle::current(), master, step).await
    }

    /// A method that runs a step.
    fn waiting<Q, R, F>(self, request: HttpRequest, handler: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Q, &CancelToken) -> Result<R> + Send + 'static,
    {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        self.unary(request, move |message: Q| async move {
            let step = move |_: &Master, cancel: &CancelToken| handler(message, cancel);
            let ran = Self::blocking_step(master, calls, step).await;
            ran.map_err(|e| to_tonic(&e))
        })
    }

    /// `StreamingEnqueue`: one response for each request, in order; the first error ends the stream.
    fn stream(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let mut grpc = Grpc::new(Wire::<EnqueueResponse, EnqueueRequest>::default())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
            .max_decoding_message_size(self.max_message)
            .max_encoding_message_size(usize::MAX);
        Box::pin(async move { grpc.streaming(Enqueueing(self), request).await })
    }

    /// `RunCallable`.
    fn callable(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        self.unary(request, move |request: RunCallableRequest| async move {
            let step = move |m: &Master, cancel: &CancelToken| m.run_callable(request, cancel);
            let ran = Self::blocking_step(master, calls, step).await;
            ran.map_err(|e| to_tonic(&e))
        })
    }

    /// `RunGraph`; its errors are in the response if the master asks for that.
    fn run_graph(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, worker, calls) =
            (self.master.clone(), self.worker.clone(), self.calls.clone());
        self.unary(request, move |request: RunGraphRequest| async move {
            let in_body = request.store_errors_in_response_body;
            let step = move |_: &Master, cancel: &CancelToken| worker.run_graph(request, cancel);
            match Self::blocking_step(master, calls, step).await {
                Err(e) if in_body => Ok(RunGraphResponse {
                    status_code: e.code() as i32,
                    status_error_message: message(&e),
                    ..Default::default()
                }),
                result => result.map_err(|e| to_tonic(&e)),
            }
        })
    }

    /// `RunStep`; its errors are in the response if the client asks for that.
    fn step(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        self.unary(request, move |request: RunStepRequest| async move {
            let in_body = request.store_errors_in_response_body;
            let result = match master.prepare(request) {
                Err(e) => Err(e),
                // A switch of threads would cost more than the step.
                Ok(step) if step.is_short() => master.run_step(step, &CancelToken::new()),
                Ok(step) => {
                    let step = move |m: &Master, cancel: &CancelToken| m.run_step(step, cancel);
                    Self::blocking_step(master, calls, step).await
                }
            };
            match result {
                Err(e) if in_body => Ok(RunStepResponse {
                    status_code: e.code() as i32,
                    status_error_message: message(&e),
                    ..Default::default()
                }),
                result => result.map_err(|e| to_tonic(&e)),
            }
        })
    }

    fn unary<Q, R, F, A>(self, request: HttpRequest, handler: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Q) -> A + Send + 'static,
        A: Future<Output = Result<R, tonic::Status>> + Send + 'static,
    {
        let mut grpc = Grpc::new(Wire::<R, Q>::default())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
            .max_decoding_message_size(self.max_message)
            .max_encoding_message_size(usize::MAX);
        Box::pin(async move {
            let mut is_read = false;
            let mut answer = grpc
                .unary(Method(Some(handler), &mut is_read), request)
                .await;
            let status = answer.headers_mut().get_mut("grpc-status");
            // TensorFlow's clients take OUT_OF_RANGE for the end of their data.
            if let Some(status) = status.filter(|s| !is_read && *s == "11") {
                *status = HeaderValue::from_static("8");
            }
            answer
        })
    }
}

/// One call of a method; sets the flag when the message has been read.
struct Method<'a, F>(Option<F>, &'a mut bool);

impl<Q, R, F, A> UnaryService<Q> for Method<'_, F>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: FnOnce(Q) -> A + Send + 'static,
    A: Future<Output = Result<R, tonic::Status>> + Send + 'static,
{
    type Response = R;
    type Future = Boxed<Result<tonic::Response<R>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        *self.1 = true;
        let answer = self.0.take().map(|handler| handler(request.into_inner()));
        Box::pin(async move {
            match answer {
                Some(answer) => answer.await.map(tonic::Response::new),
                None => Err(tonic::Status::internal("the call was started twice")),
            }
        })
    }
}

/// The method `StreamingEnqueue`.
struct Enqueueing(Endpoint);

impl StreamingService<EnqueueRequest> for Enqueueing {
    type Response = EnqueueResponse;
    type ResponseStream = ReceiverStream<Result<EnqueueResponse, tonic::Status>>;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<EnqueueRequest>>) -> Self::Future {
        let (endpoint, mut requests) = (self.0.clone(), request.into_inner());
        let (sender, responses) = tokio::sync::mpsc::channel(16);
        tokio::spawn(async move {
            while let Some(request) = requests.message().await.transpose() {
                let answer = match request {
                    Ok(request) => {
                        let eager = endpoint.eager.clone();
                        let run =
                            move |_: &Master, cancel: &CancelToken| eager.enqueue(request, cancel);
                        let (master, calls) = (endpoint.master.clone(), endpoint.calls.clone());
                        let step = Endpoint::blocking_step(master, calls, run);
                        tokio::select! {
                            ran = step => ran.map_err(|e| to_tonic(&e)),
                            () = sender.closed() => return,
                        }
                    }
                    Err(e) => Err(e),
                };
                let is_last = answer.is_err();
                if sender.send(answer).await.is_err() || is_last {
                    return;
                }
            }
        });
        std::future::ready(Ok(tonic::Response::new(ReceiverStream::new(responses))))
    }
}

/// Cancels the step when the client disconnects, which drops the future that owns this.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `f` on one of `threads`, where it may block. Its token is cancelled when the future is dropped.
async fn blocking<R: Send + 'static>(
    threads: &Handle,
    master: Arc<Master>,
    f: impl FnOnce(&Master, &CancelToken) -> Result<R> + Send + 'static,
) -> Result<R> {
    let cancel = CancelToken::new();
    let hung_up = CancelOnDrop(cancel.clone());
    master.metrics.queued.inc();
    let ran = threads.spawn_blocking(move || {
        master.metrics.queued.dec();
        f(&master, &cancel)
    });
    let ran = ran.await;
    drop(hung_up);
    ran.unwrap_or_else(|e| {
        Err(internal!(
            "a request handler failed (please report this): {e}"
        ))
    })
}

fn unknown() -> Boxed<HttpResponse> {
    Box::pin(async { tonic::Status::unimplemented("unknown method").into_http() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read() {
        let rows = [
            ("200m", Some(Duration::from_millis(200))),
            ("2S", Some(Duration::from_secs(2))),
            ("3M", Some(Duration::from_secs(180))),
            ("1H", Some(Duration::from_secs(3600))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000n", None),
            ("12", None),
            ("m", None),
            ("", None),
            ("-1m", None),
        ];
        for (text, expected) in rows {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(client_timeout(&headers), expected, "{text:?}");
        }
        assert_eq!(client_timeout(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn a_late_answer_is_deadline_exceeded() {
        let never: Boxed<HttpResponse> = Box::pin(std::future::pending());
        let limit = Duration::from_millis(5);
        assert!(deadline_within(limit).unwrap() < Instant::now() + limit);
        let answer = with_deadline(deadline_within(limit), never).await;
        assert_eq!(answer.headers()["grpc-status"], "4");
        let later = deadline_within(Duration::from_secs(60));
        let answer = with_deadline(later, unknown()).await;
        assert_eq!(answer.headers()["grpc-status"], "12");
    }
}
