//! MatrixDeterminant and LogMatrixDeterminant (TensorFlow:
//! `core/kernels/linalg/determinant_op.cc`).

use crate::dense::Scalar;
use crate::lu::{diagonal, factor, load, square_batch, squares};
use ferroflow_base::Result;
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{Complex32, Complex64, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("MatrixDeterminant", SQUARE)
        .shape(|ctx| {
            let batch = square_batch(ctx, 0)?;
            ctx.set(0, batch);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => Ok(Box::new(determinant::<T>)),
                else Err(build.unsupported(dtype)))
        })
    .gradient(determinant_gradient),
    Op::new("LogMatrixDeterminant", "input: T -> sign: T, log_abs_determinant: T | T: type \
         {half,float,double,complex64,complex128}")
        .shape(|ctx| {
            let batch = square_batch(ctx, 0)?;
            ctx.set(0, batch.clone());
            ctx.set(1, batch);
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|build| {
            let dtype = build.input(0)?;
            dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => Ok(Box::new(log_determinant::<T>)),
                else Err(build.unsupported(dtype)))
        })
    .gradient(log_determinant_gradient),
];

const SQUARE: &str = "input: T -> output: T | T: type {half,float,double,complex64,complex128} |";

fn determinant<T: Promote>(ctx: &mut KernelCtx) -> Result<()>
where
    T::Wide: Scalar,
{
    let (batch, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, batch)?;
    let x = ctx.slice::<T>(0)?;
    for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
        let mut a = load(&x[i * n * n..(i + 1) * n * n], n, false);
        let (_, odd) = factor(&mut a, n);
        let det = diagonal(&a, n).fold(T::Wide::ONE, |d, x| d.mul(x));
        *out = T::demote(if odd { det.neg() } else { det });
    }
    ctx.set_output(0, out)
}

fn log_determinant<T: Promote>(ctx: &mut KernelCtx) -> Result<()>
where
    T::Wide: Scalar,
{
    let (batch, n) = squares(ctx, 0)?;
    let mut sign = ctx.alloc(T::DTYPE, batch.clone())?;
    let mut log = ctx.alloc(T::DTYPE, batch)?;
    let x = ctx.slice::<T>(0)?;
    let outputs = sign.slice_mut::<T>()?.iter_mut().zip(log.slice_mut::<T>()?);
    for (i, (sign, log)) in outputs.enumerate() {
        let mut a = load(&x[i * n * n..(i + 1) * n * n], n, false);
        let (_, odd) = factor(&mut a, n);
        let (mut s, mut l) = (T::Wide::ONE, 0.0);
        for x in diagonal(&a, n) {
            let size = x.magnitude();
            l += size.ln();
            s = if size == 0.0 {
                T::Wide::ZERO
            } else {
                s.mul(x.sign())
            };
        }
        *sign = T::demote(if odd { s.neg() } else { s });
        *log = T::demote(T::Wide::from_f64(l));
    }
    ctx.set_output(0, sign)?;
    ctx.set_output(1, log)
}

fn adjoint_inverse(x: Expr) -> Expr {
    x.op_with("MatrixInverse", &[], &[("adjoint", true.into())])
}

/// Reshapes one number per matrix to the rank of matrices.
fn per_matrix(v: Expr) -> Expr {
    v.op("ExpandDims", &[v.int(-1)])
        .op("ExpandDims", &[v.int(-1)])
}

fn determinant_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = per_matrix(g.dy(0) * g.y(0).conj()) * adjoint_inverse(g.x(0));
    g.set(0, dx)
}

/// The sign is piecewise constant.
fn log_determinant_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = per_matrix(g.dy(1)) * adjoint_inverse(g.x(0));
    g.set(0, dx)
}
