//! Tensor handles, op handlers, and execution of ops.

use super::super::dense::HostTensor;
use super::super::shape::TensorShape;
use super::attrs::OpAttrs;
use super::composite;
use super::ops::{self, CpuOp, MetadataList, Outputs};
use super::tensor_op::{OpCall, TensorOp};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Function, HostDType, HostValue, Reporter, TraceLevel, TraceScope,
};
use ferroflow_sync::{AsyncValue, IndirectPromise};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Data type and shape.
pub(super) type Metadata = (HostDType, TensorShape);
/// Borrowed data type and shape.
pub(super) type MetadataRef<'a> = (HostDType, &'a TensorShape);

/// The metadata of a tensor that is known when its op is called.
#[derive(Clone)]
pub(super) enum KnownMetadata {
    /// Nothing.
    Nothing,
    /// The tensor is available and has its metadata.
    OfTensor,
    /// This metadata, although the tensor may be unavailable.
    Metadata(Box<Metadata>),
}

impl KnownMetadata {
    pub(super) fn new(metadata: Option<Metadata>) -> KnownMetadata {
        metadata.map_or(KnownMetadata::Nothing, |m| {
            KnownMetadata::Metadata(Box::new(m))
        })
    }
}

/// A possibly unavailable tensor, with its metadata if the op knows them before it runs.
#[derive(Clone)]
pub(super) struct TensorHandle {
    /// A [`HostTensor`], or an error.
    pub(super) tensor: AsyncValue,
    pub(super) known: KnownMetadata,
}

impl HostValue for TensorHandle {}

impl TensorHandle {
    pub(super) fn new(tensor: HostTensor) -> Self {
        TensorHandle {
            tensor: AsyncValue::new(tensor),
            known: KnownMetadata::OfTensor,
        }
    }

    /// Returns the tensor, if it is available.
    pub(super) fn get(&self) -> Option<&HostTensor> {
        self.tensor.get()
    }

    /// Returns type and shape, if known; `tensor` is the result of [`TensorHandle::get`].
    pub(super) fn metadata<'a>(
        &'a self,
        tensor: Option<&'a HostTensor>,
    ) -> Option<MetadataRef<'a>> {
        match &self.known {
            KnownMetadata::Nothing => None,
            KnownMetadata::Metadata(metadata) => Some((metadata.0, &metadata.1)),
            KnownMetadata::OfTensor => tensor.map(|t| (t.dtype(), t.shape())),
        }
    }
}

/// Arguments of an op.
pub(super) type Args<'a> = SmallVec<[&'a TensorHandle; 4]>;

/// Results of an op.
pub(super) struct Results {
    pub(super) handles: SmallVec<[TensorHandle; 1]>,
    /// Becomes available when the op is done; `None` if it is done already.
    pub(super) done: Option<AsyncValue>,
}

/// An op with its attributes as a program calls it, and its CPU implementation.
pub(super) struct Op {
    pub(super) name: String,
    pub(super) attrs: OpAttrs,
    work: Option<Work>,
}

