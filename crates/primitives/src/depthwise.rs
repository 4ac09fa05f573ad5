//! Depthwise convolutions over channels-last tensors: [`depthwise2d`]. Its kernels also compute
//! convolutions in many small groups.

pub(crate) mod kernel;
mod lines;
mod narrow;
#[cfg(test)]
mod tests;

use super::aligned::Scratch;
use super::conv::{Conv2dShape, Conv3dShape};
use super::epilogue::{Activation, Epilogue};
use super::gemm::check;
use super::math::unary_with;
use super::table::DispatchTable;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use kernel::{DepthwiseJob, FilterGradientJob, FilterRow};
use lines::{Groups, Lines};
use std::ops::Range;

/// The sizes of a depthwise convolution: input `[batch, in_h, in_w, channels]`, filter
/// `[filter_h, filter_w, channels, multiplier]`, output
/// `[batch, out_h, out_w, channels * multiplier]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthwiseShape {
    /// Images.
    pub batch: usize,
    /// Input rows.
    pub in_h: usize,
    /// Input columns.
    pub in_w: usize,
    /// Input channels.
    pub channels: usize,
    /// Output channels for each input channel.
    pub multiplier: usize,
    /// Filter rows.
    pub filter_h: usize,
    /// Filter columns.
    pub filter_w: usize,
    /// Input rows from one output row to the next.
    pub stride_h: usize,
    /// Input columns from one output column to the next.
    pub stride_w: usize,
    /// Input rows from one filter row to the next.
    pub dil_h: usize,
    /// Input columns from one filter column to the next.
    pub dil_w: usize,
    /// Zero rows above the input.
    pub pad_top: usize,
    /// Zero columns left of the input.
    pub pad_left: usize,
    /// Output rows.
    pub out_h: usize,
    /// Output columns.
    pub out_w: usize,
}

impl DepthwiseShape {
    /// Returns the number of input elements.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.channels
    }

    /// Returns the number of output elements.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_h * self.out_w * self.channels * self.multiplier
    }

    /// Returns the number of filter elements.
    pub fn filter_len(&self) -> usize {
        self.filter_h * self.filter_w * self.channels * self.multiplier
    }

    /// Returns the convolution with a group for each input channel that this is.
    fn solid(&self) -> Conv3dShape {
        Conv3dShape {
            plane: Conv2dShape {
                batch: self.batch,
                in_h: self.in_h,
                in_w: self.in_w,
                in_c: self.channels,
                filter_h: self.filter_h,
                filter_w: self.filter_w,
                out_c: self.channels * self.multiplier,
                stride_h: self.stride_h,
                stride_w: self.stride_w,
                dil_h: self.dil_h,
                dil_w: self.dil_w,
                pad_top: self.pad_top,
                pad_left: self.pad_left,
                out_h: self.out_h,
                out_w: self.out_w,
                groups: self.channels,
            },
            in_d: 1,
            filter_d: 1,
            stride_d: 1,
            dil_d: 1,
            pad_front: 0,
            out_d: 1,
        }
    }
}

/// Computes `out = act(depthwise(input, filter) + bias)`.
///
/// # Panics
/// If a slice is too short.
pub fn depthwise2d(
    par: &dyn Parallelism,
    s: &DepthwiseShape,
    input: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    act: Activation,
    out: &mut [f32],
) {
    let out_c = s.channels * s.multiplier;
    check(
        input.len(),
        s.batch * s.in_h * s.in_w,
        s.channels,
        s.channels,
        "input",
    );
    check(
        filter.len(),
        s.filter_h * s.filter_w,
        out_c,
        out_c,
        "filter",
    );
    assert!(out.len() >= s.output_len(), "output: too short");
    if let Some(b) = bias {
        assert!(b.len() >= out_c, "bias: too short");
    }
    by_channel(
        par,
        &s.solid(),
        input,
        filter,
        out,
        &Epilogue::new(bias, act),
    );
}

/// Returns whether the kernels here are faster than a matrix product for each group: if an output
/// channel depends on one input channel, or groups have few of both.
pub fn suits_small_groups(s: &Conv3dShape) -> bool {
    let Groups { per_in, per_out } = Groups::of(s);
    let lanes = DispatchTable::current().gemm.lanes;
    s.plane.groups > 1 && (per_in == 1 || (per_in <= MAX_INPUTS && per_out < lanes))
}

/// Returns whether a convolution runs by the kernels here: small groups, or one channel that becomes one channel.
pub(crate) fn suits(s: &Conv3dShape) -> bool {
    let p = &s.plane;
    let is_filtered_picture =
        (p.in_c, p.out_c, p.stride_w, s.filter_d) == (1, 1, 1, 1) && p.filter_h * p.filter_w > 1;
    is_filtered_picture || suits_small_groups(s)
}

/// Returns whether the kernels here join neighboring pixels, without which they are slow for a single channel.
pub(crate) fn joins_pixels(s: &Conv3dShape) -> bool {
    narrow::suits(s)
}

