//! Contexts of kernels: the host, a request, and callable functions.

use super::metrics::{Buckets, Gauge, Histogram, MetricsRegistry, NoopMetric};
use super::trace::{TraceLevel, TraceScope, Tracer};
use ferroflow_base::{Code, Result, Status, cancelled};
use ferroflow_sync::{
    AsyncValue, CancelToken, Diagnostic, Location, Registration, Task, WorkQueue,
};
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Arguments or results of a call.
pub type Values = SmallVec<[AsyncValue; 4]>;

type Shared = Arc<dyn Any + Send + Sync>;

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that all requests of a process share.
pub struct HostContext {
    work_queue: Arc<dyn WorkQueue>,
    has_threads: bool,
    out: Mutex<Box<dyn Write + Send>>,
    on_error: Box<dyn Fn(&Diagnostic) + Send + Sync>,
    shared: Mutex<HashMap<TypeId, Shared>>,
    allocator: Arc<dyn ferroflow_tensor::HostAllocator>,
    tracer: OnceLock<Tracer>,
    metrics: OnceLock<Arc<dyn MetricsRegistry>>,
}

impl HostContext {
    /// Creates a host that runs tasks on `work_queue`, prints to `out` and passes errors to
    /// `on_error`.
    pub fn new(
        work_queue: Arc<dyn WorkQueue>,
        allocator: Arc<dyn ferroflow_tensor::HostAllocator>,
        out: Box<dyn Write + Send>,
        on_error: Box<dyn Fn(&Diagnostic) + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(HostContext {
            has_threads: work_queue.parallelism_level() > 1,
            work_queue,
            out: Mutex::new(out),
            on_error,
            shared: Mutex::default(),
            allocator,
            tracer: OnceLock::new(),
            metrics: OnceLock::new(),
        })
    }

    /// Reports events to `tracer` from now on. A host has at most one tracer.
    pub fn set_tracer(&self, tracer: Tracer) {
        let _ = self.tracer.set(tracer);
    }

    /// Registers metrics that are requested from now on in `metrics`. A host has at most one
    /// registry.
    pub fn set_metrics(&self, metrics: Arc<dyn MetricsRegistry>) {
        let _ = self.metrics.set(metrics);
    }

    /// Returns the gauge `name` of the host's metrics.
    pub fn string_gauge(&self, name: &str) -> Arc<dyn Gauge> {
        match self.metrics.get() {
            Some(metrics) => metrics.string_gauge(name),
            None => Arc::new(NoopMetric),
        }
    }

    /// Returns the histogram `name` of the host's metrics.
    pub fn histogram(&self, name: &str, buckets: &Buckets) -> Arc<dyn Histogram> {
        match self.metrics.get() {
            Some(metrics) => metrics.histogram(name, buckets),
            None => Arc::new(NoopMetric),
        }
    }

    /// Reports the start of an event to the tracer, if it traces `level`; the event ends when the
    /// scope is dropped.
    #[inline]
    pub fn trace(
        &self,
        level: TraceLevel,
        name: impl FnOnce() -> String,
    ) -> Option<TraceScope<'_>> {
        self.tracer.get()?.scope(level, name)
    }

    /// Returns the queue that runs tasks.
    #[inline]
    pub fn work_queue(&self) -> &Arc<dyn WorkQueue> {
        &self.work_queue
    }

    /// Returns whether kernels may run at the same time.
    #[inline]
    pub fn is_parallel(&self) -> bool {
        self.has_threads
    }

    /// Returns the allocator of buffers.
    pub fn allocator(&self) -> &Arc<dyn ferroflow_tensor::HostAllocator> {
        &self.allocator
    }

    /// Writes `text` to the host's output.
    pub fn print(&self, text: &str) {
        let mut out = lock(&self.out);
        // A closed output cannot be reported.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Passes an error to the host's error handler.
    pub fn emit_error(&self, diagnostic: &Diagnostic) {
        (self.on_error)(diagnostic);
    }

    /// Drops all shared objects.
    pub fn forget_shared(&self) {
        let shared = std::mem::take(&mut *lock(&self.shared));
        drop(shared);
    }

    /// Returns the host's only object of type `T`, created by `make` if needed.
    pub fn shared<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = lock(&self.shared);
        let slot = shared
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(make()));
        match slot.clone().downcast() {
            Ok(value) => value,
            // The key is the type, so this is never reached; a fresh object serves as well.
            Err(_) => Arc::new(unreachable_object()),
        }
    }
}

fn unreachable_object<T>() -> T {
    unreachable!("an object under the key of its type has that type")
}

