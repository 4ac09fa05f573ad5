//! Conditional accumulators: gradients are added until enough of them have arrived to be taken as
//! their mean or sum. TensorFlow: `core/kernels/conditional_accumulator_base_op.cc`.

use crate::accumulator_state::{Accumulated, Accumulator, Contribution};
use ferroflow_base::{Result, cancelled, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::queue::only_async;
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::string_handle::{self, handle_shape};
use ferroflow_resources::waiting::{Order, Waiting};
use ferroflow_tensor::{DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::sync::Arc;

/// ConditionalAccumulator, AccumulatorApplyGradient, AccumulatorTakeGradient,
/// AccumulatorNumAccumulated, AccumulatorSetGlobalStep; the same of ResourceAccumulator and of
/// SparseAccumulator, which shares the last two.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ConditionalAccumulator",
        "-> handle: Ref(string) | dtype: numbertype; shape: shape; container: string \
         = ''; shared_name: string = ''; reduction_type: string {'MEAN','SUM'} = 'MEAN' | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, Kind::Reference))
    .not_differentiable(),
    Op::new(
        "SparseConditionalAccumulator",
        "-> handle: Ref(string) | dtype: numbertype; shape: shape; container: string \
         = ''; shared_name: string = ''; reduction_type: string {'MEAN','SUM'} = 'MEAN' | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, Kind::Sparse))
    .not_differentiable(),
    Op::new(
        "ResourceConditionalAccumulator",
        "-> handle: resource | dtype: numbertype; shape: shape; container: string = \
         ''; shared_name: string = ''; reduction_type: string {'MEAN','SUM'} = 'MEAN' | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, Kind::Resource)),
    Op::new(
        "AccumulatorApplyGradient",
        "handle: Ref(string), local_step: int64, gradient: dtype -> | dtype: \
         numbertype",
    )
    .shape(scalar_argument)
    .kernel(|b| apply(b, Kind::Reference))
    .not_differentiable(),
    Op::new(
        "ResourceAccumulatorApplyGradient",
        "handle: resource, local_step: int64, gradient: dtype -> | dtype: numbertype \
         | stateful",
    )
    .shape(scalar_argument)
    .kernel(|b| apply(b, Kind::Resource)),
    Op::new(
        "SparseAccumulatorApplyGradient",
        "handle: Ref(string), local_step: int64, gradient_indices: int64, \
         gradient_values: dtype, gradient_shape: int64 -> | dtype: numbertype; \
         has_known_shape: bool",
    )
    .shape(scalar_argument)
    .kernel(|b| apply(b, Kind::Sparse))
    .not_differentiable(),
    Op::new(
        "AccumulatorTakeGradient",
        "handle: Ref(string), num_required: int32 -> average: dtype | dtype: \
         numbertype",
    )
    .shape(scalar_argument)
    .cost(Cost::Async)
    .kernel(|b| take(b, Kind::Reference))
    .not_differentiable(),
    Op::new(
        "ResourceAccumulatorTakeGradient",
        "handle: resource, num_required: int32 -> average: dtype | dtype: numbertype \
         | stateful",
    )
    .shape(scalar_argument)
    .cost(Cost::Async)
    .kernel(|b| take(b, Kind::Resource)),
    Op::new(
        "SparseAccumulatorTakeGradient",
        "handle: Ref(string), num_required: int32 -> indices: int64, values: dtype, \
         shape: int64 | dtype: numbertype",
    )
    .shape(scalar_argument)
    .cost(Cost::Async)
    .kernel(|b| take(b, Kind::Sparse))
    .not_differentiable(),
    Op::new(
        "AccumulatorNumAccumulated",
        "handle: Ref(string) -> num_accumulated: int32",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(count)))
    .not_differentiable(),
    Op::new(
        "ResourceAccumulatorNumAccumulated",
        "handle: resource -> num_accumulated: int32 |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(count))),
    Op::new(
        "AccumulatorSetGlobalStep",
        "handle: Ref(string), new_global_step: int64 ->",
    )
    .shape(scalar_argument)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(set_global_step)))
    .not_differentiable(),
    Op::new(
        "ResourceAccumulatorSetGlobalStep",
        "handle: resource, new_global_step: int64 -> |  | stateful",
    )
    .shape(scalar_argument)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(set_global_step))),
];

/// What the handle is, and the gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reference,
    Resource,
    Sparse,
}

impl Kind {
    /// Returns the dtype of the handle in messages.
    fn handle(self) -> &'static str {
        match self {
            Kind::Resource => "resource",
            _ => "string_ref",
        }
    }
}

fn scalar_argument(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(1, 0)?;
    for i in 0..ctx.num_outputs() {
        ctx.set(i, PartialShape::unknown());
    }
    Ok(())
}

type Shared = Waiting<Accumulator>;

