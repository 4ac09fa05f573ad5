//! The gRPC methods: HTTP path → message → [`Master`].

use crate::eager::EagerService;
use crate::link;
use crate::master::Master;
use crate::security::Security;
use crate::task::Task;
use crate::worker::Worker;
use bytes::Bytes;
use ferroflow_base::{Code, Result, Status};
use ferroflow_model::proto::{
    EnqueueRequest, EnqueueResponse, MarkRecvFinishedRequest, MarkRecvFinishedResponse,
    ReportErrorToTaskRequest, ReportErrorToTaskResponse, RunCallableRequest, RunGraphRequest,
    RunGraphResponse, RunStepRequest, RunStepResponse,
};
use ferroflow_rpc as rpc;
use ferroflow_runtime::CancelToken;
use prost::Message;
use rpc::{
    AnyMessage, Boxed, Calls, CancelOnDrop, Frames, HttpRequest, HttpResponse, message, to_tonic,
    unary, unknown,
};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, StreamingService};

/// The service that clients call.
const MASTER: &str = "tensorflow.MasterService";

/// The state of all services.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) master: Arc<Master>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) eager: Arc<EagerService>,
    /// Largest request, bytes.
    pub(crate) max_message: usize,
    pub(crate) calls: Arc<Calls>,
    /// Whether other tasks may open links: those are not encrypted.
    pub(crate) has_links: bool,
}

impl Endpoint {
    /// Answers a call.
    pub(crate) fn call(&self, request: HttpRequest) -> Boxed<Result<HttpResponse, Infallible>> {
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let service = path.split_once('/').map_or("", |(service, _)| service);
        let dispatch: fn(Endpoint, &str, HttpRequest) -> Boxed<HttpResponse> = match service {
            MASTER => Endpoint::dispatch_master,
            "tensorflow.WorkerService" => Endpoint::dispatch_worker,
            "tensorflow.eager.EagerService" => Endpoint::dispatch_eager,
            "tensorflow.CoordinationService" => Endpoint::dispatch_coordination,
            _ => |_, _, _| unknown(),
        };
        let is_of_clients = service == MASTER;
        if !self.security().admits(&request, is_of_clients) {
            return Box::pin(async { Ok(refused()) });
        }
        let endpoint = self.clone();
        let answered = rpc::answer(&self.calls, request, |method, request| {
            dispatch(endpoint, method, request)
        });
        match !is_of_clients && self.has_links {
            true => Box::pin(async move { answered.await.map(with_link) }),
            false => answered,
        }
    }
}

/// Says that this task knows links.
fn with_link(mut answer: HttpResponse) -> HttpResponse {
    let value = http::HeaderValue::from_static("1");
    answer.headers_mut().insert(link::HEADER, value);
    answer
}

/// The answer to a call without the token of the cluster.
fn refused() -> HttpResponse {
    tonic::Status::unauthenticated("the call does not have the token of the cluster").into_http()
}

impl Endpoint {
    fn security(&self) -> &Security {
        &self.master.task().server.security
    }

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
            // Clients delete their handles by it.
            "Enqueue" => unary(request, self.max_message, move |r| self.run_items(r)),
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

    fn dispatch_coordination(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        macro_rules! at_leader {
            (|$leader:ident, $request:ident| $answer:expr) => {
                self.of_task(
                    request,
                    crate::coordination::to_tonic,
                    |task, $request| async move {
                        let $leader = task.coordination.coordinator()?;
                        $answer
                    },
                )
            };
        }
        match method {
            "RegisterTask" => at_leader!(|c, r| c.register_task(r).await),
            "Heartbeat" => at_leader!(|c, r| c.heartbeat(r)),
            "WaitForAllTasks" => at_leader!(|c, r| c.wait_for_all_tasks(r).await),
            "ShutdownTask" => at_leader!(|c, r| c.shutdown_task(r).await),
            "ResetTask" => at_leader!(|c, r| c.reset_task(r)),
            "ReportErrorToService" => at_leader!(|c, r| c.report_error(r)),
            "GetTaskState" => at_leader!(|c, r| c.task_states(r)),
            "WatchJobState" => at_leader!(|c, r| c.watch_job(r).await),
            "InsertKeyValue" => at_leader!(|c, r| c.insert(r)),
            "GetKeyValue" => at_leader!(|c, r| c.get(r).await),
            "TryGetKeyValue" => at_leader!(|c, r| c.try_get(r)),
            "GetKeyValueDir" => at_leader!(|c, r| Ok(c.directory(r))),
            "DeleteKeyValue" => at_leader!(|c, r| Ok(c.delete(&r))),
            "Barrier" => at_leader!(|c, r| c.barrier(r).await),
            "CancelBarrier" => at_leader!(|c, r| c.cancel_barrier(&r)),
            "GetAliveTasks" => at_leader!(|c, r| c.alive_tasks(r).await),
            "PollForError" => at_leader!(|c, r| c.poll_for_error(&r)),
            "ReportErrorToTask" => self.of_task(
                request,
                crate::coordination::to_tonic,
                |task, r| async move {
                    let r: ReportErrorToTaskRequest = r;
                    let code = Code::from_number(r.error_code).unwrap_or(Code::Unknown);
                    let agent = task.coordination.agent()?;
                    agent.set_error(&Status::new(code, r.error_message));
                    Ok(ReportErrorToTaskResponse {})
                },
            ),
            _ => unknown(),
        }
    }

