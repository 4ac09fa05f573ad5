//! Convolutions of each channel by itself.
//!
//! The input rows under a filter are interleaved: an element of the buffer holds the codes of one channel
//! under one column of the filter, four or two to an element, so that the products of a column take one
//! instruction. A buffer serves as many output rows as its rows suffice for: their filters are shifted
//! within the elements.

use super::dot::Kind;
use super::kernel::{Finish, Pixels, Table};
use super::{Channels, Int8Epilogue, Shared, packed, padded};
use crate::aligned::{Aligned, Scratch};
use crate::conv::Conv2dShape;
use crate::gemm::check;
use crate::isa::vectorized;
use ferroflow_sync::{BlockSizes, Parallelism, parallel_for};
use std::ops::Range;

/// The filter of a depthwise convolution, packed for this machine.
pub struct DepthwiseWeights {
    filter: [usize; 2],
    stride_h: usize,
    dil_h: usize,
    channels: usize,
    kind: Kind,
    zero: u8,
    /// `[output row][tap][channels, padded]`.
    data: Aligned,
    start: Vec<i32>,
    scale: Vec<f32>,
    bias: Vec<f32>,
}

/// Elements of the buffer of interleaved rows, most of which stays in the first-level cache.
const LINES: usize = 12 * 1024;

impl DepthwiseWeights {
    /// Packs a filter `[height][width][channels]` for a convolution of these strides and dilations, and
    /// for activations whose zero is the code `zero`. Only the filter's sizes, channels, strides and
    /// dilations of `s` are read.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn new(
        weights: &[i8],
        s: &Conv2dShape,
        zero: u8,
        channels: Channels<'_>,
    ) -> DepthwiseWeights {
        let c = s.in_c;
        let len = s.filter_h * s.filter_w * c;
        check(weights.len(), 1, len, len, "filter");
        assert!(
            channels.scale.len() >= c && channels.bias.len() >= c,
            "a scale and a bias for each of {c} channels"
        );
        let kind = Kind::current();
        let mut packed_weights = DepthwiseWeights {
            filter: [s.filter_h, s.filter_w],
            stride_h: s.stride_h,
            dil_h: s.dil_h,
            channels: c,
            kind,
            zero,
            data: Aligned::fresh(),
            start: Vec::new(),
            scale: Vec::new(),
            bias: Vec::new(),
        };
        let this = &mut packed_weights;
        let width = c.next_multiple_of(Table::of(kind).lanes);
        (this.start, this.scale, this.bias) = (
            vec![0; width],
            padded(channels.scale, width),
            padded(channels.bias, width),
        );
        for row in weights[..len].chunks_exact(c.max(1)) {
            for (start, w) in this.start.iter_mut().zip(row) {
                *start -= i32::from(zero) * i32::from(*w);
            }
        }
        let (rows, taps, quads) = (this.rows(), this.n_taps(), this.quads());
        let (group, stride) = (kind.group(), s.stride_h);
        let data = this.data.alloc::<i32>(rows * taps * width);
        for (i, to) in data.iter_mut().enumerate() {
            let (row, tap, channel) = (i / width / taps, i / width % taps, i % width);
            let (fx, quad) = (tap / quads, tap % quads);
            let mut codes = [0i8; 4];
            for (j, code) in codes.iter_mut().take(group).enumerate() {
                let fy = (quad * group + j).checked_sub(row * stride);
                if let Some(fy) = fy.filter(|fy| *fy < s.filter_h && channel < c) {
                    *code = weights[(fy * s.filter_w + fx) * c + channel];
                }
            }
            *to = packed(kind, codes);
        }
        packed_weights
    }

    /// Returns the number of elements that the rows of a filter take.
    fn quads(&self) -> usize {
        self.filter[0].div_ceil(self.kind.group())
    }

    fn n_taps(&self) -> usize {
        self.quads() * self.filter[1]
    }

    /// Returns the number of output rows that a buffer serves.
    fn rows(&self) -> usize {
        let spare = self.quads() * self.kind.group() - self.filter[0];
        match self.dil_h {
            1 => spare / self.stride_h.max(1) + 1,
            _ => 1,
        }
    }
}

