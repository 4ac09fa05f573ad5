//! Matrix products of 8-bit integers with 32-bit sums.
//!
//! Both sides are widened to 16 bits, less their zero points, and multiplied in pairs: an
//! instruction adds two products to a sum (`pmaddwd`). Sums wrap, as in gemmlowp.

use crate::isa::Isa;
use ferroflow_sync::{Parallelism, parallel_for};

/// An 8-bit code of a quantized number.
pub trait Code: Copy + Send + Sync + 'static {
    /// Widens to 16 bits.
    fn wide(self) -> i16;
}

impl Code for u8 {
    #[inline(always)]
    fn wide(self) -> i16 {
        i16::from(self)
    }
}

impl Code for i8 {
    #[inline(always)]
    fn wide(self) -> i16 {
        i16::from(self)
    }
}

/// Columns of a packed panel.
const PANEL: usize = 16;
/// Rows computed together.
const ROWS: usize = 4;
/// The largest zero point that is subtracted before the product.
const MAX_ZERO: i32 = 16_384;

/// Splits a zero point into the part that is subtracted from the codes, and the rest.
fn split(zero: i32) -> (i16, i32) {
    match (-MAX_ZERO..=MAX_ZERO).contains(&zero) {
        true => (zero as i16, 0),
        false => (0, zero),
    }
}

/// The right side of a product, widened and packed: panels of 16 columns, whose rows hold pairs.
pub struct PackedCodes {
    k: usize,
    n: usize,
    data: Vec<i16>,
    /// The part of the zero point that is not in the data.
    rest: i32,
    /// Sums of the columns of the data.
    sums: Vec<i32>,
}

impl PackedCodes {
    /// Packs a matrix of codes less `zero`, stored `[k][n]`, or `[n][k]` if `transposed`.
    ///
    /// # Panics
    /// If the slice is too short.
    pub fn new<T: Code>(b: &[T], k: usize, n: usize, transposed: bool, zero: i32) -> PackedCodes {
        let (near, rest) = split(zero);
        let pairs = k.div_ceil(2);
        let mut data = vec![0i16; n.div_ceil(PANEL) * pairs * PANEL * 2];
        let mut sums = vec![0i32; n];
        let panel = pairs * PANEL * 2;
        if transposed {
            for (j, sum) in sums.iter_mut().enumerate() {
                let to = &mut data[j / PANEL * panel..][..panel];
                for (l, code) in b[j * k..][..k].iter().enumerate() {
                    let v = code.wide() - near;
                    *sum = sum.wrapping_add(i32::from(v));
                    to[l / 2 * PANEL * 2 + j % PANEL * 2 + l % 2] = v;
                }
            }
        } else {
            // Row by row, in the order of memory.
            for l in 0..k {
                let row = b[l * n..][..n].chunks(PANEL).zip(sums.chunks_mut(PANEL));
                for (p, (codes, sums)) in row.enumerate() {
                    let to = &mut data[p * panel + l / 2 * PANEL * 2..][..PANEL * 2];
                    let each = codes.iter().zip(sums).zip(to.chunks_exact_mut(2));
                    for ((code, sum), pair) in each {
                        let v = code.wide() - near;
                        *sum = sum.wrapping_add(i32::from(v));
                        pair[l % 2] = v;
                    }
                }
            }
        }
        PackedCodes {
            k,
            n,
            data,
            rest,
            sums,
        }
    }

    /// Returns the length of the reduction.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of columns.
    pub fn n(&self) -> usize {
        self.n
    }
}

