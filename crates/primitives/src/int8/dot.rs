//! The instructions of products of 8-bit codes: sums of 32 bits, four bytes of a row at a time.
//!
//! With VNNI four unsigned bytes meet four signed ones in one instruction: of AVX-512, or of AVX-VNNI, which
//! CPUs without AVX-512 have. Elsewhere both sides are
//! widened to 16 bits and meet in pairs (`pmaddwd`): the instruction of bytes that AVX2 has
//! (`pmaddubsw`) saturates. Sums are exact in every form.

use crate::amx::{CHUNK, Support};
use crate::isa::Isa;
use crate::vector::portable::{Portable, Vf, Vi, four};
use crate::vector::{Lanes, Simd};

/// The instructions of one kind of product.
pub(crate) trait Dot: Copy {
    /// The floats of the steps that follow.
    type S: Simd;
    /// Vectors in a panel of weights.
    const VECTORS: usize;

    /// Returns the floats' token.
    fn simd(self) -> Self::S;
    /// Reads a vector of integers.
    ///
    /// # Safety
    /// `p` is valid for reads of a vector.
    unsafe fn ints(self, p: *const i32) -> <Self::S as Simd>::I;
    /// Reads four bytes into every lane.
    ///
    /// # Safety
    /// `p` is valid for reads of four bytes; it need not be aligned.
    unsafe fn spread(self, p: *const i32) -> <Self::S as Simd>::I;
    /// Returns `sum` plus the products of each lane's codes and weights.
    fn dot(
        self,
        sum: <Self::S as Simd>::I,
        codes: <Self::S as Simd>::I,
        weights: <Self::S as Simd>::I,
    ) -> <Self::S as Simd>::I;
    /// Reads a code for each lane.
    ///
    /// # Safety
    /// `p` is valid for reads of as many bytes as a vector has lanes.
    unsafe fn codes(self, p: *const u8) -> <Self::S as Lanes>::V;
    /// Rounds lanes between 0 and 255 to codes, ties to even, and writes them.
    ///
    /// # Safety
    /// `p` is valid for writes of as many bytes as a vector has lanes.
    unsafe fn store_codes(self, p: *mut u8, v: <Self::S as Lanes>::V);
    /// Reads codes for the first `n` lanes, fewer than all.
    ///
    /// # Safety
    /// `p` is valid for reads of `n` bytes.
    unsafe fn codes_part(self, p: *const u8, n: usize) -> <Self::S as Lanes>::V;
    /// Rounds and writes the first `n` lanes, fewer than all, as [`Dot::store_codes`] does.
    ///
    /// # Safety
    /// `p` is valid for writes of `n` bytes.
    unsafe fn store_codes_part(self, p: *mut u8, v: <Self::S as Lanes>::V, n: usize);
}

/// Reads `n < 8` bytes. No call: one would move the sums of the loop around it out of their registers.
///
/// # Safety
/// `p` is valid for reads of `n` bytes.
#[inline(always)]
unsafe fn read_part(p: *const u8, n: usize) -> u64 {
    let (mut value, mut at) = (0, 0);
    // SAFETY: the caller's promise; the pieces add up to `n` bytes.
    unsafe {
        if n & 4 != 0 {
            value = u64::from(p.cast::<u32>().read_unaligned());
            at = 4;
        }
        if n & 2 != 0 {
            value |= u64::from(p.add(at).cast::<u16>().read_unaligned()) << (8 * at);
            at += 2;
        }
        if n & 1 != 0 {
            value |= u64::from(*p.add(at)) << (8 * at);
        }
    }
    value
}

/// Writes the lowest `n < 8` bytes.
///
/// # Safety
/// `p` is valid for writes of `n` bytes.
#[inline(always)]
unsafe fn write_part(p: *mut u8, value: u64, n: usize) {
    let (mut value, mut at) = (value, 0);
    // SAFETY: the caller's promise; the pieces add up to `n` bytes.
    unsafe {
        if n & 4 != 0 {
            p.cast::<u32>().write_unaligned(value as u32);
            (value, at) = (value >> 32, 4);
        }
        if n & 2 != 0 {
            p.add(at).cast::<u16>().write_unaligned(value as u16);
            (value, at) = (value >> 16, at + 2);
        }
        if n & 1 != 0 {
            *p.add(at) = value as u8;
        }
    }
}

/// The kinds of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    Avx2,
    /// AVX-VNNI: as with AVX-512, in vectors of half the width.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "a kind of that architecture")
    )]
    AvxVnni,
    Vnni,
    /// Tiles, and VNNI for what fills none.
    Amx,
}

