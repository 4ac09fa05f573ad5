//! Special functions of one `f64`.
//!
//! Sources: Abramowitz and Stegun, *Handbook of Mathematical Functions* (digamma 6.3.18, the start
//! of ndtri 26.2.23, incomplete gamma 6.5, zeta by Euler–Maclaurin 23.2); Press et al., *Numerical
//! Recipes*, chapter 6 (series, and continued fractions by the modified Lentz method, of the
//! incomplete gamma and beta functions); Winitzki (2008) for the start of erfinv; the
//! Wilson–Hilferty cube root for huge shapes. Poles and domain errors follow Eigen's
//! `SpecialFunctionsImpl.h`, which TensorFlow uses.

use std::f64::consts::PI;

/// Returns the error function. NaN for infinities, as in TensorFlow for this type.
pub fn erf(x: f64) -> f64 {
    if x.is_infinite() {
        f64::NAN
    } else {
        libm::erf(x)
    }
}

/// ln |Γ(x)|.
pub fn lgamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Returns the derivative of ln Γ; NaN at zero and the negative integers.
pub fn digamma(x: f64) -> f64 {
    if x.is_nan() || x == f64::NEG_INFINITY || (x <= 0.0 && x == x.floor()) {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return x;
    }
    if x < 0.0 {
        // ψ(1 - x) - π cot(πx), with the cotangent's argument reduced first.
        let fraction = x - x.round();
        let cot = if fraction.abs() == 0.5 {
            0.0
        } else {
            PI / (PI * fraction).tan()
        };
        return digamma(1.0 - x) - cot;
    }
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift += 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    // Bernoulli numbers over 2n.
    let series = [
        1.0 / 12.0,
        -1.0 / 120.0,
        1.0 / 252.0,
        -1.0 / 240.0,
        1.0 / 132.0,
        -691.0 / 32760.0,
        1.0 / 12.0,
    ];
    let tail = series.iter().rev().fold(0.0, |sum, c| (sum + c) * z);
    x.ln() - 0.5 / x - tail - shift
}

/// Returns the inverse of the error function.
pub fn erfinv(y: f64) -> f64 {
    if !(-1.0..=1.0).contains(&y) {
        return f64::NAN;
    }
    if y.abs() == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    if y == 0.0 {
        return y;
    }
    // An estimate good to a few digits, then Newton's method on erf or, in the tail, on erfc.
    let a = 0.147;
    let l = (-y * y).ln_1p();
    let t = 2.0 / (PI * a) + l / 2.0;
    let mut x = ((t * t - l / a).sqrt() - t).sqrt();
    let y_abs = y.abs();
    for _ in 0..4 {
        let error = if y_abs < 0.5 {
            libm::erf(x) - y_abs
        } else {
            (1.0 - y_abs) - libm::erfc(x)
        };
        let step = error * PI.sqrt() / 2.0 * (x * x).exp();
        // With Halley's correction three rounds suffice.
        x -= step / (1.0 + x * step);
    }
    x.copysign(y)
}

/// Returns the quantile function of the normal distribution.
pub fn ndtri(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p == 0.0 || p == 1.0 {
        return f64::INFINITY.copysign(p - 0.5);
    }
    if p == 0.5 {
        return 0.0;
    }
    // From the nearer tail, where the probability keeps its digits.
    let tail = p.min(1.0 - p);
    let mut x = if tail < 0.02 {
        let t = (-2.0 * tail.ln()).sqrt();
        t - (2.515517 + t * (0.802853 + t * 0.010328))
            / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    } else {
        std::f64::consts::SQRT_2 * erfinv(1.0 - 2.0 * tail)
    };
    for _ in 0..4 {
        let error = 0.5 * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2) - tail;
        let step = -error * (2.0 * PI).sqrt() * (0.5 * x * x).exp();
        x -= step / (1.0 + 0.5 * x * step);
    }
    if p < 0.5 { -x } else { x }
}

/// Returns e^-x x^a / Γ(a), the factor before the incomplete gamma expansions.
fn gamma_factor(a: f64, x: f64) -> f64 {
    (a * x.ln() - x - libm::lgamma(a)).exp()
}

/// Maximal number of terms of an expansion.
pub const GAMMA_TERMS: usize = 20_000;

/// Returns the lower incomplete gamma function by its power series, for `x < a + 1`.
fn igamma_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    for _ in 0..GAMMA_TERMS {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term < sum * f64::EPSILON {
            break;
        }
    }
    sum * gamma_factor(a, x)
}

