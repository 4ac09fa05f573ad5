//! What kernels share: the host, a request, and functions to call.

use super::metrics::{Buckets, Gauge, Histogram, MetricsRegistry, Nobody};
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

/// What all requests of a process share.
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
    /// Creates a host that runs tasks on `work_queue`, prints to `out` and tells `on_error` of
    /// errors.
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

    /// Tells `tracer` from now on what happens. A host has one tracer at most.
    pub fn set_tracer(&self, tracer: Tracer) {
        let _ = self.tracer.set(tracer);
    }

    /// Keeps the figures that are asked for from now on in `metrics`. A host has one registry at most.
    pub fn set_metrics(&self, metrics: Arc<dyn MetricsRegistry>) {
        let _ = self.metrics.set(metrics);
    }

    /// Returns the text under `name` among the host's figures.
    pub fn string_gauge(&self, name: &str) -> Arc<dyn Gauge> {
        match self.metrics.get() {
            Some(metrics) => metrics.string_gauge(name),
            None => Arc::new(Nobody),
        }
    }

    /// Returns the distribution under `name` among the host's figures.
    pub fn histogram(&self, name: &str, buckets: &Buckets) -> Arc<dyn Histogram> {
        match self.metrics.get() {
            Some(metrics) => metrics.histogram(name, buckets),
            None => Arc::new(Nobody),
        }
    }

    /// Tells the tracer, if somebody wants to know as much as `level`, that something begins; it
    /// ends when the scope is dropped.
    #[inline]
    pub fn trace(
        &self,
        level: TraceLevel,
        name: impl FnOnce() -> String,
    ) -> Option<TraceScope<'_>> {
        self.tracer.get()?.scope(level, name)
    }

    /// Where tasks run.
    #[inline]
    pub fn work_queue(&self) -> &Arc<dyn WorkQueue> {
        &self.work_queue
    }

    /// Returns whether kernels may run at the same time.
    #[inline]
    pub fn is_parallel(&self) -> bool {
        self.has_threads
    }

    /// Where buffers come from.
    pub fn allocator(&self) -> &Arc<dyn ferroflow_tensor::HostAllocator> {
        &self.allocator
    }

    /// Prints.
    pub fn print(&self, text: &str) {
        let mut out = lock(&self.out);
        // Nobody can be told that the output is closed.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Tells the owner of an error.
    pub fn emit_error(&self, diagnostic: &Diagnostic) {
        (self.on_error)(diagnostic);
    }

    /// Drops all objects that the host has one of.
    pub fn forget_shared(&self) {
        let shared = std::mem::take(&mut *lock(&self.shared));
        drop(shared);
    }

    /// Returns the one object of type `T` of this host.
    pub fn shared<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = lock(&self.shared);
        let slot = shared
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(make()));
        match slot.clone().downcast() {
            Ok(value) => value,
            // The key is the type, so this is never reached; a fresh object is as good.
            Err(_) => Arc::new(unreachable_object()),
        }
    }
}

fn unreachable_object<T>() -> T {
    unreachable!("an object under the key of its type has that type")
}

/// One request: what its kernels share, and whether it was cancelled.
pub struct RequestContext {
    host: Arc<HostContext>,
    resources: Mutex<HashMap<String, Shared>>,
    cancelled: OnceLock<AsyncValue>,
    token: CancelToken,
    /// Cancels the request with the token that it was made with.
    follows: OnceLock<Registration>,
    data: Option<Shared>,
}

/// What a kernel may use beyond its arguments.
#[derive(Clone)]
pub struct ExecutionContext(Arc<RequestContext>);

impl ExecutionContext {
    /// Returns the context of a new request.
    pub fn new(host: Arc<HostContext>) -> Self {
        Self::of(host, CancelToken::new(), None)
    }

    /// Returns the context of a request that is cancelled, by hand or at its deadline, as `token`
    /// says. Whoever calls the program puts into `data` what its kernels need of the request.
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