/// Orders a filter `[…, width, in_c / groups, out_c]` as [`by_channel`] reads it:
/// `[…, in_c / groups, width, out_c]`.
pub(crate) fn reorder(filter: &[f32], s: &Conv3dShape) -> Vec<f32> {
    swap_axes(
        filter,
        s.plane.filter_w,
        Groups::of(s).per_in,
        s.plane.out_c,
    )
}

/// Swaps the axes `a` and `b` of `[…, a, b, n]`.
fn swap_axes(from: &[f32], a: usize, b: usize, n: usize) -> Vec<f32> {
    let mut to = Vec::with_capacity(from.len());
    for block in from.chunks_exact((a * b * n).max(1)) {
        for j in 0..b {
            for i in 0..a {
                to.extend_from_slice(&block[(i * b + j) * n..][..n]);
            }
        }
    }
    to
}

/// Returns blocks of output channels: whole groups, few enough that the filter stays in the cache,
/// and that the copies do where channels are copied.
fn blocks(s: &Conv3dShape) -> (usize, usize) {
    let groups = Groups::of(s);
    let (p, rows) = (&s.plane, s.filter_d * s.plane.filter_h * groups.per_in);
    let chunk = (CACHED_FILTER / (rows * p.filter_w).max(1)).clamp(64, MAX_CHANNELS) / 64 * 64;
    if groups.are_plain() {
        return (p.out_c, chunk);
    }
    let fitting = (CACHED_LINES / (rows * p.in_w).max(1)).clamp(64, chunk);
    let block = (fitting / groups.per_out).max(1) * groups.per_out;
    (block, block)
}

/// Output channels for which the filter stays cached.
const MAX_CHANNELS: usize = 256;
/// Numbers of a filter, and of copied lines, that stay cached.
const CACHED_FILTER: usize = 8 * 1024;
const CACHED_LINES: usize = 64 * 1024;
/// Input channels of a group up to which [`suits_small_groups`] accepts groups of several.
const MAX_INPUTS: usize = 4;

/// Computes a convolution whose output channels read few input channels. The filter is ordered by
/// [`reorder`]. The caller has checked all sizes.
pub(crate) fn by_channel(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[f32],
    filter: &[f32],
    out: &mut [f32],
    ep: &Epilogue<'_>,
) {
    let p = &s.plane;
    let n_lines = p.batch * s.out_d * p.out_h;
    let line_len = p.out_w * p.out_c;
    let out = &mut out[..n_lines * line_len];
    if out.is_empty() {
        return;
    }
    if narrow::suits(s) {
        return narrow::compute(par, s, input, filter, out, ep);
    }
    let groups = Groups::of(s);
    let zeros = vec![0.0; p.in_c.max(p.out_c)];
    let work = line_len * s.filter_d * p.filter_h * p.filter_w * groups.per_in;
    let mut together = (32 * 1024 / work.max(1)).clamp(1, n_lines);
    // Lines that are computed together share tables and copies.
    together = together.max(4 * p.filter_h);
    let together = together.min(n_lines.div_ceil(par.width()));
    let (block, chunk) = blocks(s);
    let table = DispatchTable::current();
    par_chunks_mut(par, out, together * line_len, 1, &|i, out| {
        let first_line = i * together;
        let mut rows = Scratch::take();
        let mut found = Vec::new();
        for first in (0..p.out_c).step_by(block) {
            let channels = first..(first + block).min(p.out_c);
            let mut lines = Lines::new(s, input, channels.clone(), &zeros);
            for (l, out) in out.chunks_exact_mut(line_len).enumerate() {
                lines.under(first_line + l, &mut found);
                let rows = rows.alloc::<FilterRow>(found.len());
                for (to, (row, pixels)) in rows.iter_mut().zip(&found) {
                    *to = FilterRow {
                        pixels: *pixels,
                        filter: filter[row * p.filter_w * p.out_c..][..p.filter_w * p.out_c]
                            .as_ptr(),
                    };
                }
                for c in channels.clone().step_by(chunk) {
                    let channels = c..(c + chunk).min(channels.end);
                    let first_input = lines.first_input() + c - first;
                    line(table, s, rows, (channels, first_input), ep, out);
                }
            }
        }
        finish(table, p.out_c, first_line * p.out_w, ep, out);
    });
}

