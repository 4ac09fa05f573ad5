//! 16-bit floats, as bits, to `f32` and back.

use crate::isa::{Isa, vectorized};

/// Converts IEEE 754 half-precision numbers to `f32`; returns how many: the rest, at the end, is the
/// caller's, and everything without instructions for it.
pub fn widen_f16(from: &[u16], to: &mut [f32]) -> usize {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has AVX-512.
        Isa::Avx512 => unsafe { x86::widen_512(from, to) },
        _ => 0,
    }
}

/// Rounds to IEEE 754 half precision, ties to even; returns how many, as [`widen_f16`] does.
pub fn narrow_f16(from: &[f32], to: &mut [u16]) -> usize {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has AVX-512.
        Isa::Avx512 => unsafe { x86::narrow_512(from, to) },
        _ => 0,
    }
}

/// Converts `bfloat16` numbers, the upper halves of `f32`.
pub fn widen_bf16(from: &[u16], to: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = f32::from_bits(u32::from(*from) << 16);
            }
        },
    );
}

/// Rounds a number to `bfloat16`, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

/// Rounds to `bfloat16`, ties to even; NaN stays NaN.
pub fn narrow_bf16(from: &[f32], to: &mut [u16]) {
    vectorized(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = round_bf16(*from);
            }
        },
    );
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn widen_512(from: &[u16], to: &mut [f32]) -> usize {
        let (from, to) = (from.as_chunks::<16>().0, to.as_chunks_mut::<16>().0);
        for (from, to) in from.iter().zip(to.iter_mut()) {
            // SAFETY: chunks of sixteen.
            unsafe {
                let x = _mm256_loadu_si256(from.as_ptr().cast());
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(x));
            }
        }
        16 * from.len().min(to.len())
    }

    /// # Safety
    /// The CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn narrow_512(from: &[f32], to: &mut [u16]) -> usize {
        let (from, to) = (from.as_chunks::<16>().0, to.as_chunks_mut::<16>().0);
        for (from, to) in from.iter().zip(to.iter_mut()) {
            // SAFETY: chunks of sixteen.
            unsafe {
                let x = _mm512_loadu_ps(from.as_ptr());
                let x = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), x);
            }
        }
        16 * from.len().min(to.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::each_isa;

    #[test]
    fn all_numbers_return_and_ties_go_to_even() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        each_isa(|isa| {
            let (mut wide, mut back) = (vec![0.0; all.len()], vec![0; all.len()]);
            widen_bf16(&all, &mut wide);
            narrow_bf16(&wide, &mut back);
            for (x, back) in all.iter().zip(&back) {
                let nan = x & 0x7fff > 0x7f80;
                assert!(*back == if nan { x | 0x40 } else { *x }, "{isa:?} {x:#x}");
            }
            let n = widen_f16(&all, &mut wide);
            assert_eq!(narrow_f16(&wide[..n], &mut back), n);
            for (x, back) in all.iter().zip(&back[..n]) {
                let nan = x & 0x7fff > 0x7c00;
                assert!(*back == if nan { x | 0x200 } else { *x }, "{isa:?} {x:#x}");
            }
            let mut halves = [0; 2];
            narrow_bf16(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &mut halves);
            assert_eq!(halves, [0x3f80, 0x3f82]);
        });
    }
}
