//! MatrixSquareRoot, MatrixLogarithm and MatrixExponential (TensorFlow:
//! `core/kernels/linalg/matrix_square_root_op.cc` and others).

use crate::dense::Scalar;
use crate::lu::{square_unchanged, squares, store};
use crate::triangular_functions::{exponential, logarithm, real_eigenvalues, square_root};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, dispatch};
use std::sync::atomic::{AtomicBool, Ordering};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MatrixSquareRoot",
        "input: T -> output: T | T: type {double,float,half,complex64,complex128}",
    )
    .shape(square_unchanged)
    .cost(Cost::Expensive)
    .kernel(|build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
            Ok(Box::new(|ctx: &mut KernelCtx| map::<T>(ctx, Wide::root))),
            else Err(build.unsupported(dtype)))
    })
    .gradient(root_gradient),
    Op::new(
        "MatrixLogarithm",
        "input: T -> output: T | T: type {complex64,complex128}",
    )
    .shape(square_unchanged)
    .cost(Cost::Expensive)
    .kernel(|build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [Complex32, Complex64] =>
            Ok(Box::new(|ctx: &mut KernelCtx| map::<T>(ctx, logarithm))),
            else Err(build.unsupported(dtype)))
    }),
    Op::new(
        "MatrixExponential",
        "input: T -> output: T | T: type {double,float,half,complex64,complex128}",
    )
    .shape(square_unchanged)
    .cost(Cost::Expensive)
    .kernel(|build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
            Ok(Box::new(|ctx: &mut KernelCtx| map::<T>(ctx, exponential))),
            else Err(build.unsupported(dtype)))
    }),
];

/// A wide type that converts to complex numbers.
pub(crate) trait Wide: Scalar {
    fn to_complex(self) -> Complex64;
    /// Returns the square root of an `n × n` matrix; none if the decomposition does not converge.
    fn root(a: &[Self], n: usize) -> Option<Vec<Self>>;
}

impl Wide for f64 {
    fn to_complex(self) -> Complex64 {
        Complex64::new(self, 0.0)
    }
    fn root(a: &[f64], n: usize) -> Option<Vec<f64>> {
        // Such a matrix has complex roots only.
        if real_eigenvalues(a, n)?
            .iter()
            .any(|x| x.im == 0.0 && x.re < 0.0)
        {
            return Some(vec![f64::NAN; n * n]);
        }
        let a: Vec<Complex64> = a.iter().map(|&x| x.into()).collect();
        let root = square_root(&a, n)?;
        Some(root.into_iter().map(|x| x.re).collect())
    }
}

impl Wide for Complex64 {
    fn to_complex(self) -> Complex64 {
        self
    }
    fn root(a: &[Complex64], n: usize) -> Option<Vec<Complex64>> {
        square_root(a, n)
    }
}

/// A function of an `n × n` matrix; none where it does not converge.
type MatrixFn<W> = fn(&[W], usize) -> Option<Vec<W>>;

/// Applies a function to each matrix of a batch; where it has none, the result is NaN.
fn map<T: Promote>(ctx: &mut KernelCtx, f: MatrixFn<T::Wide>) -> Result<()> {
    let (_, n) = squares(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let x = ctx.slice::<T>(0)?;
    let failed = AtomicBool::new(false);
    par_chunks_mut(
        ctx.par(),
        out.slice_mut::<T>()?,
        (n * n).max(1),
        1,
        &|i, out| {
            let from = x.get(i * n * n..(i + 1) * n * n).unwrap_or_default();
            let from: Vec<T::Wide> = from.iter().map(|x| x.promote()).collect();
            match f(&from, n) {
                Some(result) => store(&result, out),
                None => {
                    out.fill(T::demote(T::Wide::from_f64(f64::NAN)));
                    failed.store(
                        from.iter().all(|x| x.magnitude().is_finite()),
                        Ordering::Relaxed,
                    );
                }
            }
        },
    );
    if failed.into_inner() {
        return Err(invalid_argument!(
            "the decomposition of the matrix did not converge. The input might not be valid."
        ));
    }
    ctx.set_output(0, out)
}

/// Returns matrices with rows and columns exchanged.
fn transposed(e: Expr<'_>) -> Expr<'_> {
    let rank = e.op("Rank", &[]);
    let axes = e.int(0).op("Range", &[rank - e.int(2), e.int(1)]);
    let last = (rank - e.int(1)).op("Pack", &[rank - e.int(2)]);
    e.op(
        "Transpose",
        &[e.make("ConcatV2", &[axes, last, e.int(0)], &[])],
    )
}

/// Solves the Sylvester equation `r dr + dr r = da` for the transposed gradient, by the Kronecker
/// sum of the root with itself, as TensorFlow does.
fn root_gradient(g: &mut GradientCtx) -> Result<()> {
    let (r, dy) = (g.y(0), g.dy(0));
    let (zero, one) = (r.int(0), r.int(1));
    let shape = r.op("Shape", &[]);
    let rank = r.op("Rank", &[]);
    let n = shape.op("GatherV2", &[rank - one, zero]);
    let batch = (rank - r.int(2)).reshape(r.ints([1]));
    let batch = shape.op("Slice", &[r.ints([0]), batch]);
    let all = n * n;
    let sizes = |rest: Expr<'_>| {
        batch
            .make("ConcatV2", &[batch, batch.at(rest.output()), zero], &[])
            .output()
    };
    let square = r.at(sizes(all.op("Pack", &[all])));
    let column = r.at(sizes(all.op("Pack", &[one])));
    let left = r.at(sizes(n.op("Pack", &[one, n, one])));
    let right = r.at(sizes(one.op("Pack", &[n, one, n])));
    let ones = r.op("MatrixDiagPart", &[]).op("OnesLike", &[]);
    let eye = r.zeros_like().op("MatrixSetDiag", &[ones]);
    let first = eye.reshape(left) * transposed(r).reshape(right);
    let second = r.reshape(left) * eye.reshape(right);
    let sum = first.reshape(square) + second.reshape(square);
    let solved = sum.op("MatrixSolve", &[transposed(dy).reshape(column)]);
    g.set(0, transposed(solved.reshape(shape)))
}