/// Returns a continued fraction `b0 + a1 / (b1 + a2 / (b2 + …))` by the modified Lentz method.
fn continued_fraction(b0: f64, mut step: impl FnMut(f64) -> (f64, f64)) -> f64 {
    let keep = |x: f64| if x.abs() < 1e-300 { 1e-300 } else { x };
    let (mut f, mut c, mut d) = (keep(b0), keep(b0), 0.0);
    for i in 1..GAMMA_TERMS {
        let (a, b) = step(i as f64);
        d = 1.0 / keep(b + a * d);
        c = keep(b + a / c);
        f *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    f
}

/// Returns the upper incomplete gamma function by its continued fraction, for `x >= a + 1`.
fn igammac_fraction(a: f64, x: f64) -> f64 {
    let f = continued_fraction(x + 1.0 - a, |i| (-i * (i - a), x + 2.0 * i + 1.0 - a));
    gamma_factor(a, x) / f
}

/// Shape from which the cube root of a gamma variable counts as normally distributed.
pub const HUGE_SHAPE: f64 = 1e6;

/// Returns the deviation of the cube root of `x` from its mean, in standard deviations over √2
/// (Wilson and Hilferty, 1931).
pub fn gamma_deviation(a: f64, x: f64) -> f64 {
    ((x / a).cbrt() - 1.0 + 1.0 / (9.0 * a)) * 3.0 * (a / 2.0).sqrt()
}

/// Returns the regularized lower incomplete gamma function.
pub fn igamma(a: f64, x: f64) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    if a.is_nan() || x.is_nan() || a <= 0.0 || x < 0.0 {
        return f64::NAN;
    }
    if a.is_infinite() || x.is_infinite() {
        return if a.is_infinite() { 0.0 } else { 1.0 };
    }
    if a > HUGE_SHAPE {
        return 0.5 * libm::erfc(-gamma_deviation(a, x));
    }
    match x < a + 1.0 {
        true => igamma_series(a, x),
        false => 1.0 - igammac_fraction(a, x),
    }
}

/// Returns the regularized upper incomplete gamma function.
pub fn igammac(a: f64, x: f64) -> f64 {
    if a.is_nan() || x.is_nan() || a <= 0.0 || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return 1.0;
    }
    if a.is_infinite() || x.is_infinite() {
        return if x.is_infinite() { 0.0 } else { 1.0 };
    }
    if a > HUGE_SHAPE {
        return 0.5 * libm::erfc(gamma_deviation(a, x));
    }
    match x < a + 1.0 {
        true => 1.0 - igamma_series(a, x),
        false => igammac_fraction(a, x),
    }
}

/// Returns the regularized incomplete beta function.
pub fn betainc(a: f64, b: f64, x: f64) -> f64 {
    if !(a > 0.0 && b > 0.0 && (0.0..=1.0).contains(&x)) {
        return f64::NAN;
    }
    if x == 0.0 || x == 1.0 {
        return x;
    }
    let log_beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
    let front = (a * x.ln() + b * (-x).ln_1p() - log_beta).exp();
    let expand = |a: f64, b: f64, x: f64| {
        let f = continued_fraction(1.0, |i| {
            let m = (i / 2.0).floor();
            let numerator = if i % 2.0 == 0.0 {
                m * (b - m) * x / ((a + i - 1.0) * (a + i))
            } else {
                -(a + m) * (a + b + m) * x / ((a + i - 1.0) * (a + i))
            };
            (numerator, 1.0)
        });
        front / (a * f)
    };
    match x < (a + 1.0) / (a + b + 2.0) {
        true => expand(a, b, x),
        false => 1.0 - expand(b, a, 1.0 - x),
    }
}

/// Returns the Hurwitz zeta function.
pub fn zeta(x: f64, q: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    if x.is_nan() || q.is_nan() || x < 1.0 {
        return f64::NAN;
    }
    let (mut q, mut sum) = (q, 0.0);
    if q <= 0.0 {
        if q == q.floor() {
            return if x % 2.0 == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            };
        }
        if x != x.floor() || q < -10_000.0 {
            return f64::NAN;
        }
        while q <= 0.0 {
            sum += q.powf(-x);
            q += 1.0;
        }
    }
    // Euler and Maclaurin: a few terms of the sum, then its integral and corrections.
    const DIRECT: usize = 12;
    for k in 0..DIRECT {
        sum += (q + k as f64).powf(-x);
    }
    let w = q + DIRECT as f64;
    sum += w.powf(1.0 - x) / (x - 1.0) + 0.5 * w.powf(-x);
    // Bernoulli numbers over factorials of twice the index.
    const COEFFICIENTS: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1209600.0,
        1.0 / 47900160.0,
        -691.0 / 1307674368000.0,
        1.0 / 74724249600.0,
        -3617.0 / 10670622842880000.0,
    ];
    let mut factor = x * w.powf(-x - 1.0);
    for (k, c) in COEFFICIENTS.iter().enumerate() {
        sum += c * factor;
        let s = x + 2.0 * k as f64;
        factor *= (s + 1.0) * (s + 2.0) / (w * w);
    }
    sum
}

/// Returns the `n`-th derivative of the digamma function.
pub fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * libm::tgamma(n + 1.0) * zeta(n + 1.0, x)
}
