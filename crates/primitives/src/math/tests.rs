//! The elementary functions against double precision.

use super::*;
use crate::isa::testing::{each_isa, noise};
use crate::scalar::unary_f64;

/// Returns numbers of every magnitude, and the special ones.
fn arguments() -> Vec<f32> {
    let mut v = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        88.7,
        88.8,
        -87.4,
        -103.0,
        -104.5,
        1e-40,
        -1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        8191.9,
        8192.1,
        1e9,
        -1e20,
    ];
    for scale in [1e-20, 1e-6, 1e-3, 0.1, 1.0, 4.0, 20.0, 100.0, 5000.0] {
        v.extend(noise(701, 77).iter().map(|x| x * scale));
    }
    v
}

/// Where a function has reached its limit, it is exact: a product by a large number shows what is missing.
#[test]
fn functions_reach_their_limits() {
    for (op, x, want) in [
        (UnaryOp::Erf, 4.5, 1.0),
        (UnaryOp::Erf, -92.0, -1.0),
        (UnaryOp::Erf, f32::INFINITY, 1.0),
        (UnaryOp::GeluErf, -1e6, 0.0),
        (UnaryOp::GeluErf, 1e6, 1e6),
        (UnaryOp::GeluTanh, -1e6, 0.0),
    ] {
        each_isa(|isa| {
            let mut y = [0.0; 17];
            unary(op, &[x; 17], &mut y);
            assert_eq!(y, [want; 17], "{op:?} of {x}, {isa:?}");
        });
    }
}

