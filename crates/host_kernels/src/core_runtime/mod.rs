//! The core runtime: eager ops on tensor handles, executed by op handlers.

mod attrs;
mod composite;
mod handle;
mod into;
mod ops;
mod tensor_op;
mod test;
mod transfer;

use super::dense::{DenseHostTensor, HostTensor, StringHostTensor};
use super::dht::from_dense_attr;
use super::shape::TensorShape;
use attrs::{OpAttr, OpAttrs};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    Arg, AttrNumber, Ctx, ExecutionContext, Frame, Function, HostDType, KernelFrame,
    KernelRegistry, StrAttr, SyncKernelFrame, TypedAttribute, Value, Values,
};
use ferroflow_sync::{AsyncValue, Chain, IndirectPromise};
use handle::{Args, CompositeOp, Handlers, Op, OpHandler, TensorHandle, handler};
use std::sync::{Arc, PoisonError};

/// Returns the op that a kernel of a program calls, created from its attributes on the first run.
fn site_op(frame: &impl Frame, name: usize) -> Result<Arc<Op>> {
    let attrs = OpAttrs::from_pairs(&frame.attribute(0)?.typed()?)?;
    let name = frame.attribute(name)?.typed()?;
    Ok(Arc::new(Op::new(name.string()?, attrs)))
}

fn execute_op(frame: &mut KernelFrame) -> Result<()> {
    run_op(frame, 1)
}

fn execute_op_seq(frame: &mut KernelFrame) -> Result<()> {
    run_op(frame, 2)
}

/// Runs an op whose arguments are a handler, a chain if `n_heads` is two, and handles; its results
/// are a chain, if an argument is one, and handles.
fn run_op(frame: &mut KernelFrame, n_heads: usize) -> Result<()> {
    let op = frame.site_data(|frame| site_op(frame, 2))?;
    let n_chains = n_heads - 1;
    let n_results = frame.n_results().saturating_sub(n_chains);
    let results = {
        let (handler, args) = (frame.arg::<OpHandler>(0)?, handles(frame, n_heads)?);
        let reporter = || frame.reporter();
        handler.execute(op, &args, n_results, frame.ctx(), Some(&reporter))?
    };
    if n_chains == 1 {
        let done = results.done.unwrap_or_else(|| AsyncValue::new(Chain));
        frame.set_result(0, done);
    }
    for (i, result) in results.handles.into_iter().enumerate() {
        frame.emplace(n_chains + i, result);
    }
    Ok(())
}

fn handles(frame: &impl Frame, first: usize) -> Result<Args<'_>> {
    let mut args = Args::new();
    for i in first..frame.n_args() {
        args.push(frame.arg(i)?);
    }
    Ok(args)
}

/// Runs an op in a synchronous function: it must be done on return.
fn execute_op_sync(frame: &mut SyncKernelFrame) -> Result<()> {
    let op = frame.site_data(|frame| site_op(frame, 1))?;
    let n_results = frame.n_results();
    let results = {
        let (handler, args) = (frame.arg::<OpHandler>(0)?, handles(frame, 1)?);
        handler.execute(op, &args, n_results, frame.ctx(), None)?
    };
    if let Some(done) = &results.done {
        if let Some(error) = done.error() {
            return Err(error.status.clone());
        }
        if !done.is_available() {
            return Err(invalid_argument!(
                "op '{}' is asynchronous and cannot run in a synchronous function",
                op.name
            ));
        }
    }
    for (i, result) in results.handles.into_iter().enumerate() {
        frame.set_result(i, Value::new(result));
    }
    Ok(())
}

fn execute_crt_op(frame: &mut KernelFrame) -> Result<()> {
    let function = frame.arg::<CompositeOp>(0)?.0.clone();
    let mut args = frame.take_args_from(1);
    args.insert(0, AsyncValue::new(Chain));
    function.check_arity(args.len(), frame.n_results() + 1)?;
    let mut results = function.execute(frame.ctx(), args);
    results.drain(..1);
    frame.set_results(results);
    Ok(())
}

