//! Special functions of one `f64`.
//!
//! Sources: Abramowitz and Stegun, *Handbook of Mathematical Functions* (digamma 6.3.18, the start
//! of ndtri 26.2.23, incomplete gamma 6.5, zeta by Euler–Maclaurin 23.2); Press et al., *Numerical
//! Recipes*, chapter 6 (series, and continued fractions by the modified Lentz method, of the
//! incomplete gamma and beta functions); Winitzki (2008) for the start of erfinv; the
//! Wilson–Hilferty cube root for huge shapes. Poles and domain errors follow Eigen's
//! `SpecialFunctionsImpl.h`, which TensorFlow uses.

use crate::special_vectors;
use std::f64::consts::PI;

/// Returns the error function. NaN for infinities, as in TensorFlow for this type.
pub fn erf(x: f64) -> f64 {
    if x.is_infinite() {
        f64::NAN
    } else {
        special_vectors::erf(x)
    }
}

/// Returns what is left of the error function to 1.
pub fn erfc(x: f64) -> f64 {
    if x.is_finite() {
        special_vectors::erfc(x)
    } else {
        libm::erfc(x)
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
    if y == 0.0 {
        return y;
    }
    let x = normal_quantile(0.5 * y, 0.5 * (1.0 - y.abs()));
    std::f64::consts::FRAC_1_SQRT_2 * x
}

/// Returns the quantile function of the normal distribution.
pub fn ndtri(p: f64) -> f64 {
    match (0.0..=1.0).contains(&p) {
        true => normal_quantile(p - 0.5, p.min(1.0 - p)),
        false => f64::NAN,
    }
}

/// Returns the quantile of a probability that is `q` above one half, and `tail` away from 0 or 1: each has digits that the
/// other has lost. By rational functions that are exact to 16 digits (Wichura 1988, algorithm AS 241).
fn normal_quantile(q: f64, tail: f64) -> f64 {
    if q.abs() <= 0.425 {
        const NUMERATOR: [f64; 8] = [
            3.387_132_872_796_366_5,
            133.141_667_891_784_38,
            1_971.590_950_306_551_3,
            13_731.693_765_509_46,
            45_921.953_931_549_87,
            67_265.770_927_008_7,
            33_430.575_583_588_13,
            2_509.080_928_730_122_7,
        ];
        const DENOMINATOR: [f64; 8] = [
            1.0,
            42.313_330_701_600_91,
            687.187_007_492_057_9,
            5_394.196_021_424_751,
            21_213.794_301_586_597,
            39_307.895_800_092_71,
            28_729.085_735_721_943,
            5_226.495_278_852_854,
        ];
        return q * ratio(0.180_625 - q * q, &NUMERATOR, &DENOMINATOR);
    }
    if tail == 0.0 {
        return f64::INFINITY.copysign(q);
    }
    let r = (-tail.ln()).sqrt();
    let x = if r <= 5.0 {
        const NUMERATOR: [f64; 8] = [
            1.423_437_110_749_683_5,
            4.630_337_846_156_546,
            5.769_497_221_460_691,
            3.647_848_324_763_204_5,
            1.270_458_252_452_368_4,
            0.241_780_725_177_450_6,
            0.022_723_844_989_269_184,
            0.000_774_545_014_278_341_4,
        ];
        const DENOMINATOR: [f64; 8] = [
            1.0,
            2.053_191_626_637_759,
            1.676_384_830_183_803_8,
            0.689_767_334_985_1,
            0.148_103_976_427_480_08,
            0.015_198_666_563_616_457,
            0.000_547_593_808_499_534_5,
            1.050_750_071_644_416_9e-9,
        ];
        ratio(r - 1.6, &NUMERATOR, &DENOMINATOR)
    } else {
        const NUMERATOR: [f64; 8] = [
            6.657_904_643_501_103,
            5.463_784_911_164_114,
            1.784_826_539_917_291_3,
            0.296_560_571_828_504_87,
            0.026_532_189_526_576_124,
            0.001_242_660_947_388_078_4,
            2.711_555_568_743_487_6e-5,
            2.010_334_399_292_288_1e-7,
        ];
        const DENOMINATOR: [f64; 8] = [
            1.0,
            0.599_832_206_555_888,
            0.136_929_880_922_735_8,
            0.014_875_361_290_850_615,
            0.000_786_869_131_145_613_3,
            1.846_318_317_510_054_8e-5,
            1.421_511_758_316_446e-7,
            2.044_263_103_389_939_7e-15,
        ];
        ratio(r - 5.0, &NUMERATOR, &DENOMINATOR)
    };
    x.copysign(q)
}

/// Returns the ratio of two polynomials, whose constant coefficients come first.
fn ratio(x: f64, numerator: &[f64; 8], denominator: &[f64; 8]) -> f64 {
    let value = |p: &[f64; 8]| p.iter().rev().fold(0.0, |sum, c| sum * x + c);
    value(numerator) / value(denominator)
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
    let step = |i: f64| (-i * (i - a), x + 2.0 * i + 1.0 - a);
    let f = continued_fraction(x + 1.0 - a, step);
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
        // The result has fewer digits than its complement.
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
        // The result may have fewer digits than its complement.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_inverses() {
        let mut tails: Vec<f64> = (1..=500).map(|i| f64::from(i) / 1000.0).collect();
        tails.extend((4..300).map(|i| 10f64.powi(-i)));
        tails.extend([0.074_999, 0.075, 0.075_001, 1.3e-11, 1.4e-11]);
        for p in tails {
            let x = ndtri(p);
            let back = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            // The condition of erfc: a digit of x is x² digits of the probability.
            let most = 4.0 * f64::EPSILON * (1.0 + x * x);
            assert!(
                ((back - p) / p).abs() < most,
                "ndtri({p}) = {x}, back {back}"
            );
            assert_eq!(ndtri(1.0 - p), -ndtri(1.0 - (1.0 - p)), "{p}");
        }
        for i in 1..=1000 {
            for y in [f64::from(i) / 1000.5, f64::from(i) * 1e-20] {
                let x = erfinv(y);
                let back = libm::erf(x);
                let most = 4.0 * f64::EPSILON * (1.0 + 2.0 * x * x * (1.0 - y) / y);
                assert!(
                    ((back - y) / y).abs() < most,
                    "erfinv({y}) = {x}, back {back}"
                );
                assert_eq!(erfinv(-y), -x);
            }
        }
        assert_eq!([ndtri(0.0), ndtri(1.0)], [f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(
            [erfinv(-1.0), erfinv(1.0)],
            [f64::NEG_INFINITY, f64::INFINITY]
        );
        assert!(ndtri(-0.1).is_nan() && ndtri(f64::NAN).is_nan() && erfinv(1.1).is_nan());
        assert_eq!(ndtri(0.5), 0.0);
    }
}
