//! SparseReshape (TensorFlow: `core/kernels/sparse_reshape_op.cc`).

use crate::sparse_fill_empty_rows::wanted;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::ints;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseReshape",
    "input_indices: int64, input_shape: int64, new_shape: int64 -> output_indices: \
         int64, output_shape: int64 |",
)
.shape(|ctx| {
    let at = ctx.with_rank(0, 2)?;
    ctx.with_rank(1, 1)?;
    let shape = ctx.with_rank(2, 1)?;
    ctx.set(0, PartialShape::of([at.dim(0), shape.dim(0)]));
    ctx.set(1, shape);
    Ok(())
})
.kernel(|_| Ok(Box::new(reshape)))
.not_differentiable()];

fn reshape(ctx: &mut KernelCtx) -> Result<()> {
    let (at, from, to) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let [n, rank] = *at.shape().dims() else {
        return Err(invalid_argument!("Input must be a matrix."));
    };
    if from.shape().rank() != 1 {
        return Err(invalid_argument!("Input shape must be a vector."));
    }
    if to.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Target shape should be a vector but received shape {}",
            to.shape()
        ));
    }
    if from.num_elements() != rank {
        return Err(invalid_argument!(
            "Input tensor rank must match input shape length."
        ));
    }
    let from = Shape::checked(&ints(from)?)?;
    let to = wanted(&from, &ints(to)?)?;
    if from == to {
        let (at, shape) = (ctx.take_input(0)?, ctx.take_input(1)?);
        ctx.set_output(0, at)?;
        return ctx.set_output(1, shape);
    }
    let total = from.num_elements() as i64;
    if n > 0 && total == 0 {
        return Err(invalid_argument!(
            "Input tensor has {n} non zero elements but input shape ({from}) or output shape ({to}) is empty"
        ));
    }
    let mut out = ctx.alloc(DType::Int64, Shape::from([n, to.rank()]))?;
    let strides = from.strides();
    let rows = at.slice::<i64>()?.chunks(rank.max(1));
    for (row, out) in rows.zip(out.slice_mut::<i64>()?.chunks_mut(to.rank().max(1))) {
        let place = row.iter().zip(&strides);
        let mut place = place.fold(0i64, |p, (&x, &s)| p.wrapping_add(x.wrapping_mul(s as i64)));
        for (x, stride) in out.iter_mut().zip(to.strides()) {
            let stride = (stride as i64).max(1);
            *x = place.wrapping_div(stride);
            place = place.wrapping_rem(stride);
        }
    }
    let shape = Tensor::vector(&to.to_i64())?;
    ctx.set_output(0, out)?;
    ctx.set_output(1, shape)
}