/// Computes some channels of an output line.
fn line(
    table: &DispatchTable,
    s: &Conv3dShape,
    rows: &[FilterRow],
    (channels, first_input): (Range<usize>, usize),
    ep: &Epilogue<'_>,
    out: &mut [f32],
) {
    let p = &s.plane;
    let none = (f32::NEG_INFINITY, f32::INFINITY);
    let (lo, hi) = match ep.side {
        Some(_) => none,
        None => ep.act.limits().unwrap_or(none),
    };
    let (pixels, kernel) = table.depthwise(p.filter_w, p.stride_w, p.dil_w, p.out_w);
    let pointer = |x: Option<&[f32]>| x.map_or(std::ptr::null(), <[f32]>::as_ptr);
    let mut job = DepthwiseJob {
        rows: rows.as_ptr(),
        n_rows: rows.len(),
        width: p.filter_w,
        step: p.stride_w,
        dilation: p.dil_w,
        tiles: p.out_w / pixels,
        n: channels.len(),
        stride: p.out_c,
        first: channels.start,
        first_input,
        scale: pointer(ep.scale),
        bias: pointer(ep.bias),
        out: out.as_mut_ptr(),
        limits: [lo, hi],
    };
    // SAFETY: tables have a pointer for each column that a window covers, to a pixel with these
    // channels or to as many zeros; filter rows, scale, bias and the pixels of `out` have all
    // output channels. Tiles of `pixels` pixels fit the line, also the last one, which is moved
    // left over the one before.
    unsafe {
        if job.tiles == 0 {
            job.tiles = p.out_w;
            return (table.depthwise_pixel)(&job);
        }
        kernel(&job);
        if job.tiles * pixels < p.out_w {
            let x = p.out_w - pixels;
            let moved: Vec<FilterRow> = rows
                .iter()
                .map(|row| FilterRow {
                    pixels: row.pixels.add(x * p.stride_w),
                    filter: row.filter,
                })
                .collect();
            job.rows = moved.as_ptr();
            job.tiles = 1;
            job.out = job.out.add(x * p.out_c);
            kernel(&job);
        }
    }
}

/// Applies what of an epilogue [`line`] has not applied, to the pixels from `first_pixel` on.
fn finish(
    table: &DispatchTable,
    out_c: usize,
    first_pixel: usize,
    ep: &Epilogue<'_>,
    out: &mut [f32],
) {
    if let Some((side, ld)) = ep.side {
        let rows = side[first_pixel * ld..].chunks(ld.max(1));
        for (out, side) in out.chunks_exact_mut(out_c).zip(rows) {
            out.iter_mut().zip(side).for_each(|(o, s)| *o += s);
        }
        unary_with(table, ep.act.as_unary(), out);
    } else if let Some(op) = ep.act.function() {
        unary_with(table, op, out);
    }
}

/// Writes the gradient of a convolution in small groups by its filter, `[…, in_c / groups, out_c]`,
/// given its input and the gradient of its output.
///
/// # Panics
/// If a slice is too short, or the channels do not divide into the groups.
pub fn filter_gradient_by_channel(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[f32],
    dy: &[f32],
    out: &mut [f32],
) {
    let p = &s.plane;
    assert!(
        p.groups > 0 && p.in_c.is_multiple_of(p.groups) && p.out_c.is_multiple_of(p.groups),
        "channels do not divide into {} groups",
        p.groups
    );
    let n_lines = p.batch * s.out_d * p.out_h;
    let rows = s.filter_d * p.filter_h * p.filter_w * (p.in_c / p.groups);
    let pixels = p.batch * s.in_d * p.in_h * p.in_w;
    check(input.len(), pixels, p.in_c, p.in_c, "input");
    check(dy.len(), n_lines * p.out_w, p.out_c, p.out_c, "gradient");
    check(out.len(), rows, p.out_c, p.out_c, "filter");
    let out = &mut out[..rows * p.out_c];
    out.fill(0.0);
    if n_lines == 0 || p.out_w == 0 || out.is_empty() {
        return;
    }
    let zeros = vec![0.0; p.in_c.max(p.out_c)];
    let (block, chunk) = blocks(s);
    let table = DispatchTable::current();
    let row_len = p.filter_w * p.out_c;
    // Lines are added up separately by each thread.
    let lanes = par.width().min(n_lines);
    let per_lane = n_lines.div_ceil(lanes);
    let mut sums = vec![0f32; out.len() * lanes];
    par_chunks_mut(par, &mut sums, out.len(), 1, &|lane, sum| {
        let mut found = Vec::new();
        for first in (0..p.out_c).step_by(block) {
            let channels = first..(first + block).min(p.out_c);
            let mut lines = Lines::new(s, input, channels.clone(), &zeros);
            for l in lane * per_lane..((lane + 1) * per_lane).min(n_lines) {
                lines.under(l, &mut found);
                let dy = &dy[l * p.out_w * p.out_c..][..p.out_w * p.out_c];
                for (row, pixels) in &found {
                    for c in channels.clone().step_by(chunk) {
                        let job = FilterGradientJob {
                            pixels: *pixels,
                            width: p.filter_w,
                            step: p.stride_w,
                            dilation: p.dil_w,
                            outputs: p.out_w,
                            n: chunk.min(channels.end - c),
                            stride: p.out_c,
                            first: c,
                            first_input: lines.first_input() + c - first,
                            dy: dy.as_ptr(),
                            out: sum[row * row_len..][..row_len].as_mut_ptr(),
                        };
                        // SAFETY: as in `line`; a line of gradients and a filter row have all
                        // output channels.
                        unsafe { (table.depthwise_filter)(&job) };
                    }
                }
            }
        }
    });
    let (first, others) = sums.split_at_mut(out.len());
    for sum in others.chunks_exact(out.len()) {
        first.iter_mut().zip(sum).for_each(|(o, s)| *o += *s);
    }
    out.copy_from_slice(&swap_axes(first, Groups::of(s).per_in, p.filter_w, p.out_c));
}
