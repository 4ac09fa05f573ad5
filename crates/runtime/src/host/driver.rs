//! TFRT's `bef_executor`: runs every function without arguments as a test of its own.

use super::expected::Expected;
use super::metrics::TextMetrics;
use super::tracing::TextSink;
use crate::{CompiledModel, RunOptions, SignatureTensor};
use ferroflow_executor::host::Program;
use ferroflow_host_context::{
    Buckets, ExecutionContext, Function, HostContext, HostProgram, KernelRegistry, TraceLevel,
    Tracer, Value, Values,
};
use ferroflow_host_kernels::TfrtState;
use ferroflow_program::bef::{File, FileBytes, FunctionKind, MAIN};
use ferroflow_program::mlir;
use ferroflow_sync::{
    AsyncValue, Diagnostic, MultiThreadedWorkQueue, SingleThreadedWorkQueue, WorkQueue,
};
use ferroflow_tensor::{
    CachingAllocator, FixedSizeAllocator, HostAllocator, MallocAllocator, ProfiledAllocator, Tensor,
};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The allocator of buffers (`--host_allocator_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllocatorType {
    /// malloc.
    Malloc,
    /// A fixed size of one kilobyte in all.
    TestFixedSize,
    /// malloc, with statistics at the end.
    Profiled,
    /// malloc, with an error if memory leaks.
    #[default]
    LeakCheck,
    /// A cache of freed buffers in front of malloc.
    Caching,
}

/// Most bytes that the caching allocator keeps.
const MAX_KEPT: usize = 1 << 28;

impl AllocatorType {
    /// Returns the allocator with this name on command lines, if any.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "malloc" => AllocatorType::Malloc,
            "test_fixed_size_1k" => AllocatorType::TestFixedSize,
            "profiled_allocator" => AllocatorType::Profiled,
            "leak_check_allocator" => AllocatorType::LeakCheck,
            "caching_allocator" => AllocatorType::Caching,
            _ => return None,
        })
    }

    fn create(self) -> (Arc<dyn HostAllocator>, &'static str) {
        let malloc = || Arc::new(MallocAllocator);
        match self {
            AllocatorType::Malloc => (malloc(), "malloc"),
            AllocatorType::TestFixedSize => {
                (Arc::new(FixedSizeAllocator::new(1024)), "fixed size malloc")
            }
            AllocatorType::Profiled => (
                Arc::new(ProfiledAllocator::profiled(malloc())),
                "profiled allocator based on malloc",
            ),
            AllocatorType::LeakCheck => (
                Arc::new(ProfiledAllocator::leak_check(malloc())),
                "memory leak check allocator",
            ),
            AllocatorType::Caching => {
                let inner = Arc::new(ProfiledAllocator::leak_check(malloc()));
                (
                    Arc::new(CachingAllocator::new(inner, MAX_KEPT)),
                    "caching allocator based on malloc",
                )
            }
        }
    }
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The functions to run; all if empty.
    pub functions: Vec<String>,
    /// A function to run first.
    pub init_function: String,
    /// The work queue: `s`, or `mstd[:THREADS[,BLOCKING[,pin]]]`.
    pub work_queue: String,
    /// The allocator of buffers (`--host_allocator_type`).
    pub allocator: AllocatorType,
    /// Prints errors with their codes.
    pub print_error_code: bool,
    /// The version of TFRT that the programs are written for.
    pub state: TfrtState,
    /// What to trace after the output of the programs.
    pub tracing: Option<TraceLevel>,
    /// Prints metrics at the end: the version, and the duration of functions.
    pub print_metrics: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            functions: Vec::new(),
            init_function: String::new(),
            work_queue: "s".to_string(),
            allocator: AllocatorType::default(),
            print_error_code: false,
            state: TfrtState::default(),
            tracing: None,
            print_metrics: false,
        }
    }
}

/// Returns the work queue that a command line names.
pub fn work_queue(name: &str) -> Option<Arc<dyn WorkQueue>> {
    if name == "s" {
        return Some(Arc::new(SingleThreadedWorkQueue::new()));
    }
    let counts = name.strip_prefix("mstd")?;
    let mut n_threads = ferroflow_sync::Pool::available_threads();
    let (mut n_blocking, mut pins) = (0, false);
    if !counts.is_empty() {
        let counts = counts.strip_prefix(':')?;
        let mut parts = counts.split(',');
        let mut number = |most: usize| {
            let text = parts.next()?;
            Some(text.parse().ok().filter(|n| (1..=most).contains(n)))
        };
        n_threads = number(1024)??;
        if let Some(n) = number(4096) {
            n_blocking = n?;
        }
        pins = match parts.next() {
            Some("pin") => true,
            Some(_) => return None,
            None => false,
        };
        if parts.next().is_some() {
            return None;
        }
    }
    Some(Arc::new(match pins {
        true => MultiThreadedWorkQueue::pinned(n_threads, n_blocking),
        false => MultiThreadedWorkQueue::new(n_threads, n_blocking),
    }))
}

type Found = Arc<Mutex<Vec<Diagnostic>>>;

/// A compiled model with the arguments of its function; `None` if it is not fed.
pub struct ModelCall {
    /// The model.
    pub model: CompiledModel,
    /// The feeds, in order.
    pub args: Option<Vec<Tensor>>,
}

/// Runs programs like TFRT's `bef_executor`.
pub struct Driver {
    config: Config,
    registry: KernelRegistry,
    model: Option<ModelCall>,
}

impl Driver {
    /// Returns a driver with these kernels.
    pub fn new(config: Config, registry: KernelRegistry) -> Self {
        Driver {
            config,
            registry,
            model: None,
        }
    }

    /// Also runs the model of the file, with these arguments.
    #[must_use]
    pub fn with_model(mut self, model: Option<ModelCall>) -> Self {
        self.model = model;
        self
    }

    /// Runs the functions of a file and returns the exit status of the process. Their output goes to
    /// `out`, unexpected diagnostics to standard error.
    pub fn run(&self, bytes: FileBytes, out: Box<dyn Write + Send>) -> i32 {
        let (allocator, allocator_name) = self.config.allocator.create();
        let Some(queue) = work_queue(&self.config.work_queue) else {
            let name = &self.config.work_queue;
            eprintln!("couldn't create work queue type {name}");
            return 1;
        };
        let found = Found::default();
        let log = found.clone();
        let on_error = Box::new(move |diagnostic: &Diagnostic| {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(diagnostic.clone());
        });
        let queue_name = queue.name();
        let host = HostContext::new(queue, allocator.clone(), out, on_error);
        host.shared(|| self.config.state);
        let trace = TextSink::default();
        if let Some(level) = self.config.tracing {
            host.set_tracer(Tracer::new(level, Box::new(trace.clone())));
        }
        let metrics = Arc::new(TextMetrics::default());
        if self.config.print_metrics {
            host.set_metrics(metrics.clone());
        }
        host.string_gauge("/ferroflow/version")
            .set(env!("CARGO_PKG_VERSION"));
        host.print(&format!("Choosing {allocator_name}.\n"));
        host.print(&format!("Choosing {queue_name} work queue.\n"));
        let mut status = 0;
        let whole = host.trace(TraceLevel::Default, || "Bef Executor".to_string());
        match File::open(bytes)
            .map_err(Diagnostic::from)
            .and_then(|file| Program::new(file, &self.registry))
        {
            Err(diagnostic) => host.emit_error(&diagnostic),
            Ok(program) => status = self.run_functions(&program, &host),
        }
        host.work_queue().quiesce();
        host.forget_shared();
        drop(whole);
        host.print(&trace.take());
        host.print(&metrics.print());
        if let Some((text, is_bad)) = allocator.report() {
            host.print(&format!("{text}\n"));
            if is_bad {
                status = 1;
            }
        }
        let mut expected = Expected::default();
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        for diagnostic in found {
            expected.check(&as_text(&diagnostic));
        }
        for offence in expected.finish() {
            eprint!("{offence}");
            status = 1;
        }
        status
    }

    fn run_functions(&self, program: &Arc<Program>, host: &Arc<HostContext>) -> i32 {
        let file = program.file();
        let mut list = Vec::new();
        if self.config.functions.is_empty() {
            list.extend(0..file.functions().len());
        }
        for name in &self.config.functions {
            match file.function(name) {
                Some(index) => list.push(index),
                None => {
                    eprintln!("couldn't find function {name}");
                    return 1;
                }
            }
        }
        let bounds = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];
        let times = Buckets::explicit(&bounds)
            .map(|buckets| host.histogram("/ferroflow/function_seconds", &buckets));
        let init = file.function(&self.config.init_function);
        let mut status = 0;
        let others = list.into_iter().filter(|i| Some(*i) != init);
        for index in init.into_iter().chain(others) {
            let before = AsyncValue::live();
            let begin = Instant::now();
            let has_run = self.run_function(program, index, host);
            if let Some(times) = times.as_ref().filter(|_| has_run) {
                times.record(begin.elapsed().as_secs_f64());
            }
            let after = AsyncValue::live();
            if let (Some(before), Some(after)) = (before, after)
                && before != after
            {
                let name = program.function_name(index);
                eprintln!(
                    "Evaluation of function '{name}' leaked async values (before: {before}, \
                     after: {after})!"
                );
                status = 1;
            }
        }
        status
    }

    /// Returns whether the function was selected.
    fn run_function(&self, program: &Arc<Program>, index: usize, host: &Arc<HostContext>) -> bool {
        let Some(entry) = program.file().functions().get(index) else {
            return false;
        };
        let name = &entry.name;
        if let Some(call) = &self.model
            && (entry.kind, &**name) == (FunctionKind::Dataflow, MAIN)
            && (call.args.is_some() || entry.arguments.is_empty())
        {
            host.print(&format!("--- Running '{name}':\n"));
            let _scope = host.trace(TraceLevel::Default, || format!("Function: {name}"));
            host.print(&self.model_results(call));
            return true;
        }
        if !entry.arguments.is_empty() {
            let text = format!("--- Not running '{name}' because it has arguments.\n");
            host.print(&text);
            return false;
        }
        if name.is_empty() {
            return false;
        }
        host.print(&format!("--- Running '{name}':\n"));
        let ctx = ExecutionContext::new(host.clone());
        let function = program.function_at(index);
        let _scope = host.trace(TraceLevel::Default, || format!("Function: {name}"));
        let text = match entry.kind {
            FunctionKind::Sync => sync_results(&function, &ctx),
            _ => {
                let results = function.execute(&ctx, Values::new());
                host.work_queue().await_values(&results);
                let text = self.async_results(&function, &results);
                if !text.is_empty() {
                    host.print(&format!("'{name}' returned {text}\n"));
                }
                drop(results);
                // Work that does not contribute to the results ends before the next function starts.
                host.work_queue().quiesce();
                return true;
            }
        };
        if !text.is_empty() {
            host.print(&format!("'{name}' returned {text}\n"));
        }
        true
    }

    /// Runs a model; returns its results or its error as text.
    fn model_results(&self, call: &ModelCall) -> String {
        let session = call.model.session();
        let args = call.args.clone().unwrap_or_default();
        let results = session
            .callable(call.model.signature())
            .and_then(|callable| session.run_callable(&callable, args, &RunOptions::default()));
        match results {
            Err(e) if self.config.print_error_code => {
                let code = e.code();
                format!("'{MAIN}' returned <<error: {e}, code: {code:?}>>\n")
            }
            Err(e) => format!("'{MAIN}' returned <<error: {e}>>\n"),
            Ok(tensors) => {
                let ports = &call.model.ports().outputs;
                let show = |(port, t): (&SignatureTensor, &Tensor)| {
                    let (dtype, shape) = (t.dtype(), t.shape());
                    format!("'{MAIN}' returned {}: {dtype}{shape} {t}\n", port.key)
                };
                ports.iter().zip(&tensors).map(show).collect()
            }
        }
    }

    fn async_results(&self, function: &Function, results: &Values) -> String {
        let show = |(ty, value): (String, &AsyncValue)| match value.error() {
            Some(error) if self.config.print_error_code => {
                let code = error.status.code();
                format!("<<error: {}, code: {code:?}>>", error.status.message())
            }
            Some(error) => format!("<<error: {}>>", error.status.message()),
            None => show_value(&ty, Getter::Async(value)),
        };
        let texts: Vec<String> = function
            .result_types()
            .into_iter()
            .zip(results)
            .map(show)
            .collect();
        texts.join(",")
    }
}

fn sync_results(function: &Function, ctx: &ExecutionContext) -> String {
    match function.execute_sync(ctx, Vec::new()) {
        Err(error) => format!("<<error: {}>>", error.message()),
        Ok(results) => {
            let show = |(ty, value): (String, &Value)| show_value(&ty, Getter::Sync(value));
            let texts: Vec<String> = function
                .result_types()
                .into_iter()
                .zip(&results)
                .map(show)
                .collect();
            texts.join(",")
        }
    }
}

enum Getter<'a> {
    Async(&'a AsyncValue),
    Sync(&'a Value),
}

impl Getter<'_> {
    fn get<T: Copy + 'static>(&self) -> Option<T> {
        match self {
            Getter::Async(value) => value.get::<T>().copied(),
            Getter::Sync(value) => value.get::<T>().copied(),
        }
    }
}

fn show_value(ty: &str, value: Getter) -> String {
    let scientific = |v: f64| {
        mlir::attr_text(
            &mlir::Attr::Float(v.to_bits(), mlir::Type::new("f64")),
            false,
        )
    };
    let text = match ty {
        "i1" => value.get::<bool>().map(|v| u8::from(v).to_string()),
        "i32" => value.get::<i32>().map(|v| v.to_string()),
        "i64" => value.get::<i64>().map(|v| v.to_string()),
        "f32" => value.get::<f32>().map(|v| scientific(v.into())),
        "f64" => value.get::<f64>().map(scientific),
        _ => None,
    };
    text.unwrap_or_else(|| format!("{ty} value"))
}

fn as_text(diagnostic: &Diagnostic) -> mlir::Diagnostic {
    let message = format!("runtime error: {}", diagnostic.status.message());
    let loc = match &diagnostic.location {
        Some(location) => mlir::Loc {
            file: location.file.as_str().into(),
            line: location.line,
            column: location.column,
            name: None,
        },
        None => mlir::Loc::default(),
    };
    mlir::Diagnostic::error(&loc, message)
}