    /// What the request was made with, if it is a `T`.
    #[inline]
    pub fn data<T: 'static>(&self) -> Option<&T> {
        self.0.data.as_ref()?.downcast_ref()
    }

    /// Says whether the request was given up, in whatever way, and when it will be.
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

    /// Returns the error that kernels of a cancelled request get.
    #[inline]
    pub fn cancel_value(&self) -> Option<&AsyncValue> {
        self.0.cancelled.get()
    }

    /// Runs a task that does not block.
    pub fn enqueue(&self, task: impl FnOnce() + Send + 'static) {
        self.0.host.work_queue.add_task(Box::new(task));
    }

    /// Runs a task that may block; gives it back if there is no thread for it.
    pub fn enqueue_blocking(&self, task: Task) -> Result<(), Task> {
        self.0.host.work_queue.add_blocking_task(task, true)
    }

    /// Returns the resource of the request under `name`, made when first asked for.
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

    /// Tells the owner of an error at `location`; what an erroneous value should hold.
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
            // What waits has the same deadline and says so itself.
            true => self.token.run_expired(),
            false => self.token.cancel(),
        }
    }
}

/// A loaded program: functions that kernels can call.
pub trait HostProgram: Send + Sync {
    /// Returns the section of attributes.
    fn attributes(&self) -> &[u8];

    /// Returns the place in the source that an offset stands for.
    fn location(&self, offset: usize) -> Option<Location>;

    /// What the place is called that an offset stands for, if it has a name.
    fn location_name(&self, offset: usize) -> Option<&str>;

    /// Returns the name of a function.
    fn function_name(&self, function: usize) -> &str;

    /// How many arguments and results a function has; `None` if there is no such function.
    fn arity(&self, function: usize) -> Option<(usize, usize)>;

    /// Types of the results.
    fn result_types(&self, function: usize) -> Vec<String>;

    /// Starts a function; its results may not be available yet. As many as it has. `this` is the
    /// handle of the program itself, which kernels get to see.
    fn execute(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Values,
    ) -> Values;

    /// Runs a synchronous function to its end. `this` is the handle of the program itself.
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
    /// Function `index` of `program`.
    pub fn new(program: Arc<dyn HostProgram>, index: usize) -> Self {
        Function { program, index }
    }

    /// Returns the function, borrowed: calls through it count no references.
    #[inline]
    pub fn borrow(&self) -> FunctionRef<'_> {
        FunctionRef::new(&self.program, self.index)
    }

    /// Returns its name; empty for the region of a kernel.
    pub fn name(&self) -> &str {
        self.program.function_name(self.index)
    }

    /// Types of the results.
    pub fn result_types(&self) -> Vec<String> {
        self.program.result_types(self.index)
    }

    /// How many arguments and results it has.
    pub fn arity(&self) -> (usize, usize) {
        self.borrow().arity()
    }

    /// Checks the number of arguments and results.
    pub fn check_arity(&self, n_args: usize, n_results: usize) -> Result<()> {
        self.borrow().check_arity(n_args, n_results)
    }

    /// Starts it.
    pub fn execute(&self, ctx: &ExecutionContext, args: Values) -> Values {
        self.borrow().execute(ctx, args)
    }

    /// Runs it to its end; it must be synchronous.
    pub fn execute_sync(
        &self,
        ctx: &ExecutionContext,
        args: Vec<super::Value>,
    ) -> Result<Vec<super::Value>> {
        (self.program).execute_sync(&self.program, self.index, ctx, args)
    }
}

/// A [`Function`] for the time of a call.
#[derive(Clone, Copy)]
pub struct FunctionRef<'a> {
    program: &'a Arc<dyn HostProgram>,
    index: usize,
}

impl<'a> FunctionRef<'a> {
    /// Function `index` of `program`.
    #[inline]
    pub fn new(program: &'a Arc<dyn HostProgram>, index: usize) -> Self {
        FunctionRef { program, index }
    }

    /// Returns the function, to keep.
    pub fn to_owned(self) -> Function {
        Function::new(self.program.clone(), self.index)
    }

    /// How many arguments and results it has.
    #[inline]
    pub fn arity(self) -> (usize, usize) {
        self.program.arity(self.index).unwrap_or((0, 0))
    }

    /// Checks the number of arguments and results.
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
            "function '{}' takes {args} arguments and gives {results} results, but is called with \
             {n_args} and {n_results}",
            self.program.function_name(self.index)
        )
    }

    /// Starts it.
    #[inline]
    pub fn execute(self, ctx: &ExecutionContext, args: Values) -> Values {
        (self.program).execute(self.program, self.index, ctx, args)
    }
}