/// Checks the error in units of the last place, with an absolute tolerance.
fn check(op: UnaryOp, ulps: f64, slack: f64) {
    let x = arguments();
    let mut worst = (0.0, 0.0f32, 0.0f32, 0.0);
    each_isa(|isa| {
        let mut y = vec![0.0; x.len()];
        unary(op, &x, &mut y);
        let mut z = x.clone();
        unary_in_place(op, &mut z);
        for i in 0..x.len() {
            assert_eq!(y[i].to_bits(), z[i].to_bits());
            let want = unary_f64(op, f64::from(x[i]));
            let near = want as f32;
            if near.is_nan() || near.is_infinite() || y[i].is_nan() || y[i].is_infinite() {
                let same = y[i] == near || (y[i].is_nan() && near.is_nan());
                let edge = y[i].abs() == f32::INFINITY && near.abs() > 3.4e38;
                assert!(
                    same || edge,
                    "{op:?} {isa:?}: {} -> {}, not {near}",
                    x[i],
                    y[i]
                );
                continue;
            }
            let unit = f64::from(near.abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
            let error = ((f64::from(y[i]) - want).abs() - slack).max(0.0) / unit;
            if error > worst.0 {
                worst = (error, x[i], y[i], want);
            }
        }
        assert!(worst.0 <= ulps, "{op:?} {isa:?}: {worst:?}");
    });
    println!("{op:?}: {worst:?}");
}

#[test]
fn exact_functions() {
    for op in [
        UnaryOp::Identity,
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Square,
        UnaryOp::Sqrt,
        UnaryOp::Reciprocal,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Round,
        UnaryOp::Trunc,
        UnaryOp::Sign,
        UnaryOp::Relu,
        UnaryOp::Relu6,
        UnaryOp::Clamp(-2.0, 3.0),
        UnaryOp::LeakyRelu(0.25),
    ] {
        check(op, 0.51, 0.0);
    }
}

#[test]
fn elementary_functions() {
    check(UnaryOp::Rsqrt, 1.5, 0.0);
    check(UnaryOp::Exp, 2.0, 2e-45);
    check(UnaryOp::Expm1, 3.0, 0.0);
    check(UnaryOp::Log, 2.0, 0.0);
    check(UnaryOp::Log1p, 3.0, 0.0);
    check(UnaryOp::Sin, 2.0, 1e-7);
    check(UnaryOp::Cos, 2.0, 1e-7);
    check(UnaryOp::Asin, 3.0, 0.0);
    check(UnaryOp::Acos, 3.0, 0.0);
    check(UnaryOp::Atan, 3.0, 0.0);
    check(UnaryOp::Tanh, 5.0, 0.0);
    check(UnaryOp::Sinh, 2.0, 0.0);
    check(UnaryOp::Cosh, 2.0, 0.0);
    check(UnaryOp::Asinh, 2.0, 0.0);
    check(UnaryOp::Acosh, 2.0, 0.0);
    check(UnaryOp::Atanh, 2.0, 0.0);
    check(UnaryOp::Sigmoid, 3.0, 2e-38);
    check(UnaryOp::Erf, 6.0, 0.0);
    check(UnaryOp::Erfc, 8.0, 2e-45);
    check(UnaryOp::Pow(2.0), 0.6, 0.0);
    check(UnaryOp::Pow(3.0), 2.0, 2e-45);
}

#[test]
fn activation_functions() {
    check(UnaryOp::Elu(1.0), 3.0, 0.0);
    check(UnaryOp::Elu(0.5), 4.0, 0.0);
    check(UnaryOp::Selu, 4.0, 0.0);
    check(UnaryOp::Softplus, 4.0, 2e-45);
    check(UnaryOp::Softsign, 2.0, 0.0);
    check(UnaryOp::Affine(2.0, 3.0), 2.0, 3e-7);
    // Differences of nearly equal numbers: only the absolute error counts.
    for x in noise(4001, 5) {
        let mut y = [0.0];
        for op in [
            UnaryOp::Swish,
            UnaryOp::HardSwish,
            UnaryOp::HardSigmoid,
            UnaryOp::GeluErf,
            UnaryOp::GeluTanh,
        ] {
            let x = x * 8.0;
            unary(op, &[x], &mut y);
            let want = unary_f64(op, x.into());
            let error = (f64::from(y[0]) - want).abs();
            assert!(
                error < 4e-7 * f64::from(x).abs().max(0.5),
                "{op:?}: {x} -> {}, not {want}",
                y[0]
            );
        }
    }
}

#[test]
fn every_length() {
    each_isa(|_| {
        for n in 0..70 {
            let mut x = noise(n, 3);
            let mut y = vec![9.0; n + 1];
            unary(UnaryOp::Neg, &x, &mut y[..n]);
            assert!(x.iter().zip(&y).all(|(x, y)| *x == -*y) && y[n] == 9.0);
            let mut b = noise(n, 4);
            // Either operand may be NaN.
            x.iter_mut().skip(2).step_by(7).for_each(|x| *x = f32::NAN);
            b.iter_mut().skip(5).step_by(9).for_each(|b| *b = f32::NAN);
            for op in [
                BinaryOp::Add,
                BinaryOp::Sub,
                BinaryOp::Mul,
                BinaryOp::Div,
                BinaryOp::Max,
                BinaryOp::Min,
                BinaryOp::SquaredDifference,
                BinaryOp::Pow,
                BinaryOp::ReluGrad,
                BinaryOp::TanhGrad,
                BinaryOp::SigmoidGrad,
            ] {
                let want = |a: f32, b: f32| match op {
                    BinaryOp::Add => a + b,
                    BinaryOp::Sub => a - b,
                    BinaryOp::Mul => a * b,
                    BinaryOp::Div => a / b,
                    BinaryOp::Max | BinaryOp::Min if a.is_nan() || b.is_nan() => f32::NAN,
                    BinaryOp::Max => a.max(b),
                    BinaryOp::Min => a.min(b),
                    BinaryOp::SquaredDifference => (a - b) * (a - b),
                    BinaryOp::Pow => a.powf(b),
                    BinaryOp::ReluGrad => a * f32::from(b > 0.0),
                    BinaryOp::TanhGrad => b * (1.0 - a * a),
                    BinaryOp::SigmoidGrad => b * a * (1.0 - a),
                    BinaryOp::Xlogy | BinaryOp::Xlog1py | BinaryOp::Atan2 => {
                        unreachable!("rounded differently")
                    }
                };
                let same = |x: f32, y: f32| {
                    assert!(x == y || (x.is_nan() && y.is_nan()), "{op:?}: {x} {y}")
                };
                binary(op, &x[..], &b[..], &mut y[..n]);
                (0..n).for_each(|i| same(y[i], want(x[i], b[i])));
                binary(op, &x[..], 2.0, &mut y[..n]);
                (0..n).for_each(|i| same(y[i], want(x[i], 2.0)));
                binary(op, 2.0, &b[..], &mut y[..n]);
                (0..n).for_each(|i| same(y[i], want(2.0, b[i])));
                binary(op, 2.0, 3.0, &mut y[..n]);
                (0..n).for_each(|i| same(y[i], want(2.0, 3.0)));
                let mut z = x.clone();
                binary_left(op, &mut z, &b[..]);
                (0..n).for_each(|i| same(z[i], want(x[i], b[i])));
                let mut z = b.clone();
                binary_right(op, &x[..], &mut z);
                (0..n).for_each(|i| same(z[i], want(x[i], b[i])));
                assert_eq!(y[n], 9.0);
            }
        }
    });
}

#[test]
fn rows_scaled_and_shifted() {
    each_isa(|_| {
        for c in [1, 7, 8, 33] {
            let (x, a, b) = (noise(3 * c, 1), noise(c, 2), noise(c, 3));
            let mut y = vec![0.0; 3 * c];
            scale_offset(&x, &a, &b, &mut y);
            for (i, y) in y.iter().enumerate() {
                assert!((y - (x[i] * a[i % c] + b[i % c])).abs() < 1e-6);
            }
        }
    });
}

#[test]
fn products_by_logarithms() {
    let (x, y) = (arguments(), noise(arguments().len(), 9));
    for (op, ln) in [
        (BinaryOp::Xlogy, f64::ln as fn(f64) -> f64),
        (BinaryOp::Xlog1py, f64::ln_1p),
    ] {
        each_isa(|isa| {
            let mut z = vec![0.0; x.len()];
            binary(op, &y[..], &x[..], &mut z);
            for ((a, b), got) in y.iter().zip(&x).zip(&z) {
                let want = (f64::from(*a) * ln(f64::from(*b))) as f32;
                let near = (got - want).abs() <= want.abs() * 4.0 * f32::EPSILON;
                let same = *got == want || got.is_nan() && want.is_nan();
                assert!(near || same, "{op:?} {isa:?}: {a} {b} -> {got}, not {want}");
            }
            binary(op, 0.0, &x[..], &mut z);
            assert!(z.iter().all(|z| *z == 0.0));
        });
    }
}

#[test]
fn angles_of_points() {
    let mut x = arguments();
    x.truncate(400);
    each_isa(|isa| {
        for y in &x {
            let mut z = vec![0.0; x.len()];
            binary(BinaryOp::Atan2, *y, &x[..], &mut z);
            for (x, got) in x.iter().zip(&z) {
                let want = f64::from(*y).atan2(f64::from(*x)) as f32;
                let near = (got - want).abs() <= want.abs() * 2.0 * f32::EPSILON;
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                // The ratio, or the result, may be subnormal.
                let tiny = want.abs() < 1e-36 && (got - want).abs() < 1e-43;
                assert!(
                    near || same || tiny,
                    "{isa:?}: {y} {x} -> {got}, not {want}"
                );
            }
        }
    });
}
