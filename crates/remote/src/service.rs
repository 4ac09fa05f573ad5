//! The gRPC methods: HTTP path → message → [`Master`].

use crate::master::Master;
use ferroflow_base::Result;
use ferroflow_model::proto::{RunCallableRequest, RunStepRequest, RunStepResponse};
use ferroflow_rpc as rpc;
use ferroflow_runtime::CancelToken;
use prost::Message;
use rpc::{Boxed, Calls, HttpRequest, HttpResponse, message, to_tonic, unary, unknown};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tonic::server::NamedService;

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

/// The state of both services.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) master: Arc<Master>,
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
                let (endpoint, calls) = (self.0.clone(), self.0.calls.clone());
                rpc::answer(&calls, request, |method, request| {
                    endpoint.$dispatch(method, request)
                })
            }
        }
    };
}
service!(MasterService, dispatch_master);
service!(WorkerService, dispatch_worker);

impl Endpoint {
    fn dispatch_master(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let m = self.master.clone();
        match method {
            "RunStep" => self.step(request),
            "RunCallable" => self.callable(request),
            "CreateSession" => self.control(request, move |r| m.create_session(r)),
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

    fn dispatch_worker(self, method: &str, request: HttpRequest) -> Boxed<HttpResponse> {
        let m = self.master.clone();
        match method {
            "GetStatus" => self.control(request, move |r| Ok(m.get_status(r))),
            "CreateWorkerSession" => self.control(request, move |r| Ok(m.create_worker_session(r))),
            "DeleteWorkerSession" => self.control(request, move |r| Ok(m.delete_worker_session(r))),
            "CleanupAll" => self.control(request, move |r| Ok(m.cleanup_all(r))),
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
        let (master, calls) = (self.master.clone(), self.calls.clone());
        unary(request, self.max_message, move |message: Q| async move {
            let ran = blocking(calls.control(), master, move |_, _| handler(message)).await;
            ran.map_err(|e| to_tonic(&e))
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
