//! Elementary functions of `f32`, one vector at a time: range reduction, then a polynomial or
//! rational approximation, in the manner of Cephes (Moshier) and of TensorFlow's Eigen
//! (`unsupported/Eigen` and `Eigen/src/Core/arch/Default/GenericPacketMathFunctions.h`).
//!
//! Errors stay within about two units in the last place except where stated. NaN and infinities
//! have the results of the C library.

use super::vector::Simd;
use crate::double::{self, SIN_COS_LIMIT};
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
// ln 2 in two parts; the first has so few bits that its products with exponents are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Adding this leaves the nearest integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// `2^n` for an integer vector `n` in the normal range.
#[inline(always)]
fn pow2<S: Simd>(s: S, n: S::I) -> S::V {
    s.float(s.ishl::<23>(s.iadd(n, s.isplat(127))))
}

/// Splits `x` into `n ln 2 + r`: the integer `n` and the remainder `r`.
#[inline(always)]
fn reduce_ln2<S: Simd>(s: S, x: S::V) -> (S::I, S::V) {
    let t = s.fma(x, s.splat(LOG2_E), s.splat(ROUNDER));
    let n = s.sub(t, s.splat(ROUNDER));
    let r = s.fnma(n, s.splat(LN2_HI), x);
    let r = s.fnma(n, s.splat(LN2_LO), r);
    (s.isub(s.bits(t), s.isplat(ROUNDER.to_bits() as i32)), r)
}

/// `(exp(r) - 1 - r) / r²` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn exp_tail<S: Simd>(s: S, r: S::V) -> S::V {
    s.poly(
        r,
        [
            1.987_569_1e-4,
            1.398_2e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_6e-1,
            5e-1,
        ],
    )
}

/// `e^x`, subnormal results included.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let (n, r) = reduce_ln2(s, x);
    let p = s.add(s.fma(exp_tail(s, r), s.mul(r, r), r), s.splat(1.0));
    let half = s.isar::<1>(n);
    s.mul(s.mul(p, pow2(s, half)), pow2(s, s.isub(n, half)))
}

/// Lower limit of [`exp_bounded`]: its results must stay normal numbers.
pub(crate) const EXP_MIN: f32 = -86.5;
const EXP_MAX: f32 = 88.0;

/// `e^x` for `EXP_MIN <= x <= 88` or NaN.
#[inline(always)]
pub(crate) fn exp_bounded<S: Simd>(s: S, x: S::V) -> S::V {
    let (p, n) = exp_parts(s, x);
    s.mul(p, s.float(s.iadd(n, s.isplat(127 << 23))))
}

/// `p` and `n`, in exponent position, with `e^x = 2^n p`.
#[inline(always)]
fn exp_parts<S: Simd>(s: S, x: S::V) -> (S::V, S::I) {
    let t = s.fma(x, s.splat(LOG2_E), s.splat(ROUNDER));
    let n = s.sub(t, s.splat(ROUNDER));
    let r = s.fnma(n, s.splat(LN2_HI), x);
    let r = s.fnma(n, s.splat(LN2_LO), r);
    let p = s.add(s.fma(exp_tail(s, r), s.mul(r, r), r), s.splat(1.0));
    // The integer is in the low bits of `t`; the shift removes the others.
    (p, s.ishl::<23>(s.bits(t)))
}

/// `e^x - 1` without cancellation.
#[inline(always)]
pub(crate) fn expm1<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let y = s.max(s.splat(-30.0), s.min(s.splat(89.0), x));
    let (n, r) = reduce_ln2(s, y);
    let p = s.fma(exp_tail(s, r), s.mul(r, r), r);
    // 2^n p + 2^n - 1, halved on the way so that 2^128 does not overflow early.
    let h = pow2(s, s.isub(n, s.isplat(1)));
    let y = s.fma(h, p, s.sub(h, s.splat(0.5)));
    let y = s.add(y, y);
    // Tiny arguments (and the sign of zero) are returned unchanged.
    let y = s.select(s.lt(s.abs(x), s.splat(1e-8)), x, y);
    s.select(s.lt(y, s.neg(one)), s.neg(one), y)
}

