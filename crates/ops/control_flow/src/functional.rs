//! Functional ops: If, Case, While, For, function calls, and DeviceIndex (TensorFlow:
//! `core/kernels/functional_ops.cc` and `partitioned_function_ops.cc`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DeviceIndex",
        "-> index: int32 | device_names: list(string) | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(device_index)
    .not_differentiable(),
    Op::new("FakeParam", "-> output: dtype | dtype: type; shape: shape")
        .shape(shapes::from_shape_attr)
        .cost(Cost::Cheap)
        .kernel(|build| {
            // What stands for a value of unknown size is empty.
            let dims = build.attrs.shape("shape")?.dims().unwrap_or_default();
            let shape: Shape = dims.iter().map(|d| d.unwrap_or(0)).collect();
            let value = Tensor::zeros(build.output(0)?, shape)?;
            Ok(Box::new(move |ctx: &mut KernelCtx| {
                ctx.set_output(0, value.clone())
            }))
        }),
    Op::new("ToBool", "input: T -> output: bool | T: type")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(to_bool))),
    Op::new(
        "If",
        "cond: Tcond, input: list(Tin) -> output: list(Tout) | Tcond: type; Tin: \
         list(type) >= 0; Tout: list(type) >= 0; then_branch: func; else_branch: func; \
         output_shapes: list(shape) = [] | stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessIf",
        "cond: Tcond, input: list(Tin) -> output: list(Tout) | Tcond: type; Tin: \
         list(type) >= 0; Tout: list(type) >= 0; then_branch: func; else_branch: func; \
         output_shapes: list(shape) = []",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "Case",
        "branch_index: int32, input: list(Tin) -> output: list(Tout) | Tin: list(type) \
         >= 0; Tout: list(type) >= 0; branches: list(func) >= 1; output_shapes: \
         list(shape) = [] | stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessCase",
        "branch_index: int32, input: list(Tin) -> output: list(Tout) | Tin: list(type) \
         >= 0; Tout: list(type) >= 0; branches: list(func) >= 1; output_shapes: \
         list(shape) = []",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "While",
        "input: list(T) -> output: list(T) | T: list(type) >= 0; cond: func; body: \
         func; output_shapes: list(shape) = []; parallel_iterations: int = 10 | \
         stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessWhile",
        "input: list(T) -> output: list(T) | T: list(type) >= 0; cond: func; body: \
         func; output_shapes: list(shape) = []; parallel_iterations: int = 10",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "For",
        "start: int32, limit: int32, delta: int32, input: list(T) -> output: list(T) | \
         T: list(type) >= 0; body: func",
    )
    .cost(Cost::Cheap),
    Op::new(
        "_ForStart",
        "start: int32, limit: int32, delta: int32 -> output: int32",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(for_start))),
    Op::new(
        "_ForTest",
        "counter: int32, limit: int32, delta: int32 -> output: bool",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(for_test))),
    Op::new("_ForNext", "counter: int32, delta: int32 -> output: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(for_next))),
    Op::new(
        "PartitionedCall",
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: \
         list(type) >= 0; f: func; config: string = ''; config_proto: string = ''; \
         executor_type: string = ''",
    )
    .cost(Cost::Cheap),
    Op::new(
        "RemoteCall",
        "target: string, args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 1; \
         Tout: list(type) >= 1; f: func | stateful",
    ),
    Op::new(
        "SymbolicGradient",
        "input: list(Tin) -> output: list(Tout) | Tin: list(type) >= 1; Tout: \
         list(type) >= 1; f: func",
    ),
    Op::new(
        "StatefulPartitionedCall",
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: \
         list(type) >= 0; f: func; config: string = ''; config_proto: string = ''; \
         executor_type: string = '' | stateful distributed",
    )
    .cost(Cost::Cheap),
];

fn device_index(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let names = build.attrs.strs("device_names")?;
    let index = names
        .iter()
        .position(|n| *n == "CPU")
        .unwrap_or(names.len());
    let index = Tensor::scalar(index as i32);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        ctx.set_output(0, index.clone())
    }))
}

/// Converts to bool: a scalar by its value, a string by its length, any other tensor by whether it
/// has elements.
fn to_bool(ctx: &mut KernelCtx) -> Result<()> {
    let t = ctx.input(0)?;
    let value = if !t.shape().is_scalar() {
        t.num_elements() > 0
    } else if let Ok(strings) = t.strings() {
        strings.first().is_some_and(|s| !s.is_empty())
    } else {
        dispatch!(t.dtype(), T in [f32, f64, i32, i64, u8, i16, i8, bool] =>
            t.to_scalar::<T>()? != T::default(),
            else return Err(invalid_argument!("{} cannot be converted to a bool", t.dtype())))
    };
    ctx.set_output(0, Tensor::scalar(value))
}

fn from_output_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    let shapes = ctx.attrs().shapes("output_shapes")?;
    if shapes.len() == ctx.num_outputs() {
        for (i, shape) in shapes.into_iter().enumerate() {
            ctx.set(i, shape);
        }
    }
    Ok(())
}

/// Returns start or counter, limit and delta of a For.
fn for_bounds(ctx: &KernelCtx) -> Result<(i32, i32, i32)> {
    let int = |i: usize, what: &str| {
        let value = ctx.input(i)?;
        match value.shape().is_scalar() {
            true => value.to_scalar::<i32>(),
            false => Err(invalid_argument!(
                "{what} must be a scalar, but {}",
                value.shape()
            )),
        }
    };
    Ok((int(0, "start")?, int(1, "limit")?, int(2, "delta")?))
}

/// Returns the first counter of a For, checked to terminate.
fn for_start(ctx: &mut KernelCtx) -> Result<()> {
    let (start, limit, delta) = for_bounds(ctx)?;
    let is_finite = match delta {
        0 => start == limit,
        d if d > 0 => start <= limit,
        _ => start >= limit,
    };
    match is_finite {
        true => ctx.set_output(0, Tensor::scalar(start)),
        false => Err(invalid_argument!(
            "Invalid start/limit/delta: {start} {limit} {delta}"
        )),
    }
}

/// Returns whether a For runs its body again.
fn for_test(ctx: &mut KernelCtx) -> Result<()> {
    let (counter, limit, delta) = for_bounds(ctx)?;
    let goes_on = match delta {
        d if d >= 0 => counter < limit,
        _ => counter > limit,
    };
    ctx.set_output(0, Tensor::scalar(goes_on))
}

/// Returns the next counter of a For.
fn for_next(ctx: &mut KernelCtx) -> Result<()> {
    let int = |i| ctx.input(i).and_then(Tensor::to_scalar::<i32>);
    let next = int(0)?.checked_add(int(1)?);
    let next = next.ok_or_else(|| internal!("the counter of a For loop overflows"))?;
    ctx.set_output(0, Tensor::scalar(next))
}
