//! ScatterNd, TensorScatterUpdate, TensorScatterAdd, Sub, Max, Min (TensorFlow:
//! `core/kernels/scatter_nd_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::scatter_nd::{self, Combine, Form, check_form, check_partial, check_ranks};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ScatterNd",
        "indices: Tindices, updates: T, shape: Tindices -> output: T | T: type; \
         Tindices: type {int16,int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(scatter_nd_shape)
    .kernel(scatter_zeros)
    .gradient(scatter_nd_gradient),
    Op::new(
        "TensorScatterUpdate",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; Tindices: \
         type {int16,int32,int64,uint16}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Assign))
    .gradient(update_gradient),
    Op::new(
        "TensorScatterAdd",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Add))
    .gradient(add_gradient),
    Op::new(
        "TensorScatterSub",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Sub))
    .gradient(sub_gradient),
    Op::new(
        "TensorScatterMax",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Max))
    .gradient(extreme_gradient),
    Op::new(
        "TensorScatterMin",
        "tensor: T, indices: Tindices, updates: T -> output: T | T: type; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Min))
    .gradient(extreme_gradient),
    Op::new(
        "ScatterNdNonAliasingAdd",
        "input: T, indices: Tindices, updates: T -> output: T | T: type {numbertype,bool}; \
         Tindices: type {int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(tensor_scatter_shape)
    .kernel(|b| tensor_scatter(b, Combine::Add))
    .gradient(add_gradient),
];

/// Returns a kernel whose inputs are the target, indices, updates.
fn tensor_scatter(build: &KernelBuild, combine: Combine) -> Result<Box<dyn OpKernel>> {
    let scatter = scatter_nd::scatter_nd(build, build.input(2)?, combine)?;
    // The other op checks what an update of a variable does, no more.
    let is_checked = build.def.name != "ScatterNdNonAliasingAdd";
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if is_checked {
            check_form(ctx.shape(1)?, ctx.shape(2)?, ctx.shape(0)?, Form::Tensor)?;
        }
        let mut out = ctx.take_input(0)?;
        scatter(&mut out, ctx.input(1)?, ctx.input(2)?)?;
        ctx.set_output(0, out)
    }))
}

/// Adds up updates, bools by `or` and strings by concatenation.
fn scatter_zeros(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let scatter = scatter_nd::scatter_nd(build, dtype, Combine::Add)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (at, updates, sizes) = (ctx.shape(0)?, ctx.shape(1)?, ctx.input(2)?);
        check_ranks(at, updates)?;
        let shape = Shape::checked(&indices::ints(sizes)?)?;
        check_form(at, updates, &shape, Form::Shape)?;
        if sizes.shape().rank() != 1 {
            return Err(invalid_argument!("Shape must be a vector"));
        }
        let mut out = Tensor::zeros(dtype, shape)?;
        scatter(&mut out, ctx.input(0)?, ctx.input(1)?)?;
        ctx.set_output(0, out)
    }))
}

fn tensor_scatter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_partial(&ctx.with_rank_at_least(1, 1)?, &ctx.input(2), &ctx.input(0))?;
    shapes::unchanged(ctx)
}

fn scatter_nd_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = indices::shape_input(ctx, 2)?;
    check_partial(&ctx.with_rank_at_least(0, 1)?, &ctx.input(1), &shape)?;
    ctx.set(0, shape);
    Ok(())
}

fn scatter_nd_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("GatherNd", &[g.x(0)]);
    g.set(1, dx)
}

fn update_gradient(g: &mut GradientCtx) -> Result<()> {
    let (indices, d) = (g.x(1), g.dy(0));
    let zeros = g.x(2).zeros_like();
    g.set(0, d.op("TensorScatterUpdate", &[indices, zeros]))?;
    g.set(2, d.op("GatherNd", &[indices]))
}

fn add_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d)?;
    g.set(2, d.op("GatherNd", &[g.x(1)]))
}

fn sub_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d)?;
    g.set(2, -d.op("GatherNd", &[g.x(1)]))
}

/// Shares the gradient among all elements equal to the result.
fn extreme_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, updates, y, d) = (g.x(0), g.x(1), g.x(2), g.y(0), g.dy(0));
    let own = x.op("Equal", &[y]).cast(d.dtype());
    let at = y.op("GatherNd", &[indices]);
    let given = updates.op("Equal", &[at]).cast(d.dtype());
    let shape = x.shape_of().cast(indices.dtype());
    let share = d / (own + indices.op("ScatterNd", &[given, shape]));
    g.set(0, share * own)?;
    g.set(2, share.op("GatherNd", &[indices]) * given)
}