/// Returns the core of the logarithm: `ln m + k ln 2` where `f = m - 1` and `m` is near one; `c` is
/// added in an order that preserves it.
#[inline(always)]
fn log_core<S: Simd>(s: S, f: S::V, k: S::V, c: S::V) -> S::V {
    let q = s.div(f, s.add(s.splat(2.0), f));
    let z = s.mul(q, q);
    let r = s.mul(
        z,
        s.poly(z, [0.242_790_79, 0.284_987_87, 0.400_009_72, 0.666_666_6]),
    );
    let half_square = s.mul(s.splat(0.5), s.mul(f, f));
    let lo = s.fma(k, s.splat(LN2_LO), c);
    let t = s.fma(q, s.add(half_square, r), lo);
    s.fma(k, s.splat(LN2_HI), s.add(s.sub(t, half_square), f))
}

const SQRT_HALF: i32 = 0x3f35_04f3;

/// Splits a positive normal number into exponent and mantissa, the mantissa between √½ and √2.
#[inline(always)]
fn split<S: Simd>(s: S, x: S::V) -> (S::I, S::V) {
    let i = s.isub(s.bits(x), s.isplat(SQRT_HALF));
    let m = s.iadd(s.iand(i, s.isplat(0x7f_ffff)), s.isplat(SQRT_HALF));
    (s.isar::<23>(i), s.float(m))
}

/// `ln x`.
#[inline(always)]
pub(crate) fn log<S: Simd>(s: S, x: S::V) -> S::V {
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let y = s.select(tiny, s.mul(x, s.splat(8_388_608.0)), x);
    let (e, m) = split(s, y);
    let k = s.sub(s.to_float(e), s.select(tiny, s.splat(23.0), s.zero()));
    let r = log_core(s, s.sub(m, s.splat(1.0)), k, s.zero());
    let inf = s.splat(f32::INFINITY);
    let r = s.select(s.lt(x, inf), r, x);
    let r = s.select(s.eq(x, s.zero()), s.neg(inf), r);
    s.select(s.lt(x, s.zero()), s.splat(f32::NAN), r)
}

/// `ln (1 + x)` without cancellation.
#[inline(always)]
pub(crate) fn log1p<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let u = s.add(one, x);
    let (e, m) = split(s, u);
    let k = s.to_float(e);
    // The rounding error of the addition, relative to u.
    let lost = s.select(
        s.lt(x, one),
        s.sub(x, s.sub(u, one)),
        s.sub(one, s.sub(u, x)),
    );
    let c = s.div(lost, u);
    let small = s.lt(s.abs(x), s.splat(0.29));
    let f = s.select(small, x, s.sub(m, one));
    let r = log_core(
        s,
        f,
        s.select(small, s.zero(), k),
        s.select(small, s.zero(), c),
    );
    let r = s.select(s.lt(s.abs(x), s.splat(1e-8)), x, r);
    let inf = s.splat(f32::INFINITY);
    let r = s.select(s.lt(u, inf), r, u);
    let r = s.select(s.eq(u, s.zero()), s.neg(inf), r);
    s.select(s.lt(u, s.zero()), s.splat(f32::NAN), r)
}

/// Returns the hyperbolic tangent of the argument, as a rational approximation on the range where it does not round to ±1,
/// and the argument in that range.
#[inline(always)]
fn tanh_parts<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let limit = s.splat(7.905_311);
    let y = s.max(s.neg(limit), s.min(limit, x));
    let z = s.mul(y, y);
    let p = s.poly(
        z,
        [
            -2.760_768_5e-16,
            2.000_188e-13,
            -8.604_672e-11,
            5.122_297_1e-8,
            1.485_722_4e-5,
            6.372_619e-4,
            4.893_524_6e-3,
        ],
    );
    let q = s.poly(
        z,
        [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3],
    );
    (s.div(s.mul(y, p), q), y)
}

