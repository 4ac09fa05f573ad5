//! Derivatives of the incomplete gamma functions by their shape, by forward differentiation of the
//! expansions in [`crate::special`] (TensorFlow: `igamma_der_a` and `gamma_sample_der_alpha` in
//! Eigen's `SpecialFunctionsImpl.h`). Samples are differentiated implicitly (Figurnov, Mohamed and
//! Mnih, 2018).

use crate::special::{GAMMA_TERMS, HUGE_SHAPE, digamma, gamma_deviation, lgamma};
use std::f64::consts::FRAC_2_SQRT_PI;

/// A number and its derivative.
#[derive(Clone, Copy)]
struct Dual(f64, f64);

impl Dual {
    fn plus(self, other: Dual) -> Dual {
        Dual(self.0 + other.0, self.1 + other.1)
    }

    fn times(self, other: Dual) -> Dual {
        Dual(self.0 * other.0, self.0 * other.1 + self.1 * other.0)
    }

    fn over(self, other: Dual) -> Dual {
        let quotient = self.0 / other.0;
        Dual(quotient, (self.1 - quotient * other.1) / other.0)
    }

    /// Returns the number, or a tiny one that can be divided by.
    fn kept(self) -> Dual {
        match self.0.abs() < 1e-300 {
            true => Dual(1e-300, 0.0),
            false => self,
        }
    }
}

/// Returns `Γ(a) e^x x^-a P(a, x)` and its derivative by `a`, for `x < a + 1`.
fn series(a: f64, x: f64) -> Dual {
    let mut n = Dual(a, 1.0);
    let mut term = Dual(1.0, 0.0).over(n);
    let mut sum = term;
    for _ in 0..GAMMA_TERMS {
        n.0 += 1.0;
        term = term.times(Dual(x, 0.0).over(n));
        sum = sum.plus(term);
        if term.0 < sum.0 * f64::EPSILON && term.1.abs() <= sum.1.abs() * f64::EPSILON {
            break;
        }
    }
    sum
}

/// Returns `Γ(a) e^x x^-a Q(a, x)` and its derivative by `a`, for `x >= a + 1`, by a continued
/// fraction.
fn fraction(a: f64, x: f64) -> Dual {
    let first = Dual(x + 1.0 - a, -1.0).kept();
    let (mut f, mut c, mut d) = (first, first, Dual(0.0, 0.0));
    for i in 1..GAMMA_TERMS {
        let i = i as f64;
        let (p, q) = (Dual(-i * (i - a), i), Dual(x + 2.0 * i + 1.0 - a, -1.0));
        d = Dual(1.0, 0.0).over(q.plus(p.times(d)).kept());
        c = q.plus(p.over(c)).kept();
        let step = c.times(d);
        f = f.times(step);
        if (step.0 - 1.0).abs() < f64::EPSILON && step.1.abs() < f64::EPSILON {
            break;
        }
    }
    Dual(1.0, 0.0).over(f)
}

/// Returns the derivative of P(a, x) by `a`, and its ratio to the derivative by `x`.
fn by_shape(a: f64, x: f64) -> (f64, f64) {
    if a.is_nan() || x.is_nan() || a <= 0.0 || x < 0.0 || a.is_infinite() || x.is_infinite() {
        return (f64::NAN, f64::NAN);
    }
    if x == 0.0 {
        return (0.0, 0.0);
    }
    if a > HUGE_SHAPE {
        let (deviation, root) = (gamma_deviation(a, x), (x / a).cbrt());
        let scale = 3.0 * (a / 2.0).sqrt();
        let by_a = scale * (-root / (3.0 * a) - 1.0 / (9.0 * a * a)) + deviation / (2.0 * a);
        let density = 0.5 * FRAC_2_SQRT_PI * (-deviation * deviation).exp();
        return (density * by_a, by_a / (scale * root / (3.0 * x)));
    }
    // The logarithmic derivative of the factor before the expansions, `e^-x x^a / Γ(a)`.
    let growth = x.ln() - digamma(a);
    let over_factor = match x < a + 1.0 {
        true => {
            let p = series(a, x);
            p.1 + p.0 * growth
        }
        false => {
            let q = fraction(a, x);
            -(q.1 + q.0 * growth)
        }
    };
    let factor = (a * x.ln() - x - lgamma(a)).exp();
    (over_factor * factor, over_factor * x)
}

/// Returns the derivative of the regularized lower incomplete gamma function by its shape.
pub fn igamma_by_shape(a: f64, x: f64) -> f64 {
    by_shape(a, x).0
}

/// Returns the derivative of a sample of a gamma distribution by its shape, at constant cumulative
/// probability.
pub fn sample_by_shape(alpha: f64, sample: f64) -> f64 {
    -by_shape(alpha, sample).1
}

#[cfg(test)]
mod tests {
    use super::{igamma_by_shape, sample_by_shape};
    use crate::special::igamma;

    #[test]
    fn as_small_steps_show() {
        let check = |a: f64, x: f64, tol: f64| {
            let h = 1e-5 * a;
            let steps = (igamma(a + h, x) - igamma(a - h, x)) / (2.0 * h);
            let got = igamma_by_shape(a, x);
            assert!(
                (got - steps).abs() <= tol * steps.abs(),
                "{a} {x}: {got} {steps}"
            );
            let k = 1e-5 * x;
            let density = (igamma(a, x + k) - igamma(a, x - k)) / (2.0 * k);
            let moved = sample_by_shape(a, x);
            assert!(
                (moved + steps / density).abs() <= tol * moved.abs(),
                "{a} {x}: {moved}"
            );
        };
        for (a, x) in [
            (0.5, 0.2),
            (0.5, 3.0),
            (2.0, 1.0),
            (2.0, 3.5),
            (10.0, 9.0),
            (10.0, 14.0),
        ] {
            check(a, x, 1e-6);
        }
        for (a, x) in [(200.0, 190.0), (200.0, 215.0), (3e6, 3.001e6)] {
            check(a, x, 1e-4);
        }
        assert!(igamma_by_shape(-1.0, 1.0).is_nan());
        assert_eq!(igamma_by_shape(1.0, 0.0), 0.0);
    }
}
