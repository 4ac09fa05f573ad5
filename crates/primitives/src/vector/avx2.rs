//! AVX2 with FMA: eight `f32` or four `f64` lanes.

use super::{Lanes, Simd};
use std::arch::x86_64::*;

/// Eight `f32` lanes; proof that the CPU has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());
/// Four `f64` lanes; proof that the CPU has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Double(());

impl Avx2 {
    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx2(())
    }
}
impl Avx2Double {
    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx2Double(())
    }
}

/// Register-only intrinsics.
macro_rules! has {
    ($e:expr) => {{
        // SAFETY: the token proves that the CPU has AVX2 and FMA.
        unsafe { $e }
    }};
}

static MASK32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
static MASK64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

#[inline(always)]
fn mask32(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: `8 - n` is at most 8, so eight entries from there are inside the table of 16; callers
    // hold the token.
    unsafe { _mm256_loadu_si256(MASK32.as_ptr().add(8 - n).cast()) }
}

#[inline(always)]
fn mask64(n: usize) -> __m256i {
    debug_assert!(n <= 4);
    // SAFETY: `4 - n` is at most 4, so four entries from there are inside the table of 8; callers
    // hold the token.
    unsafe { _mm256_loadu_si256(MASK64.as_ptr().add(4 - n).cast()) }
}

impl Lanes for Avx2 {
    type T = f32;
    type V = __m256;
    const N: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        has!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn zero(self) -> __m256 {
        has!(_mm256_setzero_ps())
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m256 {
        // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
        unsafe { _mm256_maskload_ps(p, mask32(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m256, n: usize) {
        // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
        unsafe { _mm256_maskstore_ps(p, mask32(n), v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        has!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        has!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        has!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        has!({
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
    #[inline(always)]
    fn hmax(self, a: __m256) -> f32 {
        has!({
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
    #[inline(always)]
    fn hmin(self, a: __m256) -> f32 {
        has!({
            let x = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_min_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_min_ss(x, _mm_shuffle_ps::<1>(x, x)))
        })
    }
}

impl Simd for Avx2 {
    type I = __m256i;
    type M = __m256;

    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn eq(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b))
    }
    #[inline(always)]
    fn unordered(self, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
    }
    #[inline(always)]
    fn select(self, m: __m256, a: __m256, b: __m256) -> __m256 {
        has!(_mm256_blendv_ps(b, a, m))
    }
    #[inline(always)]
    fn any(self, m: __m256) -> bool {
        has!(_mm256_movemask_ps(m)) != 0
    }
    #[inline(always)]
    fn bits(self, a: __m256) -> __m256i {
        has!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn float(self, a: __m256i) -> __m256 {
        has!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn isplat(self, x: i32) -> __m256i {
        has!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    fn iadd(self, a: __m256i, b: __m256i) -> __m256i {
        has!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn isub(self, a: __m256i, b: __m256i) -> __m256i {
        has!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn iand(self, a: __m256i, b: __m256i) -> __m256i {
        has!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn ior(self, a: __m256i, b: __m256i) -> __m256i {
        has!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn ixor(self, a: __m256i, b: __m256i) -> __m256i {
        has!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn ishl<const B: u32>(self, a: __m256i) -> __m256i {
        has!(_mm256_sllv_epi32(a, _mm256_set1_epi32(B as i32)))
    }
    #[inline(always)]
    fn isar<const B: u32>(self, a: __m256i) -> __m256i {
        has!(_mm256_srav_epi32(a, _mm256_set1_epi32(B as i32)))
    }
    #[inline(always)]
    fn to_float(self, a: __m256i) -> __m256 {
        has!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn floor(self, a: __m256) -> __m256 {
        has!(_mm256_floor_ps(a))
    }
    #[inline(always)]
    fn ceil(self, a: __m256) -> __m256 {
        has!(_mm256_ceil_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        has!(_mm256_round_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn trunc(self, a: __m256) -> __m256 {
        has!(_mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        has!(_mm256_fnmadd_ps(a, b, c))
    }
}

impl Lanes for Avx2Double {
    type T = f64;
    type V = __m256d;
    const N: usize = 4;

    #[inline(always)]
    fn splat(self, x: f64) -> __m256d {
        has!(_mm256_set1_pd(x))
    }
    #[inline(always)]
    fn zero(self) -> __m256d {
        has!(_mm256_setzero_pd())
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f64) -> __m256d {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f64, n: usize) -> __m256d {
        // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
        unsafe { _mm256_maskload_pd(p, mask64(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64, v: __m256d) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_storeu_pd(p, v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f64, v: __m256d, n: usize) {
        // SAFETY: masked-off lanes are not accessed, the others are the caller's promise.
        unsafe { _mm256_maskstore_pd(p, mask64(n), v) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f64) {
        has!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    fn add(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_add_pd(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_sub_pd(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_mul_pd(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_div_pd(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        has!(_mm256_fmadd_pd(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_min_pd(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256d, b: __m256d) -> __m256d {
        has!(_mm256_max_pd(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256d) -> __m256d {
        has!(_mm256_sqrt_pd(a))
    }
    #[inline(always)]
    fn sum(self, a: __m256d) -> f64 {
        let x: [f64; 4] = has!(std::mem::transmute::<__m256d, [f64; 4]>(a));
        (x[0] + x[2]) + (x[1] + x[3])
    }
    #[inline(always)]
    fn hmax(self, a: __m256d) -> f64 {
        let x: [f64; 4] = has!(std::mem::transmute::<__m256d, [f64; 4]>(a));
        x[0].max(x[2]).max(x[1].max(x[3]))
    }
    #[inline(always)]
    fn hmin(self, a: __m256d) -> f64 {
        let x: [f64; 4] = has!(std::mem::transmute::<__m256d, [f64; 4]>(a));
        x[0].min(x[2]).min(x[1].min(x[3]))
    }
}
