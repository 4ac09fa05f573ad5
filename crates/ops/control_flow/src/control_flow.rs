//! Control flow ops, which engines implement themselves; this file has their schemas and shapes
//! (TensorFlow: `core/kernels/control_flow_ops.cc`).

use ferroflow_base::{Result, aborted, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::PartialShape;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Switch",
        "data: T, pred: bool -> output_false: T, output_true: T | T: type",
    )
    .shape(all_like_first)
    .cost(Cost::Cheap),
    Op::new(
        "RefSwitch",
        "data: Ref(T), pred: bool -> output_false: Ref(T), output_true: Ref(T) | T: \
         type | uninit",
    )
    .shape(all_like_first)
    .cost(Cost::Cheap),
    Op::new(
        "_SwitchN",
        "data: T, output_index: int32 -> outputs: num_outs*T | num_outs: int >= 1; T: \
         type",
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
        "RefSelect",
        "index: int32, inputs: Ref(N*T) -> output: Ref(T) | T: type; N: int >= 1",
    )
    .shape(selected_shape)
    .cost(Cost::Cheap),
    // RefSelect where references have become handles.
    Op::new(
        "_SelectHandle",
        "index: int32, inputs: N*T -> output: T | T: type; N: int >= 1",
    )
    .shape(selected_shape)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(select)))
    .not_differentiable(),
    Op::new(
        "Enter",
        "data: T -> output: T | T: type; frame_name: string; is_constant: bool = false; \
         parallel_iterations: int = 10",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap),
    Op::new(
        "RefEnter",
        "data: Ref(T) -> output: Ref(T) | T: type; frame_name: string; is_constant: \
         bool = false; parallel_iterations: int = 10",
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
];

fn all_like_first(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        ctx.set(i, ctx.input(0));
    }
    Ok(())
}

/// Infers the dimensions that all inputs agree on; inputs on a loop's back edge are unknown.
fn selected_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 0)?;
    let first = ctx.input(1);
    let same = first.to_full().is_some() && (2..ctx.num_inputs()).all(|i| ctx.input(i) == first);
    ctx.set(0, if same { first } else { PartialShape::unknown() });
    Ok(())
}

fn select(ctx: &mut KernelCtx) -> Result<()> {
    let index = ctx.input(0)?;
    if !index.shape().is_scalar() {
        return Err(invalid_argument!(
            "Index must be a scalar, but it has shape {}",
            index.shape()
        ));
    }
    let n = ctx.num_inputs() - 1;
    let index = index.slice::<i32>()?[0];
    match usize::try_from(index) {
        Ok(i) if i < n => {
            let chosen = ctx.input(i + 1)?.clone();
            ctx.set_output(0, chosen)
        }
        _ => Err(invalid_argument!(
            "Index must be in the range [0, {n}) but got {index}"
        )),
    }
}

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
