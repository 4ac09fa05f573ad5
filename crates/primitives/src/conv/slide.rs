//! Convolutions of few channels, or of groups of few, with filters three pixels wide, over planes and volumes.
//!
//! With one vector of output channels, a product of matrices multiplies each input that it loads by
//! one vector of weights, and waits for loads. Neighboring outputs share inputs: here an input is
//! multiplied by the weights of all three outputs that see it. With few input channels, a row of
//! the filter is too short for the loop over it; here that loop does three times as much.

use super::rows::ZEROS;
use super::{Conv2dShape, Conv3dShape};
use crate::aligned::{Scratch, SendPtr};
use crate::gemm::drive::MIN_TASK;
use crate::gemm::kernel::{Ahead, Sweep, finish};
use crate::gemm::{Epilogue, PackedB};
use crate::math::unary_with;
use crate::table::{DispatchTable, SlideKernel};
use crate::vector::{Lanes, array};
use ferroflow_sync::{Parallelism, par_chunks_mut, parallel_for};
use std::ops::Range;

/// Columns of the filter.
const TAPS: usize = 3;
/// Input channels up to which the filter stays in the first-level cache, and up to which more than
/// one vector of output channels is faster than a product of matrices.
const MAX_CHANNELS: (usize, usize) = (48, 8);
/// Input pixels from one output to the next that there are kernels for, at most.
pub(crate) const MAX_STRIDE: usize = 2;
/// Tiles of a row up to which inputs are copied with the zeros around them: then most tiles are at a border.
const FEW_TILES: usize = 4;
/// Lines that are copied by one task.
const MIN_COPY: usize = 256;
/// Elements of an input up to which it is copied.
const MAX_COPY: usize = 1 << 20;

/// Returns the neighboring input pixels that `pixels` outputs see.
const fn columns(pixels: usize, stride: usize) -> usize {
    (pixels - 1) * stride + TAPS
}

/// Computes `MR` neighboring output pixels, `ST` input pixels apart: `s.rows` has a pointer for each
/// row of the filter, to [`columns`] input pixels of `s.len` channels, which are `s.tile_stride` elements apart.
///
/// # Safety
/// As for [`sweep`](crate::gemm::kernel::sweep), of one tile.
#[inline(always)]
pub(crate) unsafe fn slide<L: Lanes, const MR: usize, const NV: usize, const ST: usize>(
    l: L,
    s: &Sweep<L::T>,
) {
    let nr = 2 * L::N;
    let mut acc = [[l.zero(); NV]; MR];
    // SAFETY: the caller promises `n_offsets` pointers to as many pixels, and the panel.
    unsafe {
        for offset in 0..s.n_offsets {
            let x = (*s.rows.add(offset)).add(s.off);
            let b = s.b.add(offset * TAPS * s.len * nr);
            for k in 0..s.len {
                let w: [[L::V; NV]; TAPS] =
                    array(|tap| array(|v| l.load(b.add((tap * s.len + k) * nr + v * L::N))));
                let mut pixel = 0;
                if ST == 1 {
                    while pixel < columns(MR, ST) {
                        let x = l.splat(*x.add(pixel * s.tile_stride + k));
                        let mut tap = 0;
                        while tap < TAPS {
                            if pixel >= tap && pixel - tap < MR {
                                add(l, &mut acc[pixel - tap], x, &w[tap]);
                            }
                            tap += 1;
                        }
                        pixel += 1;
                    }
                    continue;
                }
                // By output, which is less to unroll; outputs next to each other load an input once.
                while pixel < MR {
                    let mut tap = 0;
                    while tap < TAPS {
                        let x = l.splat(*x.add((pixel * ST + tap) * s.tile_stride + k));
                        add(l, &mut acc[pixel], x, &w[tap]);
                        tap += 1;
                    }
                    pixel += 1;
                }
            }
        }
        finish::<L, MR, NV>(l, s, acc, 0);
    }
}

/// Adds an input times the weights of a tap to the sums of an output.
#[inline(always)]
fn add<L: Lanes, const NV: usize>(l: L, acc: &mut [L::V; NV], x: L::V, w: &[L::V; NV]) {
    let mut v = 0;
    while v < NV {
        acc[v] = l.fma(x, w[v], acc[v]);
        v += 1;
    }
}

/// Returns the kernel that computes the rows of a convolution with the fewest pixels too many, if
/// sliding suits the convolution.
pub(super) fn kernel(s: &Conv3dShape) -> Option<&'static SlideKernel> {
    let dilation = s.dil_d;
    let s = &s.plane;
    let table = DispatchTable::current();
    let (in_c, out_c) = (s.in_c / s.groups, s.out_c / s.groups);
    let vectors = out_c.div_ceil(table.gemm.lanes).min(2);
    let suits = s.filter_w == TAPS
        && [dilation, s.dil_h, s.dil_w] == [1; 3]
        && s.stride_w <= MAX_STRIDE
        && in_c <= MAX_CHANNELS.0
        && (in_c <= MAX_CHANNELS.1 || vectors == 1);
    // The weights of all groups are read for each tile.
    let is_paid = |pixels: usize| s.groups == 1 || (s.stride_w == 1 && s.out_w >= 2 * pixels);
    let fits = |k: &&SlideKernel| {
        let zeros = columns(k.pixels, s.stride_w) * s.in_c;
        let exists = k.pixels <= s.out_w && vectors <= k.run[0].len();
        suits && exists && is_paid(k.pixels) && zeros <= ZEROS.len()
    };
    let computed = |k: &&SlideKernel| s.out_w.next_multiple_of(k.pixels);
    table.slide.iter().filter(fits).min_by_key(computed)
}

