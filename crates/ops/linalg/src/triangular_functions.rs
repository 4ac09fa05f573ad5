//! Functions of matrices by their Schur form, which `nalgebra` computes: square root and logarithm
//! of upper triangles, eigenvectors; and the exponential (Higham, "Functions of Matrices", 2008).

use crate::dense::Scalar;
use crate::lu::solve_one;
use ferroflow_functors::numeric::Num;
use ferroflow_tensor::Complex64;
use nalgebra::{DMatrix, Schur};

/// Iterations of a decomposition, for each row, before it counts as failed.
const ITERATIONS: usize = 100;

/// A row-major `n × n` matrix.
pub(crate) type Square = Vec<Complex64>;

/// Returns `a b`.
pub(crate) fn times<W: Num>(a: &[W], b: &[W], n: usize) -> Vec<W> {
    let mut out = vec![W::ZERO; n * n];
    for (row, out) in a.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        for (&x, b) in row.iter().zip(b.chunks_exact(n)) {
            for (out, &b) in out.iter_mut().zip(b) {
                *out = out.add(x.mul(b));
            }
        }
    }
    out
}

/// Returns the conjugate transpose.
fn adjoint(a: &[Complex64], n: usize) -> Square {
    (0..n * n).map(|i| a[i % n * n + i / n].conj()).collect()
}

/// Returns unitary `u` and upper triangular `t` with `a = u t u*`; `None` if the iteration does not
/// converge.
pub(crate) fn schur(a: &[Complex64], n: usize) -> Option<(Square, Square)> {
    if a.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let matrix = DMatrix::from_row_slice(n, n, a);
    let (u, t) = Schur::try_new(matrix, f64::EPSILON, ITERATIONS * n)?.unpack();
    let rows = |m: &DMatrix<Complex64>| (0..n * n).map(|i| m[(i / n, i % n)]).collect();
    let upper = |m: &DMatrix<Complex64>| {
        let at = |i: usize| {
            if i / n > i % n {
                Complex64::ZERO
            } else {
                m[(i / n, i % n)]
            }
        };
        (0..n * n).map(at).collect()
    };
    Some((rows(&u), upper(&t)))
}

/// Returns the eigenvalues of a real matrix in the order of its real Schur form, the one with the
/// positive imaginary part first of each pair.
pub(crate) fn real_eigenvalues(a: &[f64], n: usize) -> Option<Vec<Complex64>> {
    if a.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let matrix = DMatrix::from_row_slice(n, n, a);
    let (_, t) = Schur::try_new(matrix, f64::EPSILON, ITERATIONS * n)?.unpack();
    let mut values = Vec::with_capacity(n);
    while values.len() < n {
        let i = values.len();
        if i + 1 == n || t[(i + 1, i)] == 0.0 {
            values.push(Complex64::new(t[(i, i)], 0.0));
            continue;
        }
        let (p, last) = (0.5 * (t[(i, i)] - t[(i + 1, i + 1)]), t[(i + 1, i + 1)]);
        let q = p * p + t[(i + 1, i)] * t[(i, i + 1)];
        let z = q.abs().sqrt();
        match q < 0.0 {
            true => values.extend([Complex64::new(last + p, z), Complex64::new(last + p, -z)]),
            false => {
                let z = if p >= 0.0 { p + z } else { p - z };
                let second = if z == 0.0 {
                    last
                } else {
                    last - t[(i + 1, i)] * t[(i, i + 1)] / z
                };
                values.extend([Complex64::new(last + z, 0.0), Complex64::new(second, 0.0)]);
            }
        }
    }
    Some(values)
}

/// Returns the eigenvectors of `u t u*`, of length one, as the columns of a matrix.
pub(crate) fn eigenvectors(u: &[Complex64], t: &[Complex64], n: usize) -> Square {
    let size = t.iter().fold(0.0, |m, x| x.norm().max(m));
    let least = (size * f64::EPSILON).max(f64::MIN_POSITIVE);
    let mut x = vec![Complex64::ZERO; n * n];
    for k in (0..n).rev() {
        x[k * n + k] = Complex64::ONE;
        for i in (0..k).rev() {
            let sum: Complex64 = (i + 1..=k).map(|j| t[i * n + j] * x[j * n + k]).sum();
            let mut difference = t[i * n + i] - t[k * n + k];
            if difference.norm() < least {
                difference = Complex64::new(least, 0.0);
            }
            x[i * n + k] = -sum / difference;
        }
    }
    let mut v = times(u, &x, n);
    for k in 0..n {
        let norm = (0..n).map(|i| v[i * n + k].norm_sqr()).sum::<f64>().sqrt();
        if norm > 0.0 {
            (0..n).for_each(|i| v[i * n + k] /= norm);
        }
    }
    v
}

/// Returns the principal square root of an upper triangle (Björck and Hammarling, 1983).
fn root_of_triangle(t: &[Complex64], n: usize) -> Square {
    let mut r = vec![Complex64::ZERO; n * n];
    for j in 0..n {
        r[j * n + j] = t[j * n + j].sqrt();
        for i in (0..j).rev() {
            let known: Complex64 = (i + 1..j).map(|k| r[i * n + k] * r[k * n + j]).sum();
            let rest = t[i * n + j] - known;
            let sum = r[i * n + i] + r[j * n + j];
            r[i * n + j] = if rest == Complex64::ZERO {
                rest
            } else {
                rest / sum
            };
        }
    }
    r
}

