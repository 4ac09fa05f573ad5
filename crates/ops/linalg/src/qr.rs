//! Qr, by Householder reflections with the signs of Eigen's (TensorFlow:
//! `core/kernels/linalg/qr_op_impl.h`, gradient in `python/ops/linalg_grad.py`).

use crate::dense::{Decomposed, Scalar, chunks, group, matrix, write};
use crate::lu::{adjoint, matrices, product};
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_functors::field::Field;
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelCtx, Op, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, PartialShape, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Qr",
    "input: T -> q: T, r: T | full_matrices: bool = false; T: type \
     {double,float,half,complex64,complex128}",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(|build| {
    let full = build.attrs.bool("full_matrices")?;
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, f16, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| qr::<T>(ctx, full))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 2)?;
    let full = ctx.attrs().bool("full_matrices")?;
    let (mut q, mut r) = (PartialShape::unknown(), PartialShape::unknown());
    if let Some([batch @ .., m, n]) = input.dims() {
        let p = if full {
            *m
        } else {
            m.zip(*n).map(|(m, n)| m.min(n))
        };
        let of = |rows, columns| PartialShape::of(batch.iter().copied().chain([rows, columns]));
        (q, r) = (of(*m, p), of(p, *n));
    }
    ctx.set(0, q);
    ctx.set(1, r);
    Ok(())
}

fn qr<T: Decomposed>(ctx: &mut KernelCtx, full: bool) -> Result<()> {
    let (batch, m, n) = matrices(ctx, 0)?;
    let p = if full { m } else { m.min(n) };
    let of = |rows, columns| shape_of(batch.iter().copied().chain([rows, columns]));
    let mut q_out = ctx.alloc(T::DTYPE, of(m, p)?)?;
    let mut r_out = ctx.alloc(T::DTYPE, of(p, n)?)?;
    let x = ctx.slice::<T>(0)?;
    let mut of_q = chunks(q_out.slice_mut::<T>()?, m * p);
    let mut of_r = chunks(r_out.slice_mut::<T>()?, p * n);
    let mut jobs: Vec<[&mut [T]; 2]> = (0..batch.num_elements())
        .map(|_| [&mut of_q, &mut of_r].map(|all| all.next().unwrap_or_default()))
        .collect();
    par_chunks_mut(ctx.par(), &mut jobs, 1, group(m, n), &|i, jobs| {
        let (q, r) = T::Scalar::qr(matrix(&x[i * m * n..][..m * n], m, n), p);
        for [q_to, r_to] in jobs {
            write(q.as_ref(), q_to);
            write(r.as_ref(), r_to);
        }
    });
    drop(jobs);
    ctx.set_output(0, q_out)?;
    ctx.set_output(1, r_out)
}

/// Replaces the `m × n` matrix `a` by its upper triangle and, below it, the vectors of the
/// reflections, whose first component is 1. Returns their factors.
pub(crate) fn reflect<W: Field>(a: &mut [W], m: usize, n: usize) -> Vec<W> {
    let mut factors = Vec::with_capacity(m.min(n));
    let mut sums = vec![W::ZERO; n];
    for k in 0..m.min(n) {
        let head = a[k * n + k];
        let squares = (k + 1..m).map(|i| a[i * n + k].magnitude().powi(2));
        let tail: f64 = squares.sum();
        let is_real = head.magnitude() == head.real_part().abs();
        if tail <= f64::MIN_POSITIVE && is_real {
            factors.push(W::ZERO);
            continue;
        }
        let norm = (head.magnitude().powi(2) + tail).sqrt();
        let beta = W::from_f64(if head.real_part() >= 0.0 { -norm } else { norm });
        let scale = head.sub(beta);
        for i in k + 1..m {
            a[i * n + k] = a[i * n + k].div(scale);
        }
        let factor = beta.sub(head).div(beta).conj();
        a[k * n + k] = beta;
        factors.push(factor);
        // The other columns: a - factor v (vᴴ a).
        let (top, below) = a.split_at_mut((k + 1) * n);
        let top = &mut top[k * n..];
        sums[k + 1..].copy_from_slice(&top[k + 1..]);
        for row in below.chunks_exact(n) {
            let v = row[k].conj();
            for (sum, x) in sums[k + 1..].iter_mut().zip(&row[k + 1..]) {
                *sum = sum.add(v.mul(*x));
            }
        }
        for (x, sum) in top[k + 1..].iter_mut().zip(&sums[k + 1..]) {
            *x = x.sub(factor.mul(*sum));
        }
        for row in below.chunks_exact_mut(n) {
            let v = factor.mul(row[k]);
            for (x, sum) in row[k + 1..].iter_mut().zip(&sums[k + 1..]) {
                *x = x.sub(v.mul(*sum));
            }
        }
    }
    factors
}