impl Kind {
    /// Returns the best kind of [`Isa::current`]; AVX-512 without VNNI computes as AVX2 does.
    pub(crate) fn current() -> Kind {
        match Isa::current() {
            Isa::Portable => Kind::Portable,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                match Support::current().int8 && !Isa::is_limited() {
                    true => Kind::Amx,
                    false => Kind::Vnni,
                }
            }
            #[cfg(target_arch = "x86_64")]
            _ if is_x86_feature_detected!("avxvnni") && !Isa::is_limited() => Kind::AvxVnni,
            _ => Kind::Avx2,
        }
    }

    /// Returns the best kind for sums of `k` products: tiles only if they are mostly full.
    pub(crate) fn for_products(k: usize) -> Kind {
        match Kind::current() {
            Kind::Amx if k <= CHUNK / 2 => Kind::Vnni,
            kind => kind,
        }
    }

    /// Returns the codes in four bytes of a row: four, or two that are widened.
    pub(crate) fn group(self) -> usize {
        match self {
            Kind::Portable | Kind::Avx2 => 2,
            Kind::AvxVnni | Kind::Vnni | Kind::Amx => 4,
        }
    }

    /// Returns the steps of `k` codes, each of four bytes: those of whole tiles, if there are any.
    pub(crate) fn steps(self, k: usize) -> usize {
        let steps = k.div_ceil(self.group());
        match self {
            Kind::Amx => steps.next_multiple_of(CHUNK / 4),
            _ => steps,
        }
    }
}

impl Dot for Portable {
    type S = Portable;
    const VECTORS: usize = 2;

    #[inline(always)]
    fn simd(self) -> Portable {
        self
    }
    #[inline(always)]
    unsafe fn ints(self, p: *const i32) -> Vi {
        // SAFETY: the caller's promise.
        Vi(unsafe { p.cast::<[i32; Portable::N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn spread(self, p: *const i32) -> Vi {
        // SAFETY: the caller's promise.
        Vi([unsafe { p.read_unaligned() }; Portable::N])
    }
    #[inline(always)]
    fn dot(self, sum: Vi, codes: Vi, weights: Vi) -> Vi {
        let half = |x: i32| (i32::from(x as i16), x >> 16);
        let mut out = sum.0;
        for (i, sum) in out.iter_mut().enumerate() {
            let ((a, b), (c, d)) = (half(codes.0[i]), half(weights.0[i]));
            *sum = sum.wrapping_add(a * c + b * d);
        }
        Vi(out)
    }
    #[inline(always)]
    unsafe fn codes(self, p: *const u8) -> Vf {
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[u8; Portable::N]>().read_unaligned() };
        Vf(four!(i => f32::from(bytes[i])))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut u8, v: Vf) {
        let codes = four!(i => v.0[i].round_ties_even() as u8);
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; Portable::N]>().write_unaligned(codes) }
    }
    #[inline(always)]
    unsafe fn codes_part(self, p: *const u8, n: usize) -> Vf {
        // SAFETY: the caller's promise.
        let bytes = (unsafe { read_part(p, n) } as u32).to_le_bytes();
        Vf(four!(i => f32::from(bytes[i])))
    }
    #[inline(always)]
    unsafe fn store_codes_part(self, p: *mut u8, v: Vf, n: usize) {
        let codes = four!(i => v.0[i].round_ties_even() as u8);
        // SAFETY: the caller's promise.
        unsafe { write_part(p, u64::from(u32::from_le_bytes(codes)), n) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{Dot, read_part, write_part};
    use crate::vector::avx2::Avx2;
    use crate::vector::avx512::Avx512;
    use std::arch::x86_64::*;

    impl Dot for Avx2 {
        type S = Avx2;
        const VECTORS: usize = 2;

        #[inline(always)]
        fn simd(self) -> Avx2 {
            self
        }
        #[inline(always)]
        unsafe fn ints(self, p: *const i32) -> __m256i {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        unsafe fn spread(self, p: *const i32) -> __m256i {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm256_set1_epi32(p.read_unaligned()) }
        }
        #[inline(always)]
        fn dot(self, sum: __m256i, codes: __m256i, weights: __m256i) -> __m256i {
            // SAFETY: the token proves that the CPU has AVX2.
            unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(codes, weights)) }
        }
        #[inline(always)]
        unsafe fn codes(self, p: *const u8) -> __m256 {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn store_codes(self, p: *mut u8, v: __m256) {
            // SAFETY: the caller's promise, and the token.
            unsafe {
                let wide = _mm256_cvtps_epi32(v);
                let (low, high) = (
                    _mm256_castsi256_si128(wide),
                    _mm256_extracti128_si256::<1>(wide),
                );
                let half = _mm_packs_epi32(low, high);
                _mm_storel_epi64(p.cast(), _mm_packus_epi16(half, half));
            }
        }
        #[inline(always)]
        unsafe fn codes_part(self, p: *const u8, n: usize) -> __m256 {
            // SAFETY: the caller's promise, and the token.
            unsafe {
                let codes = _mm_cvtsi64_si128(read_part(p, n) as i64);
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes))
            }
        }
        #[inline(always)]
        unsafe fn store_codes_part(self, p: *mut u8, v: __m256, n: usize) {
            let mut codes = 0u64;
            // SAFETY: the caller's promise, and room for eight codes.
            unsafe {
                self.store_codes((&raw mut codes).cast(), v);
                write_part(p, codes, n);
            }
        }
    }