/// Returns the principal square root.
pub(crate) fn square_root(a: &[Complex64], n: usize) -> Option<Square> {
    let (u, t) = schur(a, n)?;
    let r = times(&u, &root_of_triangle(&t, n), n);
    Some(times(&r, &adjoint(&u, n), n))
}

/// Nodes and weights of Gauss-Legendre quadrature on [0, 1], by which the partial fractions of the
/// Padé approximant of the logarithm are known.
fn quadrature() -> [(f64, f64); 8] {
    const HALVES: [(f64, f64); 4] = [
        (0.183_434_642_495_649_8, 0.362_683_783_378_362),
        (0.525_532_409_916_329, 0.313_706_645_877_887_27),
        (0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
        (0.960_289_856_497_536_3, 0.101_228_536_290_376_26),
    ];
    let side = |i: usize| {
        let (x, w) = HALVES[i / 2];
        let x = if i.is_multiple_of(2) { x } else { -x };
        ((x + 1.0) / 2.0, w / 2.0)
    };
    std::array::from_fn(side)
}

/// The largest distance from the identity at which the approximant is exact enough.
const NEAR: f64 = 0.2;

/// Square roots after which every matrix is near the identity.
const MOST_ROOTS: usize = 100;

/// Returns the principal logarithm of an upper triangle: that of a root near the identity, times a
/// power of two.
fn log_of_triangle(t: &[Complex64], n: usize) -> Square {
    let mut x = t.to_vec();
    let mut scale = 1.0;
    let distance = |x: &[Complex64]| {
        let column = |j: usize| {
            let at = |i: usize| (x[i * n + j] - Complex64::new(f64::from(i == j), 0.0)).norm();
            (0..n).map(at).sum::<f64>()
        };
        (0..n).map(column).fold(0.0, f64::max)
    };
    for _ in 0..MOST_ROOTS {
        if distance(&x) <= NEAR {
            break;
        }
        x = root_of_triangle(&x, n);
        scale *= 2.0;
    }
    for i in 0..n {
        x[i * n + i] -= 1.0;
    }
    let mut sum = vec![Complex64::ZERO; n * n];
    for (node, weight) in quadrature() {
        // Solves (I + node x) y = x from the last row up.
        let mut y = x.clone();
        for i in (0..n).rev() {
            for k in i + 1..n {
                let factor = x[i * n + k] * node;
                for j in k..n {
                    let known = y[k * n + j];
                    y[i * n + j] -= factor * known;
                }
            }
            let head = x[i * n + i] * node + 1.0;
            (i..n).for_each(|j| y[i * n + j] /= head);
        }
        sum.iter_mut()
            .zip(&y)
            .for_each(|(sum, y)| *sum += y * weight);
    }
    sum.iter_mut().for_each(|x| *x *= scale);
    for i in 0..n {
        sum[i * n + i] = t[i * n + i].ln();
    }
    sum
}

/// Returns the principal logarithm.
pub(crate) fn logarithm(a: &[Complex64], n: usize) -> Option<Square> {
    let (u, t) = schur(a, n)?;
    let l = times(&u, &log_of_triangle(&t, n), n);
    Some(times(&l, &adjoint(&u, n), n))
}

/// The numerator of the Padé approximant of degree 13 of the exponential.
const PADE: [f64; 14] = [
    64_764_752_532_480_000.0,
    32_382_376_266_240_000.0,
    7_771_770_303_897_600.0,
    1_187_353_796_428_800.0,
    129_060_195_264_000.0,
    10_559_470_521_600.0,
    670_442_572_800.0,
    33_522_128_640.0,
    1_323_241_920.0,
    40_840_800.0,
    960_960.0,
    16_380.0,
    182.0,
    1.0,
];

/// The largest norm at which that approximant is exact in double precision.
const PADE_NORM: f64 = 5.371_920_351_148_152;

/// Returns the exponential: that of a fraction of the matrix, squared.
pub(crate) fn exponential<W: Scalar>(a: &[W], n: usize) -> Option<Vec<W>> {
    let column = |j: usize| (0..n).map(|i| a[i * n + j].magnitude()).sum::<f64>();
    let norm = (0..n).map(column).fold(0.0, f64::max);
    if !norm.is_finite() {
        return None;
    }
    let squarings = (norm / PADE_NORM).log2().ceil().max(0.0) as i32;
    let scale = W::from_f64(0.5f64.powi(squarings));
    let a: Vec<W> = a.iter().map(|x| x.mul(scale)).collect();
    let a2 = times(&a, &a, n);
    // Even and odd terms share the powers of the square.
    let terms = |first: usize| {
        let mut sum = vec![W::ZERO; n * n];
        for k in (first..PADE.len()).step_by(2).rev() {
            sum = times(&sum, &a2, n);
            (0..n).for_each(|i| sum[i * n + i] = sum[i * n + i].add(W::from_f64(PADE[k])));
        }
        sum
    };
    let (even, odd) = (terms(0), times(&a, &terms(1), n));
    let numerator: Vec<W> = even.iter().zip(&odd).map(|(v, u)| v.add(*u)).collect();
    let denominator: Vec<W> = even.iter().zip(&odd).map(|(v, u)| v.sub(*u)).collect();
    let mut x = solve_one(denominator, n, &numerator, n)?;
    for _ in 0..squarings {
        x = times(&x, &x, n);
    }
    Some(x)
}
