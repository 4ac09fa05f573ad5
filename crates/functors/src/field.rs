//! Numeric traits with elementary functions (see [`crate::numeric`] for the others): the real and
//! complex element types, and the wide types to compute in.

use crate::numeric::{Num, Ordered};
use ferroflow_primitives::{double, special};
use ferroflow_tensor::{Complex, Complex32, Complex64, Element, bf16, f16};
use num_complex::ComplexFloat;
use std::ops::{Add, Neg, Sub};

/// A real or complex number with the elementary functions.
pub trait Field: Num {
    /// Returns e to the power of the value.
    fn exp(self) -> Self;
    /// `exp(x) - 1`, exact near zero.
    fn exp_m1(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + x)`, exact near zero.
    fn ln_1p(self) -> Self;
    /// `1 / sqrt(x)`.
    fn rsqrt(self) -> Self;
    /// `1 / x`.
    fn recip(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Tangent.
    fn tan(self) -> Self;
    /// Inverse sine.
    fn asin(self) -> Self;
    /// Inverse cosine.
    fn acos(self) -> Self;
    /// Inverse tangent.
    fn atan(self) -> Self;
    /// Hyperbolic sine.
    fn sinh(self) -> Self;
    /// Hyperbolic cosine.
    fn cosh(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// Inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// Inverse hyperbolic tangent.
    fn atanh(self) -> Self;
    /// Returns the value to the power of `e`.
    fn pow(self, e: Self) -> Self;
    /// `x / |x|`, or `x` if that is NaN.
    fn sign(self) -> Self;
    /// Returns the complex conjugate.
    fn conj(self) -> Self;
    /// Converts a real number.
    fn from_f64(x: f64) -> Self;
    /// Returns the real part.
    fn real_part(self) -> f64;
    /// Returns the absolute value.
    fn magnitude(self) -> f64;
    /// `1 / (1 + exp(-x))`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE.div(Self::ONE.add(self.neg().exp()))
    }
    /// Product; 0 where `o` is 0 (op MulNoNan).
    #[inline]
    fn mul_no_nan(self, o: Self) -> Self {
        if o.is_zero() { Self::ZERO } else { self.mul(o) }
    }
    /// Quotient; 0 where `o` is 0 (op DivNoNan).
    #[inline]
    fn div_no_nan(self, o: Self) -> Self {
        if o.is_zero() { Self::ZERO } else { self.div(o) }
    }
    /// `x / o`; 0 where x is 0 (op Xdivy).
    #[inline]
    fn xdivy(self, o: Self) -> Self {
        if self.is_zero() {
            Self::ZERO
        } else {
            self.div(o)
        }
    }
    /// `x · ln(o)`; 0 where x is 0 (op Xlogy).
    #[inline]
    fn xlogy(self, o: Self) -> Self {
        if self.is_zero() {
            self
        } else {
            self.mul(o.ln())
        }
    }
    /// `x · ln(1 + o)`; 0 where x is 0 (op Xlog1py).
    #[inline]
    fn xlog1py(self, o: Self) -> Self {
        if self.is_zero() {
            self
        } else {
            self.mul(o.ln_1p())
        }
    }
}

/// A real floating-point number.
pub trait Real: Field + Ordered {
    /// Absolute value.
    fn abs(self) -> Self;
    /// Largest integer not above the value.
    fn floor(self) -> Self;
    /// Smallest integer not below the value.
    fn ceil(self) -> Self;
    /// Nearest integer, ties to even.
    fn rint(self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// Complementary error function.
    fn erfc(self) -> Self;
    /// Angle of the point `(x, self)`.
    fn atan2(self, x: Self) -> Self;
    /// Next representable value towards `to`.
    fn next_after(self, to: Self) -> Self;
}

/// An element type with a wide type of the same kind, `f64` or `Complex64`, for kernels that need
/// more digits than the type has.
pub trait Promote: Element {
    /// The wide type.
    type Wide: Field;
    /// Converts to the wide type.
    fn promote(self) -> Self::Wide;
    /// Rounds from the wide type.
    fn demote(x: Self::Wide) -> Self;
}

macro_rules! promote {
    ($($ty:ty => $wide:ty, $promote:expr, $demote:expr;)*) => {$(
        impl Promote for $ty {
            type Wide = $wide;
            #[inline(always)]
            fn promote(self) -> $wide { $promote(self) }
            #[inline(always)]
            fn demote(x: $wide) -> Self { $demote(x) }
        }
    )*};
}
promote! {
    f32 => f64, f64::from, |x| x as f32;
    f64 => f64, |x| x, |x| x;
    f16 => f64, f16::to_f64, f16::from_f64;
    bf16 => f64, bf16::to_f64, bf16::from_f64;
    Complex32 => Complex64,
        |x: Complex32| Complex64::new(x.re.into(), x.im.into()),
        |x: Complex64| Complex32::new(x.re as f32, x.im as f32);
    Complex64 => Complex64, |x| x, |x| x;
}

macro_rules! reals {
    ($($ty:ident in $of:ident, $erf:path, $erfc:path;)*) => {$(
        impl Field for $ty {
            #[inline(always)]
            fn exp(self) -> Self { $of::exp(self) }
            #[inline(always)]
            fn exp_m1(self) -> Self { $of::exp_m1(self) }
            #[inline(always)]
            fn ln(self) -> Self { $of::ln(self) }
            #[inline(always)]
            fn ln_1p(self) -> Self { $of::ln_1p(self) }
            #[inline]
            fn rsqrt(self) -> Self { 1.0 / self.sqrt() }
            #[inline]
            fn recip(self) -> Self { 1.0 / self }
            #[inline]
            fn sin(self) -> Self { $ty::sin(self) }
            #[inline]
            fn cos(self) -> Self { $ty::cos(self) }
            #[inline]
            fn tan(self) -> Self { $ty::tan(self) }
            #[inline]
            fn asin(self) -> Self { $ty::asin(self) }
            #[inline]
            fn acos(self) -> Self { $ty::acos(self) }
            #[inline(always)]
            fn atan(self) -> Self { $of::atan(self) }
            #[inline]
            fn sinh(self) -> Self { $ty::sinh(self) }
            #[inline]
            fn cosh(self) -> Self { $ty::cosh(self) }
            #[inline(always)]
            fn tanh(self) -> Self { $of::tanh(self) }
            #[inline(always)]
            fn asinh(self) -> Self { double::asinh(f64::from(self)) as $ty }
            #[inline(always)]
            fn acosh(self) -> Self { double::acosh(f64::from(self)) as $ty }
            #[inline]
            // The library's is inexact near -1.
            fn atanh(self) -> Self { $ty::atanh(self.abs()).copysign(self) }
            #[inline]
            fn pow(self, e: Self) -> Self { self.powf(e) }
            #[inline]
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self }
            }
            #[inline]
            fn conj(self) -> Self { self }
            #[inline]
            fn from_f64(x: f64) -> Self { x as $ty }
            #[inline]
            fn real_part(self) -> f64 { self.into() }
            #[inline]
            fn magnitude(self) -> f64 { $ty::abs(self).into() }
        }
        impl Real for $ty {
            #[inline]
            fn abs(self) -> Self { $ty::abs(self) }
            #[inline]
            fn floor(self) -> Self { $ty::floor(self) }
            #[inline]
            fn ceil(self) -> Self { $ty::ceil(self) }
            #[inline]
            fn rint(self) -> Self { self.round_ties_even() }
            #[inline]
            fn erf(self) -> Self { $erf(self) }
            #[inline]
            fn erfc(self) -> Self { $erfc(self) }
            #[inline(always)]
            fn atan2(self, x: Self) -> Self { $of::atan2(self, x) }
            fn next_after(self, to: Self) -> Self {
                if self.is_nan() || to.is_nan() {
                    return $ty::NAN;
                }
                // By bits: kernels compute with denormal numbers as zeros.
                let (from, end) = (self.to_bits(), to.to_bits());
                let is_zero = |bits| bits == 0 || bits == (-0.0 as $ty).to_bits();
                if from == end || is_zero(from) && is_zero(end) {
                    to
                } else if is_zero(from) {
                    $ty::from_bits(1).copysign(to)
                } else if self.total_cmp(&to).is_lt() == self.is_sign_positive() {
                    $ty::from_bits(from + 1)
                } else {
                    $ty::from_bits(from - 1)
                }
            }
        }
        impl Field for Complex<$ty> {
            fn exp(self) -> Self { ComplexFloat::exp(self) }
            fn exp_m1(self) -> Self {
                // e^(a+bi) - 1 without cancellation near zero.
                let (s, c) = self.im.sin_cos();
                let half = (self.im / 2.0).sin();
                let e = self.re.exp_m1();
                Complex::new(e * c - 2.0 * half * half, self.re.exp() * s)
            }
            fn ln(self) -> Self { ComplexFloat::ln(self) }
            fn ln_1p(self) -> Self { ComplexFloat::ln(self + 1.0) }
            fn rsqrt(self) -> Self { ComplexFloat::recip(ComplexFloat::sqrt(self)) }
            fn recip(self) -> Self { ComplexFloat::recip(self) }
            fn sin(self) -> Self { ComplexFloat::sin(self) }
            fn cos(self) -> Self { ComplexFloat::cos(self) }
            fn tan(self) -> Self {
                // tan z = -i tanh iz, in double precision: it is a quotient of differences near a pole.
                let t = Field::tanh(Complex64::new(-f64::from(self.im), self.re.into()));
                Complex::new(t.im as $ty, -t.re as $ty)
            }
            // Kahan, "Branch cuts for complex elementary functions" (1987): the sign of a zero says on which side of the
            // cut a number is.
            fn asin(self) -> Self {
                let [below, above] = around_one(self).map(ComplexFloat::sqrt);
                let im = (ComplexFloat::conj(below) * above).im;
                Complex::new(<$ty>::atan2(self.re, (below * above).re), $ty::asinh(im))
            }
            fn acos(self) -> Self {
                let [below, above] = around_one(self).map(ComplexFloat::sqrt);
                let im = (ComplexFloat::conj(above) * below).im;
                Complex::new(2.0 * <$ty>::atan2(below.re, above.re), $ty::asinh(im))
            }
            fn atan(self) -> Self { ComplexFloat::atan(self) }
            fn sinh(self) -> Self { ComplexFloat::sinh(self) }
            fn cosh(self) -> Self { ComplexFloat::cosh(self) }
            fn tanh(self) -> Self {
                if self.re.abs() > 20.0 {
                    // The quotient below would overflow; only the sign of the real part matters.
                    let tail = 4.0 * (-2.0 * self.re.abs()).exp() * self.im.sin() * self.im.cos();
                    return Complex::new((1.0 as $ty).copysign(self.re), tail);
                }
                ComplexFloat::tanh(self)
            }
            fn asinh(self) -> Self { ComplexFloat::asinh(self) }
            fn acosh(self) -> Self {
                let [below, above] = [-1.0, 1.0].map(|one| ComplexFloat::sqrt(Complex::new(self.re + one, self.im)));
                let re = (ComplexFloat::conj(below) * above).re;
                Complex::new($ty::asinh(re), 2.0 * <$ty>::atan2(below.im, above.re))
            }
            fn atanh(self) -> Self {
                let [below, above] = around_one(self).map(ComplexFloat::ln);
                (above - below) / 2.0
            }
            fn pow(self, e: Self) -> Self { ComplexFloat::powc(self, e) }
            fn sign(self) -> Self {
                let norm = ComplexFloat::abs(self);
                if norm == 0.0 { Self::ZERO } else { self / norm }
            }
            #[inline(always)]
            fn conj(self) -> Self { ComplexFloat::conj(self) }
            fn from_f64(x: f64) -> Self { Complex::new(x as $ty, 0.0) }
            fn real_part(self) -> f64 { self.re.into() }
            fn magnitude(self) -> f64 { Complex::norm(self).into() }
        }
    )*};
}
reals! {
    f32 in f32, libm::erff, libm::erfcf;
    f64 in double, special::erf, special::erfc;
}

/// Returns `1 - z` and `1 + z`, with the sign of an imaginary part that is zero.
fn around_one<T>(z: Complex<T>) -> [Complex<T>; 2]
where
    T: Copy + From<i8> + Add<Output = T> + Sub<Output = T> + Neg<Output = T>,
{
    let one = T::from(1);
    [
        Complex::new(one - z.re, -z.im),
        Complex::new(one + z.re, z.im),
    ]
}
