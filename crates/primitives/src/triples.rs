//! Pixels of three bytes, from one plane for each byte.

use super::isa::Isa;

/// Writes the bytes of three planes in turn.
///
/// ```
/// use ferroflow_primitives::triples::interleave;
/// let mut pixels = [0; 6];
/// interleave([&[1, 2], &[3, 4], &[5, 6]], &mut pixels);
/// assert_eq!(pixels, [1, 3, 5, 2, 4, 6]);
/// ```
///
/// # Panics
/// If the lengths do not fit.
pub fn interleave(planes: [&[u8]; 3], out: &mut [u8]) {
    let n = out.len() / 3;
    assert!(
        out.len() == 3 * n && planes.iter().all(|plane| plane.len() == n),
        "interleave: planes of {:?} bytes for {}",
        planes.map(<[u8]>::len),
        out.len(),
    );
    let done = match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has AVX2, and with it SSSE3.
        Isa::Avx2 | Isa::Avx512 => unsafe { by_shuffles(planes, out) },
        _ => 0,
    };
    let [a, b, c] = planes.map(|plane| &plane[done..]);
    let pixels = out[3 * done..].as_chunks_mut().0;
    for (((pixel, a), b), c) in pixels.iter_mut().zip(a).zip(b).zip(c) {
        *pixel = [*a, *b, *c];
    }
}

/// Writes pixels by the 16, with the planes as long as the pixels; returns how many.
///
/// # Safety
/// The CPU has SSSE3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn by_shuffles([a, b, c]: [&[u8]; 3], out: &mut [u8]) -> usize {
    use std::arch::x86_64::*;
    /// For each third of 48 bytes and each plane, which of its bytes go where.
    const PLACES: [[[u8; 16]; 3]; 3] = {
        let mut places = [[[0x80; 16]; 3]; 3];
        let mut i = 0;
        while i < 48 {
            places[i / 16][i % 3][i % 16] = (i / 3) as u8;
            i += 1;
        }
        places
    };
    let blocks = (a.as_chunks::<16>().0.iter())
        .zip(b.as_chunks::<16>().0)
        .zip(c.as_chunks::<16>().0);
    for (((a, b), c), out) in blocks.zip(out.as_chunks_mut::<48>().0) {
        for (out, places) in out.as_chunks_mut::<16>().0.iter_mut().zip(&PLACES) {
            // SAFETY: all have 16 bytes.
            unsafe {
                let part = |plane: &[u8; 16], places: &[u8; 16]| {
                    _mm_shuffle_epi8(
                        _mm_loadu_si128(plane.as_ptr().cast()),
                        _mm_loadu_si128(places.as_ptr().cast()),
                    )
                };
                let both = _mm_or_si128(part(a, &places[0]), part(b, &places[1]));
                let all = _mm_or_si128(both, part(c, &places[2]));
                _mm_storeu_si128(out.as_mut_ptr().cast(), all);
            }
        }
    }
    a.len() / 16 * 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::each_isa;

    #[test]
    fn all_lengths() {
        each_isa(|isa| {
            for n in [0, 1, 15, 16, 17, 100] {
                let plane = |c: usize| (0..n).map(|i| (i * 3 + c) as u8).collect::<Vec<u8>>();
                let planes = [plane(0), plane(1), plane(2)];
                let mut out = vec![0; 3 * n];
                interleave([&planes[0], &planes[1], &planes[2]], &mut out);
                let wanted: Vec<u8> = (0..3 * n).map(|i| i as u8).collect();
                assert_eq!(out, wanted, "{isa:?} {n}");
            }
        });
    }
}
