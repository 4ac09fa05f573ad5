//! Special functions of several numbers, of blocks of [`LANES`] at a time: expansions go on until the last of a block has
//! converged, so that loops over blocks are vectorized. Sources: as of [`special`](crate::special).

use crate::double::{exp, ln, ln_1p};
use crate::special_vectors::lgamma;
use crate::vectorized;

/// Numbers of a block.
pub const LANES: usize = 16;

/// The numbers of a block.
pub type Block = [f64; LANES];

/// Steps after which an expansion ends in any case.
const STEPS: usize = 10_000;

/// Applies a function to each number of a block.
#[inline(always)]
fn each(x: &Block, f: impl Fn(f64) -> f64) -> Block {
    let mut y = *x;
    for y in &mut y {
        *y = f(*y);
    }
    y
}

/// Keeps what is divided by away from zero.
#[inline(always)]
fn kept(x: f64) -> f64 {
    if x.abs() < 1e-300 { 1e-300 } else { x }
}

/// A continued fraction by the modified Lentz method.
struct Fraction {
    value: Block,
    c: Block,
    d: Block,
    /// The least change of each lane so far: once converged, it may change in the last digit.
    change: Block,
}

impl Fraction {
    #[inline(always)]
    fn new(first: &Block) -> Fraction {
        let first = each(first, kept);
        Fraction {
            value: first,
            c: first,
            d: [0.0; LANES],
            change: [1.0; LANES],
        }
    }

    /// Adds a term `over / (under + …)` of each lane; returns whether all have converged.
    #[inline(always)]
    fn add(&mut self, term: impl Fn(usize) -> (f64, f64), precision: f64) -> bool {
        let mut is_done = true;
        for i in 0..LANES {
            let (over, under) = term(i);
            let d = 1.0 / kept(under + over * self.d[i]);
            let c = kept(under + over / self.c[i]);
            let factor = c * d;
            self.value[i] *= factor;
            (self.c[i], self.d[i]) = (c, d);
            self.change[i] = self.change[i].min((factor - 1.0).abs());
            is_done &= self.change[i] < precision;
        }
        is_done
    }
}

/// Computes the regularized incomplete beta function of positive shapes and numbers between 0 and 1.
pub fn betainc(a: &Block, b: &Block, x: &Block, precision: f64) -> Block {
    vectorized(
        #[inline(always)]
        || {
            let (mut p, mut q, mut z) = (*a, *b, *x);
            let mut front = [0.0; LANES];
            for i in 0..LANES {
                let log_beta = lgamma(p[i]) + lgamma(q[i]) - lgamma(p[i] + q[i]);
                front[i] = exp(p[i] * ln(z[i]) + q[i] * ln_1p(-z[i]) - log_beta);
                let is_far = z[i] >= (p[i] + 1.0) / (p[i] + q[i] + 2.0);
                let other = (q[i], p[i], 1.0 - z[i]);
                p[i] = if is_far { other.0 } else { p[i] };
                q[i] = if is_far { other.1 } else { q[i] };
                z[i] = if is_far { other.2 } else { z[i] };
            }
            let mut fraction = Fraction::new(&[1.0; LANES]);
            for step in 1..STEPS {
                let n = step as f64;
                let m = (n * 0.5).floor();
                let is_even = step % 2 == 0;
                let is_done = fraction.add(
                    #[inline(always)]
                    |i| {
                        let under = (p[i] + n - 1.0) * (p[i] + n);
                        let over = match is_even {
                            true => m * (q[i] - m),
                            false => -(p[i] + m) * (p[i] + q[i] + m),
                        };
                        (over * z[i] / under, 1.0)
                    },
                    precision,
                );
                if is_done {
                    break;
                }
            }
            let mut y = [0.0; LANES];
            for i in 0..LANES {
                let near = front[i] / (p[i] * fraction.value[i]);
                let is_far = x[i] >= (a[i] + 1.0) / (a[i] + b[i] + 2.0);
                y[i] = if is_far { 1.0 - near } else { near };
            }
            y
        },
    )
}