/// Computes a convolution of each channel over `[batch, height, width, channels]`; outside the image there
/// are zeros.
///
/// # Panics
/// If a slice is too short, or the filter was packed for another convolution.
pub fn int8_depthwise2d(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    codes: &[u8],
    weights: &DepthwiseWeights,
    mut epilogue: Int8Epilogue<'_>,
) {
    assert!(
        [s.filter_h, s.filter_w] == weights.filter
            && [s.in_c, s.out_c] == [weights.channels; 2]
            && [s.stride_h, s.dil_h] == [weights.stride_h, weights.dil_h],
        "the filter was packed for another convolution"
    );
    let c = s.in_c;
    check(codes.len(), s.batch * s.in_h * s.in_w, c, c, "codes");
    let pixels = s.batch * s.out_h * s.out_w;
    let finish = epilogue.finish(pixels * c, c, &weights.scale, &weights.bias);
    if pixels == 0 || c == 0 {
        return;
    }
    let finish = Shared(finish);
    let together = weights.rows();
    let groups = s.out_h.div_ceil(together);
    let nanos = (together * s.out_w * c * weights.n_taps()) as f64 / 16.0;
    parallel_for(par, s.batch * groups, BlockSizes::Cost(nanos), &|range| {
        let mut scratch = Scratch::take();
        for i in range {
            let (image, y) = (i / groups, i % groups * together);
            let rows = together.min(s.out_h - y);
            let job = Job {
                s,
                codes,
                weights,
                finish: finish.get(),
            };
            // SAFETY: each group of rows is visited once; the epilogue's sizes were checked.
            unsafe { job.rows(image, y, rows, &mut scratch) };
        }
    });
}

struct Job<'a> {
    s: &'a Conv2dShape,
    codes: &'a [u8],
    weights: &'a DepthwiseWeights,
    finish: Finish,
}

impl Job<'_> {
    /// Computes `n_rows` output rows from `y` on.
    ///
    /// # Safety
    /// The epilogue's pointers are valid for these rows, which no other thread writes.
    unsafe fn rows(&self, image: usize, y: usize, n_rows: usize, scratch: &mut Scratch) {
        let (s, w) = (self.s, self.weights);
        let table = Table::of(w.kind);
        let (quads, n_taps, all) = (w.quads(), w.n_taps(), w.start.len());
        let columns = (s.out_w - 1) * s.stride_w + s.filter_w.saturating_sub(1) * s.dil_w + 1;
        let block = LINES / (columns * quads).max(1) / table.lanes * table.lanes;
        let block = block.clamp(table.lanes, all);
        let lines = scratch.alloc::<i32>(columns * quads * block);
        let place = |tap: usize| (tap % quads * columns + tap / quads * s.dil_w) * block;
        let taps: Vec<usize> = (0..n_taps).map(place).collect();
        let data = w.data.get::<i32>();
        for first in (0..s.in_c).step_by(block) {
            let n = block.min(s.in_c - first);
            self.interleave(image, y, first..first + n, block, lines);
            for row in 0..n_rows {
                let pixel = (image * s.out_h + y + row) * s.out_w;
                let job = Pixels {
                    lines: lines.as_ptr(),
                    taps: taps.as_ptr(),
                    n_taps,
                    step: s.stride_w * block,
                    pixels: s.out_w,
                    weights: data[row * n_taps * all + first..].as_ptr(),
                    ld_weights: all,
                    start: w.start[first..].as_ptr(),
                    n,
                    finish: self.finish.at(pixel, first, first),
                };
                // SAFETY: the buffer has `quads` times `columns` blocks, of which a pixel's taps reach
                // those of its window; weights and starts are padded to vectors; for the epilogue, the
                // caller's promise.
                unsafe { table.pixels(n_taps)(&job) };
            }
        }
    }

    /// Fills the buffer: `[quad][column][channel]`.
    fn interleave(
        &self,
        image: usize,
        y: usize,
        channels: Range<usize>,
        block: usize,
        lines: &mut [i32],
    ) {
        let (s, w) = (self.s, self.weights);
        let (quads, group, c) = (w.quads(), w.kind.group(), s.in_c);
        let columns = lines.len() / (quads * block);
        let before = s.pad_left.min(columns);
        let inside = s.in_w.min(columns - before);
        // Where columns follow each other in both, they are one run.
        let (run, count) = match channels.len() == block && block == c {
            true => (inside * c, 1),
            false => (channels.len(), inside),
        };
        let zeros = vec![w.zero; run];
        let line = |fy: usize| {
            let at = (y * s.stride_h + fy * s.dil_h) as isize - s.pad_top as isize;
            let at = usize::try_from(at).ok().filter(|y| *y < s.in_h);
            at.map(|y| (image * s.in_h + y) * s.in_w * c + channels.start)
        };
        let outside = i32::from_le_bytes(match group {
            4 => [w.zero; 4],
            _ => [w.zero, 0, w.zero, 0],
        });
        vectorized(|| {
            for (quad, to) in lines.chunks_exact_mut(columns * block).enumerate() {
                let rows: [Option<usize>; 4] = std::array::from_fn(|i| line(quad * group + i));
                to[..before * block].fill(outside);
                to[(before + inside) * block..].fill(outside);
                for x in 0..count {
                    let to = &mut to[(before + x) * block..][..run];
                    let codes = |row: Option<usize>| match row {
                        Some(line) => &self.codes[line + x * c..][..run],
                        None => &zeros[..],
                    };
                    match group {
                        4 => four(to, rows.map(codes)),
                        _ => two(to, [codes(rows[0]), codes(rows[1])]),
                    }
                }
            }
        });
    }
}

