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

/// Elements of the buffer of interleaved rows, which stays in the first-level cache.
const LINES: usize = 6 * 1024;

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
            data: Aligned::default(),
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
        let place = |tap: usize| (tap / quads * s.dil_w * quads + tap % quads) * block;
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
                    step: s.stride_w * quads * block,
                    pixels: s.out_w,
                    weights: data[row * n_taps * all + first..].as_ptr(),
                    ld_weights: all,
                    start: w.start[first..].as_ptr(),
                    n,
                    finish: self.finish.at(pixel, first, first),
                };
                // SAFETY: the buffer has `columns` columns of `quads` blocks, of which a pixel's taps reach
                // those of its window; weights and starts are padded to vectors; for the epilogue, the
                // caller's promise.
                unsafe { table.pixels(n_taps)(&job) };
            }
        }
    }

    /// Fills the buffer: `[column][quad][channel]`.
    fn interleave(
        &self,
        image: usize,
        y: usize,
        channels: std::ops::Range<usize>,
        block: usize,
        lines: &mut [i32],
    ) {
        let (s, w) = (self.s, self.weights);
        let (quads, group) = (w.quads(), w.kind.group());
        let zeros = vec![w.zero; channels.len()];
        let line = |fy: usize| {
            let at = (y * s.stride_h + fy * s.dil_h) as isize - s.pad_top as isize;
            let at = usize::try_from(at).ok().filter(|y| *y < s.in_h);
            at.map(|y| (image * s.in_h + y) * s.in_w)
        };
        vectorized(|| {
            for quad in 0..quads {
                let rows: [Option<usize>; 4] = std::array::from_fn(|i| line(quad * group + i));
                for (x, column) in lines.chunks_exact_mut(quads * block).enumerate() {
                    let in_x = x.checked_sub(s.pad_left).filter(|x| *x < s.in_w);
                    let codes = |i: usize| match rows[i].zip(in_x) {
                        Some((line, x)) => &self.codes[(line + x) * s.in_c..][channels.clone()],
                        None => &zeros[..],
                    };
                    let to = &mut column[quad * block..][..channels.len()];
                    match group {
                        4 => four(to, [codes(0), codes(1), codes(2), codes(3)]),
                        _ => two(to, [codes(0), codes(1)]),
                    }
                }
            }
        });
    }
}

#[inline(always)]
fn four(to: &mut [i32], [a, b, c, d]: [&[u8]; 4]) {
    for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let wide = |x: &u8| i32::from(*x);
        *to = wide(a) | wide(b) << 8 | wide(c) << 16 | wide(d) << 24;
    }
}

#[inline(always)]
fn two(to: &mut [i32], [a, b]: [&[u8]; 2]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = i32::from(*a) | i32::from(*b) << 16;
    }
}
