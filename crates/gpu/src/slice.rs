//! Strided parts of tensors, and their gradients.

use crate::data::{self, Copy, T};
use crate::kernel::{GpuCtx, GpuKernel, Row, axis};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::strided_spec::{self, Masks};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};
use smallvec::SmallVec;

pub(crate) const ROWS: &[Row] = &[
    Row::new("Slice", slice).types(T).host(&["begin", "size"]),
    Row::new("StridedSlice", strided_slice)
        .types(T)
        .host(&["begin", "end", "strides"]),
    Row::new("StridedSliceGrad", strided_slice_grad)
        .types(T)
        .host(&["shape", "begin", "end", "strides"]),
    Row::new("ReverseV2", reverse).types(T).host(&["axis"]),
];

/// The strided part of `x` that begins at `start` and has `dims` with strides of `x`, as a tensor of `shape`.
fn strided(
    ctx: &GpuCtx,
    x: &Tensor,
    start: usize,
    dims: &[(usize, i64)],
    shape: Shape,
) -> Result<Tensor> {
    let n = shape.num_elements();
    if n == x.num_elements() && start == 0 && dims.iter().all(|(_, s)| *s >= 0) {
        return x.clone().with_shape(shape);
    }
    let y = ctx.alloc(x.dtype(), shape)?;
    let mut to = n as i64;
    let dims = dims.iter().map(|(len, from)| {
        to /= (*len).max(1) as i64;
        (*len, *from, to)
    });
    Copy::new(dims).run(ctx, (x, start), (&y, 0))?;
    Ok(y)
}

fn slice(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, begin, size) = (ctx.input(0)?, ctx.ints(1)?, ctx.ints(2)?);
        let rank = x.shape().rank();
        if begin.len() != rank || size.len() != rank {
            return Err(invalid_argument!(
                "Expected begin and size arguments to be 1-D tensors of size {rank}, but got {} and {} elements",
                begin.len(),
                size.len()
            ));
        }
        let (mut start, mut dims) = (0, Vec::new());
        for (i, stride) in x.shape().strides().into_iter().enumerate() {
            let d = x.shape()[i] as i64;
            let (begin, size) = (begin[i], size[i]);
            if begin < 0 || begin > d {
                return Err(invalid_argument!(
                    "Expected begin[{i}] in [0, {d}], but got {begin}"
                ));
            }
            let len = if size == -1 { d - begin } else { size };
            if len < 0 || len > d - begin {
                return Err(invalid_argument!(
                    "Expected size[{i}] in [0, {}], but got {size}",
                    d - begin
                ));
            }
            start += begin as usize * stride;
            dims.push((len as usize, stride as i64));
        }
        let shape = dims.iter().map(|(len, _)| *len).collect();
        let y = strided(ctx, &x, start, &dims, shape)?;
        ctx.set_output(0, y)
    }))
}

/// A strided part of a tensor.
struct Selected {
    /// Its first element.
    start: usize,
    /// Lengths and distances by dimension.
    dims: Vec<(usize, i64)>,
    /// The shape of the slice.
    slice: Shape,
}

/// The part of a tensor that begin, end and strides in the inputs from `at` on select.
fn selected(ctx: &GpuCtx, at: usize, shape: &Shape, masks: Masks) -> Result<Selected> {
    let (begin, end, strides) = (ctx.ints(at)?, ctx.ints(at + 1)?, ctx.ints(at + 2)?);
    if begin.len() != end.len() || begin.len() != strides.len() {
        return Err(invalid_argument!(
            "Expected begin, end, and strides to be 1D equal size tensors, but got {}, {}, and {} elements",
            begin.len(),
            end.len(),
            strides.len()
        ));
    }
    let own: SmallVec<[Option<usize>; 4]> = shape.iter().map(|d| Some(*d)).collect();
    let spec = strided_spec::resolve(&own, Some(&begin), Some(&end), &strides, masks)?;
    let slice: Shape = spec.shape.iter().map(|d| d.unwrap_or(0)).collect();
    let (mut start, mut dims) = (0, Vec::new());
    for (span, stride) in spec.spans.iter().zip(shape.strides()) {
        let len = span.len.unwrap_or(0);
        start += span.begin as usize * stride;
        // The stride of a single element is arbitrary.
        let step = if len <= 1 { 1 } else { span.stride };
        dims.push((len, step * stride as i64));
    }
    let start = if slice.num_elements() == 0 { 0 } else { start };
    Ok(Selected { start, dims, slice })
}

fn strided_slice(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.input(0)?;
        let part = selected(ctx, 1, x.shape(), masks)?;
        let y = strided(ctx, &x, part.start, &part.dims, part.slice)?;
        ctx.set_output(0, y)
    }))
}

fn strided_slice_grad(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let masks = Masks::from_attrs(build.attrs)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (sizes, dy) = (ctx.host(0)?, ctx.input(4)?);
        if sizes.shape().rank() != 1 {
            return Err(invalid_argument!(
                "shape must be 1-D, got shape.shape = {}",
                sizes.shape()
            ));
        }
        let shape = Shape::checked(&ctx.ints(0)?)?;
        let Selected { start, dims, slice } = selected(ctx, 1, &shape, masks)?;
        if *dy.shape() != slice {
            return Err(invalid_argument!(
                "shape of dy was {} instead of {slice}",
                dy.shape()
            ));
        }
        let y = ctx.alloc(dy.dtype(), shape)?;
        data::zero(ctx, &y)?;
        let mut from = slice.num_elements() as i64;
        let dims = dims.iter().map(|(len, to)| {
            from /= (*len).max(1) as i64;
            (*len, from, *to)
        });
        Copy::new(dims).run(ctx, (&dy, 0), (&y, start))?;
        ctx.set_output(0, y)
    }))
}

fn reverse(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, axes) = (ctx.input(0)?, ctx.ints(1)?);
        let rank = x.shape().rank();
        let mut reversed = vec![false; rank];
        for (i, wanted) in axes.iter().enumerate() {
            let at = axis(*wanted, rank).map_err(|_| {
                invalid_argument!(
                    "'axis'[{i}] = {wanted} is out of valid range [0, {}",
                    rank.saturating_sub(1)
                )
            })?;
            if std::mem::replace(&mut reversed[at], true) {
                return Err(invalid_argument!("axis {at} specified more than once."));
            }
        }
        if x.num_elements() == 0 {
            return ctx.set_output(0, x);
        }
        let (mut start, mut dims) = (0, Vec::new());
        for ((n, stride), reversed) in x.shape().iter().zip(x.shape().strides()).zip(&reversed) {
            let is_reversed = *reversed && *n > 1;
            start += if is_reversed { (n - 1) * stride } else { 0 };
            let stride = stride as i64;
            dims.push((*n, if is_reversed { -stride } else { stride }));
        }
        let y = strided(ctx, &x, start, &dims, x.shape().clone())?;
        ctx.set_output(0, y)
    }))
}
