//! Filter gradients of convolutions as implicit matrix products.
//!
//! The reduction runs over output pixels. The input is transposed, a piece at a time, so that the
//! columns of a channel are contiguous: a row of the left matrix, which is one channel under one
//! filter position, is then a run of such columns for each line of the output, and nothing is
//! copied for it.

use super::Conv3dShape;
use crate::aligned::{Scratch, SendPtr};
use crate::gemm::drive::{Out, RowSource, Tiles, drive};
use crate::gemm::{Epilogue, GemmElement, PackedB, check, turn};
use ferroflow_sync::{Inline, Parallelism, par_chunks_mut};
use std::ops::{AddAssign, Range};

/// Output lines per piece.
const LINES: usize = 160;
/// Elements of the transposed input per piece, unless the filter is larger.
const TURNED: usize = 1 << 18;

/// The transposed input of some images: `[channel][image][depth][height][phase][column]`, where
/// column `q` of phase `r` is position `q * stride_w + r` of the padded line.
#[derive(Clone, Copy)]
struct TransposedInput {
    s: Conv3dShape,
    /// Output rows of a piece.
    band: usize,
    depth: usize,
    height: usize,
    columns: usize,
    /// Elements of a line, with all phases.
    line: usize,
    /// Elements of a channel.
    channel: usize,
}

/// Returns the number of positions of an axis for this many outputs.
fn extent(outputs: usize, stride: usize, filter: usize, dilation: usize) -> usize {
    (outputs - 1) * stride + (filter - 1) * dilation + 1
}

impl TransposedInput {
    fn new(s: &Conv3dShape, images: usize, band: usize) -> Self {
        let p = &s.plane;
        let depth = extent(s.out_d, s.stride_d, s.filter_d, s.dil_d);
        let height = extent(band, p.stride_h, p.filter_h, p.dil_h);
        let width = extent(p.out_w, p.stride_w, p.filter_w, p.dil_w);
        let columns = width.div_ceil(p.stride_w);
        let line = columns * p.stride_w;
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let channel = (images * depth * height * line).div_ceil(16) | 1;
        TransposedInput {
            s: *s,
            band,
            depth,
            height,
            columns,
            line,
            channel: 16 * channel,
        }
    }

    /// Transposes the images `images` as far as output rows from `first_row` on use them. Columns
    /// that do not exist are not written.
    fn fill<T: GemmElement>(
        &self,
        input: &[T],
        images: Range<usize>,
        first_row: usize,
        planes: &mut [T],
    ) {
        let (s, p) = (&self.s, &self.s.plane);
        let mut to = 0;
        for image in images {
            for z in 0..self.depth {
                let z = z.checked_sub(s.pad_front).filter(|z| *z < s.in_d);
                for y in 0..self.height {
                    let y = first_row * p.stride_h + y;
                    let y = y.checked_sub(p.pad_top).filter(|y| *y < p.in_h);
                    match z.zip(y) {
                        Some((z, y)) => {
                            let row = ((image * s.in_d + z) * p.in_h + y) * p.in_w * p.in_c;
                            self.turn_line(&input[row..][..p.in_w * p.in_c], to, planes);
                        }
                        None => {
                            for channel in planes.chunks_exact_mut(self.channel) {
                                channel[to..][..self.line].fill(T::ZERO);
                            }
                        }
                    }
                    to += self.line;
                }
            }
        }
    }

    /// Writes a line of the input to position `to` of each channel.
    fn turn_line<T: GemmElement>(&self, row: &[T], to: usize, planes: &mut [T]) {
        const TOGETHER: usize = 16;
        let p = &self.s.plane;
        let (in_c, stride) = (p.in_c, p.stride_w);
        let end = (self.line.saturating_sub(p.pad_left)).min(p.in_w);
        if stride == 1 {
            let to = &mut planes[to + p.pad_left..];
            return turn(&Inline, row, in_c, [end, in_c], to, self.channel);
        }
        for (block, planes) in planes.chunks_mut(TOGETHER * self.channel).enumerate() {
            for (x, pixel) in row.chunks_exact(in_c).take(end).enumerate() {
                let x = x + p.pad_left;
                let at = to + x % stride * self.columns + x / stride;
                let values = pixel[block * TOGETHER..].iter().take(TOGETHER);
                for (plane, value) in planes.chunks_exact_mut(self.channel).zip(values) {
                    plane[at] = *value;
                }
            }
        }
    }
}

/// The channels `first..first + in_c` of a transposed input under every filter position.
struct InputLines<'a, T> {
    turned: TransposedInput,
    planes: &'a [T],
    images: usize,
    first: usize,
    in_c: usize,
}