    /// Proof that the CPU has AVX-VNNI and what [`Avx2`] stands for.
    #[derive(Clone, Copy)]
    pub(crate) struct AvxVnni(Avx2);

    impl AvxVnni {
        /// # Safety
        /// The CPU has AVX-VNNI, AVX2 and FMA.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            // SAFETY: the caller's promise.
            AvxVnni(unsafe { Avx2::new() })
        }
    }

    impl Dot for AvxVnni {
        type S = Avx2;
        const VECTORS: usize = 2;

        #[inline(always)]
        fn simd(self) -> Avx2 {
            self.0
        }
        #[inline(always)]
        unsafe fn ints(self, p: *const i32) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { self.0.ints(p) }
        }
        #[inline(always)]
        unsafe fn spread(self, p: *const i32) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { self.0.spread(p) }
        }
        #[inline(always)]
        fn dot(self, sum: __m256i, codes: __m256i, weights: __m256i) -> __m256i {
            // SAFETY: the token proves that the CPU has AVX-VNNI.
            unsafe { _mm256_dpbusd_avx_epi32(sum, codes, weights) }
        }
        #[inline(always)]
        unsafe fn codes(self, p: *const u8) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { self.0.codes(p) }
        }
        #[inline(always)]
        unsafe fn store_codes(self, p: *mut u8, v: __m256) {
            // SAFETY: the caller's promise.
            unsafe { self.0.store_codes(p, v) }
        }
        #[inline(always)]
        unsafe fn codes_part(self, p: *const u8, n: usize) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { self.0.codes_part(p, n) }
        }
        #[inline(always)]
        unsafe fn store_codes_part(self, p: *mut u8, v: __m256, n: usize) {
            // SAFETY: the caller's promise.
            unsafe { self.0.store_codes_part(p, v, n) }
        }
    }

    /// Proof that the CPU has VNNI and what [`Avx512`] stands for.
    #[derive(Clone, Copy)]
    pub(crate) struct Vnni(Avx512);

    impl Vnni {
        /// # Safety
        /// The CPU has AVX-512 F, VL, BW, DQ and VNNI, AVX2 and FMA.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            // SAFETY: the caller's promise.
            Vnni(unsafe { Avx512::new() })
        }
    }

    impl Dot for Vnni {
        type S = Avx512;
        const VECTORS: usize = 4;

        #[inline(always)]
        fn simd(self) -> Avx512 {
            self.0
        }
        #[inline(always)]
        unsafe fn ints(self, p: *const i32) -> __m512i {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn spread(self, p: *const i32) -> __m512i {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm512_set1_epi32(p.read_unaligned()) }
        }
        #[inline(always)]
        fn dot(self, sum: __m512i, codes: __m512i, weights: __m512i) -> __m512i {
            // SAFETY: the token proves that the CPU has VNNI.
            unsafe { _mm512_dpbusd_epi32(sum, codes, weights) }
        }
        #[inline(always)]
        unsafe fn codes(self, p: *const u8) -> __m512 {
            // SAFETY: the caller's promise, and the token.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn store_codes(self, p: *mut u8, v: __m512) {
            // SAFETY: the caller's promise, and the token.
            unsafe {
                let codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
                _mm_storeu_si128(p.cast(), codes);
            }
        }
        #[inline(always)]
        unsafe fn codes_part(self, p: *const u8, n: usize) -> __m512 {
            // SAFETY: masked-off bytes are not accessed, the others are the caller's promise.
            unsafe {
                let codes = _mm_maskz_loadu_epi8(((1u32 << n) - 1) as __mmask16, p.cast());
                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes))
            }
        }
        #[inline(always)]
        unsafe fn store_codes_part(self, p: *mut u8, v: __m512, n: usize) {
            // SAFETY: masked-off bytes are not accessed, the others are the caller's promise.
            unsafe {
                let codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
                _mm_mask_storeu_epi8(p.cast(), ((1u32 << n) - 1) as __mmask16, codes);
            }
        }
    }
}
