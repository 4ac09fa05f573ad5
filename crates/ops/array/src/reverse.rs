//! Reverse, ReverseV2, and ReverseSequence (TensorFlow: `core/kernels/reverse_op.cc` and
//! `reverse_sequence_op.cc`).

use crate::strided_slice::same_as_first;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, axis_in};
use ferroflow_functors::strided::{Strided, par_rows, unravel};
use ferroflow_opdef::{Attrs, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Reverse",
        "tensor: T, dims: bool -> output: T | T: type \
         {uint8,int8,uint16,int16,uint32,int32,uint64,int64,bool,bfloat16,half,float,double,complex64,complex128,string}",
    )
    .shape(same_as_first)
    .kernel(reverse)
    .gradient(turned_back),
    Op::new(
        "ReverseV2",
        "tensor: T, axis: Tidx -> output: T | Tidx: type {int32,int64} = int32; T: \
         type \
         {uint8,int8,uint16,int16,int32,uint32,int64,uint64,bool,bfloat16,half,float,double,complex64,complex128,string}",
    )
    .shape(same_as_first)
    .kernel(reverse)
    .gradient(turned_back),
    Op::new(
        "ReverseSequence",
        "input: T, seq_lengths: Tlen -> output: T | seq_dim: int; batch_dim: int = 0; \
         T: type; Tlen: type {int32,int64} = int64",
    )
    .shape(reverse_sequence_shape)
    .kernel(reverse_sequence)
    .gradient(reverse_sequence_gradient),
];

/// Returns the dimensions to reverse, from a bool per dimension or from a list of axes.
fn reversed(dims: &Tensor, rank: usize) -> Result<SmallVec<[bool; 8]>> {
    if dims.shape().rank() != 1 {
        return Err(invalid_argument!(
            "'dims' must be 1-dimension, not {}",
            dims.shape().rank()
        ));
    }
    if let Ok(flags) = dims.slice::<bool>() {
        if flags.len() != rank {
            return Err(invalid_argument!(
                "'dims' must have the same number of values as 'input' has dimensions. 'input' has \
                 {rank}'dims' has {} values",
                flags.len()
            ));
        }
        return Ok(SmallVec::from_slice(flags));
    }
    let mut flags = SmallVec::from_elem(false, rank);
    for (i, &axis) in indices::ints(dims)?.iter().enumerate() {
        let Some(at) = axis_in(axis, rank) else {
            return Err(invalid_argument!(
                "'axis'[{i}] = {axis} is out of valid range [0, {}",
                rank as i64 - 1
            ));
        };
        if std::mem::replace(&mut flags[at], true) {
            return Err(invalid_argument!("axis {at} specified more than once."));
        }
    }
    Ok(flags)
}

fn reverse(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let shape = input.shape();
        // The first version refuses an empty tensor, and ignores the flags for a scalar.
        let has_flags = ctx.input(1)?.dtype() == DType::Bool;
        if has_flags && shape.first() == Some(&0) {
            return Err(invalid_argument!("Invalid input first dimension. Found 0."));
        }
        let flags = match has_flags && shape.is_scalar() {
            true => SmallVec::new(),
            false => reversed(ctx.input(1)?, shape.rank())?,
        };
        let moves = |i: usize| flags[i] && shape[i] > 1;
        if input.num_elements() == 0 || !(0..shape.rank()).any(moves) {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let mut base = 0;
        let strides = shape.strides();
        let dims: SmallVec<[(usize, isize); 8]> = (0..shape.rank())
            .map(|i| {
                let s = strides[i] as isize;
                if !moves(i) {
                    return (shape[i], s);
                }
                base += (shape[i] - 1) as isize * s;
                (shape[i], -s)
            })
            .collect();
        let mut out = ctx.alloc(input.dtype(), shape.clone())?;
        let view = Strided::new(base, dims);
        view.gather(ctx.par(), input, &mut out)?;
        ctx.set_output(0, out)
    }))
}

fn turned_back(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op(g.op_name(), &[g.x(1)]);
    g.set(0, dx)
}

fn sequence_dims(attrs: &Attrs, rank: usize) -> Result<(usize, usize)> {
    let (batch_dim, seq_dim) = (attrs.int("batch_dim")?, attrs.int("seq_dim")?);
    let inside = |name: &str, d: i64| {
        usize::try_from(d)
            .ok()
            .filter(|&d| d < rank)
            .ok_or_else(|| invalid_argument!("{name} must be < input rank ( {d} vs. {rank})"))
    };
    if batch_dim == seq_dim {
        return Err(invalid_argument!("batch_dim == seq_dim == {seq_dim}"));
    }
    let seq = inside("seq_dim", seq_dim)?;
    Ok((inside("batch_dim", batch_dim)?, seq))
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
    let attrs = build.attrs.clone();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (input, lengths) = (ctx.input(0)?, ctx.input(1)?);
        let shape = input.shape();
        if lengths.shape().rank() != 1 {
            let rank = lengths.shape().rank();
            return Err(invalid_argument!("seq_lengths must be 1-dim, not {rank}"));
        }
        let (batch, seq) = sequence_dims(&attrs, shape.rank())?;
        let n = indices::ints(lengths)?;
        check_lengths(&n, shape, batch, seq)?;
        let mut out = ctx.alloc(input.dtype(), shape.clone())?;
        dispatch_items!(input.dtype(), T => flip::<T>(ctx, input, &n, batch, seq, &mut out))?;
        ctx.set_output(0, out)
    }))
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

/// Copies rows (the dimensions inside both) from their reversed positions.
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

fn reverse_sequence_gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = [g.attr("seq_dim"), g.attr("batch_dim")];
    let dx = g.dy(0).op_with("ReverseSequence", &[g.x(1)], &attrs);
    g.set(0, dx)
}