/// Computes the regularized incomplete gamma function of positive numbers: the upper one if `IS_UPPER`.
pub fn igamma<const IS_UPPER: bool>(a: &Block, x: &Block, precision: f64) -> Block {
    vectorized(
        #[inline(always)]
        || {
            let mut is_series = [false; LANES];
            for i in 0..LANES {
                is_series[i] = x[i] < a[i] + 1.0;
            }
            let chosen = |which: bool, x: &Block, other: f64| {
                let mut y = *x;
                for i in 0..LANES {
                    y[i] = if is_series[i] == which { x[i] } else { other };
                }
                y
            };
            let mut lower = [0.0; LANES];
            if is_series.contains(&true) {
                lower = gamma_series(&chosen(true, a, 1.0), &chosen(true, x, 0.5), precision);
            }
            let mut upper = [1.0; LANES];
            if is_series.contains(&false) {
                upper = gamma_fraction(&chosen(false, a, 1.0), &chosen(false, x, 9.0), precision);
            }
            let mut y = [0.0; LANES];
            for i in 0..LANES {
                let factor = exp(a[i] * ln(x[i]) - x[i] - lgamma(a[i]));
                let (lower, upper) = (lower[i] * factor, factor / upper[i]);
                y[i] = match IS_UPPER {
                    true if is_series[i] => 1.0 - lower,
                    false if !is_series[i] => 1.0 - upper,
                    true => upper,
                    false => lower,
                };
            }
            y
        },
    )
}

#[inline(always)]
fn gamma_series(a: &Block, x: &Block, precision: f64) -> Block {
    let mut term = each(a, |a| 1.0 / a);
    let mut sum = term;
    for step in 1..STEPS {
        let mut is_done = true;
        for i in 0..LANES {
            term[i] *= x[i] / (a[i] + step as f64);
            sum[i] += term[i];
            is_done &= term[i] < sum[i] * precision;
        }
        if is_done {
            break;
        }
    }
    sum
}

#[inline(always)]
fn gamma_fraction(a: &Block, x: &Block, precision: f64) -> Block {
    let mut first = *x;
    for i in 0..LANES {
        first[i] = x[i] + 1.0 - a[i];
    }
    let mut fraction = Fraction::new(&first);
    for step in 1..STEPS {
        let n = step as f64;
        let is_done = fraction.add(
            #[inline(always)]
            |i| (-n * (n - a[i]), first[i] + 2.0 * n),
            precision,
        );
        if is_done {
            break;
        }
    }
    fraction.value
}

/// Computes the Hurwitz zeta function of numbers beyond 1 and positive `q`.
pub fn zeta(x: &Block, q: &Block) -> Block {
    // Euler and Maclaurin: a few terms of the sum, then its integral and corrections.
    const DIRECT: usize = 12;
    // Bernoulli numbers over factorials of twice the index.
    const COEFFICIENTS: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
        -3617.0 / 10_670_622_842_880_000.0,
    ];
    vectorized(
        #[inline(always)]
        || {
            let mut sum = [0.0; LANES];
            for k in 0..DIRECT {
                for i in 0..LANES {
                    sum[i] += exp(-x[i] * ln(q[i] + k as f64));
                }
            }
            for i in 0..LANES {
                let w = q[i] + DIRECT as f64;
                let power = exp(-x[i] * ln(w));
                let mut total = sum[i] + power * w / (x[i] - 1.0) + 0.5 * power;
                let mut factor = x[i] * power / w;
                for (k, c) in COEFFICIENTS.iter().enumerate() {
                    total += c * factor;
                    let s = x[i] + 2.0 * k as f64;
                    factor *= (s + 1.0) * (s + 2.0) / (w * w);
                }
                sum[i] = total;
            }
            sum
        },
    )
}
