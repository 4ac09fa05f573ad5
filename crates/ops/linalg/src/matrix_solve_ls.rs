//! MatrixSolveLs: least squares by normal equations or, if `fast` is false, by a pseudo-inverse
//! (TensorFlow: `core/kernels/linalg/matrix_solve_ls_op_impl.h`, gradient in
//! `python/ops/linalg_grad.py`).

use crate::cholesky::factor;
use crate::dense::{Scalar, Side, Singular};
use crate::lu::{adjoint, diagonal as diagonal_of, matrices, product, store, substitute};
use faer::Mat;
use faer::linalg::svd::ComputeSvdVectors;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "MatrixSolveLs",
    "matrix: T, rhs: T, l2_regularizer: double -> output: T | T: type \
     {double,float,half,complex64,complex128}; fast: bool = true",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(|build| {
    let fast = build.attrs.bool("fast")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| solve::<T>(ctx, fast))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (a, b) = (ctx.with_rank_at_least(0, 2)?, ctx.with_rank_at_least(1, 2)?);
    if let (Some([a_batch @ .., rows, n]), Some([b_batch @ .., b_rows, k])) = (a.dims(), b.dims()) {
        let of = |dims: &[Option<usize>]| PartialShape::of(dims.iter().copied());
        let batch = ctx.merge(&of(a_batch), &of(b_batch))?;
        ctx.merge(&of(&[*rows]), &of(&[*b_rows]))?;
        let batch = batch.dims().unwrap_or(a_batch);
        ctx.set(0, PartialShape::of(batch.iter().copied().chain([*n, *k])));
    }
    Ok(())
}

/// Returns the columns of the right-hand sides of `batch` systems with `m` equations.
fn rhs_columns(ctx: &KernelCtx, batch: &Shape, m: usize) -> Result<usize> {
    let rhs = ctx.shape(1)?;
    let &[ref rhs_batch @ .., rows, k] = rhs.dims() else {
        return Err(invalid_argument!(
            "All input tensors must have the same rank."
        ));
    };
    if rhs_batch.len() != batch.rank() {
        return Err(invalid_argument!(
            "All input tensors must have the same rank."
        ));
    }
    if rhs_batch != batch.dims() {
        return Err(invalid_argument!(
            "All input tensors must have the same outer dimensions."
        ));
    }
    if m != rows {
        return Err(invalid_argument!("Input matrix and rhs are incompatible."));
    }
    Ok(k)
}

fn regularizer(ctx: &KernelCtx) -> Result<f64> {
    let l2 = ctx.input(2)?;
    if !l2.shape().is_scalar() {
        return Err(invalid_argument!(
            "l2_regularizer must be scalar, got shape {}",
            l2.shape()
        ));
    }
    let l2 = l2.to_scalar::<f64>()?;
    if l2 < 0.0 || l2.is_nan() {
        return Err(invalid_argument!("l2_regularizer must be >= 0."));
    }
    Ok(l2)
}

fn solve<T: Promote>(ctx: &mut KernelCtx, fast: bool) -> Result<()>
where
    T::Wide: Scalar,
{
    let (batch, m, n) = matrices(ctx, 0)?;
    let k = rhs_columns(ctx, &batch, m)?;
    let l2 = regularizer(ctx)?;
    let epsilon = match T::DTYPE {
        DType::Float | DType::Complex64 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    let mut out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([n, k]))?)?;
    let (a, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let to = out.slice_mut::<T>()?;
    to.fill(T::demote(T::Wide::ZERO));
    let empty = m == 0 || n == 0 || k == 0;
    for i in 0..if empty { 0 } else { batch.num_elements() } {
        let a: Vec<T::Wide> = a[i * m * n..][..m * n]
            .iter()
            .map(|x| x.promote())
            .collect();
        let b: Vec<T::Wide> = b[i * m * k..][..m * k]
            .iter()
            .map(|x| x.promote())
            .collect();
        let a = Matrix {
            values: &a,
            rows: m,
            columns: n,
        };
        let x = match fast {
            true => a.normal_equations(&b, k, l2, epsilon).ok_or_else(|| {
                let larger = if m >= n { "a larger" } else { "an" };
                invalid_argument!(
                    "Input matrix was rank deficient or ill-conditioned. Try setting fast=False \
                     or provide {larger} l2_regularizer > 0."
                )
            })?,
            false => a
                .least_norm(&b, k, epsilon)
                .unwrap_or_else(|| vec![T::Wide::from_f64(f64::NAN); n * k]),
        };
        store(&x, &mut to[i * n * k..][..n * k]);
    }
    ctx.set_output(0, out)
}

struct Matrix<'a, W> {
    values: &'a [W],
    rows: usize,
    columns: usize,
}

