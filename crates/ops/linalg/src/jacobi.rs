//! Singular value decomposition by one-sided Jacobi rotations (Hestenes), which is accurate for
//! matrices of any rank. Deep matrices are reduced to their triangular factor first.

use crate::qr::{orthogonal, reflect};
use ferroflow_functors::field::Field;

/// Singular values in descending order, and the vectors as the columns of two matrices.
pub(crate) type Singular<W> = (Vec<f64>, Vec<W>, Vec<W>);

/// Rounds of rotations; a handful suffice.
const SWEEPS: usize = 60;

/// Returns the thin decomposition of a row-major `m × n` matrix; `None` if it is not finite.
pub(crate) fn singular_values<W: Field>(a: &[W], m: usize, n: usize) -> Option<Singular<W>> {
    if !a.iter().all(|x| x.magnitude().is_finite()) {
        return None;
    }
    if m < n {
        let turned: Vec<W> = (0..m * n).map(|i| a[i % m * n + i / m].conj()).collect();
        let (s, u, v) = singular_values(&turned, n, m)?;
        return Some((s, v, u));
    }
    let mut triangle = a.to_vec();
    let factors = reflect(&mut triangle, m, n);
    let column = |c: usize| {
        (0..n)
            .map(|r| if r <= c { triangle[r * n + c] } else { W::ZERO })
            .collect()
    };
    let mut columns: Vec<Vec<W>> = (0..n).map(column).collect();
    let unit = |c: usize| {
        (0..n)
            .map(|r| if r == c { W::ONE } else { W::ZERO })
            .collect()
    };
    let mut vectors: Vec<Vec<W>> = (0..n).map(unit).collect();
    rotate(&mut columns, &mut vectors);

    let norms: Vec<f64> = columns.iter().map(|c| norm(c)).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| norms[b].total_cmp(&norms[a]));
    let s: Vec<f64> = order.iter().map(|&i| norms[i]).collect();
    let least = s.first().copied().unwrap_or(0.0) * f64::EPSILON * n as f64;
    // Columns of rounding errors are replaced by others that are orthonormal.
    let rank = s.iter().take_while(|s| **s > least).count();
    let mut u = vec![W::ZERO; n * rank];
    for (k, &from) in order.iter().take(rank).enumerate() {
        let scale = W::from_f64(s[k]);
        for r in 0..n {
            u[r * rank + k] = columns[from][r].div(scale);
        }
    }
    let u = completed(u, n, rank, n);
    let q = orthogonal(&triangle, &factors, m, n, n);
    let u = product(&q, &u, n);
    let v = (0..n * n).map(|i| vectors[order[i % n]][i / n]).collect();
    Some((s, u, v))
}

fn norm<W: Field>(x: &[W]) -> f64 {
    let squares = x.iter().map(|x| x.magnitude().powi(2));
    squares.sum::<f64>().sqrt()
}

/// Returns the product of row-major matrices; `b` is `n × n`.
fn product<W: Field>(a: &[W], b: &[W], n: usize) -> Vec<W> {
    let mut out = vec![W::ZERO; a.len()];
    let rows = a.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(n.max(1)));
    for (a, out) in rows {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (to, b) in out.iter_mut().zip(b) {
                *to = to.add(a.mul(*b));
            }
        }
    }
    out
}

/// Rotates pairs of columns, and those of `vectors` with them, until all are orthogonal.
fn rotate<W: Field>(columns: &mut [Vec<W>], vectors: &mut [Vec<W>]) {
    let n = columns.len();
    for _ in 0..SWEEPS {
        let mut done = true;
        for p in 0..n {
            for q in p + 1..n {
                let (a, b) = (norm(&columns[p]), norm(&columns[q]));
                let terms = columns[p].iter().zip(&columns[q]);
                let dot = terms.fold(W::ZERO, |sum, (x, y)| sum.add(x.conj().mul(*y)));
                let size = dot.magnitude();
                let limit = f64::EPSILON * (n as f64).sqrt() * a * b;
                if size <= limit || size < f64::MIN_POSITIVE {
                    continue;
                }
                done = false;
                let zeta = (b - a) * (b + a) / (2.0 * size);
                let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                let cosine = 1.0 / tangent.hypot(1.0);
                let turn = Turn {
                    cosine: W::from_f64(cosine),
                    sine: W::from_f64(cosine * tangent),
                    phase: dot.div(W::from_f64(size)).conj(),
                };
                turn.apply(columns, p, q);
                turn.apply(vectors, p, q);
            }
        }
        if done {
            return;
        }
    }
}

/// A rotation of two columns, after a change of the second one's phase.
struct Turn<W> {
    cosine: W,
    sine: W,
    phase: W,
}

impl<W: Field> Turn<W> {
    fn apply(&self, columns: &mut [Vec<W>], p: usize, q: usize) {
        let (first, second) = columns.split_at_mut(q);
        for (x, y) in first[p].iter_mut().zip(&mut second[0]) {
            let turned = self.phase.mul(*y);
            let old = *x;
            *x = self.cosine.mul(old).sub(self.sine.mul(turned));
            *y = self.sine.mul(old).add(self.cosine.mul(turned));
        }
    }
}

/// Returns the `m × p` matrix with orthonormal columns with more of them, `size` in all.
pub(crate) fn completed<W: Field>(u: Vec<W>, m: usize, p: usize, size: usize) -> Vec<W> {
    if size == p {
        return u;
    }
    let mut a = u.clone();
    let factors = reflect(&mut a, m, p);
    let mut q = orthogonal(&a, &factors, m, p, size);
    for (row, u) in q.chunks_exact_mut(size).zip(u.chunks_exact(p.max(1))) {
        row[..p].copy_from_slice(&u[..p]);
    }
    q
}
