//! Lu (TensorFlow: `core/kernels/linalg/lu_op.cc`).

use crate::dense::Scalar;
use crate::lu::{diagonal, factor, load, square_batch, squares, store};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_functors::indices::{int_vector, shape_of};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Lu",
    "input: T -> lu: T, p: output_idx_type | T: type {double,float,half,complex64,complex128}; \
     output_idx_type: type {int32,int64} = int32",
)
.shape(|ctx| {
    let batch = square_batch(ctx, 0)?;
    let n = ctx.input(0).dim(-1);
    let p = match batch.dims() {
        Some(batch) => PartialShape::of(batch.iter().copied().chain([n])),
        None => PartialShape::unknown(),
    };
    ctx.set(0, ctx.input(0));
    ctx.set(1, p);
    Ok(())
})
.cost(Cost::Expensive)
.kernel(|build| {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| decompose::<T>(ctx, index))),
        else Err(build.unsupported(dtype)))
})];

fn decompose<T: Promote>(ctx: &mut KernelCtx, index: DType) -> Result<()>
where
    T::Wide: Scalar,
{
    let rank = ctx.shape(0)?.rank();
    if rank < 2 {
        return Err(invalid_argument!(
            "Input tensor must have rank >= 2, got {rank}"
        ));
    }
    let (batch, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let mut rows: Vec<i64> = Vec::with_capacity(batch.num_elements().saturating_mul(n));
    let x = ctx.slice::<T>(0)?;
    if n > 0 {
        let matrices = x.chunks_exact(n * n);
        for (x, out) in matrices.zip(out.slice_mut::<T>()?.chunks_exact_mut(n * n)) {
            let mut a = load(x, n, false);
            let (order, _) = factor(&mut a, n);
            if diagonal(&a, n).any(|x| x.is_zero()) {
                return Err(invalid_argument!("Input is not invertible."));
            }
            rows.extend(order.iter().map(|&row| row as i64));
            store(&a, out);
        }
    }
    let shape = shape_of(batch.iter().copied().chain([n]))?;
    ctx.set_output(0, out)?;
    ctx.set_output(1, int_vector(index, rows.into_iter())?.with_shape(shape)?)
}