fn create(build: &KernelBuild, kind: Kind) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("dtype")?;
    if !matches!(dtype, DType::Half | DType::Float | DType::Double) {
        return Err(build.unsupported(dtype));
    }
    let shape = build.attrs.shape("shape")?.clone();
    let is_mean = build.attrs.str("reduction_type")? == "MEAN";
    let is_sparse = kind == Kind::Sparse;
    let place = ContainerInfo::of_node(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let make = |_: &str| {
            let empty = Accumulator::new(dtype, shape.clone(), is_mean, is_sparse);
            Ok(Waiting::new(empty, Order::First))
        };
        let (name, found) = place.find::<Shared>(ctx.resources(), make)?;
        let container = place.container(ctx.resources());
        if kind != Kind::Resource {
            let handle = string_handle::string_handle(container, &name, found)?;
            return ctx.set_output(0, handle);
        }
        let handle = ResourceHandle {
            container: container.into(),
            name: (*name).into(),
            value: Some(found),
            origin: None,
        };
        ctx.set_output(0, Tensor::from_resources(Shape::scalar(), vec![handle])?)
    }))
}

fn accumulator_of(handle: &Tensor) -> Result<Arc<Shared>> {
    if handle.dtype() == DType::String {
        return string_handle::named(handle, "accumulator");
    }
    let value = handle.resources()?.first().and_then(|h| h.value.clone());
    let found = value.and_then(|value| value.downcast().ok());
    found.ok_or_else(|| {
        invalid_argument!("the resource handle does not refer to a conditional accumulator")
    })
}

fn count(ctx: &mut KernelCtx) -> Result<()> {
    let n = accumulator_of(ctx.input(0)?)?.update(|a| a.count());
    ctx.set_output(0, Tensor::scalar(i32::try_from(n).unwrap_or(i32::MAX)))
}

fn set_global_step(ctx: &mut KernelCtx) -> Result<()> {
    let accumulator = accumulator_of(ctx.input(0)?)?;
    let step = ctx.input(1)?;
    if !step.shape().is_scalar() {
        return Err(invalid_argument!(
            "Argument num_required must be scalar, but had bad shape {}",
            step.shape()
        ));
    }
    let step = step.to_scalar::<i64>()?;
    accumulator.update(|a| a.set_step(step));
    Ok(())
}

fn apply(build: &KernelBuild, kind: Kind) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("dtype")?;
    let has_known_shape = kind == Kind::Sparse && build.attrs.bool("has_known_shape")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let accumulator = accumulator_of(ctx.input(0)?)?;
        let step = ctx.input(1)?;
        if !step.shape().is_scalar() {
            return Err(invalid_argument!(
                "Argument local_step must be scalar, but had bad shape {}",
                step.shape()
            ));
        }
        let step = step.to_scalar::<i64>()?;
        let gradient = match kind {
            Kind::Sparse => Contribution::Sparse {
                indices: ctx.input(2)?.clone(),
                values: ctx.input(3)?.clone(),
                shape: match has_known_shape {
                    true => Some(ctx.input(4)?.clone()),
                    false => None,
                },
            },
            _ => Contribution::Dense(ctx.input(2)?.clone()),
        };
        accumulator.update(|a| {
            if dtype != a.dtype() {
                let handle = kind.handle();
                let types = |t: DType| match kind {
                    Kind::Sparse => format!("{handle}, int64, int64, {t}, int64->"),
                    _ => format!("{handle}, int64, {t}->"),
                };
                return Err(mismatch(&types(dtype), &types(a.dtype())));
            }
            a.add(step, &gradient)
        })
    }))
}

#[cold]
fn mismatch(have: &str, expected: &str) -> ferroflow_base::Status {
    invalid_argument!("Signature mismatch, have: {have} expected: {expected}")
}

struct Take {
    dtype: DType,
    kind: Kind,
}

fn take(build: &KernelBuild, kind: Kind) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("dtype")?;
    Ok(Box::new(Take { dtype, kind }))
}

impl Take {
    fn prepare(&self, inputs: &[Tensor]) -> Result<(Arc<Shared>, usize)> {
        let [handle, required] = inputs else {
            return Err(invalid_argument!("TakeGradient needs two inputs"));
        };
        let accumulator = accumulator_of(handle)?;
        let dtype = accumulator.update(|a| a.dtype());
        if dtype != self.dtype {
            let handle = self.kind.handle();
            let types = |t: DType| match self.kind {
                Kind::Sparse => format!("{handle}, int32->int64, {t}, int64"),
                _ => format!("{handle}, int32->{t}"),
            };
            return Err(mismatch(&types(self.dtype), &types(dtype)));
        }
        if !required.shape().is_scalar() {
            return Err(invalid_argument!(
                "Argument num_required must be scalar, but had bad shape {}",
                required.shape()
            ));
        }
        let required = required.to_scalar::<i32>()?;
        match usize::try_from(required) {
            Ok(n) if n > 0 => Ok((accumulator, n)),
            _ => Err(invalid_argument!(
                "Argument num_required must be positive, but was {required}"
            )),
        }
    }
}

impl OpKernel for Take {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, call: AsyncCall) {
        let (accumulator, required) = match self.prepare(&call.inputs) {
            Ok(prepared) => prepared,
            Err(error) => return call.finish(Err(error)),
        };
        let error = cancelled!("TakeGrad operation was cancelled");
        accumulator.attempt(call, error, move |a| {
            (a.count() >= required).then(|| a.take().and_then(Accumulated::into_tensors))
        });
    }
}
