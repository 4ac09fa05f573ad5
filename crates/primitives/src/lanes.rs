//! [`Row`]: eight integers of 16 bits, in a register of x86-64 or in an array, for the integer arithmetic of
//! codecs.

#[cfg(not(target_arch = "x86_64"))]
pub use arrays::Row;
#[cfg(target_arch = "x86_64")]
pub use registers::Row;

#[cfg(any(test, not(target_arch = "x86_64")))]
mod arrays {
    /// Eight integers.
    #[derive(Clone, Copy, Debug)]
    pub struct Row([i16; 8]);

    impl Row {
        /// Returns the low halves of products.
        pub fn products(a: &[i16; 8], b: &[i16; 8]) -> Row {
            Row(*a).each(Row(*b), i16::wrapping_mul)
        }

        fn each(self, other: Row, f: impl Fn(i16, i16) -> i16) -> Row {
            Row(std::array::from_fn(|i| f(self.0[i], other.0[i])))
        }

        /// Returns wrapped sums.
        pub fn plus(self, other: Row) -> Row {
            self.each(other, i16::wrapping_add)
        }

        /// Returns wrapped differences.
        pub fn minus(self, other: Row) -> Row {
            self.each(other, i16::wrapping_sub)
        }

        /// Multiplies by a number with eight bits of fraction, given with fourteen.
        pub fn scaled(self, by: i16) -> Row {
            let product = |v: i16| (i32::from(v.wrapping_shl(2)) * i32::from(by)) >> 16;
            Row(self.0.map(|v| product(v) as i16))
        }

        /// Returns the columns of a square.
        pub fn transposed(rows: [Row; 8]) -> [Row; 8] {
            std::array::from_fn(|i| Row(std::array::from_fn(|j| rows[j].0[i])))
        }

        /// Returns samples of numbers with five bits of fraction; 128 stands for 0.
        pub fn samples(self) -> [u8; 8] {
            self.0.map(|v| ((v >> 5).clamp(-128, 127) + 128) as u8)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;

    /// Eight integers.
    #[derive(Clone, Copy, Debug)]
    pub struct Row(__m128i);

    #[inline(always)]
    fn load(x: &[i16; 8]) -> __m128i {
        // SAFETY: all processors of x86-64 have SSE2; the array has 16 bytes.
        unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
    }

    impl Row {
        /// Returns the low halves of products.
        #[inline(always)]
        pub fn products(a: &[i16; 8], b: &[i16; 8]) -> Row {
            // SAFETY: all processors of x86-64 have SSE2.
            Row(unsafe { _mm_mullo_epi16(load(a), load(b)) })
        }

        /// Returns wrapped sums.
        #[inline(always)]
        pub fn plus(self, other: Row) -> Row {
            // SAFETY: all processors of x86-64 have SSE2.
            Row(unsafe { _mm_add_epi16(self.0, other.0) })
        }

        /// Returns wrapped differences.
        #[inline(always)]
        pub fn minus(self, other: Row) -> Row {
            // SAFETY: all processors of x86-64 have SSE2.
            Row(unsafe { _mm_sub_epi16(self.0, other.0) })
        }

        /// Multiplies by a number with eight bits of fraction, given with fourteen.
        #[inline(always)]
        pub fn scaled(self, by: i16) -> Row {
            // SAFETY: all processors of x86-64 have SSE2.
            Row(unsafe { _mm_mulhi_epi16(_mm_slli_epi16::<2>(self.0), _mm_set1_epi16(by)) })
        }

        /// Returns the columns of a square.
        #[inline(always)]
        pub fn transposed(rows: [Row; 8]) -> [Row; 8] {
            // SAFETY: all processors of x86-64 have SSE2.
            unsafe {
                let [a, b, c, d, e, f, g, h] = rows.map(|row| row.0);
                // Pairs of coefficients of two rows, then fours of four rows, then all.
                let (ab, cd) = (_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
                let (ef, gh) = (_mm_unpacklo_epi16(e, f), _mm_unpacklo_epi16(g, h));
                let (ab_high, cd_high) = (_mm_unpackhi_epi16(a, b), _mm_unpackhi_epi16(c, d));
                let (ef_high, gh_high) = (_mm_unpackhi_epi16(e, f), _mm_unpackhi_epi16(g, h));
                let fours = [
                    (_mm_unpacklo_epi32(ab, cd), _mm_unpacklo_epi32(ef, gh)),
                    (_mm_unpackhi_epi32(ab, cd), _mm_unpackhi_epi32(ef, gh)),
                    (
                        _mm_unpacklo_epi32(ab_high, cd_high),
                        _mm_unpacklo_epi32(ef_high, gh_high),
                    ),
                    (
                        _mm_unpackhi_epi32(ab_high, cd_high),
                        _mm_unpackhi_epi32(ef_high, gh_high),
                    ),
                ];
                let [(p, q), (r, s), (t, u), (v, w)] = fours;
                [
                    _mm_unpacklo_epi64(p, q),
                    _mm_unpackhi_epi64(p, q),
                    _mm_unpacklo_epi64(r, s),
                    _mm_unpackhi_epi64(r, s),
                    _mm_unpacklo_epi64(t, u),
                    _mm_unpackhi_epi64(t, u),
                    _mm_unpacklo_epi64(v, w),
                    _mm_unpackhi_epi64(v, w),
                ]
                .map(Row)
            }
        }

        /// Returns samples of numbers with five bits of fraction; 128 stands for 0.
        #[inline(always)]
        pub fn samples(self) -> [u8; 8] {
            // SAFETY: all processors of x86-64 have SSE2.
            unsafe {
                let whole = _mm_srai_epi16::<5>(self.0);
                let bytes = _mm_xor_si128(_mm_packs_epi16(whole, whole), _mm_set1_epi8(-128));
                _mm_cvtsi128_si64(bytes).to_le_bytes()
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{arrays, registers};

    /// Applies all operations to rows of pseudorandom numbers.
    macro_rules! all {
        ($row:ty, $seed:expr) => {{
            let mut x: u32 = $seed;
            let mut next = || {
                x = x.wrapping_mul(1664525).wrapping_add(1013904223);
                (x >> 16) as i16
            };
            let rows: [$row; 8] = std::array::from_fn(|_| {
                let [a, b]: [[i16; 8]; 2] =
                    std::array::from_fn(|_| std::array::from_fn(|_| next()));
                <$row>::products(&a, &b)
            });
            let turned = <$row>::transposed(rows);
            let made = std::array::from_fn::<_, 8, _>(|i| {
                let (a, b) = (turned[i], turned[(i + 3) % 8]);
                a.plus(b.scaled(473 << 6))
                    .minus(b.scaled(-(413 << 6)))
                    .samples()
            });
            (made, turned.map(|row| row.samples()))
        }};
    }

    #[test]
    fn registers_compute_what_arrays_do() {
        for seed in 0..100 {
            assert_eq!(all!(registers::Row, seed), all!(arrays::Row, seed));
        }
    }
}
