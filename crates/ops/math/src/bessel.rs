//! Bessel functions and other special functions of one tensor.

use crate::unary::{FLOATS, special_kernel, times};
use ferroflow_functors::unary::unary_op;
use ferroflow_opdef::{Expr, GradientCtx, Op};
use spec_math::cephes64;
use std::f64::consts::{FRAC_PI_2, LN_2};

/// A function of one number and its derivative, an expression of the input and the output.
macro_rules! function {
    ($name:literal, $f:expr, $derivative:expr) => {
        unary_op($name, FLOATS, |build| special_kernel(build, $f))
            .gradient(|g: &mut GradientCtx| times(g, $derivative))
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    function!("BesselI0", cephes64::i0, |x, _| x.op("BesselI1", &[])),
    function!("BesselI0e", cephes64::i0e, |x, y| x.op("BesselI1e", &[])
        - x.op("Sign", &[]) * y),
    // TensorFlow returns 1 at zero, though the limit is one half.
    function!("BesselI1", cephes64::i1, |x, y| at_zero(
        x,
        1.0,
        x.op("BesselI0", &[]) - y / x
    )),
    function!("BesselI1e", cephes64::i1e, |x, y| at_zero(
        x,
        0.5,
        x.op("BesselI0e", &[]) - y * (x.op("Sign", &[]) + x.op("Reciprocal", &[]))
    )),
    function!("BesselJ0", cephes64::j0, |x, _| -x.op("BesselJ1", &[])),
    function!("BesselJ1", cephes64::j1, |x, y| at_zero(
        x,
        0.5,
        x.op("BesselJ0", &[]) - y / x
    )),
    function!(
        "BesselK0",
        |x| positive(x, f64::INFINITY, cephes64::k0),
        |x, _| -x.op("BesselK1", &[])
    ),
    function!(
        "BesselK0e",
        |x| positive(x, f64::INFINITY, cephes64::k0e),
        |x, y| y - x.op("BesselK1e", &[])
    ),
    function!(
        "BesselK1",
        |x| positive(x, f64::INFINITY, cephes64::k1),
        |x, y| -x.op("BesselK0", &[]) - y / x
    ),
    function!(
        "BesselK1e",
        |x| positive(x, f64::INFINITY, cephes64::k1e),
        |x, y| y * (1.0 - x.op("Reciprocal", &[])) - x.op("BesselK0e", &[])
    ),
    function!(
        "BesselY0",
        |x| positive(x, f64::NEG_INFINITY, cephes64::y0),
        |x, _| -x.op("BesselY1", &[])
    ),
    function!(
        "BesselY1",
        |x| positive(x, f64::NEG_INFINITY, cephes64::y1),
        |x, y| x.op("BesselY0", &[]) - y / x
    ),
    function!("Dawsn", dawsn, |x, y| 1.0 - x * y * 2.0),
    function!("Expint", expint, |x, _| x.op("Exp", &[]) / x),
    function!("FresnelCos", |x| fresnel(x).1, |x, _| quarter(x)
        .op("Cos", &[])),
    function!("FresnelSin", |x| fresnel(x).0, |x, _| quarter(x)
        .op("Sin", &[])),
    function!("Spence", spence, |x, _| {
        let slope = x.op("Log", &[]) / (1.0 - x);
        x.number(-1.0)
            .where_(x.op("Equal", &[x.number(1.0)]), slope)
    }),
];

/// Returns `value` where `x` is zero, else `slope`.
fn at_zero<'g>(x: Expr<'g>, value: f64, slope: Expr<'g>) -> Expr<'g> {
    x.number(value)
        .where_(x.op("Equal", &[x.number(0.0)]), slope)
}

/// Returns `x² π / 2`.
fn quarter(x: Expr<'_>) -> Expr<'_> {
    x.op("Square", &[]) * FRAC_PI_2
}

/// Evaluates `f` for positive `x`; returns its limit `pole` at zero and below.
fn positive(x: f64, pole: f64, f: fn(f64) -> f64) -> f64 {
    match x {
        _ if x <= 0.0 => pole,
        _ if x.is_infinite() && pole < 0.0 => f64::NAN,
        _ if x.is_infinite() => 0.0,
        _ => f(x),
    }
}

fn dawsn(x: f64) -> f64 {
    match x.is_infinite() {
        true => 0.0_f64.copysign(x),
        false => cephes64::dawsn(x),
    }
}

/// Returns the Fresnel sine and cosine integrals.
fn fresnel(x: f64) -> (f64, f64) {
    match x.is_nan() {
        true => (x, x),
        false => cephes64::fresnl(x),
    }
}

/// Returns `∫₁ˣ ln t / (1 - t) dt`.
fn spence(x: f64) -> f64 {
    match x.is_infinite() {
        true => f64::NAN,
        false => cephes64::spence(x),
    }
}

/// Returns the exponential integral `Ei(x)`, by its power series or, for large `x`, its asymptotic
/// one (Abramowitz and Stegun, 5.1.10 and 5.1.51).
fn expint(x: f64) -> f64 {
    const EULER: f64 = 0.577_215_664_901_532_9;
    if x.is_nan() || x < 0.0 || x.is_infinite() {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x <= 55.0 * LN_2 {
        return series(EULER + x.ln(), |k| x / k, |term, k| term / k);
    }
    // The terms shrink up to number x.
    let sum = series(1.0, |k| if k > x { 0.0 } else { k / x }, |term, _| term);
    // In two factors, since the exponential alone may overflow.
    let half = (x / 2.0).exp();
    half * (sum / x) * half
}

/// Sums a series: adds `add` of products of `factor(1), factor(2), …` to `start` until it does not
/// change.
fn series(start: f64, factor: impl Fn(f64) -> f64, add: impl Fn(f64, f64) -> f64) -> f64 {
    let (mut term, mut sum) = (1.0, start);
    for k in (1..200).map(f64::from) {
        term *= factor(k);
        let added = add(term, k);
        sum += added;
        if added.abs() < sum.abs() * (f64::EPSILON / 4.0) {
            break;
        }
    }
    sum
}