/// Returns the hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let (near, _) = tanh_parts(s, x);
    s.select(s.lt(s.abs(x), s.splat(4e-4)), x, near)
}

/// Returns `near`, an approximation at `y`, which is `x` within limits, or ±1 where `x` is so far beyond them that `slope`
/// times the distance reaches it.
#[inline(always)]
fn saturated<S: Simd>(s: S, [near, x, y]: [S::V; 3], slope: f32) -> S::V {
    // A difference: a sum would lose the sign of zero.
    let y = s.fnma(s.sub(y, x), s.splat(slope), near);
    s.max(s.splat(-1.0), s.min(s.splat(1.0), y))
}

/// `e^a / 2` for `a >= 0`, which is finite for longer than `e^a`.
#[inline(always)]
fn half_exp<S: Simd>(s: S, a: S::V) -> S::V {
    let (n, r) = reduce_ln2(s, s.min(s.splat(90.0), a));
    let p = s.add(s.fma(exp_tail(s, r), s.mul(r, r), r), s.splat(1.0));
    let half = s.isar::<1>(n);
    let rest = s.isub(s.isub(n, half), s.isplat(1));
    s.mul(s.mul(p, pow2(s, half)), pow2(s, rest))
}

/// The hyperbolic sine; by the polynomial of Cephes (Moshier) up to one.
#[inline(always)]
pub(crate) fn sinh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let z = s.mul(a, a);
    let p = s.poly(z, [2.037_219_1e-4, 8.330_284e-3, 1.666_671_6e-1]);
    let small = s.fma(s.mul(p, z), a, a);
    let half = half_exp(s, a);
    let large = s.sub(half, s.div(s.splat(0.25), half));
    s.copysign(s.select(s.lt(a, s.splat(1.0)), small, large), x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh<S: Simd>(s: S, x: S::V) -> S::V {
    let half = half_exp(s, s.abs(x));
    s.add(half, s.div(s.splat(0.25), half))
}

/// Above this, adding one to a square does not change it.
const LARGE: f32 = 1e9;

/// `ln (1 + small)`, or `ln 2x` where `x` is [`LARGE`].
#[inline(always)]
fn log1p_or_double<S: Simd>(s: S, small: S::V, x: S::V) -> S::V {
    let large = s.lt(s.splat(LARGE), x);
    let y = log1p(s, s.select(large, x, small));
    let ln2 = s.splat(std::f32::consts::LN_2);
    s.select(large, s.add(y, ln2), y)
}

/// The inverse hyperbolic sine.
#[inline(always)]
pub(crate) fn asinh<S: Simd>(s: S, x: S::V) -> S::V {
    let (one, a) = (s.splat(1.0), s.abs(x));
    let square = s.mul(a, a);
    let rest = s.div(square, s.add(one, s.sqrt(s.add(one, square))));
    s.copysign(log1p_or_double(s, s.add(a, rest), a), x)
}

/// The inverse hyperbolic cosine; NaN below one.
#[inline(always)]
pub(crate) fn acosh<S: Simd>(s: S, x: S::V) -> S::V {
    let t = s.sub(x, s.splat(1.0));
    let root = s.sqrt(s.fma(t, t, s.add(t, t)));
    let y = log1p_or_double(s, s.add(t, root), x);
    s.select(s.lt(x, s.splat(1.0)), s.splat(f32::NAN), y)
}

/// The inverse hyperbolic tangent; NaN beyond ±1.
#[inline(always)]
pub(crate) fn atanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let ratio = s.div(s.add(a, a), s.sub(s.splat(1.0), a));
    s.copysign(s.mul(s.splat(0.5), log1p(s, ratio)), x)
}

/// `-x` where its exponential is a normal number.
#[inline(always)]
fn bounded_neg<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(s.splat(EXP_MIN), s.min(s.splat(EXP_MAX), s.neg(x)))
}

