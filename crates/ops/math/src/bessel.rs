//! Bessel functions and other special functions of one tensor.

use crate::near::{self, Near};
use crate::unary::{FLOATS, special_kernel, times};
use ferroflow_functors::unary::unary_op;
use ferroflow_opdef::{Expr, GradientCtx, Op};
use ferroflow_primitives::double::SIN_COS_LIMIT;
use ferroflow_primitives::{special_slices, special_vectors};
use spec_math::cephes64;
use std::f64::consts::FRAC_PI_2;

/// A function of one number and its derivative, an expression of the input and the output.
macro_rules! function {
    ($name:literal, $near:expr, $derivative:expr) => {
        unary_op($name, FLOATS, |build| near::kernel(build, $near))
            .gradient(|g: &mut GradientCtx| times(g, $derivative))
    };
}

/// Numbers whose exponentials are finite.
fn is_moderate(x: f64) -> bool {
    x.abs() < 700.0
}

/// Numbers whose sines loops of vectors compute.
fn is_near(x: f64) -> bool {
    x.abs() < SIN_COS_LIMIT
}

fn is_moderate_positive(x: f64) -> bool {
    (f64::MIN_POSITIVE..700.0).contains(&x)
}

fn is_near_positive(x: f64) -> bool {
    (f64::MIN_POSITIVE..SIN_COS_LIMIT).contains(&x)
}

/// A modified Bessel function.
macro_rules! modified {
    ($f:ident, $single:ident, $is_near:expr, $far:expr) => {
        Near {
            double: special_slices::$f,
            single: special_slices::$single,
            is_near: $is_near,
            far: $far,
        }
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    function!(
        "BesselI0",
        modified!(i0, i0_single, is_moderate, cephes64::i0),
        |x, _| x.op("BesselI1", &[])
    ),
    function!(
        "BesselI0e",
        modified!(i0e, i0e_single, is_moderate, cephes64::i0e),
        |x, y| x.op("BesselI1e", &[]) - x.op("Sign", &[]) * y
    ),
    // TensorFlow returns 1 at zero, though the limit is one half.
    function!(
        "BesselI1",
        modified!(i1, i1_single, is_moderate, cephes64::i1),
        |x, y| at_zero(x, 1.0, x.op("BesselI0", &[]) - y / x)
    ),
    function!(
        "BesselI1e",
        modified!(i1e, i1e_single, is_moderate, cephes64::i1e),
        |x, y| at_zero(
            x,
            0.5,
            x.op("BesselI0e", &[]) - y * (x.op("Sign", &[]) + x.op("Reciprocal", &[]))
        )
    ),
    function!(
        "BesselJ0",
        Near::of(special_slices::j0, is_near, cephes64::j0),
        |x, _| -x.op("BesselJ1", &[])
    ),
    function!(
        "BesselJ1",
        Near::of(special_slices::j1, is_near, cephes64::j1),
        |x, y| at_zero(x, 0.5, x.op("BesselJ0", &[]) - y / x)
    ),
    function!(
        "BesselK0",
        modified!(k0, k0_single, is_moderate_positive, |x| positive(
            x,
            f64::INFINITY,
            cephes64::k0
        )),
        |x, _| -x.op("BesselK1", &[])
    ),
    function!(
        "BesselK0e",
        modified!(k0e, k0e_single, is_moderate_positive, |x| positive(
            x,
            f64::INFINITY,
            cephes64::k0e
        )),
        |x, y| y - x.op("BesselK1e", &[])
    ),
    function!(
        "BesselK1",
        modified!(k1, k1_single, is_moderate_positive, |x| positive(
            x,
            f64::INFINITY,
            cephes64::k1
        )),
        |x, y| -x.op("BesselK0", &[]) - y / x
    ),
    function!(
        "BesselK1e",
        modified!(k1e, k1e_single, is_moderate_positive, |x| positive(
            x,
            f64::INFINITY,
            cephes64::k1e
        )),
        |x, y| y * (1.0 - x.op("Reciprocal", &[])) - x.op("BesselK0e", &[])
    ),
    function!(
        "BesselY0",
        Near::of(special_slices::y0, is_near_positive, |x| positive(
            x,
            f64::NEG_INFINITY,
            cephes64::y0
        )),
        |x, _| -x.op("BesselY1", &[])
    ),
    function!(
        "BesselY1",
        Near::of(special_slices::y1, is_near_positive, |x| positive(
            x,
            f64::NEG_INFINITY,
            cephes64::y1
        )),
        |x, y| x.op("BesselY0", &[]) - y / x
    ),
    unary_op("Dawsn", FLOATS, |build| special_kernel(build, dawsn))
        .gradient(|g: &mut GradientCtx| times(g, |x, y| 1.0 - x * y * 2.0)),
    unary_op("Expint", FLOATS, |build| special_kernel(build, expint))
        .gradient(|g: &mut GradientCtx| times(g, |x, _| x.op("Exp", &[]) / x)),
    function!(
        "FresnelCos",
        Near::of(special_slices::fresnel_cos, is_fresnel_near, |x| {
            fresnel(x).1
        }),
        |x, _| quarter(x).op("Cos", &[])
    ),
    function!(
        "FresnelSin",
        Near::of(special_slices::fresnel_sin, is_fresnel_near, |x| {
            fresnel(x).0
        }),
        |x, _| quarter(x).op("Sin", &[])
    ),
    function!(
        "Spence",
        Near::of(special_slices::spence, is_positive, spence),
        |x, _| {
            let slope = x.op("Log", &[]) / (1.0 - x);
            x.number(-1.0)
                .where_(x.op("Equal", &[x.number(1.0)]), slope)
        }
    ),
];

fn is_fresnel_near(x: f64) -> bool {
    x.abs() < special_vectors::FRESNEL_LIMIT
}

fn is_positive(x: f64) -> bool {
    (f64::MIN_POSITIVE..f64::INFINITY).contains(&x)
}

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

/// Returns the exponential integral.
fn expint(x: f64) -> f64 {
    match x {
        _ if x.is_nan() || x < 0.0 || x.is_infinite() => f64::NAN,
        0.0 => f64::NEG_INFINITY,
        _ => special_vectors::expint(x),
    }
}