/// One request: state that its kernels share, and its cancellation.
pub struct RequestContext {
    host: Arc<HostContext>,
    resources: Mutex<HashMap<String, Shared>>,
    cancelled: OnceLock<AsyncValue>,
    token: CancelToken,
    /// Cancels the request when its parent token is cancelled.
    follows: OnceLock<Registration>,
    data: Option<Shared>,
}

/// A kernel's handle to its request and host.
#[derive(Clone)]
pub struct ExecutionContext(Arc<RequestContext>);

impl ExecutionContext {
    /// Returns the context of a new request.
    pub fn new(host: Arc<HostContext>) -> Self {
        Self::of(host, CancelToken::new(), None)
    }

    /// Returns the context of a request that is cancelled with `token`, explicitly or at its
    /// deadline. `data` is the caller's data for kernels of the request.
    ///
    /// ```
    /// use ferroflow_host_context::{ExecutionContext, HostContext};
    /// use ferroflow_sync::{CancelToken, SingleThreadedWorkQueue};
    /// use ferroflow_tensor::MallocAllocator;
    /// use std::sync::Arc;
    /// let queue = Arc::new(SingleThreadedWorkQueue::new());
    /// let (out, allocator) = (Box::new(std::io::sink()), Arc::new(MallocAllocator));
    /// let host = HostContext::new(queue, allocator, out, Box::new(|_| {}));
    /// let token = CancelToken::new();
    /// let ctx = ExecutionContext::for_request(host, &token, Arc::new(7i32));
    /// assert_eq!(ctx.data::<i32>(), Some(&7));
    /// token.cancel();
    /// assert!(ctx.cancel_value().is_some());
    /// ```
    pub fn for_request(
        host: Arc<HostContext>,
        token: &CancelToken,
        data: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let ctx = Self::of(host, token.with_same_deadline(), Some(data));
        let (request, why) = (Arc::downgrade(&ctx.0), token.clone());
        let registration = token.on_cancel(move || {
            if let Some(request) = request.upgrade() {
                let status = why.check().err();
                request.give_up(status.unwrap_or_else(|| cancelled!("Cancelled")));
            }
        });
        let _ = ctx.0.follows.set(registration);
        ctx
    }

    fn of(host: Arc<HostContext>, token: CancelToken, data: Option<Shared>) -> Self {
        ExecutionContext(Arc::new(RequestContext {
            host,
            resources: Mutex::default(),
            cancelled: OnceLock::new(),
            token,
            follows: OnceLock::new(),
            data,
        }))
    }

    /// Returns the caller's data, if it is a `T`.
    #[inline]
    pub fn data<T: 'static>(&self) -> Option<&T> {
        self.0.data.as_ref()?.downcast_ref()
    }

    /// Returns the request's cancellation token.
    pub fn token(&self) -> &CancelToken {
        &self.0.token
    }

    /// Returns the host.
    #[inline]
    pub fn host(&self) -> &Arc<HostContext> {
        &self.0.host
    }

    /// Cancels the request: kernels that have not started yet get an error as an argument.
    pub fn cancel(&self) {
        self.0.give_up(cancelled!("Cancelled"));
    }

    /// Returns the error that kernels of a cancelled request get, if it is cancelled.
    #[inline]
    pub fn cancel_value(&self) -> Option<&AsyncValue> {
        self.0.cancelled.get()
    }

    /// Runs a task that does not block.
    pub fn enqueue(&self, task: impl FnOnce() + Send + 'static) {
        self.0.host.work_queue.add_task(Box::new(task));
    }

    /// Runs a task that may block.
    ///
    /// # Errors
    /// Returns the task if no thread is free for it.
    pub fn enqueue_blocking(&self, task: Task) -> Result<(), Task> {
        self.0.host.work_queue.add_blocking_task(task, true)
    }

    /// Returns the request's resource `name`, created by `make` if needed.
    pub fn resource<T: Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let mut resources = lock(&self.0.resources);
        let slot = resources
            .entry(name.to_string())
            .or_insert_with(|| Arc::new(make()));
        slot.clone().downcast().ok()
    }

    /// Passes an error at `location` to the error handler, and returns it as the content of an
    /// erroneous value.
    pub fn report(&self, status: Status, location: Option<Location>) -> Diagnostic {
        let diagnostic = Diagnostic { status, location };
        self.host().emit_error(&diagnostic);
        diagnostic
    }
}

impl RequestContext {
    fn give_up(&self, status: Status) {
        let is_late = status.code() == Code::DeadlineExceeded;
        self.cancelled.get_or_init(|| AsyncValue::new_error(status));
        match is_late {
            // A waiting kernel has the same deadline and reports it itself.
            true => self.token.run_expired(),
            false => self.token.cancel(),
        }
    }
}

