//! Cholesky (TensorFlow: `core/kernels/linalg/cholesky_op.cc`).

use crate::dense::{Decomposed, Scalar};
use crate::lu::{LARGE, adjoint, load_as, product, square_unchanged, squares};
use ferroflow_base::Result;
use ferroflow_functors::field::Promote;
use ferroflow_opdef::{Cost, GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{Complex32, Complex64, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Cholesky",
    "input: T -> output: T | T: type {double,float,half,complex64,complex128} |",
)
.shape(square_unchanged)
.cost(Cost::Expensive)
.kernel(|build| {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => Ok(Box::new(cholesky::<T>)),
                else Err(build.unsupported(dtype)))
})
.gradient(cholesky_gradient)];

fn cholesky<T: Promote + Decomposed>(ctx: &mut KernelCtx) -> Result<()>
where
    T::Wide: Scalar,
{
    let (_, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let x = ctx.slice::<T>(0)?;
    if x.is_empty() {
        return ctx.set_output(0, out);
    }
    let to = out.slice_mut::<T>()?;
    match n >= LARGE {
        true => factor_all(x, to, n, (T::widen, T::narrow)),
        false => factor_all(x, to, n, (T::promote, T::demote)),
    }
    ctx.set_output(0, out)
}

/// Factors a batch of matrices in another type.
fn factor_all<T: Copy, W: Scalar>(
    x: &[T],
    out: &mut [T],
    n: usize,
    (widen, narrow): (impl Fn(T) -> W + Copy, impl Fn(W) -> T),
) {
    for (x, out) in x.chunks_exact(n * n).zip(out.chunks_exact_mut(n * n)) {
        let mut a = load_as(x, n, false, widen);
        if !factor(&mut a, n) {
            // If there is none, TensorFlow returns NaN.
            for (r, row) in a.chunks_exact_mut(n).enumerate() {
                row.fill(W::ZERO);
                row[..r + 1].fill(W::from_f64(f64::NAN));
            }
        }
        let values = out.iter_mut().zip(a);
        values.for_each(|(to, x)| *to = narrow(x));
    }
}

/// Replaces a positive definite matrix, of which the lower triangle is read, by its Cholesky
/// factor; returns whether it has one.
pub(crate) fn factor<W: Scalar>(a: &mut [W], n: usize) -> bool {
    if let Some(done) = W::cholesky(a, n) {
        return done;
    }
    for r in 0..n {
        for c in 0..=r {
            let mut sum = a[r * n + c];
            for k in 0..c {
                sum = sum.sub(a[r * n + k].mul(a[c * n + k].conj()));
            }
            if c < r {
                a[r * n + c] = sum.div(a[c * n + c]);
            } else if sum.real_part() > 0.0 {
                a[r * n + r] = W::from_f64(sum.real_part().sqrt());
            } else {
                return false;
            }
        }
        a[r * n + r + 1..(r + 1) * n].fill(W::ZERO);
    }
    true
}

fn cholesky_gradient(g: &mut GradientCtx) -> Result<()> {
    let (l, d) = (g.y(0), g.dy(0));
    let middle = product(l, d, true, false);
    let diagonal = middle.op("MatrixDiagPart", &[]) * 0.5;
    let middle = middle.op("MatrixSetDiag", &[diagonal]);
    let middle = middle.op("MatrixBandPart", &[l.int(-1), l.int(0)]);
    // l⁻ᴴ middle l⁻¹, by two linear systems.
    let attrs = [("adjoint", true.into())];
    let left = l.op_with("MatrixTriangularSolve", &[middle], &attrs);
    let both = l.op_with("MatrixTriangularSolve", &[adjoint(left)], &attrs);
    let sum = both + adjoint(both);
    g.set(0, sum * 0.5)
}