/// The CPU implementation of an op.
enum Work {
    /// One of the core runtime's own.
    Own(&'static CpuOp),
    /// One of TensorFlow's.
    Tensor(TensorOp),
}

impl Op {
    /// Looks the op up.
    pub(super) fn new(name: &str, attrs: OpAttrs) -> Op {
        let own = ops::find(name).map(Work::Own);
        Op {
            name: name.to_string(),
            attrs,
            work: own.or_else(|| TensorOp::find(name).map(Work::Tensor)),
        }
    }
}

/// Runs ops.
#[derive(Clone)]
pub(super) enum OpHandler {
    /// Runs no ops.
    Null,
    /// Runs ops on the CPU; passes others to the next handler.
    Cpu(Box<OpHandler>),
    /// Prints ops and passes them to the next handler.
    Logging(Box<OpHandler>, Arc<AtomicUsize>),
    /// Calls functions for composite ops; passes others to the next handler.
    Composite(Box<OpHandler>, Arc<Functions>),
}

/// Functions by the names of their ops.
pub(super) type Functions = HashMap<String, Function>;

impl HostValue for OpHandler {}

/// Handlers by name.
pub(super) type Handlers = Mutex<HashMap<String, OpHandler>>;

/// A function called as an op.
pub(super) struct CompositeOp(pub(super) Function);

impl HostValue for CompositeOp {}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Makes a reporter of errors, unless the caller is a synchronous function.
pub(super) type NewReporter<'a> = Option<&'a dyn Fn() -> Reporter>;

impl OpHandler {
    /// Runs an op, or schedules it if arguments are unavailable.
    ///
    /// # Errors
    /// NOT_FOUND for ops that no handler has; INVALID_ARGUMENT for arguments whose types or shapes
    /// do not fit.
    pub(super) fn execute(
        &self,
        op: &Arc<Op>,
        args: &Args,
        n_results: usize,
        ctx: &ExecutionContext,
        reporter: NewReporter,
    ) -> Result<Results> {
        match self {
            OpHandler::Null => Err(invalid_argument!(
                "{} was not supported by NullOpHandler.",
                op.name
            )),
            OpHandler::Cpu(next) => match &op.work {
                Some(work) => {
                    let name = || format!("{}#op_handler=cpu#", op.name);
                    let _scope = ctx.host().trace(TraceLevel::Default, name);
                    run(op, work, args, n_results, ctx, reporter)
                }
                None => next.execute(op, args, n_results, ctx, reporter),
            },
            OpHandler::Composite(next, functions) => match functions.get(&op.name) {
                Some(function) => composite::execute(function, args, &op.attrs, n_results, ctx),
                None => next.execute(op, args, n_results, ctx, reporter),
            },
            OpHandler::Logging(next, count) => {
                let id = count.fetch_add(1, Ordering::Relaxed);
                let attributes = match op.attrs.0.is_empty() {
                    true => "no attributes\n".to_string(),
                    false => op.attrs.to_string(),
                };
                ctx.host().print(&format!(
                    "[{id}] dispatch '{}' {} argument{}, {n_results} result{}, {attributes}",
                    op.name,
                    args.len(),
                    plural(args.len()),
                    plural(n_results)
                ));
                next.execute(op, args, n_results, ctx, reporter)
            }
        }
    }
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Own(op) => op.name,
            Work::Tensor(op) => op.name,
        }
    }

    /// Returns whether the op runs from the work queue.
    fn is_async(&self) -> bool {
        matches!(self, Work::Own(op) if op.is_async)
    }

    /// Returns types and shapes of the results, if those of all inputs are known.
    fn metadata(
        &self,
        inputs: &[MetadataRef],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<MetadataList> {
        let scope = || {
            let name = || "RunMetadataFunction".to_string();
            ctx.host().trace(TraceLevel::Verbose, name)
        };
        match self {
            Work::Own(op) => match op.metadata {
                Some(function) => {
                    let _scope = scope();
                    function(inputs, attrs)
                }
                None => Ok(MetadataList::new()),
            },
            Work::Tensor(op) => {
                let _scope = scope();
                op.metadata(inputs, attrs, ctx)
            }
        }
    }

    fn dispatch_scope<'a>(&self, ctx: &'a ExecutionContext) -> Option<TraceScope<'a>> {
        let name = || format!("RunDispatch: {}", self.name());
        ctx.host().trace(TraceLevel::Default, name)
    }

    /// Runs the op if it does not have to wait.
    fn run_here(
        &self,
        tensors: &[&HostTensor],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
        may_be_task: bool,
    ) -> Option<Result<Outputs>> {
        match self {
            Work::Own(op) => {
                let _scope = self.dispatch_scope(ctx);
                Some((op.run)(tensors, attrs, ctx))
            }
            Work::Tensor(op) => {
                let call = match OpCall::new(op, tensors, attrs, ctx) {
                    Ok(call) => call,
                    Err(status) => return Some(Err(status)),
                };
                if call.waits() || (may_be_task && call.is_long()) {
                    return None;
                }
                let _scope = self.dispatch_scope(ctx);
                Some(call.run_here(ctx))
            }
        }
    }
}

fn run(
    op: &Arc<Op>,
    work: &Work,
    args: &Args,
    n_results: usize,
    ctx: &ExecutionContext,
    reporter: NewReporter,
) -> Result<Results> {
    let mut tensors: SmallVec<[&HostTensor; 4]> = SmallVec::new();
    let mut known: SmallVec<[MetadataRef; 4]> = SmallVec::new();
    for arg in args {
        let tensor = arg.get();
        if let Some(tensor) = tensor {
            tensors.push(tensor);
        }
        if let Some(metadata) = arg.metadata(tensor) {
            known.push(metadata);
        }
    }
    // Shapes are checked at once if they are known.
    let metadata = match known.len() == args.len() {
        true => work.metadata(&known, &op.attrs, ctx)?,
        false => MetadataList::new(),
    };
    if tensors.len() == args.len() && !work.is_async() && ctx.cancel_value().is_none() {
        let may_be_task = ctx.host().is_parallel() && reporter.is_some();
        if let Some(outputs) = work.run_here(&tensors, &op.attrs, ctx, may_be_task) {
            return Ok(available(outputs, metadata, n_results, reporter));
        }
    }
    let (results, values): (SmallVec<_>, SmallVec<[_; 1]>) =
        (0..n_results).map(|_| IndirectPromise::new()).unzip();
    let (done, is_done) = IndirectPromise::new();
    let mut metadata = metadata.into_iter();
    let handle = |tensor| TensorHandle {
        tensor,
        known: KnownMetadata::new(metadata.next().flatten()),
    };
    let handles = values.into_iter().map(handle).collect();
    let dispatch = Dispatch {
        op: op.clone(),
        inputs: args.iter().map(|a| a.tensor.clone()).collect(),
        ctx: ctx.clone(),
        reporter: reporter.map(|make| make()),
        results,
        done,
    };
    match work.is_async() {
        true => ctx.enqueue(move || dispatch.when_ready(0)),
        false => dispatch.when_ready(0),
    }
    Ok(Results {
        handles,
        done: Some(is_done),
    })
}

