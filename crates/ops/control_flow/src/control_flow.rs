//! Ops that decide what runs. Engines run them themselves; here are their schemas and shapes.

use ferroflow_base::{Result, aborted, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{PartialShape, Tensor, dispatch};

/// Dataflow control flow (Switch, Merge, Enter, Exit, NextIteration, LoopCond, ControlTrigger,
/// Abort), functional control flow (If, While, Case, For) and calls.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Switch",
        "data: T, pred: bool -> output_false: T, output_true: T | T: type",
    )
    .shape(all_like_first)
    .cost(Cost::Cheap),
    Op::new(
        "RefSwitch",
        "data: Ref(T), pred: bool -> output_false: Ref(T), output_true: Ref(T) | T: type | uninit",
    )
    .shape(all_like_first)
    .cost(Cost::Cheap),
    Op::new(
        "_SwitchN",
        "data: T, output_index: int32 -> outputs: num_outs*T | num_outs: int >= 1; T: type",
    )
    .shape(all_like_first)
    .cost(Cost::Cheap),
    Op::new(
        "Merge",
        "inputs: N*T -> output: T, value_index: int32 | T: type; N: int >= 1",
    )
    .shape(merge)
    .cost(Cost::Cheap),
    Op::new(
        "RefMerge",
        "inputs: Ref(N*T) -> output: Ref(T), value_index: int32 | T: type; N: int >= 1",
    )
    .shape(merge)
    .cost(Cost::Cheap),
    Op::new(
        "Enter",
        "data: T -> output: T | T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap),
    Op::new(
        "RefEnter",
        "data: Ref(T) -> output: Ref(T) | T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap),
    Op::new("Exit", "data: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap),
    Op::new("RefExit", "data: Ref(T) -> output: Ref(T) | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap),
    Op::new("NextIteration", "data: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap),
    Op::new(
        "RefNextIteration",
        "data: Ref(T) -> output: Ref(T) | T: type",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap),
    Op::new("LoopCond", "input: bool -> output: bool")
        .shape(shapes::scalar)
        .cost(Cost::Cheap),
    Op::new("ToBool", "input: T -> output: bool | T: type")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(to_bool))),
    Op::new("ControlTrigger", "->").cost(Cost::Cheap),
    Op::new(
        "Abort",
        "-> | error_msg: string = ''; exit_without_error: bool = false",
    )
    .cost(Cost::Cheap)
    .kernel(|build| {
        let message = build.attrs.str("error_msg")?.to_string();
        let quiet = build.attrs.bool("exit_without_error")?;
        Ok(Box::new(move |_: &mut KernelCtx| match quiet {
            true => Ok(()),
            false => Err(aborted!("Abort was run: {message}")),
        }))
    }),
    Op::new(
        "If",
        "cond: Tcond, input: list(Tin) -> output: list(Tout) | Tcond: type; Tin: list(type) >= 0; Tout: list(type) >= 0; then_branch: func; else_branch: func; output_shapes: list(shape) = [] | stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessIf",
        "cond: Tcond, input: list(Tin) -> output: list(Tout) | Tcond: type; Tin: list(type) >= 0; Tout: list(type) >= 0; then_branch: func; else_branch: func; output_shapes: list(shape) = []",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "Case",
        "branch_index: int32, input: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; branches: list(func) >= 1; output_shapes: list(shape) = [] | stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessCase",
        "branch_index: int32, input: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; branches: list(func) >= 1; output_shapes: list(shape) = []",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "While",
        "input: list(T) -> output: list(T) | T: list(type) >= 0; cond: func; body: func; output_shapes: list(shape) = []; parallel_iterations: int = 10 | stateful",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "StatelessWhile",
        "input: list(T) -> output: list(T) | T: list(type) >= 0; cond: func; body: func; output_shapes: list(shape) = []; parallel_iterations: int = 10",
    )
    .shape(from_output_shapes)
    .cost(Cost::Cheap),
    Op::new(
        "For",
        "start: int32, limit: int32, delta: int32, input: list(T) -> output: list(T) | T: list(type) >= 0; body: func",
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
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; f: func; config: string = ''; config_proto: string = ''; executor_type: string = ''",
    )
    .cost(Cost::Cheap),
    Op::new(
        "RemoteCall",
        "target: string, args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 1; \
         Tout: list(type) >= 1; f: func | stateful",
    ),
    Op::new(
        "SymbolicGradient",
        "input: list(Tin) -> output: list(Tout) | Tin: list(type) >= 1; Tout: list(type) >= 1; \
         f: func",
    ),
    Op::new(
        "StatefulPartitionedCall",
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; f: func; config: string = ''; config_proto: string = ''; executor_type: string = '' | stateful distributed",
    )
    .cost(Cost::Cheap),
];

/// Start or counter, limit and delta of a For.
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

/// The first counter of a For that ends.
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

/// Whether a For runs its body again.
fn for_test(ctx: &mut KernelCtx) -> Result<()> {
    let (counter, limit, delta) = for_bounds(ctx)?;
    let goes_on = match delta {
        d if d >= 0 => counter < limit,
        _ => counter > limit,
    };
    ctx.set_output(0, Tensor::scalar(goes_on))
}

/// The next counter of a For.
fn for_next(ctx: &mut KernelCtx) -> Result<()> {
    let int = |i| ctx.input(i).and_then(Tensor::to_scalar::<i32>);
    let next = int(0)?.checked_add(int(1)?);
    let next = next.ok_or_else(|| internal!("the counter of a For overflows"))?;
    ctx.set_output(0, Tensor::scalar(next))
}

/// A scalar by its value, a string by its length, any other tensor by whether it has elements.
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

fn all_like_first(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        ctx.set(i, ctx.input(0));
    }
    Ok(())
}

/// Dimensions that all inputs agree on; inputs on a loop's back edge are unknown.
fn merge(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = ctx.input(0);
    for i in 1..ctx.num_inputs() {
        let other = ctx.input(i);
        shape = match (shape.dims(), other.dims()) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                let both = a.iter().zip(b);
                PartialShape::of(both.map(|(x, y)| x.filter(|_| x == y)))
            }
            _ => PartialShape::unknown(),
        };
    }
    ctx.set(0, shape);
    ctx.set(1, PartialShape::scalar());
    Ok(())
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
