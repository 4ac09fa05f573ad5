//! Stacks of tensors that live for one step: StackV2 and its ops, and those of the first version,
//! whose handles are strings (TensorFlow: `core/kernels/stack_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::string_handle::{handle_shape, named, string_handle};
use ferroflow_tensor::{DType, ResourceHandle, Shape, Tensor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// StackV2, StackPushV2, StackPopV2, StackCloseV2, Stack, StackPush, StackPop, StackClose.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StackV2",
        "max_size: int32 -> handle: resource | elem_type: type; stack_name: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(create),
    Op::new(
        "StackPushV2",
        "handle: resource, elem: T -> output: T | T: type; swap_memory: bool = false | \
         stateful",
    )
    .shape(|ctx| {
        let shape = ctx.input(1);
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(push),
    Op::new(
        "StackPopV2",
        "handle: resource -> elem: elem_type | elem_type: type | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(pop),
    Op::new("StackCloseV2", "handle: resource -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(close),
    Op::new(
        "Stack",
        "-> handle: Ref(string) | elem_type: type; stack_name: string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new(
        "StackPush",
        "handle: Ref(string), elem: T -> output: T | T: type; swap_memory: bool = false",
    )
    .shape(|ctx| {
        let shape = ctx.input(1);
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(push)
    .not_differentiable(),
    Op::new(
        "StackPop",
        "handle: Ref(string) -> elem: elem_type | elem_type: type",
    )
    .cost(Cost::Cheap)
    .kernel(pop)
    .not_differentiable(),
    Op::new("StackClose", "handle: Ref(string) ->")
        .cost(Cost::Cheap)
        .kernel(close)
        .not_differentiable(),
];

/// The container in the handles of stacks.
const CONTAINER: &str = "_stacks";

struct Stack {
    name: String,
    dtype: DType,
    max: Option<usize>,
    state: Mutex<StackState>,
}

#[derive(Default)]
struct StackState {
    closed: bool,
    elements: Vec<Tensor>,
}

impl Stack {
    fn lock(&self) -> MutexGuard<'_, StackState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, StackState>> {
        let state = self.lock();
        match state.closed {
            false => Ok(state),
            true => Err(invalid_argument!(
                "Stack[{}] has already been closed.",
                self.name
            )),
        }
    }
}

fn create(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let dtype = build.attrs.dtype("elem_type")?;
    let dtype_of_handle = build.output(0)?;
    let name = build.attrs.str("stack_name")?;
    let name = if name.is_empty() { build.node } else { name }.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let max = match ctx.num_inputs() {
            0 => None,
            _ => max_size(ctx.input(0)?)?,
        };
        let stack = Stack {
            name: format!("{name}_{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            dtype,
            max,
            state: Mutex::default(),
        };
        if dtype_of_handle == DType::String {
            let name = stack.name.clone();
            return ctx.set_output(0, string_handle(CONTAINER, &name, Arc::new(stack))?);
        }
        let handle = ResourceHandle {
            container: CONTAINER.into(),
            name: stack.name.as_str().into(),
            value: Some(Arc::new(stack)),
            origin: None,
        };
        ctx.set_output(0, Tensor::from_resources(Shape::scalar(), vec![handle])?)
    }))
}

/// Returns the maximal number of elements, if there is a limit.
fn max_size(max: &Tensor) -> Result<Option<usize>> {
    if !max.shape().is_scalar() {
        return Err(invalid_argument!(
            "Stack size must be a scalar, but had shape: {}",
            max.shape()
        ));
    }
    Ok(usize::try_from(max.to_scalar::<i32>()?).ok())
}

fn stack_input(ctx: &KernelCtx) -> Result<Arc<Stack>> {
    let handle = ctx.input(0)?;
    if handle.dtype() == DType::String {
        return named(handle, "Stack");
    }
    handle
        .resources()?
        .first()
        .and_then(|h| h.value.clone())
        .and_then(|value| value.downcast().ok())
        .ok_or_else(|| invalid_argument!("the handle of node '{}' is not a Stack", ctx.node()))
}

fn push(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(1)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let stack = stack_input(ctx)?;
        if dtype != stack.dtype {
            return Err(invalid_argument!(
                "Must have type {} but got {}",
                stack.dtype as i32,
                dtype as i32
            ));
        }
        let value = ctx.take_input(1)?;
        let mut state = stack.open()?;
        if let Some(max) = stack.max
            && state.elements.len() >= max
        {
            return Err(invalid_argument!(
                "Stack[{}] overflowed its max_size ({max})",
                stack.name
            ));
        }
        state.elements.push(value.clone());
        drop(state);
        ctx.set_output(0, value)
    }))
}

fn pop(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let stack = stack_input(ctx)?;
        let popped = stack.open()?.elements.pop();
        let value = popped.ok_or_else(|| {
            invalid_argument!("Stack[{}] is empty when calling Pop().", stack.name)
        })?;
        if value.dtype() != dtype {
            return Err(invalid_argument!(
                "Must have type {} but got {}",
                stack.dtype as i32,
                dtype as i32
            ));
        }
        ctx.set_output(0, value)
    }))
}

fn close(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let stack = stack_input(ctx)?;
        let mut state = stack.lock();
        state.closed = true;
        state.elements = Vec::new();
        Ok(())
    }))
}
