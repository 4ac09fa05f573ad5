//! The numeric traits of generic kernels, with the arithmetic of TensorFlow's C++
//! (integers wrap): [`Num`] for every type but the 16-bit floats, [`Ordered`] without complex
//! numbers, [`Int`]; then in [`crate::field`] `Field` (real and complex floats), `Real` and
//! `Promote` (the wide type to compute in). [`Half`] is a 16-bit float, which computes through
//! `f32`.

use ferroflow_primitives::halves;
use ferroflow_tensor::{Complex, Element, bf16, f16};
use half::slice::HalfFloatSliceExt;

/// An element type with native arithmetic.
pub trait Num: Element {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Sum; integers wrap around.
    fn add(self, o: Self) -> Self;
    /// Difference; integers wrap around.
    fn sub(self, o: Self) -> Self;
    /// Product; integers wrap around.
    fn mul(self, o: Self) -> Self;
    /// Returns the quotient; integers divided by zero give zero (kernels reject that before).
    fn div(self, o: Self) -> Self;
    /// Negation; integers wrap around.
    fn neg(self) -> Self;
    /// Converts `n`, rounded or wrapped.
    fn from_count(n: usize) -> Self;
    /// Returns the value times its conjugate.
    fn norm(self) -> Self;
    /// Returns the square root; integers go through `f64`.
    fn root(self) -> Self;
    /// `|x - o|²`.
    #[inline(always)]
    fn squared_difference(self, o: Self) -> Self {
        self.sub(o).norm()
    }
    /// Returns the average of `n` numbers with this sum.
    #[inline]
    fn average(self, n: usize) -> Self {
        self.div(Self::from_count(n))
    }
    /// `x²`.
    #[inline(always)]
    fn square(self) -> Self {
        self.mul(self)
    }
    /// Returns whether the value is zero.
    #[inline(always)]
    fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// An ordered number.
pub trait Ordered: Num + PartialOrd {
    /// Lowest value; negative infinity if there is one.
    const LOWEST: Self;
    /// Highest value; infinity if there is one.
    const HIGHEST: Self;
    /// Rounds the quotient toward negative infinity.
    fn floor_div(self, o: Self) -> Self;
    /// Returns the remainder with the sign of the divisor.
    fn floor_mod(self, o: Self) -> Self;
    /// Returns the remainder with the sign of the dividend.
    fn trunc_mod(self, o: Self) -> Self;
    /// Quotient rounded towards zero.
    fn trunc_div(self, o: Self) -> Self;
    /// Returns whether the value is NaN.
    fn not_a_number(self) -> bool;
    /// Returns the larger operand, or NaN if one is.
    #[inline(always)]
    fn larger(self, o: Self) -> Self {
        if self > o || self.not_a_number() {
            self
        } else {
            o
        }
    }
    /// Returns the smaller operand, or NaN if one is.
    #[inline(always)]
    fn smaller(self, o: Self) -> Self {
        if self < o || self.not_a_number() {
            self
        } else {
            o
        }
    }
}

/// An integer.
pub trait Int: Ordered + Eq + Ord {
    /// Shift to the left; the count is clamped to the width.
    fn shl(self, o: Self) -> Self;
    /// Shift to the right; the count is clamped to the width.
    fn shr(self, o: Self) -> Self;
    /// Returns the value to the power of `e`.
    fn pow(self, e: Self) -> Self;
    /// Number of one bits.
    fn ones(self) -> u8;
    /// Bitwise complement.
    fn not(self) -> Self;
    /// Bitwise and.
    fn and(self, o: Self) -> Self;
    /// Bitwise or.
    fn or(self, o: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, o: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// -1, 0 or 1.
    fn sign(self) -> Self;
    /// Returns zero, always, as TensorFlow's Round of integers.
    #[inline(always)]
    fn round(self) -> Self {
        Self::ZERO
    }
}

macro_rules! ints {
    ($($ty:ty),*) => {$(
        impl Num for $ty {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline(always)]
            fn add(self, o: Self) -> Self { self.wrapping_add(o) }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self.wrapping_sub(o) }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self.wrapping_mul(o) }
            #[inline(always)]
            fn div(self, o: Self) -> Self { if o == 0 { 0 } else { self.wrapping_div(o) } }
            #[inline(always)]
            fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn from_count(n: usize) -> Self { n as $ty }
            #[inline(always)]
            fn norm(self) -> Self { self.wrapping_mul(self) }
            #[inline(always)]
            fn root(self) -> Self { (self as f64).sqrt() as $ty }
        }
        impl Ordered for $ty {
            const LOWEST: Self = <$ty>::MIN;
            const HIGHEST: Self = <$ty>::MAX;
            #[inline(always)]
            fn floor_div(self, o: Self) -> Self {
                if o == 0 { return 0; }
                let q = self.wrapping_div(o);
                #[allow(unused_comparisons, reason = "unsigned types share the text")]
                let opposite = (self < 0) != (o < 0);
                if opposite && q.wrapping_mul(o) != self { q.wrapping_sub(1) } else { q }
            }
            #[inline(always)]
            fn floor_mod(self, o: Self) -> Self {
                if o == 0 { return 0; }
                let r = self.wrapping_rem(o);
                #[allow(unused_comparisons, reason = "unsigned types share the text")]
                let opposite = (r < 0) != (o < 0);
                if r != 0 && opposite { r.wrapping_add(o) } else { r }
            }
            #[inline(always)]
            fn trunc_mod(self, o: Self) -> Self {
                if o == 0 { 0 } else { self.wrapping_rem(o) }
            }
            #[inline(always)]
            fn trunc_div(self, o: Self) -> Self { Num::div(self, o) }
            #[inline(always)]
            fn not_a_number(self) -> bool { false }
        }
        impl Int for $ty {
            #[inline(always)]
            fn shl(self, o: Self) -> Self { self << o.clamp(0, (<$ty>::BITS - 1) as $ty) }
            #[inline(always)]
            fn shr(self, o: Self) -> Self { self >> o.clamp(0, (<$ty>::BITS - 1) as $ty) }
            #[inline(always)]
            fn pow(self, e: Self) -> Self {
                let (mut base, mut e, mut result) = (self, e, 1 as $ty);
                while e > 0 {
                    if e & 1 == 1 { result = result.wrapping_mul(base); }
                    base = base.wrapping_mul(base);
                    e >>= 1;
                }
                result
            }
            #[inline(always)]
            fn ones(self) -> u8 { self.count_ones() as u8 }
            #[inline(always)]
            fn not(self) -> Self { !self }
            #[inline(always)]
            fn and(self, o: Self) -> Self { self & o }
            #[inline(always)]
            fn or(self, o: Self) -> Self { self | o }
            #[inline(always)]
            fn xor(self, o: Self) -> Self { self ^ o }
            #[inline(always)]
            fn abs(self) -> Self { if self < Self::ZERO { self.wrapping_neg() } else { self } }
            #[inline(always)]
            fn sign(self) -> Self {
                let positive = (self > 0) as $ty;
                if self < Self::ZERO { (0 as $ty).wrapping_sub(1) } else { positive }
            }
        }
    )*};
}
ints!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Num for $ty {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn add(self, o: Self) -> Self { self + o }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self - o }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self * o }
            #[inline(always)]
            fn div(self, o: Self) -> Self { self / o }
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn from_count(n: usize) -> Self { n as $ty }
            #[inline(always)]
            fn norm(self) -> Self { self * self }
            #[inline(always)]
            fn root(self) -> Self { self.sqrt() }
        }
        impl Ordered for $ty {
            const LOWEST: Self = <$ty>::NEG_INFINITY;
            const HIGHEST: Self = <$ty>::INFINITY;
            #[inline(always)]
            fn floor_div(self, o: Self) -> Self { (self / o).floor() }
            #[inline(always)]
            fn floor_mod(self, o: Self) -> Self {
                let r = self % o;
                if r != 0.0 && (r < 0.0) != (o < 0.0) { r + o } else { r }
            }
            #[inline(always)]
            fn trunc_mod(self, o: Self) -> Self { self % o }
            #[inline(always)]
            fn trunc_div(self, o: Self) -> Self { (self / o).trunc() }
            #[inline(always)]
            fn not_a_number(self) -> bool { self.is_nan() }
        }
        impl Num for Complex<$ty> {
            const ZERO: Self = Complex::new(0.0, 0.0);
            const ONE: Self = Complex::new(1.0, 0.0);
            #[inline(always)]
            fn add(self, o: Self) -> Self { self + o }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self - o }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self * o }
            #[inline(always)]
            fn div(self, o: Self) -> Self { self / o }
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn from_count(n: usize) -> Self { Complex::new(n as $ty, 0.0) }
            #[inline(always)]
            fn norm(self) -> Self { self * self.conj() }
            #[inline(always)]
            fn root(self) -> Self { self.sqrt() }
            fn average(self, n: usize) -> Self {
                // The average of no elements is zero.
                if n == 0 { Self::ZERO } else { self / n as $ty }
            }
        }
    )*};
}
floats!(f32, f64);