impl<T: GemmElement> RowSource<T> for InputLines<'_, T> {
    fn n_offsets(&self) -> usize {
        self.images * self.turned.s.out_d * self.turned.band
    }

    fn run(&self) -> usize {
        self.turned.s.plane.out_w
    }

    fn fill(&self, rows: Range<usize>, tiles: Tiles, out: &mut [SendPtr<T>], _: &mut Scratch) {
        let (t, s, p) = (&self.turned, &self.turned.s, &self.turned.s.plane);
        let mut lines = Vec::with_capacity(self.n_offsets());
        for image in 0..self.images {
            for z in 0..s.out_d {
                for y in 0..t.band {
                    let plane = image * t.depth + z * s.stride_d;
                    lines.push((plane * t.height + y * p.stride_h) * t.line);
                }
            }
        }
        let base = self.planes.as_ptr().cast_mut();
        tiles.each(|row, mr| {
            for r in 0..mr {
                let index = rows.start + row + r;
                let (offset, channel) = (index / self.in_c, self.first + index % self.in_c);
                let (offset, kx) = (offset / p.filter_w, offset % p.filter_w * p.dil_w);
                let (kz, ky) = (offset / p.filter_h * s.dil_d, offset % p.filter_h * p.dil_h);
                let column = kx % p.stride_w * t.columns + kx / p.stride_w;
                let start = channel * t.channel + (kz * t.height + ky) * t.line + column;
                let slots = out[row * lines.len() + r..].iter_mut().step_by(mr);
                for (slot, line) in slots.zip(&lines) {
                    *slot = SendPtr(base.wrapping_add(start + line));
                }
            }
        });
    }
}

/// Returns whether [`conv3d_filter_gradient`] is fast: not if output lines are short or much of the
/// windows' area is padding.
pub fn suits_filter_gradient(s: &Conv3dShape) -> bool {
    let p = &s.plane;
    let axes = [
        (s.out_d, s.stride_d, s.filter_d, s.dil_d, s.in_d),
        (p.out_h, p.stride_h, p.filter_h, p.dil_h, p.in_h),
        (p.out_w, p.stride_w, p.filter_w, p.dil_w, p.in_w),
    ];
    p.out_w >= 4
        && axes
            .iter()
            .all(|&(outputs, stride, filter, dilation, input)| {
                let covered = outputs
                    .saturating_mul(stride)
                    .saturating_add(filter.saturating_mul(dilation));
                covered <= 4 * input + 16
            })
}

/// Writes the gradient of a convolution by its filter, `[offsets, in_c / groups, out_c]`, given its
/// input and the gradient of its output.
///
/// # Panics
/// If a slice is too short, or the channels do not divide into the groups.
pub fn conv3d_filter_gradient<T: GemmElement + AddAssign>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[T],
    dy: &[T],
    out: &mut [T],
) {
    let p = &s.plane;
    assert!(
        p.groups > 0 && p.in_c.is_multiple_of(p.groups) && p.out_c.is_multiple_of(p.groups),
        "channels do not divide into {} groups",
        p.groups
    );
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    let rows = s.filter_d * p.filter_h * p.filter_w * in_c;
    let lines = s.out_d * p.out_h;
    let pixels = p.batch * s.in_d * p.in_h * p.in_w;
    check(input.len(), pixels, p.in_c, p.in_c, "input");
    let gradients = p.batch * lines * p.out_w;
    check(dy.len(), gradients, p.out_c, p.out_c, "gradient");
    check(out.len(), rows, p.out_c, p.out_c, "filter");
    let size = rows * p.out_c;
    let out = &mut out[..size];
    out.fill(T::ZERO);
    if size == 0 || gradients == 0 {
        return;
    }
    // A piece is several images, or some rows of one.
    let whole = p.in_c * TransposedInput::new(s, 1, p.out_h).channel;
    let room = TURNED.max(size);
    let images = (LINES / lines).min(room / whole).clamp(1, p.batch);
    let band = match images == 1 && s.out_d == 1 {
        true => (p.out_h * room / whole).min(LINES).clamp(1, p.out_h),
        false => p.out_h,
    };
    let bands = p.out_h.div_ceil(band);
    let pieces = p.batch.div_ceil(images) * bands;
    // Pieces are added up separately by each thread that may work on one.
    let lanes = par.width().min(pieces);
    let inner: &dyn Parallelism = if lanes > 1 { &Inline } else { par };
    let mut sums = vec![T::ZERO; size * lanes];
    par_chunks_mut(par, &mut sums, size, 1, &|lane, sum| {
        let mut turned = TransposedInput::new(s, images, band);
        let mut planes = vec![T::ZERO; p.in_c * turned.channel];
        for piece in (lane..pieces).step_by(lanes) {
            let (first, row) = (piece / bands * images, piece % bands * band);
            turned.band = band.min(p.out_h - row);
            let images = first..(first + images).min(p.batch);
            turned.fill(input, images.clone(), row, &mut planes);
            let k = images.len() * s.out_d * turned.band * p.out_w;
            let right = &dy[(first * lines + row) * p.out_w * p.out_c..];
            let to = SendPtr(sum.as_mut_ptr());
            for g in 0..p.groups {
                let source = InputLines {
                    turned,
                    planes: &planes,
                    images: images.len(),
                    first: g * in_c,
                    in_c,
                };
                let right = (&right[g * out_c..], p.out_c, false);
                PackedB::with_scratch(inner, right, k, out_c, |b| {
                    let to = Out::Matrix(SendPtr(to.get().wrapping_add(g * out_c)), p.out_c);
                    let (ep, add) = (Epilogue::none(), piece != lane);
                    // SAFETY: `InputLines` points into `planes`, which hold every position that a
                    // window of these outputs covers; `to` has `rows` rows of stride `p.out_c`,
                    // initialized, no other thread accesses it, and a group's columns are its own.
                    unsafe { drive(inner, rows, &source, b.into(), to, &ep, add) };
                });
            }
        }
    });
    for sum in sums.chunks_exact(size) {
        out.iter_mut().zip(sum).for_each(|(o, s)| *o += *s);
    }
}