/// Returns the error value for the results of an op.
fn error(status: Status, reporter: Option<&Reporter>) -> AsyncValue {
    AsyncValue::new_error(match reporter {
        Some(reporter) => reporter.report(status),
        None => status.into(),
    })
}

/// Returns the results of an op that has run.
fn available(
    outputs: Result<Outputs>,
    metadata: MetadataList,
    n_results: usize,
    reporter: NewReporter,
) -> Results {
    let mut handles = SmallVec::new();
    let mut done = None;
    let mut metadata = metadata.into_iter();
    let mut outputs = match outputs {
        Ok(outputs) => outputs.into_iter(),
        Err(status) => {
            let reporter = reporter.map(|make| make());
            done = Some(error(status, reporter.as_ref()));
            Outputs::new().into_iter()
        }
    };
    for _ in 0..n_results {
        let metadata = metadata.next().flatten();
        handles.push(match (outputs.next(), &done) {
            (Some(tensor), _) => TensorHandle {
                tensor,
                known: metadata.map_or(KnownMetadata::Nothing, |_| KnownMetadata::OfTensor),
            },
            (None, error) => TensorHandle {
                tensor: match error {
                    Some(error) => error.clone(),
                    // A missing result is a dropped promise.
                    None => IndirectPromise::new().1,
                },
                known: KnownMetadata::new(metadata),
            },
        });
    }
    Results { handles, done }
}

/// An op that waits for its inputs, or runs on another thread.
struct Dispatch {
    op: Arc<Op>,
    inputs: SmallVec<[AsyncValue; 4]>,
    ctx: ExecutionContext,
    reporter: Option<Reporter>,
    results: SmallVec<[IndirectPromise; 1]>,
    done: IndirectPromise,
}

impl Dispatch {
    /// Runs the op when all inputs from `i` on are available.
    fn when_ready(mut self, mut i: usize) {
        while let Some(input) = self.inputs.get(i) {
            i += 1;
            if !input.is_available() {
                let input = input.clone();
                return input.and_then(move || self.when_ready(i));
            }
        }
        let mut errors = self.inputs.iter().filter(|i| i.is_error());
        if let Some(error) = errors.next().or(self.ctx.cancel_value()).cloned() {
            return self.fail(&error);
        }
        // The last reader of an input may overwrite it with its results.
        let inputs = std::mem::take(&mut self.inputs);
        let tensors = inputs.iter().map(|i| i.expect::<HostTensor>());
        let tensors: SmallVec<[&HostTensor; 4]> = match tensors.collect::<Result<_>>() {
            Ok(tensors) => tensors,
            Err(status) => return self.finish(Err(status)),
        };
        let op = self.op.clone();
        match &op.work {
            Some(work @ Work::Own(own)) => {
                let scope = work.dispatch_scope(&self.ctx);
                let outputs = (own.run)(&tensors, &op.attrs, &self.ctx);
                drop(scope);
                self.finish(outputs);
            }
            Some(Work::Tensor(tensor_op)) => {
                let call = OpCall::new(tensor_op, &tensors, &op.attrs, &self.ctx);
                drop(tensors);
                drop(inputs);
                match call {
                    Ok(call) => self.start(call),
                    Err(status) => self.finish(Err(status)),
                }
            }
            None => self.finish(Ok(Outputs::new())),
        }
    }

    /// Runs one of TensorFlow's ops: here, or as a task if it takes long and other threads can run
    /// meanwhile.
    fn start(self, call: OpCall) {
        let ctx = self.ctx.clone();
        // Synchronous functions have no reporter and cannot wait.
        let may_be_task = self.reporter.is_some() && ctx.host().is_parallel();
        let is_task = may_be_task && call.is_long();
        let run = move || {
            let (ctx, op) = (self.ctx.clone(), self.op.clone());
            let work = op.work.as_ref();
            let _scope = work.and_then(|work| work.dispatch_scope(&ctx));
            call.run(&ctx, move |outputs| self.finish(outputs));
        };
        match is_task {
            true => ctx.enqueue(run),
            false => run(),
        }
    }

    /// Sets the results.
    fn finish(self, outputs: Result<Outputs>) {
        match outputs {
            Err(status) => {
                let error = error(status, self.reporter.as_ref());
                self.fail(&error);
            }
            Ok(outputs) => {
                for (promise, tensor) in self.results.into_iter().zip(outputs) {
                    promise.forward_to(tensor);
                }
                self.done.forward_to(AsyncValue::new(ferroflow_sync::Chain));
            }
        }
    }

    fn fail(self, error: &AsyncValue) {
        for promise in self.results {
            promise.forward_to(error.clone());
        }
        self.done.forward_to(error.clone());
    }
}

/// Returns the handler of a name.
pub(super) fn handler(ctx: &ExecutionContext, name: &str) -> Result<OpHandler> {
    let handlers = ctx.host().shared(Handlers::default);
    let handlers = handlers.lock().unwrap_or_else(PoisonError::into_inner);
    handlers
        .get(name)
        .cloned()
        .ok_or_else(|| invalid_argument!("op_handler not found."))
}
