//! MatrixInverse (TensorFlow: `core/kernels/linalg/matrix_inverse_op.cc`).

use crate::dense::Scalar;
use crate::lu::{load, product, solve_one, square_unchanged, squares, store};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_functors::numeric::Num;
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

fn inverse<T: Promote>(ctx: &mut KernelCtx, adjoint: bool) -> Result<()>
where
    T::Wide: Scalar,
{
    let (_, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let x = ctx.slice::<T>(0)?;
    if x.is_empty() {
        return ctx.set_output(0, out);
    }
    let mut identity = vec![T::Wide::ZERO; n * n];
    identity
        .iter_mut()
        .step_by(n + 1)
        .for_each(|x| *x = T::Wide::ONE);
    for (x, out) in x
        .chunks_exact(n * n)
        .zip(out.slice_mut::<T>()?.chunks_exact_mut(n * n))
    {
        let inverse = solve_one(load(x, n, adjoint), n, &identity, n);
        store(
            &inverse.ok_or_else(|| invalid_argument!("Input is not invertible."))?,
            out,
        );
    }
    ctx.set_output(0, out)
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