/// Computes a convolution with a [`kernel`].
///
/// # Safety
/// `out` is valid for the output, and no other thread accesses it meanwhile; the sizes of the
/// input, the filter and the epilogue are those of `s`.
pub(super) unsafe fn run(
    par: &dyn Parallelism,
    solid: &Conv3dShape,
    kernel: &SlideKernel,
    input: &[f32],
    filter: &[PackedB<f32>],
    out: SendPtr<f32>,
    ep: &Epilogue<'_>,
) {
    let s = &solid.plane;
    let width = ((s.out_w - 1) * s.stride_w + TAPS).max(s.pad_left + s.in_w);
    let lines = s.batch * solid.in_d * s.in_h;
    let size = lines * width * s.in_c;
    if width > s.in_w && s.out_w.div_ceil(kernel.pixels) <= FEW_TILES && size <= MAX_COPY {
        let mut padded = Scratch::take();
        let padded = padded.alloc::<f32>(size);
        pad_lines(par, s, input, padded, width);
        let mut solid = *solid;
        (solid.plane.in_w, solid.plane.pad_left) = (width, 0);
        // SAFETY: the caller's promise; the sizes of the input are those of the copy.
        return unsafe { run(par, &solid, kernel, padded, filter, out, ep) };
    }
    let n_rows = solid.filter_d * s.filter_h;
    let terms = s.out_w * n_rows * TAPS * s.in_c / s.groups * s.out_c;
    let rows_per_task = (MIN_TASK / terms.max(1)).max(1);
    let columns = columns(kernel.pixels, s.stride_w);
    let tiles = Tiles {
        s,
        kernel,
        filter,
        out,
        ep,
    };
    let lines = s.batch * solid.out_d * s.out_h;
    let (table, function) = (DispatchTable::current(), ep.act.function());
    parallel_for(par, lines, rows_per_task, &|rows| {
        let mut scratch = Scratch::take();
        let mut windows = Windows {
            solid,
            input,
            columns,
            edges: scratch.alloc(n_rows * columns * s.in_c),
            lines: Vec::with_capacity(n_rows),
            pointers: Vec::with_capacity(n_rows),
        };
        for row in rows {
            let used = windows.go_to(row);
            for x in (0..s.out_w).step_by(kernel.pixels) {
                // The last tile computes some pixels of the one before again.
                let x = x.min(s.out_w - kernel.pixels);
                windows.point(x);
                // SAFETY: the pointers are those of `columns` pixels for each used row of the
                // filter; tasks have rows of their own; the caller promises the rest.
                unsafe { tiles.compute(row * s.out_w + x, &windows.pointers, used.start) };
            }
            if let Some(op) = function {
                let len = s.out_w * s.out_c;
                // SAFETY: the row, which only this task writes.
                let done = unsafe { std::slice::from_raw_parts_mut(out.get().add(row * len), len) };
                unary_with(table, op, done);
            }
        }
    });
}

/// Copies the lines of an input into longer ones, of `width` pixels, with zeros on both sides.
fn pad_lines(par: &dyn Parallelism, s: &Conv2dShape, input: &[f32], to: &mut [f32], width: usize) {
    let (line, before) = (s.in_w * s.in_c, s.pad_left * s.in_c);
    par_chunks_mut(par, to, width * s.in_c, MIN_COPY, &|i, to| {
        let from = &input[i * line..][..line];
        to[..before].fill(0.0);
        to[before..before + line].copy_from_slice(from);
        to[before + line..].fill(0.0);
    });
}

/// The input pixels that a tile sees.
struct Windows<'a> {
    solid: &'a Conv3dShape,
    input: &'a [f32],
    /// Input columns of a tile.
    columns: usize,
    /// Rows of a tile at the border of the image, with zeros around it.
    edges: &'a mut [f32],
    /// The start of the line that each used row of the filter sees, if it exists.
    lines: Vec<Option<usize>>,
    /// The first pixel in each used row.
    pointers: Vec<*const f32>,
}

/// Returns the part of a filter that is inside the input, and where its begin would be.
fn inside(at: usize, [input, filter, stride, pad]: [usize; 4]) -> (Range<usize>, isize) {
    let start = at * stride;
    let first = pad.saturating_sub(start).min(filter);
    let end = (input + pad).saturating_sub(start).clamp(first, filter);
    (first..end, start as isize - pad as isize)
}