/// A loaded program: functions that kernels can call.
pub trait HostProgram: Send + Sync {
    /// Returns the section of attributes.
    fn attributes(&self) -> &[u8];

    /// Returns the source position of an offset.
    fn location(&self, offset: usize) -> Option<Location>;

    /// Returns the name of the source position of an offset, if it has one.
    fn location_name(&self, offset: usize) -> Option<&str>;

    /// Returns the name of a function.
    fn function_name(&self, function: usize) -> &str;

    /// Returns the number of arguments and results of a function, if it exists.
    fn arity(&self, function: usize) -> Option<(usize, usize)>;

    /// Returns the types of the results.
    fn result_types(&self, function: usize) -> Vec<String>;

    /// Starts a function and returns its results, which may not be available yet. `this` is the
    /// handle of the program itself, for its kernels.
    fn execute(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Values,
    ) -> Values;

    /// Runs a synchronous function to its end. `this` is the handle of the program itself.
    ///
    /// # Errors
    /// The error of the first kernel that fails; INVALID_ARGUMENT if the function is not
    /// synchronous.
    fn execute_sync(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Vec<super::Value>,
    ) -> Result<Vec<super::Value>>;
}

/// A function that a kernel can call.
#[derive(Clone)]
pub struct Function {
    program: Arc<dyn HostProgram>,
    index: usize,
}

impl Function {
    /// Returns function `index` of `program`.
    pub fn new(program: Arc<dyn HostProgram>, index: usize) -> Self {
        Function { program, index }
    }

    /// Returns a borrowed function: calls through it do not count references.
    #[inline]
    pub fn borrow(&self) -> FunctionRef<'_> {
        FunctionRef::new(&self.program, self.index)
    }

    /// Returns the name; empty for the region of a kernel.
    pub fn name(&self) -> &str {
        self.program.function_name(self.index)
    }

    /// Returns the types of the results.
    pub fn result_types(&self) -> Vec<String> {
        self.program.result_types(self.index)
    }

    /// Returns the number of arguments and results.
    pub fn arity(&self) -> (usize, usize) {
        self.borrow().arity()
    }

    /// Checks the number of arguments and results.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they differ from the function's.
    pub fn check_arity(&self, n_args: usize, n_results: usize) -> Result<()> {
        self.borrow().check_arity(n_args, n_results)
    }

    /// Starts the function and returns its results, which may not be available yet.
    pub fn execute(&self, ctx: &ExecutionContext, args: Values) -> Values {
        self.borrow().execute(ctx, args)
    }

    /// Runs the function, which must be synchronous, to its end.
    ///
    /// # Errors
    /// The error of the first kernel that fails; INVALID_ARGUMENT if the function is not
    /// synchronous.
    pub fn execute_sync(
        &self,
        ctx: &ExecutionContext,
        args: Vec<super::Value>,
    ) -> Result<Vec<super::Value>> {
        (self.program).execute_sync(&self.program, self.index, ctx, args)
    }
}

/// A [`Function`] for the duration of a call.
#[derive(Clone, Copy)]
pub struct FunctionRef<'a> {
    program: &'a Arc<dyn HostProgram>,
    index: usize,
}

impl<'a> FunctionRef<'a> {
    /// Returns function `index` of `program`.
    #[inline]
    pub fn new(program: &'a Arc<dyn HostProgram>, index: usize) -> Self {
        FunctionRef { program, index }
    }

    /// Returns an owned handle.
    pub fn to_owned(self) -> Function {
        Function::new(self.program.clone(), self.index)
    }

    /// Returns the number of arguments and results.
    #[inline]
    pub fn arity(self) -> (usize, usize) {
        self.program.arity(self.index).unwrap_or((0, 0))
    }

    /// Checks the number of arguments and results.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they differ from the function's.
    #[inline]
    pub fn check_arity(self, n_args: usize, n_results: usize) -> Result<()> {
        match self.arity() == (n_args, n_results) {
            true => Ok(()),
            false => Err(self.wrong_arity(n_args, n_results)),
        }
    }

    #[cold]
    fn wrong_arity(self, n_args: usize, n_results: usize) -> Status {
        let (args, results) = self.arity();
        ferroflow_base::invalid_argument!(
            "function '{}' takes {args} arguments and returns {results} results, but is called with \
             {n_args} and {n_results}",
            self.program.function_name(self.index)
        )
    }

    /// Starts the function and returns its results, which may not be available yet.
    #[inline]
    pub fn execute(self, ctx: &ExecutionContext, args: Values) -> Values {
        (self.program).execute(self.program, self.index, ctx, args)
    }
}
