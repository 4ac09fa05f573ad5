//! The functions of [`UnaryOp`](crate::math::UnaryOp) and [`BinaryOp`](crate::math::BinaryOp), by their rows in the
//! dispatch table, for vectors of any kind: those of an instruction set, or those that a program is recorded from.

use super::functions as f;
use super::vector::Simd;

/// The function of one number in row `ROW`, whose parameters are `p`.
#[inline(always)]
pub(crate) fn unary<S: Simd, const ROW: usize>(s: S, x: S::V, p: [f32; 2]) -> S::V {
    match ROW {
        0 => x,
        1 => s.neg(x),
        2 => s.abs(x),
        3 => s.mul(x, x),
        4 => s.sqrt(x),
        5 => s.rsqrt(x),
        6 => s.div(s.splat(1.0), x),
        7 => f::exp(s, x),
        8 => f::expm1(s, x),
        9 => f::log(s, x),
        10 => f::log1p(s, x),
        11 => f::sin(s, x, 0),
        12 => f::sin(s, x, 1),
        13 => f::tanh(s, x),
        14 => f::sigmoid(s, x),
        15 => f::erf(s, x),
        16 => f::erfc(s, x),
        17 => s.floor(x),
        18 => s.ceil(x),
        19 => s.round(x),
        20 => s.trunc(x),
        21 => f::sign(s, x),
        22 => s.min(s.splat(p[1]), s.max(s.splat(p[0]), x)),
        23 => s.select(s.lt(x, s.zero()), s.mul(x, s.splat(p[0])), x),
        24 => {
            let low = s.mul(f::expm1(s, s.min(s.zero(), x)), s.splat(p[1]));
            s.select(s.lt(x, s.zero()), low, s.mul(x, s.splat(p[0])))
        }
        25 => f::softplus(s, x),
        26 => s.div(x, s.add(s.splat(1.0), s.abs(x))),
        27 => f::swish(s, x),
        28 => s.mul(x, f::hard_sigmoid(s, x)),
        29 => f::hard_sigmoid(s, x),
        30 => f::gelu_erf(s, x),
        31 => f::gelu_tanh(s, x),
        32 => s.fma(x, s.splat(p[0]), s.splat(p[1])),
        34 => f::asin(s, x),
        35 => f::acos(s, x),
        36 => f::atan(s, x),
        37 => f::sinh(s, x),
        38 => f::cosh(s, x),
        39 => f::asinh(s, x),
        40 => f::acosh(s, x),
        41 => f::atanh(s, x),
        _ => unreachable!("the table has another function in row {ROW}"),
    }
}

/// The function of two numbers in row `ROW`.
#[inline(always)]
pub(crate) fn binary<S: Simd, const ROW: usize>(s: S, a: S::V, b: S::V) -> S::V {
    match ROW {
        0 => s.add(a, b),
        1 => s.sub(a, b),
        2 => s.mul(a, b),
        3 => s.div(a, b),
        4 => s.select(s.unordered(a, a), a, s.max(a, b)),
        5 => s.select(s.unordered(a, a), a, s.min(a, b)),
        6 => {
            let d = s.sub(a, b);
            s.mul(d, d)
        }
        8 => {
            // As in TensorFlow, a product: gradients that are not finite become NaN.
            let zero = s.splat(0.0);
            s.select(s.lt(zero, b), a, s.mul(a, zero))
        }
        9 => s.mul(b, s.sub(s.splat(1.0), s.mul(a, a))),
        10 => s.mul(s.mul(b, a), s.sub(s.splat(1.0), a)),
        11 => f::product_or_zero(s, a, f::log(s, b)),
        12 => f::product_or_zero(s, a, f::log1p(s, b)),
        13 => f::atan2(s, a, b),
        _ => unreachable!("the table has another function in row {ROW}"),
    }
}

/// Calls a function of a row that is not a constant; `None` for powers, which the table has other functions for.
macro_rules! of_row {
    ($row:ident, $function:ident $arguments:tt, [$($n:literal)*]) => {
        match $row {
            $($n => Some($function::<S, $n> $arguments),)*
            _ => None,
        }
    };
}

/// [`unary`] for a row that is not a constant; `None` for a power.
pub(crate) fn unary_of_row<S: Simd>(s: S, row: usize, x: S::V, p: [f32; 2]) -> Option<S::V> {
    of_row!(row, unary(s, x, p), [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 34 35 36 37 38 39
        40 41
    ])
}

/// [`binary`] for a row that is not a constant; `None` for a power.
pub(crate) fn binary_of_row<S: Simd>(s: S, row: usize, a: S::V, b: S::V) -> Option<S::V> {
    of_row!(row, binary(s, a, b), [0 1 2 3 4 5 6 8 9 10 11 12 13])
}