fn register_handler(handler: Arg<OpHandler>, name: StrAttr, ctx: Ctx) -> Chain {
    let handlers = ctx.host().shared(Handlers::default);
    let mut handlers = handlers.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.insert(name.0.to_string(), handler.clone());
    Chain
}

fn register_handler_sync(handler: Arg<OpHandler>, name: StrAttr, ctx: Ctx) {
    register_handler(handler, name, ctx);
}

fn print_handle(frame: &mut KernelFrame) -> Result<()> {
    let tensor = frame.arg::<TensorHandle>(0)?.tensor.clone();
    let (promise, host) = (frame.allocate_indirect(0), frame.ctx().host().clone());
    let waiting = tensor.clone();
    waiting.and_then(move || match tensor.get::<HostTensor>() {
        Some(value) => {
            host.print(&format!("{}\n", value.show(&host)));
            promise.forward_to(AsyncValue::new(Chain));
        }
        None => promise.forward_to(tensor),
    });
    Ok(())
}

fn print_handle_sync(handle: Arg<TensorHandle>, ctx: Ctx) -> Result<()> {
    let tensor = handle.tensor.expect::<HostTensor>()?;
    ctx.host().print(&format!("{}\n", tensor.show(ctx.host())));
    Ok(())
}

fn handle_to_shape(frame: &mut KernelFrame) -> Result<()> {
    let handle = frame.arg::<TensorHandle>(0)?.clone();
    if let Some((_, shape)) = handle.metadata(handle.get()) {
        frame.emplace(0, shape.clone());
        return Ok(());
    }
    let promise = frame.allocate_indirect(0);
    let tensor = handle.tensor.clone();
    tensor.and_then(move || match handle.tensor.get::<HostTensor>() {
        Some(value) => promise.forward_to(AsyncValue::new(value.shape().clone())),
        None => promise.forward_to(handle.tensor),
    });
    Ok(())
}

fn handle_to_tensor(frame: &mut KernelFrame) -> Result<()> {
    let tensor = frame.arg::<TensorHandle>(0)?.tensor.clone();
    frame.set_result(0, tensor);
    Ok(())
}

/// Returns the single number of a tensor once it is available.
fn handle_to_i32(frame: &mut KernelFrame) -> Result<()> {
    let tensor = frame.arg::<TensorHandle>(0)?.tensor.clone();
    let (promise, reporter) = (frame.allocate_indirect(0), frame.reporter());
    let waiting = tensor.clone();
    waiting.and_then(move || match tensor.get::<HostTensor>() {
        Some(value) => match value.as_i32() {
            Some(n) => promise.forward_to(AsyncValue::new(n)),
            None => {
                let status = invalid_argument!("the tensor is not one 32-bit integer");
                promise.set_error(reporter.report(status));
            }
        },
        None => promise.forward_to(tensor),
    });
    Ok(())
}

fn tensor_to_handle(tensor: Arg<HostTensor>) -> TensorHandle {
    TensorHandle::new(tensor.0.clone())
}

fn const_dense(attr: TypedAttribute, ctx: Ctx) -> Result<TensorHandle> {
    from_dense_attr(&attr.0, &ctx).map(TensorHandle::new)
}

fn const_strings(shape: TypedAttribute, values: TypedAttribute) -> Result<TensorHandle> {
    let dims = match OpAttr::new(&shape.0)? {
        OpAttr::Array { bytes, .. } => bytes
            .chunks(8)
            .filter_map(i64::from_bytes)
            .collect::<Vec<_>>(),
        _ => {
            return Err(invalid_argument!(
                "the shape of a string tensor is not a list"
            ));
        }
    };
    let shape = TensorShape::new(dims)?;
    let values = values
        .0
        .elements()?
        .iter()
        .map(|v| v.string().map(str::to_string));
    let mut strings = values.collect::<Result<Vec<_>>>()?;
    let n = shape.n_elements()?;
    if let [one] = &strings[..] {
        strings = std::iter::repeat_n(one.clone(), n.min(1 << 24)).collect();
    }
    if strings.len() != n {
        return Err(invalid_argument!("Shape mismatch"));
    }
    Ok(TensorHandle::new(HostTensor::String(StringHostTensor {
        shape,
        strings,
    })))
}

