//! Special functions of one `f64`.

use std::f64::consts::PI;

/// The error function, with what TensorFlow has for infinities of this type: not a number.
pub(crate) fn erf(x: f64) -> f64 {
    if x.is_infinite() {
        f64::NAN
    } else {
        libm::erf(x)
    }
}

/// ln |Γ(x)|.
pub(crate) fn lgamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// The derivative of ln Γ; not a number at zero and the negative integers.
pub(crate) fn digamma(x: f64) -> f64 {
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

/// The inverse of the error function.
pub(crate) fn erfinv(y: f64) -> f64 {
    if !(-1.0..=1.0).contains(&y) {
        return f64::NAN;
    }
    if y.abs() == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    if y == 0.0 {
        return y;
    }
    // A start good to a few digits, then Newton's method on erf or, in the tail, on erfc.
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
        // Halley's correction makes three rounds enough.
        x -= step / (1.0 + x * step);
    }
    x.copysign(y)
}

/// The quantile function of the normal distribution.
pub(crate) fn ndtri(p: f64) -> f64 {
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