/// Returns the first `p` columns of the product of reflections.
pub(crate) fn orthogonal<W: Field>(a: &[W], factors: &[W], m: usize, n: usize, p: usize) -> Vec<W> {
    let mut q = vec![W::ZERO; m * p];
    q.iter_mut()
        .step_by(p + 1)
        .take(p)
        .for_each(|x| *x = W::ONE);
    let mut sums = vec![W::ZERO; p];
    for (k, factor) in factors.iter().enumerate().rev() {
        let factor = factor.conj();
        let v = |i: usize| if i == k { W::ONE } else { a[i * n + k] };
        sums.fill(W::ZERO);
        for i in k..m {
            let v = v(i).conj();
            for (sum, x) in sums.iter_mut().zip(&q[i * p..][..p]) {
                *sum = sum.add(v.mul(*x));
            }
        }
        for i in k..m {
            let v = factor.mul(v(i));
            for (x, sum) in q[i * p..][..p].iter_mut().zip(&sums) {
                *x = x.sub(v.mul(*sum));
            }
        }
    }
    q
}

/// Returns `size` columns of matrices of known rank.
pub(crate) fn columns(e: Expr<'_>, rank: usize, from: usize, size: usize) -> Expr<'_> {
    let outer = rank.saturating_sub(1);
    let begin = (0..outer).map(|_| 0).chain([from as i64]);
    let sizes = (0..outer).map(|_| -1).chain([size as i64]);
    e.op("Slice", &[e.ints(begin), e.ints(sizes)])
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, q, r, dq, dr) = (g.x(0), g.y(0), g.y(1), g.dy(0), g.dy(1));
    let (q_shape, r_shape) = (q.shape(), r.shape());
    let sizes = (
        q_shape.dim(-2),
        r_shape.dim(-2),
        r_shape.dim(-1),
        r_shape.rank(),
    );
    let (Some(m), Some(p), Some(n), Some(rank)) = sizes else {
        return Err(unimplemented_error!(
            "QrGrad not implemented with dynamic shapes."
        ));
    };
    if p > n && m == p {
        return Err(unimplemented_error!(
            "QrGrad not implemented when nrows > ncols and full_matrices is true."
        ));
    }
    if m >= n {
        return g.set(0, of_deep(q, r, dq, dr));
    }
    let (y, u) = (columns(a, rank, m, n - m), columns(r, rank, 0, m));
    let (dv, du) = (columns(dr, rank, m, n - m), columns(dr, rank, 0, m));
    let dy = product(q, dv, false, false);
    let dx = of_deep(q, u, dq + product(y, dv, false, true), du);
    let parts = [dx, dy, a.int(-1)];
    g.set(0, a.make("ConcatV2", &parts, &[("N", 2.into())]))
}

/// The gradient of matrices with at least as many rows as columns.
fn of_deep<'g>(q: Expr<'g>, r: Expr<'g>, dq: Expr<'g>, dr: Expr<'g>) -> Expr<'g> {
    // x r⁻ᴴ
    let solved = |x: Expr<'g>| {
        let lower = [("lower", false.into())];
        adjoint(r.op_with("MatrixTriangularSolve", &[adjoint(x)], &lower))
    };
    let qdq = product(q, dq, true, false);
    let rdr = product(r, dr, false, true);
    let skew = (qdq - adjoint(qdq)) + (rdr - adjoint(rdr));
    let lower = skew.op("MatrixBandPart", &[q.int(-1), q.int(0)]);
    let mut dx =
        product(q, dr + solved(lower), false, false) + solved(dq - product(q, qdq, false, false));
    if q.dtype().is_complex() {
        let diagonal = (rdr - adjoint(qdq)).op("MatrixDiagPart", &[]);
        let imaginary = (diagonal - diagonal.conj()) * 0.5;
        let correction = imaginary.op("MatrixDiag", &[]);
        dx = dx + solved(product(q, adjoint(correction), false, false));
    }
    dx
}