/// Computes `out[i] = row(i) · b` for `m` rows; `fill(i, row)` writes the `k` elements of a row,
/// from which `rest` is still to be subtracted.
///
/// # Panics
/// If `out` does not have `m · n` elements.
pub fn product_of_rows(
    par: &dyn Parallelism,
    m: usize,
    b: &PackedCodes,
    rest: i32,
    out: &mut [i32],
    fill: &(dyn Fn(usize, &mut [i16]) + Sync),
) {
    assert_eq!(out.len(), m * b.n, "the size of the output");
    if m == 0 || b.n == 0 {
        return;
    }
    let pairs = b.k.div_ceil(2);
    let isa = Isa::current();
    let cost = (b.k * b.n) as f64 / 16.0 * ROWS as f64;
    let groups = m.div_ceil(ROWS);
    let out = SendPtr(out.as_mut_ptr());
    let out = &out;
    parallel_for(
        par,
        groups,
        ferroflow_sync::BlockSizes::Cost(cost),
        &|range| {
            let mut rows = vec![0i16; ROWS * pairs * 2];
            let mut tile = [[0i32; PANEL]; ROWS];
            for group in range {
                let first = group * ROWS;
                let height = ROWS.min(m - first);
                for (i, row) in rows
                    .chunks_exact_mut((pairs * 2).max(1))
                    .take(height)
                    .enumerate()
                {
                    fill(first + i, &mut row[..b.k]);
                }
                for panel in 0..b.n.div_ceil(PANEL) {
                    let packed = &b.data[panel * pairs * PANEL * 2..][..pairs * PANEL * 2];
                    multiply(isa, &rows, packed, pairs, height, &mut tile);
                    let column = panel * PANEL;
                    let width = PANEL.min(b.n - column);
                    for (i, sums) in tile.iter_mut().enumerate().take(height) {
                        correct(sums, &rows[i * pairs * 2..][..b.k], b, column, rest);
                        // SAFETY: row `first + i < m` of `n` columns, `column + width <= n`; each
                        // group is visited once, so rows are written by one thread.
                        let to = unsafe {
                            let start = out.0.add((first + i) * b.n + column);
                            std::slice::from_raw_parts_mut(start, width)
                        };
                        to.copy_from_slice(&sums[..width]);
                    }
                }
            }
        },
    );
}

struct SendPtr(*mut i32);
// SAFETY: the pointer is only used to write disjoint rows of an exclusively borrowed slice.
unsafe impl Sync for SendPtr {}

/// Subtracts what is left of the zero points: `(a - ra)(b - rb) = ab - ra·b - rb·a + ra·rb`.
fn correct(sums: &mut [i32; PANEL], row: &[i16], b: &PackedCodes, column: usize, rest: i32) {
    if rest == 0 && b.rest == 0 {
        return;
    }
    let total = row.iter().fold(0i32, |s, v| s.wrapping_add(i32::from(*v)));
    let both = rest.wrapping_mul(b.rest).wrapping_mul(b.k as i32);
    let of_row = both.wrapping_sub(b.rest.wrapping_mul(total));
    for (sum, of_column) in sums.iter_mut().zip(&b.sums[column..]) {
        let less = rest.wrapping_mul(*of_column);
        *sum = sum.wrapping_add(of_row).wrapping_sub(less);
    }
}

/// Multiplies up to four rows of pairs by a panel.
fn multiply(
    isa: Isa,
    rows: &[i16],
    panel: &[i16],
    pairs: usize,
    height: usize,
    tile: &mut [[i32; PANEL]; ROWS],
) {
    assert!(rows.len() >= ROWS * pairs * 2 && panel.len() >= pairs * PANEL * 2);
    debug_assert!(height <= ROWS);
    match isa {
        Isa::Portable => portable(rows, panel, pairs, height, tile),
        // SAFETY: the CPU has these instructions; the sizes were just checked.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(rows, panel, pairs, tile) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(rows, panel, pairs, tile) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable(rows, panel, pairs, height, tile),
    }
}

fn portable(
    rows: &[i16],
    panel: &[i16],
    pairs: usize,
    height: usize,
    tile: &mut [[i32; PANEL]; ROWS],
) {
    for (row, sums) in rows
        .chunks_exact((pairs * 2).max(1))
        .zip(&mut *tile)
        .take(height)
    {
        *sums = [0; PANEL];
        for (pair, b) in row.chunks_exact(2).zip(panel.chunks_exact(PANEL * 2)) {
            let (x, y) = (i32::from(pair[0]), i32::from(pair[1]));
            for (sum, b) in sums.iter_mut().zip(b.chunks_exact(2)) {
                let two = x * i32::from(b[0]) + y * i32::from(b[1]);
                *sum = sum.wrapping_add(two);
            }
        }
    }
    if pairs == 0 {
        tile.iter_mut().for_each(|sums| *sums = [0; PANEL]);
    }
}

