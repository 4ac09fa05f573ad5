//! SparseSlice and SparseSliceGrad (TensorFlow: `core/kernels/sparse_slice_op.cc`,
//! `sparse_slice_grad_op.cc`).

use crate::sparse_parts::{Rows, checked_shape};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::sparse::check_parts;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseSlice",
        "indices: int64, values: T, shape: int64, start: int64, size: int64 -> \
         output_indices: int64, output_values: T, output_shape: int64 | T: type",
    )
    .shape(|ctx| {
        let shape = ctx.input(2);
        ctx.set(0, PartialShape::of([None, shape.num_elements()]));
        ctx.set(1, PartialShape::of([None]));
        ctx.set(2, shape);
        Ok(())
    })
    .kernel(|build| dispatch_items!(build.output(1)?, T => Ok(Box::new(slice::<T>))))
    .gradient(|g| {
        let inputs = [g.dy(1), g.x(0), g.x(3), g.y(0)];
        let dx = inputs[0].make("SparseSliceGrad", &inputs, &[]);
        g.set(1, dx)
    }),
    Op::new(
        "SparseSliceGrad",
        "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64 \
         -> val_grad: T | T: numbertype",
    )
    .shape(|ctx| {
        let rows = ctx.with_rank(1, 2)?;
        ctx.set(0, PartialShape::of([rows.dim(0)]));
        Ok(())
    })
    .kernel(slice_grad),
];

fn slice<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let (start, size) = (ctx.input(3)?, ctx.input(4)?);
    check_parts(at, values, shape)?;
    for (name, t) in [("start", start), ("size", size)] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Input {name} should be a vector but received shape {}",
                t.shape()
            ));
        }
    }
    let rank = shape.num_elements();
    for (name, t) in [("start", start), ("size", size)] {
        if t.num_elements() != rank {
            return Err(invalid_argument!(
                "Expected {name} to be a vector of length {rank} but got length {}",
                t.num_elements()
            ));
        }
    }
    let sizes = shape.slice::<i64>()?;
    checked_shape(sizes)?;
    let (start, size) = (start.slice::<i64>()?, size.slice::<i64>()?);
    let mut after = Vec::with_capacity(rank);
    for ((&d, &start), &size) in sizes.iter().zip(start).zip(size) {
        let size = match (start < d.saturating_sub(size), start < d) {
            (true, _) => size,
            (false, true) => d.saturating_sub(start),
            (false, false) => 0,
        };
        after.push(size);
    }
    if let Some(size) = after.iter().find(|&&d| d < 0) {
        return Err(invalid_argument!(
            "Expected a non-negative size, got {size}"
        ));
    }
    let rows = Rows::of(at)?;
    let inside = |i: &usize| {
        let bounds = start.iter().zip(size);
        let mut row = rows.row(*i).iter().zip(bounds);
        row.all(|(&x, (&from, &n))| x >= from && x.checked_sub(from).is_some_and(|x| x < n))
    };
    let found: Vec<usize> = (0..values.num_elements()).filter(inside).collect();
    let mut places = ctx.alloc(DType::Int64, Shape::from([found.len(), rank]))?;
    let mut moved = Tensor::zeros(values.dtype(), Shape::from([found.len()]))?;
    let cells = places.slice_mut::<i64>()?.chunks_mut(rank.max(1));
    for (cells, &i) in cells.zip(&found) {
        for ((cell, &x), &from) in cells.iter_mut().zip(rows.row(i)).zip(start) {
            *cell = x - from;
        }
    }
    let from = values.items::<T>()?;
    for (to, &i) in moved.items_mut::<T>()?.iter_mut().zip(&found) {
        if let Some(from) = from.get(i) {
            to.clone_from(from);
        }
    }
    ctx.set_output(0, places)?;
    ctx.set_output(1, moved)?;
    ctx.set_output(2, Tensor::vector(&after)?)
}

fn slice_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if !(dtype.is_floating() || dtype.is_complex() || dtype.is_integer()) {
        return Err(build.unsupported(dtype));
    }
    dispatch_items!(dtype, T => Ok(Box::new(scatter_back::<T>)))
}

fn check_grad(ctx: &KernelCtx) -> Result<()> {
    let (dy, at) = (ctx.input(0)?.shape(), ctx.input(1)?.shape());
    let (start, sliced) = (ctx.input(2)?.shape(), ctx.input(3)?.shape());
    if at.rank() != 2 || sliced.rank() != 2 {
        return Err(invalid_argument!(
            "Input and output indices should be matrices but received shapes: {at} and {sliced}"
        ));
    }
    if dy.rank() != 1 {
        return Err(invalid_argument!(
            "Input backprop_val_grad should be a vector but received shape: {dy}"
        ));
    }
    if at[1] != sliced[1] {
        return Err(invalid_argument!(
            "The input and output should have the same ndims: got: {} and {}",
            at[1],
            sliced[1]
        ));
    }
    if sliced[0] > at[0] {
        return Err(invalid_argument!(
            "# rows of output_indices should be not greater than of input_indices, got {} and {}",
            sliced[0],
            at[0]
        ));
    }
    if dy[0] != sliced[0] {
        return Err(invalid_argument!(
            "# elements of backprop_val_grad and # rows of output_indices should match (#nnz of \
             sum): got {} and {}",
            dy[0],
            sliced[0]
        ));
    }
    if start.rank() != 1 {
        return Err(invalid_argument!(
            "The input_start should be a vector but received shape {start}"
        ));
    }
    if start[0] != at[1] {
        return Err(invalid_argument!(
            "Expected input_start to be a vector of length {} but got length {}",
            at[1],
            start[0]
        ));
    }
    Ok(())
}

/// Both lists of rows are in the same order.
fn scatter_back<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    check_grad(ctx)?;
    let (dy, at) = (ctx.input(0)?, ctx.input(1)?);
    let (start, sliced) = (ctx.input(2)?.slice::<i64>()?, ctx.input(3)?);
    let n = at.shape()[0];
    let mut out = Tensor::zeros(dy.dtype(), Shape::from([n]))?;
    let (rows, slices) = (Rows::of(at)?, Rows::of(sliced)?);
    let (from, to) = (dy.items::<T>()?, out.items_mut::<T>()?);
    let mut used = 0;
    for (i, to) in to.iter_mut().enumerate() {
        let Some(from) = from.get(used) else {
            break;
        };
        let pairs = rows.row(i).iter().zip(slices.row(used)).zip(start);
        if pairs
            .into_iter()
            .all(|((&a, &b), &s)| a == b.wrapping_add(s))
        {
            to.clone_from(from);
            used += 1;
        }
    }
    if n > 0 && used != from.len() {
        return Err(internal!(
            "Elements of backprop_val_grad aren't all propagated. Num elements:{}, used: {used}",
            from.len()
        ));
    }
    ctx.set_output(0, out)
}
