//! Gather, GatherV2, GatherNd (TensorFlow: `core/kernels/gather_op.cc` and `gather_nd_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::gather::{
    GatherNd, GatherRows, gather_nd_rows, gather_nd_shape_of, gather_rows, gather_shape_of,
    ignores_bad_indices,
};
use ferroflow_functors::gradients::{batch_of, in_batches, slices};
use ferroflow_functors::indices::{self, constant_int};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Gather",
        "params: Tparams, indices: Tindices -> output: Tparams | validate_indices: \
         bool = true; Tparams: type; Tindices: type {int32,int64}",
    )
    .shape(|ctx| gather_shape(ctx, Some(0), 0))
    .kernel(gather)
    .gradient(gather_gradient),
    Op::new(
        "GatherV2",
        "params: Tparams, indices: Tindices, axis: Taxis -> output: Tparams | \
         batch_dims: int = 0; Tparams: type; Tindices: type {int16,int32,int64}; \
         Taxis: type {int32,int64}",
    )
    .shape(|ctx| {
        let batch_dims = ctx.attrs().int("batch_dims")?;
        gather_shape(ctx, constant_int(ctx, 2), batch_dims)
    })
    .kernel(gather)
    .gradient(gather_v2_gradient),
    Op::new(
        "GatherNd",
        "params: Tparams, indices: Tindices -> output: Tparams | Tparams: type; \
         Tindices: type {int16,int32,int64}; bad_indices_policy: string = ''",
    )
    .shape(gather_nd_shape)
    .kernel(gather_nd)
    .gradient(gather_nd_gradient),
];

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let batch_dims = build.attrs.int("batch_dims").unwrap_or(0);
    let loops = GatherRows::new(build.input(0)?, build.input(1)?)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let axis = match ctx.num_inputs() {
            2 => 0,
            _ if ctx.shape(0)?.rank() == 0 => 0, // refused before its axis
            _ => indices::scalar(ctx.input(2)?)
                .ok_or_else(|| invalid_argument!("axis must be scalar"))?,
        };
        let out = gather_rows(loops, ctx, ctx.input(0)?, ctx.input(1)?, axis, batch_dims)?;
        ctx.set_output(0, out)
    }))
}

fn gather_shape(ctx: &mut ShapeCtx, axis: Option<i64>, batch_dims: i64) -> Result<()> {
    let params = ctx.with_rank_at_least(0, 1)?;
    gather_shape_of(ctx, &params, axis, batch_dims)
}

fn gather_nd(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // TensorFlow registers kernels for the policies that it knows.
    let dtype = build.input(0)?;
    let ignore = ignores_bad_indices(build.attrs).map_err(|_| build.unsupported(dtype))?;
    let loops = GatherNd::new(dtype, build.input(1)?)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = gather_nd_rows(loops, ctx, ctx.input(0)?, ctx.input(1)?, ignore)?;
        ctx.set_output(0, out)
    }))
}

fn gather_nd_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let params = ctx.input(0);
    gather_nd_shape_of(ctx, &params)
}

fn gather_gradient(g: &mut GradientCtx) -> Result<()> {
    let gradient = slices(g.dy(0), g.x(1), g.x(0).shape_of());
    g.set_gradient(0, gradient)
}

fn gather_v2_gradient(g: &mut GradientCtx) -> Result<()> {
    let (params, indices, d) = (g.x(0), g.x(1), g.dy(0));
    let batch_dims = g.attrs().int("batch_dims")?;
    if batch_dims == 0 && g.x(2).constant_ints().as_deref() == Some(&[0]) {
        return gather_gradient(g);
    }
    let rank = params.op("Rank", &[]);
    let axis = (g.x(2).cast(DType::Int32) + rank).op("FloorMod", &[rank]);
    let batch = batch_of(indices, batch_dims);
    g.set(0, in_batches(d, indices, params.shape_of(), axis, batch))
}

fn gather_nd_gradient(g: &mut GradientCtx) -> Result<()> {
    let (params, indices) = (g.x(0), g.x(1));
    let shape = params.shape_of().cast(indices.dtype());
    let dx = indices.op("ScatterNd", &[g.dy(0), shape]);
    g.set(0, dx)
}
