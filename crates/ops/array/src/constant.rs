//! Const (TensorFlow: `core/kernels/constant_op.cc`).

use ferroflow_base::Result;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::PartialShape;

/// The ops of this file.
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
    Op::new("HostConst", "-> output: dtype | value: tensor; dtype: type")
        .shape(|ctx| {
            let shape = PartialShape::from(ctx.attrs().tensor("value")?.shape());
            ctx.set(0, shape);
            Ok(())
        })
        .cost(Cost::Cheap)
        .kernel(constant),
];

fn constant(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let value = build.attrs.tensor("value")?.get()?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        ctx.set_output(0, value.clone())
    }))
}
