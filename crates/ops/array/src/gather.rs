//! Rows picked by index: Gather, GatherV2, GatherNd, ReverseSequence.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::gather::{
    gather_nd_rows, gather_nd_shape_of, gather_rows, gather_shape_of, ignores_bad_indices,
};
use ferroflow_functors::gradients::{batch_of, in_batches, slices};
use ferroflow_functors::indices::{self, Index, constant_int, dispatch_index};
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{Attrs, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// Gather, GatherV2, GatherNd, ReverseSequence.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Gather",
        "params: Tparams, indices: Tindices -> output: Tparams | validate_indices: bool = true; \
         Tparams: type; Tindices: type {int32,int64}",
    )
    .shape(|ctx| gather_shape(ctx, Some(0), 0))
    .kernel(gather)
    .gradient(gather_gradient),
    Op::new(
        "GatherV2",
        "params: Tparams, indices: Tindices, axis: Taxis -> output: Tparams | batch_dims: int = 0; \
         Tparams: type; Tindices: type {int16,int32,int64}; Taxis: type {int32,int64}",
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
    Op::new(
        "ReverseSequence",
        "input: T, seq_lengths: Tlen -> output: T | seq_dim: int; batch_dim: int = 0; T: type; \
         Tlen: type {int32,int64} = int64",
    )
    .shape(reverse_sequence_shape)
    .kernel(reverse_sequence)
    .gradient(reverse_sequence_gradient),
];

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let batch_dims = build.attrs.int("batch_dims").unwrap_or(0);
    let (dtype, index) = (build.input(0)?, build.input(1)?);
    dispatch_index!(index, I => Ok(dispatch_items!(dtype, T => {
        Box::new(move |ctx: &mut KernelCtx| gather_items::<T, I>(ctx, batch_dims))
    })))
}

fn gather_items<T: Item, I: Index>(ctx: &mut KernelCtx, batch_dims: i64) -> Result<()> {
    let axis = if ctx.num_inputs() > 2 {
        indices::int(ctx.input(2)?).ok_or_else(|| invalid_argument!("axis must be scalar"))?
    } else {
        0
    };
    let out = gather_rows::<T, I>(ctx, ctx.input(0)?, ctx.input(1)?, axis, batch_dims)?;
    ctx.set_output(0, out)
}

fn gather_shape(ctx: &mut ShapeCtx, axis: Option<i64>, batch_dims: i64) -> Result<()> {
    let params = ctx.with_rank_at_least(0, 1)?;
    gather_shape_of(ctx, &params, axis, batch_dims)
}

fn gather_nd(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let ignore = ignores_bad_indices(build.attrs)?;
    let (dtype, index) = (build.input(0)?, build.input(1)?);
    dispatch_index!(index, I => Ok(dispatch_items!(dtype, T => {
        Box::new(move |ctx: &mut KernelCtx| gather_nd_items::<T, I>(ctx, ignore))
    })))
}

fn gather_nd_items<T: Item, I: Index>(ctx: &mut KernelCtx, ignore: bool) -> Result<()> {
    let out = gather_nd_rows::<T, I>(ctx, ctx.input(0)?, ctx.input(1)?, ignore)?;
    ctx.set_output(0, out)
}

fn gather_nd_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let params = ctx.input(0);
    gather_nd_shape_of(ctx, &params)
}

fn sequence_dims(attrs: &Attrs, rank: usize) -> Result<(usize, usize)> {
    let (batch_dim, seq_dim) = (attrs.int("batch_dim")?, attrs.int("seq_dim")?);
    let inside = |name: &str, d: i64| {
        usize::try_from(d)
            .ok()
            .filter(|&d| d < rank)
            .ok_or_else(|| invalid_argument!("{name} must be < input rank ({d} vs. {rank})"))
    };
    if batch_dim == seq_dim {
        return Err(invalid_argument!("batch_dim == seq_dim == {seq_dim}"));
    }
    Ok((inside("batch_dim", batch_dim)?, inside("seq_dim", seq_dim)?))
}

fn reverse_sequence_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let lengths = ctx.with_rank(1, 1)?;
    let input = ctx.input(0);
    if let Some(rank) = input.rank() {
        let (batch, _) = sequence_dims(ctx.attrs(), rank)?;
        let n = PartialShape::of([input.dim(batch as isize)]);
        let n = ctx.merge(&n, &lengths)?.dim(0);
        let dims = indices::partial(rank, |i| if i == batch { n } else { input.dim(i as isize) });
        ctx.set(0, dims);
    }
    Ok(())
}

fn reverse_sequence(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let attrs = build.attrs.clone();
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let (input, lengths) = (ctx.input(0)?, ctx.input(1)?);
            let shape = input.shape();
            if lengths.shape().rank() != 1 {
                let rank = lengths.shape().rank();
                return Err(invalid_argument!("seq_lens input must be 1-dim, not {rank}"));
            }
            let (batch, seq) = sequence_dims(&attrs, shape.rank())?;
            let n = indices::ints(lengths)?;
            check_lengths(&n, shape, batch, seq)?;
            let mut out = ctx.alloc(input.dtype(), shape.clone())?;
            flip::<T>(ctx, input, &n, batch, seq, &mut out)?;
            ctx.set_output(0, out)
        })),
    )
}

fn check_lengths(lengths: &[i64], shape: &Shape, batch: usize, seq: usize) -> Result<()> {
    if lengths.len() != shape[batch] {
        let n = lengths.len();
        return Err(invalid_argument!(
            "Length of seq_lengths != input.dims({batch}), ({n} vs. {})",
            shape[batch]
        ));
    }
    for (i, &n) in lengths.iter().enumerate() {
        if n < 0 {
            return Err(invalid_argument!("seq_lens({i}) < 0"));
        }
        if n as u64 > shape[seq] as u64 {
            return Err(invalid_argument!("seq_lens({i}) > input.dims({seq})"));
        }
    }
    Ok(())
}

/// Copies rows (what follows both dimensions) from where the reversal of their batch entry says.
fn flip<T: Item>(
    ctx: &KernelCtx,
    input: &Tensor,
    lengths: &[i64],
    batch: usize,
    seq: usize,
    out: &mut Tensor,
) -> Result<()> {
    let shape = input.shape();
    let lead = batch.max(seq) + 1;
    let inner: usize = shape[lead..].iter().product();
    let from = input.items::<T>()?;
    let step: usize = shape[seq + 1..lead].iter().product();
    par_rows(ctx.par(), out.items_mut::<T>()?, inner, &|row, to| {
        let mut coords = SmallVec::<[usize; 8]>::from_elem(0, lead);
        unravel(row, &shape[..lead], &mut coords);
        let (c, n) = (coords[seq], lengths[coords[batch]] as usize);
        let from_row = if c < n {
            row - c * step + (n - 1 - c) * step
        } else {
            row
        };
        to.clone_from_slice(&from[from_row * inner..(from_row + 1) * inner]);
    });
    Ok(())
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

fn reverse_sequence_gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = [g.attr("seq_dim"), g.attr("batch_dim")];
    let dx = g.dy(0).op_with("ReverseSequence", &[g.x(1)], &attrs);
    g.set(0, dx)
}
