//! Slice (TensorFlow: `core/kernels/slice_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape, Tensor};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Slice",
    "input: T, begin: Index, size: Index -> output: T | T: type; Index: type \
         {int32,int64}",
)
.shape(slice_shape)
.kernel(slice)
.gradient(slice_gradient)];

/// Returns the elements of `view` as a tensor, which shares the storage of `value` if they are
/// contiguous.
pub(crate) fn viewed(
    ctx: &KernelCtx,
    value: &Tensor,
    view: &Strided,
    shape: Shape,
) -> Result<Tensor> {
    if let Some(start) = view.as_range_start() {
        return value.view(start, shape);
    }
    let mut out = ctx.alloc(value.dtype(), shape)?;
    view.gather(ctx.par(), value, &mut out)?;
    Ok(out)
}

pub(crate) fn slice(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(slice_values))
}

fn slice_values(ctx: &mut KernelCtx) -> Result<()> {
    let (begin, size) = (ctx.input(1)?, ctx.input(2)?);
    let shape = ctx.shape(0)?;
    let rank = shape.rank();
    let is_spec = |t: &Tensor| t.shape().rank() == 1 && t.num_elements() == rank;
    if !is_spec(begin) || !is_spec(size) {
        return Err(invalid_argument!(
            "Expected begin and size arguments to be 1-D tensors of size {rank}, but got shapes {} \
             and {} instead.",
            begin.shape(),
            size.shape()
        ));
    }
    let (begin, size) = (indices::ints(begin)?, indices::ints(size)?);
    let mut out_shape = Shape::scalar();
    for (i, &d) in shape.iter().enumerate() {
        out_shape.push(slice_dim(i, begin[i], size[i], d)?);
    }
    if &out_shape == shape {
        let whole = ctx.take_input(0)?;
        return ctx.set_output(0, whole);
    }
    let strides = shape.strides();
    let base: usize = begin
        .iter()
        .zip(&strides)
        .map(|(&b, &s)| b as usize * s)
        .sum();
    let dims = out_shape
        .iter()
        .zip(&strides)
        .map(|(&d, &s)| (d, s as isize));
    let view = Strided::new(base as isize, dims);
    if view.is_empty() {
        let empty = ctx.alloc(ctx.input(0)?.dtype(), out_shape)?;
        return ctx.set_output(0, empty);
    }
    let out = viewed(ctx, ctx.input(0)?, &view, out_shape)?;
    ctx.set_output(0, out)
}

fn slice_dim(i: usize, begin: i64, size: i64, d: usize) -> Result<usize> {
    let d = d as i64;
    if begin < 0 || begin > d {
        return Err(invalid_argument!(
            "Expected begin[{i}] in [0, {d}], but got {begin}"
        ));
    }
    let rest = d - begin;
    match size {
        -1 => Ok(rest as usize),
        s if (0..=rest).contains(&s) => Ok(s as usize),
        s => Err(invalid_argument!(
            "Expected size[{i}] in [0, {rest}], but got {s}"
        )),
    }
}

fn slice_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (mut input, begin_shape) = (ctx.input(0), ctx.with_rank(1, 1)?);
    let size_shape = ctx.with_rank(2, 1)?;
    let rank = ctx.merge(&begin_shape, &size_shape)?.dim(0);
    if let Some(rank) = rank.filter(|&r| r <= 254) {
        input = ctx.with_rank(0, rank)?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let (begin, size) = (constant(ctx, 1), constant(ctx, 2));
    let mut out = SmallVec::<[Option<usize>; 4]>::new();
    for (i, d) in dims.iter().enumerate() {
        let b = begin.as_ref().and_then(|b| b.get(i).copied());
        out.push(
            match (size.as_ref().and_then(|s| s.get(i).copied()), b, d) {
                (Some(size), Some(b), Some(d)) => Some(slice_dim(i, b, size, *d)?),
                (Some(-1), Some(0), None) => None,
                (Some(size), ..) => usize::try_from(size).ok(),
                // All of an empty dimension is empty.
                (None, _, Some(0)) => Some(0),
                (None, ..) => None,
            },
        );
    }
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

fn slice_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, begin, d) = (g.x(0), g.x(1), g.dy(0));
    let (own, given) = (
        x.shape_of().cast(begin.dtype()),
        g.y(0).shape_of().cast(begin.dtype()),
    );
    let behind = own - given - begin;
    let paddings = begin.make("Pack", &[begin, behind], &[("axis", 1i64.into())]);
    g.set(0, d.op("Pad", &[paddings]))
}