    fn dispatch_worker(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let (w, limit) = (self.worker.clone(), self.max_message);
        match method {
            "RunGraph" => self.run_graph(request),
            "RecvTensor" => unary(request, limit, move |r| async move {
                w.recv_tensor(r).await.map_err(|e| to_tonic(&e))
            }),
            "RecvBuf" => self.of_task(request, to_tonic, |task, r| async move {
                task.collectives.recv_buf(&task.devices, r).await
            }),
            "CompleteGroup" => self.of_task(request, to_tonic, |task, r| async move {
                task.collectives.complete_group(r).await
            }),
            "CompleteInstance" => self.of_task(request, to_tonic, |task, r| async move {
                task.collectives.complete_instance(r).await
            }),
            "GetStepSequence" => self.of_task(request, to_tonic, |task, r| async move {
                task.collectives.step_sequence(&r)
            }),
            "CleanupGraph" => unary(
                request,
                limit,
                move |r| async move { Ok(w.cleanup_graph(r)) },
            ),
            "GetStatus" => unary(request, limit, move |r| async move { Ok(w.get_status(r)) }),
            "RegisterGraph" => self.control(request, move |r| w.register_graph(r)),
            "DeregisterGraph" => self.control(request, move |r| w.deregister_graph(r)),
            "CreateWorkerSession" => self.control(request, move |r| w.create_worker_session(r)),
            "DeleteWorkerSession" => self.control(request, move |r| Ok(w.delete_worker_session(r))),
            "CleanupAll" => self.control(request, move |r| Ok(w.cleanup_all(r))),
            "MarkRecvFinished" => unary(request, limit, |_: MarkRecvFinishedRequest| async {
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

    /// A method that waits without a thread; `to_status` says how its service reports errors.
    fn of_task<Q, R, F, A>(
        self,
        request: HttpRequest,
        to_status: fn(&Status) -> tonic::Status,
        handler: F,
    ) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Arc<Task>, Q) -> A + Send + 'static,
        A: Future<Output = Result<R>> + Send + 'static,
    {
        let task = self.master.task().clone();
        unary(request, self.max_message, move |message: Q| async move {
            handler(task, message).await.map_err(|e| to_status(&e))
        })
    }

    /// As [`Endpoint::control`], for a method that waits; its token is cancelled when the client hangs up.
    fn cancellable<Q, R, F>(self, request: HttpRequest, handler: F) -> Boxed<HttpResponse>
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
        F: FnOnce(Q, &CancelToken) -> Result<R> + Send + 'static,
    {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        unary(request, self.max_message, move |message: Q| async move {
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
        unary(request, self.max_message, move |message: Q| async move {
            let step = move |_: &Master, cancel: &CancelToken| handler(message, cancel);
            let ran = Self::blocking_step(master, calls, step).await;
            ran.map_err(|e| to_tonic(&e))
        })
    }

    /// Runs the items of `Enqueue` or of a request of `StreamingEnqueue`: brief ones at once, others on a thread that may
    /// block.
    async fn run_items(self, request: EnqueueRequest) -> Result<EnqueueResponse, tonic::Status> {
        let eager = self.eager;
        let ran = match eager.is_brief(&request) {
            true => eager.enqueue(request, &CancelToken::new()),
            false => {
                let run = move |_: &Master, cancel: &CancelToken| eager.enqueue(request, cancel);
                Self::blocking_step(self.master, self.calls, run).await
            }
        };
        ran.map_err(|e| to_tonic(&e))
    }

    /// `StreamingEnqueue`: one response for each request, in order; the first error ends the stream.
    fn stream(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let mut grpc = Grpc::new(Frames)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate)
            .max_decoding_message_size(self.max_message)
            .max_encoding_message_size(usize::MAX);
        Box::pin(async move { grpc.streaming(Enqueueing(self), request).await })
    }

    /// `RunGraph`; its errors are in the response if the master asks for that.
    fn run_graph(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, worker) = (self.master.clone(), self.worker.clone());
        let (calls, limit) = (self.calls.clone(), self.max_message);
        unary(request, limit, move |request: RunGraphRequest| async move {
            let in_body = request.store_errors_in_response_body;
            let hung_up = CancelOnDrop(CancelToken::new());
            let ran = match worker.prepare(request, &hung_up.0) {
                Err(e) => Err(e),
                Ok(step) if step.is_brief() => worker.run_brief(step).await,
                Ok(step) => {
                    let step = move |_: &Master, _: &CancelToken| worker.run_prepared(step);
                    Self::blocking_step(master, calls, step).await
                }
            };
            drop(hung_up);
            match ran {
                Err(e) if in_body => Ok(RunGraphResponse {
                    status_code: e.code() as i32,
                    status_error_message: message(&e),
                    ..Default::default()
                }),
                result => result.map_err(|e| to_tonic(&e)),
            }
        })
    }

    /// `RunCallable`.
    fn callable(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        unary(
            request,
            self.max_message,
            move |request: RunCallableRequest| async move {
                let step = move |m: &Master, cancel: &CancelToken| m.run_callable(request, cancel);
                let ran = Self::blocking_step(master, calls, step).await;
                ran.map_err(|e| to_tonic(&e))
            },
        )
    }

    /// `RunStep`; its errors are in the response if the client asks for that.
    fn step(self, request: HttpRequest) -> Boxed<HttpResponse> {
        let (master, calls) = (self.master.clone(), self.calls.clone());
        unary(
            request,
            self.max_message,
            move |request: RunStepRequest| async move {
                let in_body = request.store_errors_in_response_body;
                let result = match master.prepare(request) {
                    Err(e) => Err(e),
                    // A switch of threads would cost more than the step.
                    Ok(step) if step.is_short() => master.run_step(step, &CancelToken::new()),
                    Ok(step) if step.is_brief() => master.run_brief(step).await,
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
            },
        )
    }
}

/// The method `StreamingEnqueue`.
struct Enqueueing(Endpoint);

impl StreamingService<Bytes> for Enqueueing {
    type Response = AnyMessage;
    type ResponseStream = Answers;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let answers = Answers {
            endpoint: self.0.clone(),
            requests: request.into_inner(),
            running: None,
            is_over: false,
        };
        std::future::ready(Ok(tonic::Response::new(answers)))
    }
}

/// The answers of a `StreamingEnqueue`. The task that writes them reads the requests and runs what is brief: each
/// switch of tasks may cost one of threads.
struct Answers {
    endpoint: Endpoint,
    requests: Streaming<Bytes>,
    /// The request that runs; dropping it cancels it.
    running: Option<Boxed<Result<EnqueueResponse, tonic::Status>>>,
    /// Whether an error has ended the stream.
    is_over: bool,
}

impl Answers {
    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<EnqueueResponse, tonic::Status>>> {
        loop {
            if let Some(running) = &mut self.running {
                let ran = ready!(running.as_mut().poll(cx));
                self.running = None;
                return Poll::Ready(Some(ran));
            }
            let request = match ready!(Pin::new(&mut self.requests).poll_next(cx)) {
                Some(request) => request.and_then(rpc::parse::<EnqueueRequest>),
                None => return Poll::Ready(None),
            };
            match request {
                Ok(request) => {
                    self.running = Some(Box::pin(self.endpoint.clone().run_items(request)))
                }
                Err(e) => return Poll::Ready(Some(Err(e))),
            }
        }
    }
}

impl Stream for Answers {
    type Item = Result<AnyMessage, tonic::Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let answer = ready!(self.poll_answer(cx));
        self.is_over = !matches!(answer, Some(Ok(_)));
        Poll::Ready(answer.map(|a| a.map(|answer| Box::new(answer) as AnyMessage)))
    }
}

/// [`rpc::blocking`], counted as queued until a thread runs it.
async fn blocking<R: Send + 'static>(
    threads: &Handle,
    master: Arc<Master>,
    f: impl FnOnce(&Master, &CancelToken) -> Result<R> + Send + 'static,
) -> Result<R> {
    master.metrics.queued.inc();
    let step = move |cancel: &CancelToken| {
        master.metrics.queued.dec();
        f(&master, cancel)
    };
    rpc::blocking(threads, step).await
}
