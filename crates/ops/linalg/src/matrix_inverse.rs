//! MatrixInverse (TensorFlow: `core/kernels/linalg/matrix_inverse_op.cc`).

use crate::dense::{Decomposed, Scalar};
use crate::lu::{LARGE, load_as, product, solve_one, square_unchanged, squares};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_opdef::{Cost, GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{Complex32, Complex64, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "MatrixInverse",
    "input: T -> output: T | adjoint: bool = false; T: type \
         {double,float,half,complex64,complex128}",
)
.shape(square_unchanged)
.cost(Cost::Expensive)
.kernel(|build| {
    let adjoint = build.attrs.bool("adjoint")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, f16, Complex32, Complex64] =>
                Ok(Box::new(move |ctx: &mut KernelCtx| inverse::<T>(ctx, adjoint))),
                else Err(build.unsupported(dtype)))
})
.gradient(inverse_gradient)];

fn inverse<T: Promote + Decomposed>(ctx: &mut KernelCtx, adjoint: bool) -> Result<()>
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
        true => invert_all(x, to, n, adjoint, (T::widen, T::narrow))?,
        false => invert_all(x, to, n, adjoint, (T::promote, T::demote))?,
    }
    ctx.set_output(0, out)
}

/// Inverts a batch of matrices in another type.
fn invert_all<T: Copy, W: Scalar>(
    x: &[T],
    out: &mut [T],
    n: usize,
    adjoint: bool,
    (widen, narrow): (impl Fn(T) -> W + Copy, impl Fn(W) -> T),
) -> Result<()> {
    let mut identity = vec![W::ZERO; n * n];
    identity.iter_mut().step_by(n + 1).for_each(|x| *x = W::ONE);
    for (x, out) in x.chunks_exact(n * n).zip(out.chunks_exact_mut(n * n)) {
        let inverse = solve_one(load_as(x, n, adjoint, widen), n, &identity, n);
        let inverse = inverse.ok_or_else(|| invalid_argument!("Input is not invertible."))?;
        let values = out.iter_mut().zip(inverse);
        values.for_each(|(to, x)| *to = narrow(x));
    }
    Ok(())
}

fn inverse_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, d) = (g.y(0), g.dy(0));
    let right = product(d, y, false, !g.attrs().bool("adjoint")?);
    let dx = match g.attrs().bool("adjoint")? {
        false => product(y, right, true, false),
        // The output is the inverse of the adjoint, which reverses the gradient's factors.
        true => product(y, product(d, y, true, false), false, false),
    };
    g.set(0, -dx)
}
