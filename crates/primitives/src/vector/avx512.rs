//! AVX-512: sixteen `f32` or eight `f64` lanes.

use super::{Lanes, Simd};
use std::arch::x86_64::*;

/// Sixteen `f32` lanes; proof that the CPU has AVX-512 F, VL, BW and DQ, AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());
/// Eight `f64` lanes; proof that the CPU has AVX-512 F, VL, BW and DQ, AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Double(());

impl Avx512 {
    /// # Safety
    /// The CPU has AVX-512 F, VL, BW and DQ, AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx512(())
    }
}
impl Avx512Double {
    /// # Safety
    /// The CPU has AVX-512 F, VL, BW and DQ, AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx512Double(())
    }
}

/// Register-only intrinsics.
macro_rules! has {
    ($e:expr) => {{
        // SAFETY: the token proves that the CPU has AVX-512 F, VL, BW and DQ.
        unsafe { $e }
    }};
}

macro_rules! lanes {
    ($token:ident, $v:ty, $t:ty, $n:expr, $mask:ty, $set1:ident, $zero:ident, $load:ident,
     $mload:ident, $store:ident, $mstore:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
     $fma:ident, $min:ident, $max:ident, $sqrt:ident, $sum:ident, $hmax:ident, $hmin:ident) => {
        impl Lanes for $token {
            type T = $t;
            type V = $v;
            const N: usize = $n;

            #[inline(always)]
            fn splat(self, x: $t) -> $v {
                has!($set1(x))
            }
            #[inline(always)]
            fn zero(self) -> $v {
                has!($zero())
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $v {
                // SAFETY: the caller's promise, and the token.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn load_part(self, p: *const $t, n: usize) -> $v {
                debug_assert!(n < $n);
                // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
                unsafe { $mload(((1u32 << n) - 1) as $mask, p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $v) {
                // SAFETY: the caller's promise, and the token.
                unsafe { $store(p, v) }
            }
            #[inline(always)]
            unsafe fn store_part(self, p: *mut $t, v: $v, n: usize) {
                debug_assert!(n < $n);
                // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
                unsafe { $mstore(p, ((1u32 << n) - 1) as $mask, v) }
            }
            #[inline(always)]
            fn prefetch(self, p: *const $t) {
                has!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
            }
            #[inline(always)]
            fn add(self, a: $v, b: $v) -> $v {
                has!($add(a, b))
            }
            #[inline(always)]
            fn sub(self, a: $v, b: $v) -> $v {
                has!($sub(a, b))
            }
            #[inline(always)]
            fn mul(self, a: $v, b: $v) -> $v {
                has!($mul(a, b))
            }
            #[inline(always)]
            fn div(self, a: $v, b: $v) -> $v {
                has!($div(a, b))
            }
            #[inline(always)]
            fn fma(self, a: $v, b: $v, c: $v) -> $v {
                has!($fma(a, b, c))
            }
            #[inline(always)]
            fn min(self, a: $v, b: $v) -> $v {
                has!($min(a, b))
            }
            #[inline(always)]
            fn max(self, a: $v, b: $v) -> $v {
                has!($max(a, b))
            }
            #[inline(always)]
            fn sqrt(self, a: $v) -> $v {
                has!($sqrt(a))
            }
            #[inline(always)]
            fn sum(self, a: $v) -> $t {
                has!($sum(a))
            }
            #[inline(always)]
            fn hmax(self, a: $v) -> $t {
                has!($hmax(a))
            }
            #[inline(always)]
            fn hmin(self, a: $v) -> $t {
                has!($hmin(a))
            }
        }
    };
}
lanes!(
    Avx512,
    __m512,
    f32,
    16,
    __mmask16,
    _mm512_set1_ps,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_maskz_loadu_ps,
    _mm512_storeu_ps,
    _mm512_mask_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_fmadd_ps,
    _mm512_min_ps,
    _mm512_max_ps,
    _mm512_sqrt_ps,
    _mm512_reduce_add_ps,
    _mm512_reduce_max_ps,
    _mm512_reduce_min_ps
);
lanes!(
    Avx512Double,
    __m512d,
    f64,
    8,
    __mmask8,
    _mm512_set1_pd,
    _mm512_setzero_pd,
    _mm512_loadu_pd,
    _mm512_maskz_loadu_pd,
    _mm512_storeu_pd,
    _mm512_mask_storeu_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_div_pd,
    _mm512_fmadd_pd,
    _mm512_min_pd,
    _mm512_max_pd,
    _mm512_sqrt_pd,
    _mm512_reduce_add_pd,
    _mm512_reduce_max_pd,
    _mm512_reduce_min_pd
);

impl Simd for Avx512 {
    type I = __m512i;
    type M = __mmask16;

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn eq(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }
    #[inline(always)]
    fn unordered(self, a: __m512, b: __m512) -> __mmask16 {
        has!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b))
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        has!(_mm512_mask_blend_ps(m, b, a))
    }
    #[inline(always)]
    fn any(self, m: __mmask16) -> bool {
        m != 0
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        has!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn float(self, a: __m512i) -> __m512 {
        has!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn isplat(self, x: i32) -> __m512i {
        has!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn iadd(self, a: __m512i, b: __m512i) -> __m512i {
        has!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn isub(self, a: __m512i, b: __m512i) -> __m512i {
        has!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn iand(self, a: __m512i, b: __m512i) -> __m512i {
        has!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn ior(self, a: __m512i, b: __m512i) -> __m512i {
        has!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn ixor(self, a: __m512i, b: __m512i) -> __m512i {
        has!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn ishl<const B: u32>(self, a: __m512i) -> __m512i {
        has!(_mm512_slli_epi32::<B>(a))
    }
    #[inline(always)]
    fn isar<const B: u32>(self, a: __m512i) -> __m512i {
        has!(_mm512_srai_epi32::<B>(a))
    }
    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        has!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn floor(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn ceil(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn trunc(self, a: __m512) -> __m512 {
        has!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn rsqrt(self, a: __m512) -> __m512 {
        super::refined_rsqrt(self, a, has!(_mm512_rsqrt14_ps(a)))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        has!(_mm512_fnmadd_ps(a, b, c))
    }
}