/// `1 / (1 + e^-x)`; constant below -88.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp_bounded(s, bounded_neg(s, x))))
}

/// `x / (1 + e^-x)`; the same.
#[inline(always)]
pub(crate) fn swish<S: Simd>(s: S, x: S::V) -> S::V {
    // NaN may get lost below, but it is the numerator, too.
    let (p, n) = exp_parts(s, bounded_neg(s, x));
    let e = s.float(s.iadd(s.bits(p), n));
    s.div(x, s.add(s.splat(1.0), e))
}

/// Returns the error function, as a rational approximation on the range where it does not round to
/// ±1.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let limit = s.splat(4.0);
    let y = s.max(s.neg(limit), s.min(limit, x));
    let z = s.mul(y, y);
    let p = s.poly(
        z,
        [
            -2.726_142_3e-10,
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_5e-5,
            -7.349_906e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ],
    );
    let q = s.poly(
        z,
        [
            -1.456_607_2e-5,
            -2.133_740_6e-4,
            -1.682_827e-3,
            -7.373_329e-3,
            -1.426_473_9e-2,
        ],
    );
    saturated(s, [s.mul(y, s.div(p, q)), x, y], 1.0)
}

/// The arcsine of `a`, from 0 to a half, given its square; by the polynomial of Cephes (Moshier).
#[inline(always)]
fn asin_small<S: Simd>(s: S, a: S::V, square: S::V) -> S::V {
    let p = s.poly(
        square,
        [
            4.216_32e-2,
            2.418_131e-2,
            4.547_002_6e-2,
            7.495_300_2e-2,
            1.666_675_2e-1,
        ],
    );
    s.fma(s.mul(p, square), a, a)
}

/// Where `x` is above a half, and the arcsine of `small`, which is `x` or `|x|`; above a half, the
/// arcsine of the sine of half the angle between `|x|` and one.
#[inline(always)]
fn asin_parts<S: Simd>(s: S, x: S::V, small: S::V) -> (S::M, S::V) {
    let a = s.abs(x);
    let large = s.lt(s.splat(0.5), a);
    let half = s.mul(s.splat(0.5), s.sub(s.splat(1.0), a));
    let t = s.select(large, s.sqrt(half), small);
    let square = s.select(large, half, s.mul(a, a));
    (large, asin_small(s, t, square))
}

/// The arcsine; NaN beyond ±1.
#[inline(always)]
pub(crate) fn asin<S: Simd>(s: S, x: S::V) -> S::V {
    let (large, y) = asin_parts(s, x, s.abs(x));
    let from_end = s.sub(s.splat(FRAC_PI_2), s.add(y, y));
    s.copysign(s.select(large, from_end, y), x)
}

/// The arccosine; NaN beyond ±1.
#[inline(always)]
pub(crate) fn acos<S: Simd>(s: S, x: S::V) -> S::V {
    let (large, y) = asin_parts(s, x, x);
    let twice = s.add(y, y);
    let from_end = s.select(s.lt(x, s.zero()), s.sub(s.splat(PI), twice), twice);
    // The angle in two parts: its rounding error counts where the arcsine is small.
    let middle = s.sub(s.splat(FRAC_PI_2), s.sub(y, s.splat(FRAC_PI_2_REST)));
    s.select(large, from_end, middle)
}

/// What `f32` loses of a right angle.
const FRAC_PI_2_REST: f32 = -4.371_139e-8;