/// Creates a tensor from untyped attributes: its shape, and its elements or the one for all.
fn create_dense(
    shape: &[i64],
    dtype: HostDType,
    values: &[u8],
    ctx: &ExecutionContext,
) -> Result<TensorHandle> {
    let (allocator, shape) = (ctx.host().allocator(), TensorShape::new(shape.to_vec())?);
    let tensor = DenseHostTensor::of_values(allocator, dtype, shape, values)?;
    Ok(TensorHandle::new(HostTensor::Dense(tensor)))
}

/// Converts a tensor to a condition by its first element: anything but zero and an empty string is
/// true.
fn is_true(tensor: &HostTensor) -> bool {
    match tensor {
        HostTensor::Dense(t) => {
            let size = t.dtype.size().unwrap_or(1);
            t.buffer
                .read(|bytes| bytes.iter().take(size).any(|b| *b != 0))
        }
        HostTensor::Scalar(t) => t.value.iter().any(|b| *b != 0),
        HostTensor::String(t) => t.strings.first().is_some_and(|s| !s.is_empty()),
        HostTensor::Coo(t) => !t.values.is_empty(),
    }
}

fn fail_all(promises: Vec<IndirectPromise>, error: &AsyncValue) {
    promises
        .into_iter()
        .for_each(|p| p.forward_to(error.clone()));
}

fn cond(frame: &mut KernelFrame) -> Result<()> {
    let condition = frame.arg::<TensorHandle>(0)?.tensor.clone();
    let (then, otherwise) = (frame.function(0)?, frame.function(1)?);
    for function in [&then, &otherwise] {
        function.check_arity(frame.n_args() - 1, frame.n_results())?;
    }
    let mut args = frame.take_args();
    args.drain(..1);
    let (promises, ctx) = (frame.allocate_all(), frame.ctx().clone());
    let waiting = condition.clone();
    waiting.and_then(move || match condition.get::<HostTensor>() {
        Some(tensor) => {
            let function = if is_true(tensor) { then } else { otherwise };
            super::control::forward_all(promises, function.execute(&ctx, args));
        }
        None => fail_all(promises, &condition),
    });
    Ok(())
}

struct While {
    condition: Function,
    body: Function,
    ctx: ExecutionContext,
    promises: Vec<IndirectPromise>,
}

impl While {
    /// Runs condition and body; an iteration with an unavailable condition continues later.
    fn run(self, mut args: Values) {
        if let Some(cancelled) = self.ctx.cancel_value() {
            return fail_all(self.promises, cancelled);
        }
        let mut asked = self.condition.execute(&self.ctx, args.clone());
        let (Some(answer), Some(chain)) = (asked.pop(), asked.pop()) else {
            return;
        };
        // The chain of the condition orders the rest of the iteration.
        if let Some(first) = args.first_mut() {
            *first = chain;
        }
        self.resume(answer, args);
    }

    fn go_on(self, args: Values) {
        // Each iteration runs from the queue, so the stack does not grow.
        let ctx = self.ctx.clone();
        ctx.enqueue(move || self.run(args));
    }

    /// Returns the loop and its values if it continues now; otherwise it has ended or waits.
    fn decide(self, answer: AsyncValue, args: Values) -> Option<(Self, Values)> {
        // A condition whose chain is an error has no value.
        if let Some(chain) = args.first().cloned() {
            if !chain.is_available() {
                chain.and_then(move || self.resume(answer, args));
                return None;
            }
            if chain.is_error() {
                fail_all(self.promises, &chain);
                return None;
            }
        }
        if !answer.is_available() {
            let waiting = answer.clone();
            waiting.and_then(move || self.resume(answer, args));
            return None;
        }
        let Some(handle) = answer.get::<TensorHandle>() else {
            fail_all(self.promises, &answer);
            return None;
        };
        let tensor = handle.tensor.clone();
        if !tensor.is_available() {
            let waiting = tensor.clone();
            waiting.and_then(move || self.resume(answer, args));
            return None;
        }
        match tensor.get::<HostTensor>().map(is_true) {
            Some(true) => Some((self, args)),
            Some(false) => {
                super::control::forward_all(self.promises, args);
                None
            }
            None => {
                fail_all(self.promises, &tensor);
                None
            }
        }
    }

