//! CholeskyGrad: reverse-mode differentiation of the Cholesky decomposition (TensorFlow:
//! `core/kernels/linalg/cholesky_grad.cc`).

use crate::lu::{matrices, store};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_tensor::dispatch;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "CholeskyGrad",
    "l: T, grad: T -> output: T | T: type {half,float,double} |",
)
.shape(crate::lu::square_unchanged)
.cost(Cost::Expensive)
.kernel(|build| {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64] => Ok(Box::new(gradient::<T>)),
        else Err(build.unsupported(dtype)))
})];

fn gradient<T: Promote<Wide = f64>>(ctx: &mut KernelCtx) -> Result<()> {
    let (batch, rows, n) = matrices(ctx, 0)?;
    let (l_shape, d_shape) = (ctx.shape(0)?, ctx.shape(1)?);
    if l_shape.rank() != d_shape.rank() {
        return Err(invalid_argument!(
            "All input tensors must have the same rank."
        ));
    }
    if l_shape[..batch.rank()] != d_shape[..batch.rank()] {
        return Err(invalid_argument!(
            "All input tensors must have the same outer dimensions."
        ));
    }
    if l_shape != d_shape {
        return Err(invalid_argument!(
            "Inputs (L and grad) must have the same shape."
        ));
    }
    if rows != n {
        return Err(invalid_argument!("Inputs must be a square matrices."));
    }
    let mut out = ctx.alloc(T::DTYPE, l_shape.clone())?;
    if n > 0 {
        let (l, d) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
        let pairs = l.chunks_exact(n * n).zip(d.chunks_exact(n * n));
        for ((l, d), out) in pairs.zip(out.slice_mut::<T>()?.chunks_exact_mut(n * n)) {
            let lower = |x: &[T]| -> Vec<f64> {
                let inside = |i: usize| i / n >= i % n;
                (0..n * n)
                    .map(|i| if inside(i) { x[i].promote() } else { 0.0 })
                    .collect()
            };
            store(&symmetric(&lower(l), lower(d), n), out);
        }
    }
    ctx.set_output(0, out)
}

/// Undoes the rows of the decomposition from the last to the first (Murray, "Differentiation of
/// the Cholesky decomposition", 2016).
fn symmetric(l: &[f64], mut d: Vec<f64>, n: usize) -> Vec<f64> {
    for k in (0..n).rev() {
        let pivot = l[k * n + k];
        for i in k + 1..n {
            d[k * n + k] -= l[i * n + k] * d[i * n + k] / pivot;
        }
        for i in k..n {
            d[i * n + k] /= pivot;
        }
        for i in k..n {
            let factor = d[i * n + k];
            for j in 0..k {
                d[k * n + j] -= factor * l[i * n + j];
            }
        }
        for i in k + 1..n {
            let factor = d[i * n + k];
            for j in 0..k {
                d[i * n + j] -= factor * l[k * n + j];
            }
        }
        d[k * n + k] /= 2.0;
    }
    (0..n * n)
        .map(|i| 0.5 * (d[i] + d[i % n * n + i / n]))
        .collect()
}
