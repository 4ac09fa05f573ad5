//! Composite ops: functions of the program, from a chain and handles to a chain and handles.

use super::attrs::OpAttrs;
use super::handle::{Args, Functions, KnownMetadata, OpHandler, Results, TensorHandle};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Frame, Function, KernelFrame, KernelRegistry, Values,
};
use ferroflow_sync::{AsyncValue, Chain, IndirectPromise};
use std::sync::Arc;

/// Returns a handle whose tensor is that of a handle that becomes available later.
fn later(handle: AsyncValue) -> TensorHandle {
    if let Some(handle) = handle.get::<TensorHandle>() {
        return handle.clone();
    }
    let (promise, tensor) = IndirectPromise::new();
    let waiting = handle.clone();
    waiting.and_then(move || match handle.get::<TensorHandle>() {
        Some(handle) => promise.forward_to(handle.tensor.clone()),
        None => promise.forward_to(handle),
    });
    TensorHandle {
        tensor,
        known: KnownMetadata::Nothing,
    }
}

/// Calls the function in place of an op.
pub(super) fn execute(
    function: &Function,
    args: &Args,
    attrs: &OpAttrs,
    n_results: usize,
    ctx: &ExecutionContext,
) -> Result<Results> {
    if !attrs.0.is_empty() {
        return Err(invalid_argument!("a composite op takes no attributes"));
    }
    function.check_arity(args.len() + 1, n_results + 1)?;
    let mut values: Values = std::iter::once(AsyncValue::new(Chain)).collect();
    values.extend(args.iter().map(|a| AsyncValue::new((*a).clone())));
    let mut results = function.execute(ctx, values).into_iter();
    let done = results.next();
    Ok(Results {
        handles: results.map(later).collect(),
        done,
    })
}

/// `{op_names = ["a", …], ops = [@f, …]}` on the handler for all other ops.
fn create(frame: &mut KernelFrame) -> Result<()> {
    let next = frame.arg::<OpHandler>(0)?.clone();
    let names = frame.attribute(0)?.typed()?;
    let mut functions = Functions::new();
    for (i, name) in names.elements()?.iter().enumerate() {
        functions.insert(name.string()?.to_string(), frame.function(i)?);
    }
    let handler = OpHandler::Composite(Box::new(next), Arc::new(functions));
    frame.emplace(0, handler);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_raw("corert.create_composite_op_handler", create);
}
