//! ResourceScatterNdUpdate, Add, Sub, Max, Min (TensorFlow: `core/kernels/scatter_nd_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::scatter_nd::{Combine, check_partial, scatter_nd};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::{value_mut, variable};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResourceScatterNdUpdate",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type \
         {int32,int64}; use_locking: bool = true; bad_indices_policy: string = '' | \
         stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| scatter(b, Combine::Assign)),
    Op::new(
        "ResourceScatterNdAdd",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type \
         {int32,int64}; use_locking: bool = true; bad_indices_policy: string = '' | \
         stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| scatter(b, Combine::Add)),
    Op::new(
        "ResourceScatterNdSub",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type \
         {int32,int64}; use_locking: bool = true; bad_indices_policy: string = '' | \
         stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| scatter(b, Combine::Sub)),
    Op::new(
        "ResourceScatterNdMax",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type \
         {int32,int64}; use_locking: bool = true; bad_indices_policy: string = '' | \
         stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| scatter(b, Combine::Max)),
    Op::new(
        "ResourceScatterNdMin",
        "ref: resource, indices: Tindices, updates: T -> | T: type; Tindices: type \
         {int32,int64}; use_locking: bool = true; bad_indices_policy: string = '' | \
         stateful",
    )
    .shape(variable_scatter_shape)
    .kernel(|b| scatter(b, Combine::Min)),
];

fn variable_scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let indices = ctx.with_rank_at_least(1, 1)?;
    check_partial(&indices, &ctx.input(2), &ctx.handle_shape(0))
}

/// Returns a kernel whose inputs are the variable, indices, updates.
fn scatter(build: &KernelBuild, combine: Combine) -> Result<Box<dyn OpKernel>> {
    let scatter = scatter_nd(build, build.input(2)?, combine)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        let var = variable(ctx, 0)?;
        let mut value = var.write();
        let out = value_mut(ctx, 0, &mut value, updates.dtype())?;
        scatter(out, indices, updates)
    }))
}
