//! Identity, RefIdentity, IdentityN, Snapshot, GuaranteeConst, StopGradient, PreventGradient
//! (TensorFlow: `core/kernels/identity_op.cc` and `identity_n_op.cc`).

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
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
    Op::new(
        "DebugGradientIdentity",
        "input: T -> output: T | T: type | uninit",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(forward_all)
    .gradient(pass_gradient),
    Op::new(
        "DebugGradientRefIdentity",
        "input: Ref(T) -> output: Ref(T) | T: type | uninit",
    )
    .gradient(|g| match g.arrived(0) {
        Some(gradient) => g.set_gradient(0, gradient),
        None => Ok(()),
    }),
    Op::new(
        "RefIdentity",
        "input: Ref(T) -> output: Ref(T) | T: type | uninit",
    )
    .gradient(|g| match g.arrived(0) {
        Some(gradient) => g.set_gradient(0, gradient),
        None => Ok(()),
    }),
];

pub(crate) fn forward_all(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        for i in 0..ctx.num_outputs() {
            let value = ctx.take_input(i)?;
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}

pub(crate) fn pass_gradient(g: &mut GradientCtx) -> Result<()> {
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
