//! Tensor handles, op handlers, and how an op runs.

use super::super::dense::HostTensor;
use super::super::shape::TensorShape;
use super::attrs::OpAttrs;
use super::composite;
use super::ops::{self, CpuOp};
use super::tensor_op::{self, OpCall};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Function, HostDType, HostValue, Reporter, TraceLevel, TraceScope,
};
use ferroflow_sync::{AsyncValue, IndirectPromise};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Data type and shape.
pub(super) type Metadata = (HostDType, TensorShape);

/// A tensor that may come later, with its metadata if that is known before.
#[derive(Clone)]
pub(super) struct TensorHandle {
    /// A [`HostTensor`], or an error.
    pub(super) tensor: AsyncValue,
    pub(super) metadata: Option<Metadata>,
}

impl HostValue for TensorHandle {}

impl TensorHandle {
    pub(super) fn new(tensor: HostTensor) -> Self {
        TensorHandle {
            metadata: Some((tensor.dtype(), tensor.shape().clone())),
            tensor: AsyncValue::new(tensor),
        }
    }
}

/// What runs ops.
#[derive(Clone)]
pub(super) enum OpHandler {
    /// Nothing runs here.
    Null,
    /// Ops of the CPU; others go to the next handler.
    Cpu(Box<OpHandler>),
    /// Writes down what goes to the next handler.
    Logging(Box<OpHandler>, Arc<AtomicUsize>),
    /// Ops that are functions; others go to the next handler.
    Composite(Box<OpHandler>, Arc<Functions>),
}

/// Functions by the ops that they stand for.
pub(super) type Functions = HashMap<String, Function>;

impl HostValue for OpHandler {}

/// Handlers by name.
pub(super) type Handlers = Mutex<HashMap<String, OpHandler>>;

/// A function that is called as an op.
pub(super) struct CompositeOp(pub(super) Function);

impl HostValue for CompositeOp {}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

impl OpHandler {
    /// Runs an op: handles of its results, and a value that is available when it is done.
    pub(super) fn execute(
        &self,
        op: &str,
        args: &[TensorHandle],
        attrs: &OpAttrs,
        n_results: usize,
        ctx: &ExecutionContext,
        reporter: Option<Reporter>,
    ) -> Result<(Vec<TensorHandle>, AsyncValue)> {
        match self {
            OpHandler::Null => Err(invalid_argument!(
                "{op} was not supported by NullOpHandler."
            )),
            OpHandler::Cpu(next) => {
                let work = match ops::find(op) {
                    Some(cpu) => Some(Work::Own(cpu)),
                    None => tensor_op::find(op).map(Work::Tensor),
                };
                match work {
                    Some(work) => {
                        let name = || format!("{op}#op_handler=cpu#");
                        let _scope = ctx.host().trace(TraceLevel::Default, name);
                        run(work, args, attrs, n_results, ctx, reporter)
                    }
                    None => next.execute(op, args, attrs, n_results, ctx, reporter),
                }
            }
            OpHandler::Composite(next, functions) => match functions.get(op) {
                Some(function) => composite::execute(function, args, attrs, n_results, ctx),
                None => next.execute(op, args, attrs, n_results, ctx, reporter),
            },
            OpHandler::Logging(next, count) => {
                let id = count.fetch_add(1, Ordering::Relaxed);
                let attributes = match attrs.0.is_empty() {
                    true => "no attributes\n".to_string(),
                    false => attrs.to_string(),
                };
                ctx.host().print(&format!(
                    "[{id}] dispatch '{op}' {} argument{}, {n_results} result{}, {attributes}",
                    args.len(),
                    plural(args.len()),
                    plural(n_results)
                ));
                next.execute(op, args, attrs, n_results, ctx, reporter)
            }
        }
    }
}

/// An op of the CPU.
#[derive(Clone, Copy)]
enum Work {
    /// One of the core runtime's own.
    Own(&'static CpuOp),
    /// One of TensorFlow's.
    Tensor(&'static str),
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Own(op) => op.name,
            Work::Tensor(name) => name,
        }
    }

    fn metadata_scope(ctx: &ExecutionContext) -> Option<TraceScope<'_>> {
        let name = || "RunMetadataFunction".to_string();
        ctx.host().trace(TraceLevel::Verbose, name)
    }

    /// Types and shapes of the results where those of all inputs are known.
    fn metadata(
        self,
        inputs: &[Metadata],
        attrs: &OpAttrs,
        ctx: &ExecutionContext,
    ) -> Result<Vec<Option<Metadata>>> {
        match self {
            Work::Own(op) => match op.metadata {
                Some(function) => {
                    let _scope = Self::metadata_scope(ctx);
                    Ok(function(inputs, attrs)?.into_iter().map(Some).collect())
                }
                None => Ok(Vec::new()),
            },
            Work::Tensor(op) => {
                let _scope = Self::metadata_scope(ctx);
                tensor_op::metadata(op, inputs, attrs, ctx)
            }
        }
    }

    fn dispatch_scope(self, ctx: &ExecutionContext) -> Option<TraceScope<'_>> {
        let name = || format!("RunDispatch: {}", self.name());
        ctx.host().trace(TraceLevel::Default, name)
    }
}