/// Channels that are interleaved together.
const TOGETHER: usize = 16;

/// Writes the codes of four rows as elements.
#[inline(always)]
fn four(to: &mut [i32], rows: [&[u8]; 4]) {
    let whole = to.len() / TOGETHER * TOGETHER;
    let [a, b, c, d] = rows.map(|row| row[..to.len()].split_at(whole));
    let (first, last) = to.split_at_mut(whole);
    let chunks = first.chunks_exact_mut(TOGETHER);
    for (i, to) in chunks.enumerate() {
        let part = |row: &[u8]| -> [u8; TOGETHER] { chunk(row, i) };
        four_chunks(to, [part(a.0), part(b.0), part(c.0), part(d.0)]);
    }
    for (i, to) in last.iter_mut().enumerate() {
        *to = i32::from_le_bytes([a.1[i], b.1[i], c.1[i], d.1[i]]);
    }
}

/// Writes the codes of two rows as halves of elements.
#[inline(always)]
fn two(to: &mut [i32], rows: [&[u8]; 2]) {
    let whole = to.len() / TOGETHER * TOGETHER;
    let [a, b] = rows.map(|row| row[..to.len()].split_at(whole));
    let (first, last) = to.split_at_mut(whole);
    for (i, to) in first.chunks_exact_mut(TOGETHER).enumerate() {
        two_chunks(to, [chunk(a.0, i), chunk(b.0, i)]);
    }
    for (i, to) in last.iter_mut().enumerate() {
        *to = i32::from(a.1[i]) | i32::from(b.1[i]) << 16;
    }
}

#[inline(always)]
fn chunk(row: &[u8], i: usize) -> [u8; TOGETHER] {
    let mut out = [0; TOGETHER];
    out.copy_from_slice(&row[i * TOGETHER..][..TOGETHER]);
    out
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn four_chunks(to: &mut [i32], rows: [[u8; TOGETHER]; 4]) {
    use std::arch::x86_64::*;
    assert!(to.len() == TOGETHER);
    // SAFETY: SSE2 is part of the target; rows have 16 bytes, `to` has 16 elements.
    unsafe {
        let load = |row: &[u8; TOGETHER]| _mm_loadu_si128(row.as_ptr().cast());
        let [a, b, c, d] = [
            load(&rows[0]),
            load(&rows[1]),
            load(&rows[2]),
            load(&rows[3]),
        ];
        let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
        let to: *mut __m128i = to.as_mut_ptr().cast();
        _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
        _mm_storeu_si128(to.add(1), _mm_unpackhi_epi16(ab, cd));
        _mm_storeu_si128(to.add(2), _mm_unpacklo_epi16(ab_high, cd_high));
        _mm_storeu_si128(to.add(3), _mm_unpackhi_epi16(ab_high, cd_high));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn two_chunks(to: &mut [i32], rows: [[u8; TOGETHER]; 2]) {
    four_chunks(to, [rows[0], [0; TOGETHER], rows[1], [0; TOGETHER]]);
}

#[cfg(not(target_arch = "x86_64"))]
fn four_chunks(to: &mut [i32], rows: [[u8; TOGETHER]; 4]) {
    for (i, to) in to.iter_mut().enumerate() {
        *to = i32::from_le_bytes(rows.map(|row| row[i]));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn two_chunks(to: &mut [i32], rows: [[u8; TOGETHER]; 2]) {
    four_chunks(to, [rows[0], [0; TOGETHER], rows[1], [0; TOGETHER]]);
}
