//! Ops that pass values on or bring them in: Const, Placeholder, Identity and their kin.

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape};

/// Const, Placeholder, PlaceholderV2, PlaceholderWithDefault, NoOp, Identity, IdentityN,
/// StopGradient, PreventGradient, Snapshot; and _Arg and _Retval, which engines handle themselves.
pub(crate) const OPS: &[Op] = &[
    Op::new("Const", "-> output: dtype | value: tensor; dtype: type")
        .shape(|ctx| {
            let shape = PartialShape::from(ctx.attrs().tensor("value")?.shape());
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Cheap)
        .kernel(constant)
        .not_differentiable(),
    Op::new(
        "Placeholder",
        "-> output: dtype | dtype: type; shape: shape = unknown",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(placeholder),
    Op::new(
        "PlaceholderV2",
        "-> output: dtype | dtype: type; shape: shape",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(placeholder),
    Op::new(
        "PlaceholderWithDefault",
        "input: dtype -> output: dtype | dtype: type; shape: shape",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Cheap)
    .kernel(forward_all)
    .gradient(pass_gradient),
    Op::new("_Arg", "-> output: T | T: type; index: int >= 0 | stateful")
        .shape(|ctx| {
            if let Ok(shape) = ctx.attrs().shape("_shape") {
                ctx.set(0, shape.clone());
            }
            Ok(())
        })
        .cost(Cost::Cheap),
    Op::new(
        "_Retval",
        "input: T -> | T: type; index: int >= 0 | stateful",
    )
    .cost(Cost::Cheap),
    Op::new("NoOp", "->")
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(|_: &mut KernelCtx| Ok(())))),
    Op::new("Identity", "input: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap)
        .kernel(forward_all)
        .gradient(pass_gradient),
    Op::new(
        "GuaranteeConst",
        "input: T -> output: T | T: type | stateful",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(|b| match b.input(0)? {
        DType::Resource => Ok(Box::new(|_: &mut KernelCtx| {
            Err(invalid_argument!(
                "Input tensor cannot be a resource variable handle."
            ))
        })),
        _ => forward_all(b),
    })
    .gradient(pass_gradient),
    Op::new(
        "IdentityN",
        "input: list(T) -> output: list(T) | T: list(type) >= 1",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(forward_all)
    .gradient(pass_gradient),
    Op::new("StopGradient", "input: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap)
        .kernel(forward_all)
        .not_differentiable(),
    Op::new(
        "PreventGradient",
        "input: T -> output: T | T: type; message: string = ''",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(forward_all)
    .gradient(prevented),
    Op::new("Snapshot", "input: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .cost(Cost::Cheap)
        .kernel(forward_all)
        .gradient(pass_gradient),
];

fn constant(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let value = build.attrs.tensor("value")?.get()?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        ctx.set_output(0, value.clone())
    }))
}

fn placeholder(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let mut message = format!(
        "You must feed a value for placeholder tensor '{}' with dtype {}",
        build.node,
        build.output(0)?
    );
    let shape = build.attrs.shape("shape")?;
    if shape.rank().is_some_and(|rank| rank > 0) {
        message += &format!(" and shape {shape}");
    }
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(invalid_argument!("{message}"))
    }))
}

fn forward_all(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        for i in 0..ctx.num_outputs() {
            let value = ctx.take_input(i)?;
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}

fn pass_gradient(g: &mut GradientCtx) -> Result<()> {
    for i in 0..g.num_inputs() {
        if let Some(gradient) = g.arrived(i) {
            g.set_gradient(i, gradient)?;
        }
    }
    Ok(())
}

fn prevented(g: &mut GradientCtx) -> Result<()> {
    Err(not_found!(
        "Gradient explicitly disabled. Reason: {}",
        g.attrs().str("message")?
    ))
}
