//! The vector traits every algorithm of this crate is written against, and their three backends.
//!
//! A backend is a zero-sized token whose existence proves that the CPU has the instructions it
//! stands for, so arithmetic on it is safe; only memory access stays unsafe.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;
pub(crate) mod recorder;

/// `1 / √a` by an estimate of 14 bits and two terms of the series of its error.
#[inline(always)]
pub(crate) fn refined_rsqrt<S: Simd>(s: S, a: S::V, near: S::V) -> S::V {
    let error = s.fnma(s.mul(a, near), near, s.splat(1.0));
    let terms = s.fma(error, s.splat(0.375), s.splat(0.5));
    let y = s.fma(s.mul(near, error), terms, near);
    // The estimate of zero or infinity is exact, its error is not a number.
    s.select(s.unordered(y, y), near, y)
}

/// Returns what `f` returns for each index: like `std::array::from_fn`, with fewer calls to inline.
#[inline(always)]
pub(crate) fn array<T: Copy, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut values = [f(0); N];
    let mut i = 1;
    while i < N {
        values[i] = f(i);
        i += 1;
    }
    values
}

/// Vectors of one float type: the operations of a matrix product.
pub(crate) trait Lanes: Copy + Send + Sync + 'static {
    /// The element.
    type T: Copy + PartialOrd + Send + Sync + 'static;
    /// A vector of `N` elements.
    type V: Copy;
    /// Elements in a vector.
    const N: usize;

    /// Returns all lanes `x`.
    fn splat(self, x: Self::T) -> Self::V;
    /// Returns all lanes zero.
    fn zero(self) -> Self::V;
    /// Reads `N` elements.
    ///
    /// # Safety
    /// `p` is valid for reads of `N` elements.
    unsafe fn load(self, p: *const Self::T) -> Self::V;
    /// Reads `n < N` elements, the other lanes are zero.
    ///
    /// # Safety
    /// `p` is valid for reads of `n` elements.
    unsafe fn load_part(self, p: *const Self::T, n: usize) -> Self::V;
    /// Writes `N` elements.
    ///
    /// # Safety
    /// `p` is valid for writes of `N` elements.
    unsafe fn store(self, p: *mut Self::T, v: Self::V);
    /// Writes the first `n < N` lanes.
    ///
    /// # Safety
    /// `p` is valid for writes of `n` elements.
    unsafe fn store_part(self, p: *mut Self::T, v: Self::V, n: usize);
    /// Prefetches the cache line at `p`, which may be invalid, into the second-level cache.
    fn prefetch(self, p: *const Self::T);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, with one rounding where the hardware can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a < b ? a : b`, so `b` when either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`, so `b` when either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns the square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Returns the sum of the lanes.
    fn sum(self, a: Self::V) -> Self::T;
    /// Returns the largest lane (any lane may win against NaN).
    fn hmax(self, a: Self::V) -> Self::T;
    /// Returns the smallest lane (any lane may win against NaN).
    fn hmin(self, a: Self::V) -> Self::T;
}

/// `f32` vectors with comparisons and bit operations, for the elementary functions.
pub(crate) trait Simd: Lanes<T = f32> {
    /// A vector of `N` 32-bit integers.
    type I: Copy;
    /// A lane mask.
    type M: Copy;

    /// `a < b`, false for NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a == b`, false for NaN.
    fn eq(self, a: Self::V, b: Self::V) -> Self::M;
    /// Returns whether either is NaN.
    fn unordered(self, a: Self::V, b: Self::V) -> Self::M;
    /// `m ? a : b`.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// Returns whether any lane is set.
    fn any(self, m: Self::M) -> bool;
    /// Returns the bits.
    fn bits(self, a: Self::V) -> Self::I;
    /// Returns the float with these bits.
    fn float(self, a: Self::I) -> Self::V;
    /// Returns all lanes `x`.
    fn isplat(self, x: i32) -> Self::I;
    /// Wrapping `a + b`.
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping `a - b`.
    fn isub(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn iand(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn ior(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn ixor(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << B`.
    fn ishl<const B: u32>(self, a: Self::I) -> Self::I;
    /// Arithmetic `a >> B`.
    fn isar<const B: u32>(self, a: Self::I) -> Self::I;
    /// To float.
    fn to_float(self, a: Self::I) -> Self::V;
    /// Rounds down.
    fn floor(self, a: Self::V) -> Self::V;
    /// Rounds up.
    fn ceil(self, a: Self::V) -> Self::V;
    /// Rounds to nearest, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// Rounds toward zero.
    fn trunc(self, a: Self::V) -> Self::V;

    /// `1 / √a`.
    #[inline(always)]
    fn rsqrt(self, a: Self::V) -> Self::V {
        self.div(self.splat(1.0), self.sqrt(a))
    }
    /// `c - a * b`.
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.fma(self.neg(a), b, c)
    }
    /// `-a`.
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        self.float(self.ixor(self.bits(a), self.isplat(i32::MIN)))
    }
    /// `|a|`.
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        self.float(self.iand(self.bits(a), self.isplat(i32::MAX)))
    }
    /// `-|a|`.
    #[inline(always)]
    fn neg_abs(self, a: Self::V) -> Self::V {
        self.float(self.ior(self.bits(a), self.isplat(i32::MIN)))
    }
    /// Returns the magnitude of `a` with the sign of `b`.
    #[inline(always)]
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V {
        let mag = self.iand(self.bits(a), self.isplat(i32::MAX));
        let sign = self.iand(self.bits(b), self.isplat(i32::MIN));
        self.float(self.ior(mag, sign))
    }
    /// `c0 + x (c1 + x (c2 + …))` for the coefficients, highest power first.
    #[inline(always)]
    fn poly<const K: usize>(self, x: Self::V, c: [f32; K]) -> Self::V {
        let mut r = self.splat(c[0]);
        let mut i = 1;
        while i < K {
            r = self.fma(r, x, self.splat(c[i]));
            i += 1;
        }
        r
    }
}
