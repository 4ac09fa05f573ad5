//! Arithmetic of floats as GPUs have it.

use crate::ops::{Cmp, Float, Round};
use std::cmp::Ordering;

/// The NaN that results are.
const NAN: u32 = 0x7fff_ffff;

fn canonical(value: f32) -> u64 {
    u64::from(if value.is_nan() { NAN } else { value.to_bits() })
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The sum of two numbers, rounded. `a` has at most 48 bits, `b` at most 24.
fn rounded_sum(a: f64, b: f64, round: Round) -> f32 {
    let sum = a + b;
    // Knuth's exact error of the sum.
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    let nearest = sum as f32;
    if !sum.is_finite() || nearest.is_nan() {
        return nearest;
    }
    let difference = f64::from(nearest) - sum;
    let is_above = difference > 0.0 || difference == 0.0 && error < 0.0;
    let is_below = difference < 0.0 || difference == 0.0 && error > 0.0;
    match round {
        Round::Down if is_above => nearest.next_down(),
        Round::Up if is_below => nearest.next_up(),
        Round::Zero if is_above && nearest > 0.0 => nearest.next_down(),
        Round::Zero if is_below && nearest < 0.0 => nearest.next_up(),
        _ => nearest,
    }
}

fn directed(a: f32, b: f32, c: f32, round: Round) -> f32 {
    match round {
        Round::Nearest | Round::Away => a.mul_add(b, c),
        _ => rounded_sum(f64::from(a) * f64::from(b), f64::from(c), round),
    }
}

/// Zero in place of a subnormal number.
fn flushed(value: f32, ftz: bool) -> f32 {
    match ftz && value.is_subnormal() {
        true => 0f32.copysign(value),
        false => value,
    }
}

/// An approximate function, which is computed in double precision here.
fn approx(a: u64, ftz: bool, f: impl Fn(f64) -> f64) -> u64 {
    let value = flushed(f32_of(a), ftz);
    canonical(flushed(f(f64::from(value)) as f32, ftz))
}

fn least(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

/// A function of floats of 32 bits.
pub(crate) fn single(f: Float, a: u64, b: u64, c: u64) -> u64 {
    let (x, y) = (f32_of(a), f32_of(b));
    let value = match f {
        Float::Add(Round::Nearest) => x + y,
        Float::Add(round) => directed(x, 1.0, y, round),
        Float::Sub(Round::Nearest) => x - y,
        Float::Sub(round) => directed(x, 1.0, -y, round),
        Float::Mul(Round::Nearest) => x * y,
        Float::Mul(round) => directed(x, y, 0.0, round),
        Float::Fma(round) => directed(x, y, f32_of(c), round),
        Float::Div => x / y,
        Float::DivApprox => match y.abs() > 2f32.powi(126) && y.is_finite() {
            true if x.is_finite() => 0f32.copysign(x) * 1f32.copysign(y),
            true => f32::NAN,
            false => x / y,
        },
        Float::Min => least(x, y),
        Float::Max => -least(-x, -y),
        // Signs of NaNs change, too.
        Float::Neg => return u64::from(a as u32 ^ 1 << 31),
        Float::Abs => return u64::from(a as u32 & !(1 << 31)),
        Float::Sqrt => x.sqrt(),
        Float::Rcp => 1.0 / x,
        Float::RcpApprox(ftz) => return approx(a, ftz, |v| 1.0 / v),
        Float::RsqrtApprox(ftz) => return approx(a, ftz, |v| 1.0 / v.sqrt()),
        Float::SqrtApprox(ftz) => return approx(a, ftz, f64::sqrt),
        Float::Exp2Approx(ftz) => return approx(a, ftz, f64::exp2),
        Float::Log2Approx(ftz) => return approx(a, ftz, f64::log2),
        Float::SinApprox => return approx(a, false, f64::sin),
        Float::CosApprox => return approx(a, false, f64::cos),
        Float::TanhApprox => return approx(a, false, f64::tanh),
    };
    canonical(value)
}

/// A function of floats of 64 bits; `None` if there is none.
pub(crate) fn double(f: Float, a: u64, b: u64, c: u64) -> Option<u64> {
    let (x, y) = (f64_of(a), f64_of(b));
    let value = match f {
        Float::Add(Round::Nearest) => x + y,
        Float::Sub(Round::Nearest) => x - y,
        Float::Mul(Round::Nearest) => x * y,
        Float::Fma(Round::Nearest) => x.mul_add(y, f64_of(c)),
        Float::Div => x / y,
        Float::Min => x.min(y),
        Float::Max => x.max(y),
        Float::Neg => -x,
        Float::Abs => x.abs(),
        Float::Sqrt => x.sqrt(),
        Float::Rcp => 1.0 / x,
        _ => return None,
    };
    Some(value.to_bits())
}

/// Whether an order fulfils a comparison; `None`: there is none.
pub(crate) fn holds(cmp: Cmp, order: Option<Ordering>) -> bool {
    match order {
        Some(Ordering::Less) => cmp.less,
        Some(Ordering::Equal) => cmp.equal,
        Some(Ordering::Greater) => cmp.greater,
        None => cmp.unordered,
    }
}

/// Rounds to an integer.
pub(crate) fn whole(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Away => value.round(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

/// The nearest float of 32 bits with 10 bits of mantissa, ties away from zero.
pub(crate) fn tf32(value: f32) -> u64 {
    let bits = value.to_bits();
    match value.is_finite() {
        true => u64::from((bits + 0x1000) & !0x1fff),
        false => canonical(value),
    }
}

pub(crate) fn half(value: f32) -> u64 {
    u64::from(if value.is_nan() {
        0x7fff
    } else {
        half::f16::from_f32(value).to_bits()
    })
}

pub(crate) fn bfloat(value: f32) -> u64 {
    u64::from(if value.is_nan() {
        0x7fff
    } else {
        half::bf16::from_f32(value).to_bits()
    })
}

pub(crate) fn single_bits(value: f32) -> u64 {
    canonical(value)
}