struct Dispatch {
    op: Work,
    inputs: Vec<AsyncValue>,
    attrs: OpAttrs,
    ctx: ExecutionContext,
    reporter: Option<Reporter>,
    results: Vec<IndirectPromise>,
    done: IndirectPromise,
}

fn run(
    op: Work,
    args: &[TensorHandle],
    attrs: &OpAttrs,
    n_results: usize,
    ctx: &ExecutionContext,
    reporter: Option<Reporter>,
) -> Result<(Vec<TensorHandle>, AsyncValue)> {
    // Shapes are checked at once where they are known.
    let known: Option<Vec<Metadata>> = args.iter().map(|a| a.metadata.clone()).collect();
    let metadata = match known {
        Some(known) => op.metadata(&known, attrs, ctx)?,
        None => Vec::new(),
    };
    let (results, values): (Vec<_>, Vec<_>) =
        (0..n_results).map(|_| IndirectPromise::new()).unzip();
    let (done, is_done) = IndirectPromise::new();
    let handles = values
        .into_iter()
        .enumerate()
        .map(|(i, tensor)| TensorHandle {
            tensor,
            metadata: metadata.get(i).cloned().flatten(),
        });
    let handles = handles.collect();
    let dispatch = Dispatch {
        op,
        inputs: args.iter().map(|a| a.tensor.clone()).collect(),
        attrs: attrs.clone(),
        ctx: ctx.clone(),
        reporter,
        results,
        done,
    };
    if matches!(op, Work::Own(own) if own.is_async) {
        ctx.enqueue(move || dispatch.when_ready(0));
    } else {
        dispatch.when_ready(0);
    }
    Ok((handles, is_done))
}

impl Dispatch {
    /// Runs when all inputs from `i` on are available.
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
        // Who reads them last may write its results there.
        let inputs = std::mem::take(&mut self.inputs);
        let tensors = inputs.iter().map(|i| i.expect::<HostTensor>().cloned());
        let tensors = match tensors.collect::<Result<Vec<_>>>() {
            Ok(tensors) => tensors,
            Err(status) => return self.finish(Err(status)),
        };
        match self.op {
            Work::Own(op) => {
                let scope = self.op.dispatch_scope(&self.ctx);
                let outputs = (op.run)(&tensors, &self.attrs, &self.ctx);
                drop(scope);
                self.finish(outputs);
            }
            Work::Tensor(op) => {
                let call = OpCall::new(op, &tensors, &self.attrs, &self.ctx);
                drop((inputs, tensors));
                match call {
                    Ok(call) => self.start(call),
                    Err(status) => self.finish(Err(status)),
                }
            }
        }
    }

    /// Runs one of TensorFlow's ops: here, or as a task if it takes long and others have something to do
    /// meanwhile.
    fn start(self, call: OpCall) {
        let ctx = self.ctx.clone();
        // Synchronous functions, which report nothing, have no time for that.
        let may_be_late = self.reporter.is_some() && ctx.host().is_parallel();
        let is_task = may_be_late && call.is_long();
        let run = move || {
            let ctx = self.ctx.clone();
            let _scope = self.op.dispatch_scope(&ctx);
            call.run(&ctx, move |outputs| self.finish(outputs));
        };
        match is_task {
            true => ctx.enqueue(run),
            false => run(),
        }
    }

    /// Sets the results.
    fn finish(self, outputs: Result<Vec<HostTensor>>) {
        match outputs {
            Err(status) => {
                let diagnostic = match &self.reporter {
                    Some(reporter) => reporter.report(status),
                    None => status.into(),
                };
                let error = AsyncValue::new_error(diagnostic);
                self.fail(&error);
            }
            Ok(outputs) => {
                for (promise, tensor) in self.results.into_iter().zip(outputs) {
                    promise.forward_to(AsyncValue::new(tensor));
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

/// The handler under a name.
pub(super) fn handler(ctx: &ExecutionContext, name: &str) -> Result<OpHandler> {
    let handlers = ctx.host().shared(Handlers::default);
    let handlers = handlers.lock().unwrap_or_else(PoisonError::into_inner);
    handlers
        .get(name)
        .cloned()
        .ok_or_else(|| invalid_argument!("op_handler not found."))
}