/// The arctangent, by the ranges and the polynomial of Cephes (Moshier).
#[inline(always)]
pub(crate) fn atan<S: Simd>(s: S, x: S::V) -> S::V {
    let (one, a) = (s.splat(1.0), s.abs(x));
    let (tan_1_8, tan_3_8) = (s.splat(0.414_213_57), s.splat(2.414_213_7));
    let (middle, large) = (s.lt(tan_1_8, a), s.lt(tan_3_8, a));
    let above = s.select(middle, s.sub(a, one), a);
    let below = s.select(middle, s.add(a, one), one);
    let above = s.select(large, s.neg(one), above);
    let below = s.select(large, a, below);
    let base = s.select(middle, s.splat(FRAC_PI_4), s.zero());
    let base = s.select(large, s.splat(FRAC_PI_2), base);
    let t = s.div(above, below);
    let z = s.mul(t, t);
    let p = s.poly(
        z,
        [
            8.053_744_4e-2,
            -1.387_768_5e-1,
            1.997_771_1e-1,
            -3.333_295e-1,
        ],
    );
    let y = s.fma(s.mul(p, z), t, t);
    s.copysign(s.add(base, y), x)
}

/// The angle of the point `(x, y)`.
#[inline(always)]
pub(crate) fn atan2<S: Simd>(s: S, y: S::V, x: S::V) -> S::V {
    let (a, b) = (s.abs(x), s.abs(y));
    let is_steep = s.lt(a, b);
    let (small, large) = (s.select(is_steep, a, b), s.select(is_steep, b, a));
    // Both infinite or both zero.
    let is_same = s.eq(small, large);
    let at_end = s.select(s.eq(large, s.zero()), s.zero(), s.splat(1.0));
    let ratio = s.select(is_same, at_end, s.div(small, large));
    let angle = atan(s, ratio);
    let rest = s.sub(angle, s.splat(FRAC_PI_2_REST));
    let angle = s.select(is_steep, s.sub(s.splat(FRAC_PI_2), rest), angle);
    // The sign of a zero counts.
    let is_left = s.lt(s.copysign(s.splat(1.0), x), s.zero());
    let rest = s.sub(angle, s.splat(2.0 * FRAC_PI_2_REST));
    let angle = s.select(is_left, s.sub(s.splat(PI), rest), angle);
    let angle = s.select(s.unordered(x, y), s.add(x, y), angle);
    s.copysign(angle, y)
}

/// `1 - erf x`, accurate relative to its own size where it is tiny.
#[inline(always)]
pub(crate) fn erfc<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let near = s.sub(one, erf(s, x));
    let z = s.min(s.splat(11.0), s.max(s.zero(), x));
    let t = s.div(one, s.fma(s.splat(0.5), z, one));
    let p = s.poly(
        t,
        [
            0.170_872_77,
            -0.822_152_23,
            1.488_515_9,
            -1.135_204,
            0.278_868_07,
            -0.186_288_06,
            0.096_784_18,
            0.374_091_96,
            1.000_023_7,
            -1.265_512_2,
        ],
    );
    // z² in two parts: the square of a truncated number is exact.
    let zh = s.float(s.iand(s.bits(z), s.isplat(!0xfff)));
    let head = s.mul(zh, zh);
    let tail = s.mul(s.sub(z, zh), s.add(z, zh));
    let far = s.mul(t, s.mul(exp(s, s.neg(head)), exp(s, s.sub(p, tail))));
    let r = s.select(s.lt(x, s.splat(0.5)), near, far);
    s.select(s.unordered(x, x), x, r)
}

