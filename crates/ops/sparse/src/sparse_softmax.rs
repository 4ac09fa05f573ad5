//! SparseSoftmax (TensorFlow: `core/kernels/sparse_softmax_op.cc`).

use crate::sparse_parts::{Rows, checked_shape, fitting, narrow_output, wide_input};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Real;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{Shape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseSoftmax",
    "sp_indices: int64, sp_values: T, sp_shape: int64 -> output: T | T: type {half,float,double}",
)
.shape(|ctx| {
    ctx.with_rank(0, 2)?;
    let values = ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 1)?;
    ctx.set(0, values);
    Ok(())
})
.kernel(|build| {
    Ok(
        dispatch!(build.output(0)?, T in [f64] => Box::new(softmax::<T>),
        else Box::new(softmax::<f32>)),
    )
})
.gradient(gradient)];

/// Normalizes the values of each row of the last dimension.
fn softmax<T: Real>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if at.shape().rank() != 2 {
        return Err(invalid_argument!(
            "Input sp_indices should be a matrix but received shape: {}",
            at.shape()
        ));
    }
    if values.shape().rank() != 1 || shape.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Inputs sp_values and sp_shape should be vectors but received shapes: {} and {}",
            values.shape(),
            shape.shape()
        ));
    }
    let sizes = shape.slice::<i64>()?;
    if sizes.len() < 2 {
        return Err(invalid_argument!(
            "Input should have rank >= 2, but received shape: {}",
            sizes.first().map(i64::to_string).unwrap_or_default()
        ));
    }
    checked_shape(sizes)?;
    let n = fitting(at, values, sizes.len())?;
    let (rows, dtype) = (Rows::of(at)?, values.dtype());
    let all: Vec<usize> = (0..rows.rank).collect();
    let outer = all.get(..rows.rank - 1).unwrap_or_default();
    let order = rows.order(n, &all);
    let values = wide_input(ctx, 1)?;
    let values = values.slice::<T>()?;
    let mut out = ctx.alloc(T::DTYPE, Shape::from([n]))?;
    let cells = out.slice_mut::<T>()?;
    let mut start = 0;
    while start < n {
        let end = rows.run_end(&order, start, outer).max(start + 1);
        let group = order.get(start..end).unwrap_or_default();
        let of_group = || group.iter().filter_map(|&i| values.get(i)).copied();
        let most = of_group().fold(T::LOWEST, T::larger);
        let cells = cells.get_mut(start..end).unwrap_or_default();
        let mut sum = T::ZERO;
        for (cell, x) in cells.iter_mut().zip(of_group()) {
            *cell = x.sub(most).exp();
            sum = sum.add(*cell);
        }
        let scale = sum.recip();
        cells.iter_mut().for_each(|cell| *cell = cell.mul(scale));
        start = end;
    }
    let out = narrow_output(ctx, out, dtype)?;
    ctx.set_output(0, out)
}

/// `y * (dy - sum of y * dy)`, the sum over each row.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (at, shape, y, dy) = (g.x(0), g.x(2), g.y(0), g.dy(0));
    let last = at.ints([-1]);
    let keep = [("keep_dims", true.into())];
    let sums = at.make("SparseReduceSum", &[at, y * dy, shape, last], &keep);
    let rest = at.make("SparseDenseCwiseAdd", &[at, dy, shape, -sums], &[]);
    g.set(1, rest * y)
}