    fn resume(self, answer: AsyncValue, args: Values) {
        if let Some((this, args)) = self.decide(answer, args) {
            let args = this.body.execute(&this.ctx, args);
            this.go_on(args);
        }
    }
}

fn while_loop(frame: &mut KernelFrame) -> Result<()> {
    let (condition, body) = (frame.function(0)?, frame.function(1)?);
    condition.check_arity(frame.n_args(), 2)?;
    body.check_arity(frame.n_args(), frame.n_results())?;
    if frame.n_args() != frame.n_results() {
        return Err(invalid_argument!("corert.while must return what it takes"));
    }
    let args = frame.take_args();
    let this = While {
        condition,
        body,
        ctx: frame.ctx().clone(),
        promises: frame.allocate_all(),
    };
    this.run(args);
    Ok(())
}

fn register_dense(registry: &mut KernelRegistry, name: &str, dtype: HostDType) {
    for prefix in ["corert", "corert_sync"] {
        let kernel = format!("{prefix}.create_dense_tensor.{name}");
        registry.add_raw(&kernel, move |frame| {
            let shape = frame.attribute(0)?.array::<i64>()?;
            let (_, values) = frame.attribute(1)?.array_bytes(dtype)?;
            let handle = create_dense(&shape, dtype, values, frame.ctx())?;
            frame.emplace(0, handle);
            Ok(())
        });
    }
}

fn logging(next: Arg<OpHandler>) -> OpHandler {
    OpHandler::Logging(Box::new(next.clone()), Arc::default())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    test::register(registry);
    transfer::register(registry);
    composite::register(registry);
    into::register(registry);
    register_dense(registry, "ui8", HostDType::UI8);
    register_dense(registry, "ui64", HostDType::UI64);
    register_dense(registry, "i1", HostDType::I1);
    register_dense(registry, "i8", HostDType::I8);
    register_dense(registry, "i32", HostDType::I32);
    register_dense(registry, "i64", HostDType::I64);
    register_dense(registry, "f32", HostDType::F32);
    register_dense(registry, "f64", HostDType::F64);
    register_dense(registry, "f16", HostDType::F16);
    register_dense(registry, "bf16", HostDType::BF16);
    registry
        .add("corert.create_null_op_handler", || OpHandler::Null)
        .add("corert.create_cpu_op_handler", |next: Arg<OpHandler>| {
            OpHandler::Cpu(Box::new(next.clone()))
        })
        .add(
            "corert.create_cpu_op_handler_with_ordinal",
            |next: Arg<OpHandler>, _ordinal: i32| OpHandler::Cpu(Box::new(next.clone())),
        )
        .add("corert.create_logging_op_handler", logging)
        .add("corert.register_op_handler", register_handler)
        .add(
            "corert.get_op_handler",
            |_: Chain, name: StrAttr, ctx: Ctx| handler(&ctx, name.0),
        )
        .add_sync("corert_sync.register_op_handler", register_handler_sync)
        .add_sync("corert_sync.get_op_handler", |name: StrAttr, ctx: Ctx| {
            handler(&ctx, name.0)
        })
        .add_raw("corert.executeop", execute_op)
        .add_raw("corert.executeop.seq", execute_op_seq)
        .add_raw_sync("corert_sync.executeop", execute_op_sync)
        .add_raw("corert.execute_crt_op", execute_crt_op)
        .add("corert.make_composite_op", |function: Function| {
            CompositeOp(function)
        })
        .add_raw("corert.print_tensorhandle", print_handle)
        .add_sync("corert_sync.print_tensorhandle", print_handle_sync)
        .add_raw("corert.tensorhandle_to_shape", handle_to_shape)
        .add_raw("corert.tensorhandle_to_ht", handle_to_tensor)
        .add_raw("corert.tensorhandle_to_int32", handle_to_i32)
        .add("corert.ht_to_tensorhandle", tensor_to_handle)
        .add("corert.const_dense_tensor", const_dense)
        .add("corert.const_string_tensor", const_strings)
        .add_raw("corert.cond", cond)
        .add_raw("corert.while", while_loop);
}
