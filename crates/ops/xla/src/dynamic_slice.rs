//! XlaDynamicSlice and XlaDynamicUpdateSlice (TensorFlow: `compiler/tf2xla/kernels/dynamic_slice_ops.cc`): windows of a
//! constant size at any place. Keras' `slice_update` and the caches of decoders are made of them.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaDynamicSlice",
        "input: T, start_indices: Tindices, size_indices: Tindices -> output: T | T: type; Tindices: type {int32,int64}",
    )
    .shape(slice_shape)
    .kernel(|_| Ok(Box::new(slice))),
    Op::new(
        "XlaDynamicUpdateSlice",
        "input: T, update: T, indices: Tindices -> output: T | T: type; Tindices: type {int32,int64}",
    )
    .shape(shapes::unchanged)
    .kernel(|_| Ok(Box::new(update_slice))),
];

fn slice_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let sizes = ctx.input(2);
    if sizes.rank().is_some_and(|rank| rank != 1) {
        return Err(invalid_argument!("size_indices must be a 1D tensor"));
    }
    let rank = sizes.dim(0).or(ctx.input(0).rank());
    match (constant(ctx, 2), rank) {
        (Some(sizes), _) => {
            let known = sizes.iter().map(|&size| usize::try_from(size).ok());
            ctx.set(0, PartialShape::of(known));
        }
        (None, Some(rank)) => ctx.set(0, PartialShape::of_rank(rank)),
        (None, None) => {}
    }
    Ok(())
}

/// Returns the window of `sizes` in a tensor of shape `shape` that begins at `starts`, moved inside where it is not.
fn window(shape: &Shape, starts: &[i64], sizes: &[usize]) -> Strided {
    let strides = shape.strides();
    let mut base = 0;
    for (i, &stride) in strides.iter().enumerate() {
        let most = shape[i] - sizes[i];
        base += starts[i].clamp(0, most as i64) as usize * stride;
    }
    let dims = sizes.iter().zip(&strides).map(|(&d, &s)| (d, s as isize));
    Strided::new(base as isize, dims)
}

/// Checks that `t` is a vector with a number for each dimension.
fn check_vector(t: &Tensor, rank: usize) -> Result<()> {
    if t.shape().rank() == 1 && t.num_elements() == rank {
        return Ok(());
    }
    Err(invalid_argument!(
        "index must be a vector with length equal to the number of input dimensions"
    ))
}

fn slice(ctx: &mut KernelCtx) -> Result<()> {
    let (input, starts, sizes) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let shape = input.shape();
    if starts.shape().rank() == 1 && sizes.num_elements() != starts.num_elements() {
        return Err(invalid_argument!(
            "has mismatched number of slice sizes ({}) and number of start indices ({})",
            sizes.num_elements(),
            starts.num_elements()
        ));
    }
    check_vector(starts, shape.rank())?;
    let (starts, sizes) = (indices::ints(starts)?, indices::ints(sizes)?);
    let mut out_shape = Shape::scalar();
    for (i, (&size, &dim)) in sizes.iter().zip(shape.iter()).enumerate() {
        match usize::try_from(size) {
            Ok(size) if size <= dim => out_shape.push(size),
            Ok(size) => {
                return Err(invalid_argument!(
                    "has slice size {size} greater than dimension size {dim} in dimension {i} of operand"
                ));
            }
            Err(_) => {
                return Err(invalid_argument!(
                    "has negative size index to dynamic slice: {size}"
                ));
            }
        }
    }
    let view = window(shape, &starts, &out_shape);
    let out = match view.as_range_start() {
        Some(start) if !view.is_empty() => input.view(start, out_shape)?,
        _ => {
            let mut out = ctx.alloc(input.dtype(), out_shape)?;
            view.gather(ctx.par(), input, &mut out)?;
            out
        }
    };
    ctx.set_output(0, out)
}

fn update_slice(ctx: &mut KernelCtx) -> Result<()> {
    let (input, update, starts) = (ctx.shape(0)?, ctx.shape(1)?, ctx.input(2)?);
    if update.rank() != input.rank() {
        return Err(invalid_argument!(
            "input and update must have the same rank, input shape is {input}; update shape is {update}"
        ));
    }
    check_vector(starts, input.rank())?;
    if let Some((size, dim)) = update.iter().zip(input.iter()).find(|(u, i)| u > i) {
        return Err(invalid_argument!(
            "Update dim size {size} greater than dynamic slice dimension: {dim}."
        ));
    }
    let view = window(input, &indices::ints(starts)?, update);
    let mut out = ctx.take_input(0)?;
    if !view.is_empty() {
        view.scatter(ctx.input(1)?, &mut out)?;
    }
    ctx.set_output(0, out)
}