impl<W: Scalar> Matrix<'_, W> {
    fn at(&self, row: usize, column: usize) -> W {
        self.values[row * self.columns + column]
    }

    /// Returns the product of the conjugate transpose and `b`, `k` columns.
    fn adjoint_times(&self, b: &[W], k: usize) -> Vec<W> {
        let mut out = vec![W::ZERO; self.columns * k];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let factor = self.at(row, column).conj();
                for (to, b) in out[column * k..][..k].iter_mut().zip(&b[row * k..]) {
                    *to = to.add(factor.mul(*b));
                }
            }
        }
        out
    }

    /// Returns `(aᴴ a + l2)⁻¹ aᴴ b`, or `aᴴ (a aᴴ + l2)⁻¹ b` if there are fewer rows than columns;
    /// `None` if the matrix in parentheses is not positive definite.
    fn normal_equations(&self, b: &[W], k: usize, l2: f64, epsilon: f64) -> Option<Vec<W>> {
        let deep = self.rows >= self.columns;
        let size = self.rows.min(self.columns);
        let turned: Vec<W> = self.values.iter().map(|x| x.conj()).collect();
        let mut gramian = match deep {
            true => W::product(size, Side::Left, &turned, self.values)?,
            false => W::product(size, Side::Right, self.values, &turned)?,
        };
        let diagonal = gramian.iter_mut().step_by(size + 1);
        let squares: Vec<f64> = diagonal
            .map(|x| {
                *x = x.add(W::from_f64(l2));
                x.real_part()
            })
            .collect();
        // What remains of a dependent row is rounding.
        let is_regular = factor(&mut gramian, size)
            && diagonal_of(&gramian, size)
                .zip(&squares)
                .all(|(pivot, square)| pivot.real_part().powi(2) > square * epsilon);
        if !is_regular {
            return None;
        }
        let mut x = if deep {
            self.adjoint_times(b, k)
        } else {
            b.to_vec()
        };
        let upper: Vec<W> = (0..size * size)
            .map(|i| gramian[i % size * size + i / size].conj())
            .collect();
        substitute(&gramian, size, true, false, &mut x, k);
        substitute(&upper, size, false, false, &mut x, k);
        Some(if deep { x } else { self.adjoint_times(&x, k) })
    }

    /// Returns the solution of least norm, if the decomposition converges.
    fn least_norm(&self, b: &[W], k: usize, epsilon: f64) -> Option<Vec<W>> {
        let a = Mat::from_fn(self.rows, self.columns, |r, c| self.at(r, c));
        let Singular { s, u, v } = W::svd(a.as_ref(), ComputeSvdVectors::Thin)?;
        let p = s.len();
        let least = s.first().map_or(0.0, |s| s.real_part()) * epsilon * p as f64;
        let rows = |m: &Mat<W>| -> Vec<W> {
            let at = |i: usize| m[(i / p, i % p)];
            (0..m.nrows() * p).map(at).collect()
        };
        let u = Matrix {
            values: &rows(&u),
            rows: self.rows,
            columns: p,
        };
        let mut x = u.adjoint_times(b, k);
        for (row, s) in x.chunks_exact_mut(k).zip(&s) {
            let s = s.real_part();
            let factor = W::from_f64(if s > least { 1.0 / s } else { 0.0 });
            row.iter_mut().for_each(|x| *x = x.mul(factor));
        }
        let v = rows(&v);
        // The columns of `v` are the rows of its transpose.
        let turned: Vec<W> = (0..v.len())
            .map(|i| v[i % self.columns * p + i / self.columns].conj())
            .collect();
        let turned = Matrix {
            values: &turned,
            rows: p,
            columns: self.columns,
        };
        Some(turned.adjoint_times(&x, k))
    }
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    if !g.attrs().bool("fast")? {
        return Err(unimplemented_error!("Gradient not defined for fast=False"));
    }
    let (a, b, x, d) = (g.x(0), g.x(1), g.y(0), g.dy(0));
    let l2 = g.x(2).cast(a.dtype());
    let shape = a.shape();
    let (Some(m), Some(n)) = (shape.dim(-2), shape.dim(-1)) else {
        return Err(unimplemented_error!(
            "the gradient of MatrixSolveLs needs the shape of the matrix"
        ));
    };
    let deep = m >= n;
    let gramian = product(a, a, deep, !deep);
    let diagonal = gramian.op("MatrixDiagPart", &[]) + l2;
    let gramian = gramian.op("MatrixSetDiag", &[diagonal]);
    let l = gramian.op("Cholesky", &[]);
    let solved = |rhs: Expr<'_>| -> ferroflow_opdef::Output {
        let half = l.op("MatrixTriangularSolve", &[l.at(rhs.output())]);
        let attrs = [("adjoint", true.into())];
        l.op_with("MatrixTriangularSolve", &[half], &attrs).output()
    };
    let (da, db) = match deep {
        true => {
            let z = a.at(solved(d));
            let sum = product(x, z, false, true);
            let sum = sum + transposed(sum);
            let da = product(b, z, false, true) - product(a, sum, false, false);
            (da, product(a, z, false, false))
        }
        false => {
            let db = a.at(solved(product(a, d, false, false)));
            let z = a.at(solved(b));
            let inside = product(db, product(z, a, true, false), false, false);
            let outside = product(z, d - product(a, db, true, false), false, true);
            (outside - inside, db)
        }
    };
    g.set(0, da)?;
    g.set(1, db)
}

/// Returns the transposed matrices, not conjugated.
fn transposed(e: Expr<'_>) -> Expr<'_> {
    adjoint(e).conj()
}
