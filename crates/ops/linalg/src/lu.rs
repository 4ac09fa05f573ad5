//! LU decomposition of batches of square matrices, and the checks shared by the linear algebra ops.

use crate::dense::Scalar;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_opdef::{Expr, KernelCtx, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape};

/// Returns the shape without the last two dimensions of input `i`, which must be square matrices.
pub(crate) fn square_batch(ctx: &ShapeCtx, i: usize) -> Result<PartialShape> {
    let input = ctx.with_rank_at_least(i, 2)?;
    let Some([batch @ .., rows, cols]) = input.dims() else {
        return Ok(PartialShape::unknown());
    };
    match (rows, cols) {
        (Some(rows), Some(cols)) if rows != cols => {
            Err(invalid_argument!("Input matrix must be square."))
        }
        _ => Ok(PartialShape::of(batch.iter().copied())),
    }
}

/// Returns the batch dimensions and the two others of input `i`.
pub(crate) fn matrices(ctx: &KernelCtx, i: usize) -> Result<(Shape, usize, usize)> {
    let shape = ctx.shape(i)?;
    match shape.dims() {
        [batch @ .., rows, cols] => Ok((Shape::from(batch), *rows, *cols)),
        _ => Err(invalid_argument!(
            "Input tensor {i} must have rank >= 2, got {}",
            shape.rank()
        )),
    }
}

pub(crate) fn squares(ctx: &KernelCtx, i: usize) -> Result<(Shape, usize)> {
    let (batch, rows, cols) = matrices(ctx, i)?;
    match rows == cols {
        true => Ok((batch, rows)),
        false => Err(invalid_argument!("Input matrix must be square.")),
    }
}

/// Matrices of single precision of this size or larger are decomposed in it, as TensorFlow does; smaller ones in
/// double precision, which costs them little.
pub(crate) const LARGE: usize = 128;

/// Returns a copy of one `n × n` matrix, optionally conjugated and transposed.
pub(crate) fn load<T: Promote>(from: &[T], n: usize, adjoint: bool) -> Vec<T::Wide> {
    load_as(from, n, adjoint, T::promote)
}

/// Like [`load`], with a conversion of the elements.
pub(crate) fn load_as<T: Copy, W: Field>(
    from: &[T],
    n: usize,
    adjoint: bool,
    widen: impl Fn(T) -> W,
) -> Vec<W> {
    match adjoint {
        false => from.iter().map(|&x| widen(x)).collect(),
        true => (0..n * n)
            .map(|i| widen(from[i % n * n + i / n]).conj())
            .collect(),
    }
}

/// Factors `a` in place into unit lower and upper triangles with partial pivoting. Returns the
/// source of each row and whether the number of exchanges is odd.
pub(crate) fn factor<W: Scalar>(a: &mut [W], n: usize) -> (Vec<usize>, bool) {
    if let Some(done) = W::lu(a, n) {
        return done;
    }
    let mut order: Vec<usize> = (0..n).collect();
    let mut odd = false;
    for k in 0..n {
        let size = |r: usize| a[r * n + k].magnitude();
        let pivot = (k + 1..n).fold(k, |best, r| if size(r) > size(best) { r } else { best });
        if pivot != k {
            odd = !odd;
            order.swap(k, pivot);
            for c in 0..n {
                a.swap(k * n + c, pivot * n + c);
            }
        }
        let head = a[k * n + k];
        if head.is_zero() {
            continue;
        }
        let (top, below) = a.split_at_mut((k + 1) * n);
        let top = &top[k * n..];
        for row in below.chunks_exact_mut(n) {
            let factor = row[k].div(head);
            row[k] = factor;
            for (x, t) in row[k + 1..].iter_mut().zip(&top[k + 1..]) {
                *x = x.sub(factor.mul(*t));
            }
        }
    }
    (order, odd)
}

/// Solves `a x = b` in place for a triangular `a` and `b` of `m` columns.
pub(crate) fn substitute<W: Scalar>(
    a: &[W],
    n: usize,
    lower: bool,
    unit: bool,
    b: &mut [W],
    m: usize,
) {
    if W::substitute(a, n, (lower, unit), b, m) {
        return;
    }
    for step in 0..n {
        let r = if lower { step } else { n - 1 - step };
        let others = if lower { 0..r } else { r + 1..n };
        for k in others {
            let factor = a[r * n + k];
            for c in 0..m {
                b[r * m + c] = b[r * m + c].sub(factor.mul(b[k * m + c]));
            }
        }
        if !unit {
            for x in &mut b[r * m..(r + 1) * m] {
                *x = x.div(a[r * n + r]);
            }
        }
    }
}

pub(crate) fn diagonal<W: Field>(a: &[W], n: usize) -> impl Iterator<Item = W> {
    (0..n).map(move |i| a[i * n + i])
}

/// Solves `a x = b`, where `b` has `m` columns.
pub(crate) fn solve_one<W: Scalar>(mut a: Vec<W>, n: usize, b: &[W], m: usize) -> Option<Vec<W>> {
    if let Some(x) = W::solve(&a, n, b, m) {
        return Some(x);
    }
    let (order, _) = factor(&mut a, n);
    if diagonal(&a, n).any(|x| x.is_zero()) {
        return None;
    }
    let mut x: Vec<W> = order
        .iter()
        .flat_map(|&r| &b[r * m..(r + 1) * m])
        .copied()
        .collect();
    substitute(&a, n, true, true, &mut x, m);
    substitute(&a, n, false, false, &mut x, m);
    Some(x)
}

pub(crate) fn store<T: Promote>(from: &[T::Wide], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::demote(*from);
    }
}

pub(crate) fn product<'g>(a: Expr<'g>, b: Expr<'g>, adj_a: bool, adj_b: bool) -> Expr<'g> {
    let attrs = [("adj_x", adj_a.into()), ("adj_y", adj_b.into())];
    a.op_with("BatchMatMulV2", &[b], &attrs)
}

/// Returns the conjugate transpose of matrices.
pub(crate) fn adjoint(e: Expr<'_>) -> Expr<'_> {
    let rank = e.op("Rank", &[]);
    let axes = e.int(0).op("Range", &[rank - e.int(2), e.int(1)]);
    let last = (rank - e.int(1)).op("Pack", &[rank - e.int(2)]);
    let order = e.make("ConcatV2", &[axes, last, e.int(0)], &[]);
    e.op("ConjugateTranspose", &[order])
}

pub(crate) fn square_unchanged(ctx: &mut ShapeCtx) -> Result<()> {
    square_batch(ctx, 0)?;
    ctx.set(0, ctx.input(0));
    Ok(())
}