/// # Safety
/// The CPU has AVX2; `rows` holds `4 · pairs` pairs, `panel` holds `16 · pairs`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(rows: &[i16], panel: &[i16], pairs: usize, tile: &mut [[i32; PANEL]; ROWS]) {
    use std::arch::x86_64::*;
    let (a, b) = (rows.as_ptr().cast::<i32>(), panel.as_ptr());
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for l in 0..pairs {
        // SAFETY: `l < pairs`, and the caller's promise.
        unsafe {
            let low = _mm256_loadu_si256(b.add(l * 32).cast());
            let high = _mm256_loadu_si256(b.add(l * 32 + 16).cast());
            for (i, sums) in sums.iter_mut().enumerate() {
                let pair = _mm256_set1_epi32(a.add(i * pairs + l).read_unaligned());
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(pair, low));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(pair, high));
            }
        }
    }
    for (sums, to) in sums.iter().zip(tile) {
        // SAFETY: `to` has 16 elements.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), sums[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), sums[1]);
        }
    }
}

/// # Safety
/// The CPU has AVX-512 F and BW; sizes as for `avx2`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn avx512(rows: &[i16], panel: &[i16], pairs: usize, tile: &mut [[i32; PANEL]; ROWS]) {
    use std::arch::x86_64::*;
    let (a, b) = (rows.as_ptr().cast::<i32>(), panel.as_ptr());
    // Two sums for each row, for even and odd pairs, hide the latency of an addition.
    let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
    for l in 0..pairs {
        // SAFETY: `l < pairs`, and the caller's promise.
        unsafe {
            let column = _mm512_loadu_si512(b.add(l * 32).cast());
            for (i, sums) in sums.iter_mut().enumerate() {
                let pair = _mm512_set1_epi32(a.add(i * pairs + l).read_unaligned());
                let sum = if l % 2 == 0 {
                    &mut sums[0]
                } else {
                    &mut sums[1]
                };
                *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(pair, column));
            }
        }
    }
    for (sums, to) in sums.iter().zip(tile) {
        let sum = _mm512_add_epi32(sums[0], sums[1]);
        // SAFETY: `to` has 16 elements.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sum) };
    }
}

/// A matrix of codes: stored `[rows][cols]`, or `[cols][rows]` if `transposed`, less `zero`.
#[derive(Clone, Copy)]
pub struct Codes<'a, T> {
    /// The codes.
    pub codes: &'a [T],
    /// Whether the matrix is stored transposed.
    pub transposed: bool,
    /// The code that stands for zero.
    pub zero: i32,
}

/// Computes `out[m][n] = (a - zero_a) · (b - zero_b)` with wrapping 32-bit sums.
///
/// # Panics
/// If a slice is too short for its matrix.
pub fn int_gemm<A: Code, B: Code>(
    par: &dyn Parallelism,
    [m, n, k]: [usize; 3],
    a: Codes<'_, A>,
    b: Codes<'_, B>,
    out: &mut [i32],
) {
    let packed = PackedCodes::new(b.codes, k, n, b.transposed, b.zero);
    let (near, rest) = split(a.zero);
    product_of_rows(par, m, &packed, rest, out, &|i, row| {
        if a.transposed {
            for (l, to) in row.iter_mut().enumerate() {
                *to = a.codes[l * m + i].wide() - near;
            }
        } else {
            for (to, from) in row.iter_mut().zip(&a.codes[i * k..][..k]) {
                *to = from.wide() - near;
            }
        }
    });
}

/// The sizes of a convolution over channels-last images; padding is what the window reaches
/// outside.
#[derive(Clone, Copy, Debug)]
pub struct IntConv {
    /// Images.
    pub batch: usize,
    /// Rows and columns of the input.
    pub input: [usize; 2],
    /// Channels of the input.
    pub in_c: usize,
    /// Rows and columns of the filter.
    pub filter: [usize; 2],
    /// Steps.
    pub stride: [usize; 2],
    /// Steps between the elements of a window.
    pub dilation: [usize; 2],
    /// Rows above and columns left of the input where the first window starts.
    pub before: [isize; 2],
    /// Rows and columns of the output.
    pub output: [usize; 2],
}