impl Windows<'_> {
    /// Goes to a row of the output, and returns the rows of the filter that are used: those outside of the image add
    /// nothing, if they are the first or last of all.
    fn go_to(&mut self, row: usize) -> Range<usize> {
        let (solid, s) = (self.solid, &self.solid.plane);
        let (plane, y) = (row / s.out_h, row % s.out_h);
        let (image, z) = (plane / solid.out_d, plane % solid.out_d);
        let depth = [solid.in_d, solid.filter_d, solid.stride_d, solid.pad_front];
        let (planes, front) = inside(z, depth);
        let (rows, top) = inside(y, [s.in_h, s.filter_h, s.stride_h, s.pad_top]);
        let used = match solid.filter_d {
            1 if planes.is_empty() => 0..0,
            1 => rows,
            _ => planes.start * s.filter_h..planes.end * s.filter_h,
        };
        self.lines.clear();
        for filter_row in used.clone() {
            let plane = (front + (filter_row / s.filter_h) as isize) as usize;
            let row = top + (filter_row % s.filter_h) as isize;
            let is_inside = (0..s.in_h as isize).contains(&row);
            let first = (image * solid.in_d + plane) * s.in_h + row.max(0) as usize;
            self.lines
                .push(is_inside.then_some(first * s.in_w * s.in_c));
        }
        used
    }

    /// Sets the pointers for the tile at this column of the output.
    fn point(&mut self, x: usize) {
        let s = &self.solid.plane;
        let start = (x * s.stride_w) as isize - s.pad_left as isize;
        self.pointers.clear();
        if start >= 0 && start as usize + self.columns <= s.in_w {
            let first = self.input.as_ptr().wrapping_add(start as usize * s.in_c);
            let pointer =
                |line: &Option<usize>| line.map_or(ZEROS.as_ptr(), |l| first.wrapping_add(l));
            self.pointers.extend(self.lines.iter().map(pointer));
            return;
        }
        for i in 0..self.lines.len() {
            let pixels = match self.lines[i] {
                Some(line) => self.at_border(line, x, i),
                None => ZEROS.as_ptr(),
            };
            self.pointers.push(pixels);
        }
    }

    /// Copies the pixels of a tile that are in the line, with zeros around them.
    fn at_border(&mut self, line: usize, x: usize, i: usize) -> *const f32 {
        let (s, channels) = (&self.solid.plane, self.solid.plane.in_c);
        let line = &self.input[line..][..s.in_w * channels];
        let x = x * s.stride_w;
        let before = s.pad_left.saturating_sub(x).min(self.columns);
        let start = (x + before).saturating_sub(s.pad_left).min(s.in_w);
        let inside = (s.in_w - start).min(self.columns - before);
        let pixels = &line[start * channels..(start + inside) * channels];
        let size = self.columns * channels;
        let edge = &mut self.edges[i * size..][..size];
        edge.fill(0.0);
        edge[before * channels..][..pixels.len()].copy_from_slice(pixels);
        edge.as_ptr()
    }
}

/// What all tiles share.
struct Tiles<'a> {
    s: &'a Conv2dShape,
    kernel: &'a SlideKernel,
    /// A matrix for each group.
    filter: &'a [PackedB<f32>],
    out: SendPtr<f32>,
    ep: &'a Epilogue<'a>,
}

impl Tiles<'_> {
    /// Computes the tile at an output pixel from the rows of the filter at `first` and below.
    ///
    /// # Safety
    /// As for [`run`]; `rows` point to the input of the tile.
    unsafe fn compute(&self, pixel: usize, rows: &[*const f32], first: usize) {
        let Tiles { s, ep, .. } = self;
        let (in_c, out_c) = (s.in_c / s.groups, s.out_c / s.groups);
        for (group, filter) in self.filter.iter().enumerate() {
            let lanes = filter.table().lanes;
            for (panel, of_group) in (0..out_c).step_by(2 * lanes).enumerate() {
                let (width, col) = ((out_c - of_group).min(2 * lanes), group * out_c + of_group);
                let side = (ep.side).map(|(side, ld)| (side[pixel * ld + col..].as_ptr(), ld));
                let sweep = Sweep {
                    rows: rows.as_ptr(),
                    tiles: 1,
                    tile_stride: s.in_c,
                    n_offsets: rows.len(),
                    off: group * in_c,
                    len: in_c,
                    b: filter.panel(panel)[first * TAPS * in_c * 2 * lanes..].as_ptr(),
                    next: Ahead::nothing(),
                    c: self.out.get().wrapping_add(pixel * s.out_c + col),
                    ldc: s.out_c,
                    n: width,
                    accumulate: false,
                    last: true,
                    scale: ep.scale.map_or(std::ptr::null(), |s| s[col..].as_ptr()),
                    bias: ep.bias.map_or(std::ptr::null(), |b| b[col..].as_ptr()),
                    side: side.map_or(std::ptr::null(), |s| s.0),
                    ld_side: side.map_or(0, |s| s.1),
                    limits: ep.act.limits(),
                };
                // SAFETY: the caller's promise; the group's channels are behind `off`.
                unsafe {
                    (self.kernel.run[s.stride_w - 1][usize::from(width > lanes)])(&sweep);
                }
            }
        }
    }
}