/// Sine (`shift` 0) or cosine (`shift` 1) for `|x| < 8192`.
#[inline(always)]
fn sin_small<S: Simd>(s: S, x: S::V, shift: i32) -> S::V {
    let t = s.fma(x, s.splat(std::f32::consts::FRAC_2_PI), s.splat(ROUNDER));
    let n = s.sub(t, s.splat(ROUNDER));
    // π/2 in three parts, the first two short enough for exact products.
    let r = s.fnma(n, s.splat(1.570_312_5), x);
    let r = s.fnma(n, s.splat(4.837_513e-4), r);
    let r = s.fnma(n, s.splat(7.549_79e-8), r);
    let q = s.iadd(s.bits(t), s.isplat(shift));
    let z = s.mul(r, r);
    let sin = s.poly(z, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let sin = s.fma(s.mul(sin, z), r, r);
    let cos = s.poly(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let cos = s.fma(s.mul(cos, z), z, s.fma(s.splat(-0.5), z, s.splat(1.0)));
    let odd = s.ishl::<31>(q);
    // A set sign bit means an odd quadrant.
    let odd = s.lt(
        s.float(s.ior(odd, s.isplat(1.0f32.to_bits() as i32))),
        s.zero(),
    );
    let y = s.select(odd, cos, sin);
    let flip = s.iand(s.ishl::<30>(q), s.isplat(i32::MIN));
    s.float(s.ixor(s.bits(y), flip))
}

/// Overwrites numbers with their sine, or cosine, by doubles: without calls, if all are as small as those take.
#[inline(always)]
fn sin_wide(values: &mut [f32], is_cos: bool) {
    let all = values.iter();
    let fit = all.fold(true, |fit, x| fit & (x.abs() < SIN_COS_LIMIT as f32));
    if fit {
        for y in values {
            let (sin, cos) = double::sin_cos(f64::from(*y));
            *y = if is_cos { cos } else { sin } as f32;
        }
        return;
    }
    for y in values {
        let wide = f64::from(*y);
        *y = if is_cos { wide.cos() } else { wide.sin() } as f32;
    }
}

/// Returns the sine, or the cosine for `shift` 1; large arguments are computed in doubles.
#[inline(always)]
pub(crate) fn sin<S: Simd>(s: S, x: S::V, shift: i32) -> S::V {
    let small = s.lt(s.abs(x), s.splat(8192.0));
    // The comparison is false for NaN as well, for which the library returns NaN.
    if s.any(s.unordered(s.select(small, s.zero(), s.splat(f32::NAN)), s.zero())) {
        let mut v = [0.0f32; 16];
        // SAFETY: no backend has more than 16 lanes.
        unsafe { s.store(v.as_mut_ptr(), x) };
        sin_wide(&mut v[..S::N], shift != 0);
        // SAFETY: as above.
        return unsafe { s.load(v.as_ptr()) };
    }
    let y = sin_small(s, x, shift);
    if shift == 0 {
        s.select(s.lt(s.abs(x), s.splat(1e-4)), x, y)
    } else {
        y
    }
}

/// `ln (1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.neg_abs(x));
    s.add(log1p(s, e), s.max(s.zero(), x))
}

/// `ab`; `a` where it is 0, whatever `b` is.
#[inline(always)]
pub(crate) fn product_or_zero<S: Simd>(s: S, a: S::V, b: S::V) -> S::V {
    s.select(s.eq(a, s.zero()), a, s.mul(a, b))
}

/// `-1`, `0`, `1` or NaN.
#[inline(always)]
pub(crate) fn sign<S: Simd>(s: S, x: S::V) -> S::V {
    let nonzero = s.select(s.eq(x, s.zero()), x, s.copysign(s.splat(1.0), x));
    s.select(s.unordered(x, x), x, nonzero)
}

/// `x Φ(x)` with the error function.
#[inline(always)]
pub(crate) fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    let h = s.mul(x, s.splat(0.5));
    s.fma(
        h,
        erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))),
        h,
    )
}

/// `x Φ(x)` with the tangent approximation.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let h = s.mul(x, s.splat(0.5));
    let x2 = s.mul(x, x);
    let inner = s.mul(
        x,
        s.fma(x2, s.splat(0.044_715 * 0.797_884_6), s.splat(0.797_884_6)),
    );
    let (near, y) = tanh_parts(s, inner);
    // The approximation is at most a unit in the last place below one, which large numbers show.
    s.fma(h, saturated(s, [near, inner, y], f32::EPSILON / 2.0), h)
}

/// `min(max(x + 3, 0), 6) / 6`.
#[inline(always)]
pub(crate) fn hard_sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let y = s.add(x, s.splat(3.0));
    let y = s.min(s.splat(6.0), s.max(s.zero(), y));
    s.mul(y, s.splat(1.0 / 6.0))
}