/// Computes a convolution with packed filters `[rows · columns · in_c][out_c]`; `pad` is the code
/// outside the image.
///
/// # Panics
/// If a slice is too short.
pub fn int_conv<A: Code>(
    par: &dyn Parallelism,
    s: &IntConv,
    a: &[A],
    zero: i32,
    pad: i32,
    filter: &PackedCodes,
    out: &mut [i32],
) {
    let [out_h, out_w] = s.output;
    assert_eq!(
        filter.k,
        s.filter[0] * s.filter[1] * s.in_c,
        "the filter's size"
    );
    assert!(
        a.len() >= s.batch * s.input[0] * s.input[1] * s.in_c,
        "the input's size"
    );
    let (near, rest) = split(zero);
    let outside = pad.wrapping_sub(i32::from(near)) as i16;
    let m = s.batch * out_h * out_w;
    product_of_rows(par, m, filter, rest, out, &|i, row| {
        patch(s, i, outside, row, &|at, to| {
            for (to, from) in to.iter_mut().zip(&a[at..]) {
                *to = from.wide() - near;
            }
        });
    });
}

/// Writes the window of output position `i`, pixel by pixel.
fn patch(s: &IntConv, i: usize, outside: i16, row: &mut [i16], copy: &dyn Fn(usize, &mut [i16])) {
    let [out_h, out_w] = s.output;
    let (image, y, x) = (i / (out_h * out_w), i / out_w % out_h, i % out_w);
    let inside = |at: isize, size: usize| usize::try_from(at).ok().filter(|&v| v < size);
    let mut pixels = row.chunks_exact_mut(s.in_c.max(1));
    for fy in 0..s.filter[0] {
        let in_y = (y * s.stride[0] + fy * s.dilation[0]) as isize - s.before[0];
        let in_y = inside(in_y, s.input[0]);
        for fx in 0..s.filter[1] {
            let in_x = (x * s.stride[1] + fx * s.dilation[1]) as isize - s.before[1];
            let Some(pixel) = pixels.next() else { return };
            match (in_y, inside(in_x, s.input[1])) {
                (Some(in_y), Some(in_x)) => {
                    let at = ((image * s.input[0] + in_y) * s.input[1] + in_x) * s.in_c;
                    copy(at, pixel);
                }
                _ => pixel.fill(outside),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::{TwoThreads, each_isa};

    fn codes(n: usize, seed: u32) -> Vec<u8> {
        let mut x = seed | 1;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) as u8
            })
            .collect()
    }

    fn check(m: usize, n: usize, k: usize, [trans_a, trans_b]: [bool; 2], zeros: [i32; 2]) {
        let (a, b) = (codes(m * k, 1), codes(k * n, 2));
        let mut expect = vec![0i32; m * n];
        for i in 0..m {
            for j in 0..n {
                for l in 0..k {
                    let x = i32::from(if trans_a { a[l * m + i] } else { a[i * k + l] });
                    let y = i32::from(if trans_b { b[j * k + l] } else { b[l * n + j] });
                    let both = (x.wrapping_sub(zeros[0])).wrapping_mul(y.wrapping_sub(zeros[1]));
                    expect[i * n + j] = expect[i * n + j].wrapping_add(both);
                }
            }
        }
        each_isa(|isa| {
            let mut out = vec![7; m * n];
            let side = |codes, transposed, zero| Codes {
                codes,
                transposed,
                zero,
            };
            let (a, b) = (
                side(&a[..], trans_a, zeros[0]),
                side(&b[..], trans_b, zeros[1]),
            );
            int_gemm(&TwoThreads, [m, n, k], a, b, &mut out);
            assert_eq!(out, expect, "{isa:?} {m} {n} {k} {zeros:?}");
        });
    }

    #[test]
    fn products() {
        for [m, n, k] in [
            [1, 1, 1],
            [3, 5, 7],
            [4, 16, 8],
            [9, 33, 21],
            [5, 17, 0],
            [0, 3, 2],
        ] {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                for zeros in [[0, 0], [127, 3], [-255_000, 128], [255, 1 << 20], [-9, 300]] {
                    check(m, n, k, transposed, zeros);
                }
            }
        }
    }

    #[test]
    fn signed_codes() {
        let (a, b) = ([-128i8, 127, -1], [-128i8, 127, 5]);
        let side = |codes| Codes {
            codes,
            transposed: false,
            zero: 0,
        };
        let mut out = [0];
        int_gemm(&TwoThreads, [1, 1, 3], side(&a[..]), side(&b[..]), &mut out);
        assert_eq!(out, [128 * 128 + 127 * 127 - 5]);
    }
}