/// A 16-bit float, which computes through `f32`.
pub trait Half: Element + PartialOrd {
    /// Converts to f32.
    fn wide(self) -> f32;
    /// Rounds from f32, ties to even.
    fn narrow(x: f32) -> Self;
    /// Converts a slice to f32.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds a slice from f32.
    fn narrow_all(from: &[f32], to: &mut [Self]);
}

impl Half for f16 {
    #[inline]
    fn wide(self) -> f32 {
        self.to_f32()
    }
    #[inline]
    fn narrow(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn widen(from: &[Self], to: &mut [f32]) {
        let n = halves::widen_f16(from.reinterpret_cast(), to);
        from[n..].convert_to_f32_slice(&mut to[n..]);
    }
    fn narrow_all(from: &[f32], to: &mut [Self]) {
        let n = halves::narrow_f16(from, to.reinterpret_cast_mut());
        to[n..].convert_from_f32_slice(&from[n..]);
    }
}

impl Half for bf16 {
    #[inline]
    fn wide(self) -> f32 {
        self.to_f32()
    }
    #[inline]
    fn narrow(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn widen(from: &[Self], to: &mut [f32]) {
        halves::widen_bf16(from.reinterpret_cast(), to);
    }
    fn narrow_all(from: &[f32], to: &mut [Self]) {
        halves::narrow_bf16(from, to.reinterpret_cast_mut());
    }
}
