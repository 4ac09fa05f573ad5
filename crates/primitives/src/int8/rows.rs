//! The rows of a product: of a matrix, or windows of an image.

use super::dot::Kind;
use crate::conv::Conv2dShape;
use crate::isa::vectorized;
use std::ops::Range;

/// Rows of codes.
pub(crate) struct RowsOf<'a> {
    codes: &'a [u8],
    /// The windows and the code outside the image; without them the codes are a matrix of `k` columns.
    windows: Option<(&'a Conv2dShape, u8)>,
    k: usize,
}

impl<'a> RowsOf<'a> {
    pub(super) fn matrix(codes: &'a [u8], k: usize) -> Self {
        RowsOf {
            codes,
            windows: None,
            k,
        }
    }

    pub(crate) fn windows(codes: &'a [u8], s: &'a Conv2dShape, outside: u8) -> Self {
        RowsOf {
            codes,
            windows: Some((s, outside)),
            k: s.filter_h * s.filter_w * s.in_c,
        }
    }

    /// Returns the codes, if the loops can read rows where they are.
    pub(super) fn direct(&self, kind: Kind) -> Option<&'a [u8]> {
        let is_whole = kind.group() == 4 && self.k == 4 * kind.steps(self.k);
        (self.windows.is_none() && is_whole).then_some(self.codes)
    }

    /// Writes rows of `k` bytes, each padded with zeros to whole tiles.
    pub(crate) fn fill_whole_tiles(&self, rows: Range<usize>, k: usize, to: &mut [i32]) {
        self.fill(Kind::Amx, rows, k, to);
    }

    /// Writes rows of `k` codes as the loops read them, each padded to whole steps.
    pub(super) fn fill(&self, kind: Kind, rows: Range<usize>, k: usize, to: &mut [i32]) {
        let steps = kind.steps(k);
        vectorized(|| {
            for (row, to) in rows.zip(to.chunks_exact_mut(steps.max(1))) {
                match (kind.group(), self.windows) {
                    (4, None) => bytes(&self.codes[row * k..][..k], to),
                    (_, None) => halves(&self.codes[row * k..][..k], to),
                    (4, Some(windows)) => self.window(windows, row, &mut Bytes(to, 0)),
                    (_, Some(windows)) => self.window(windows, row, &mut Halves(to, 0)),
                }
            }
        });
    }

    #[inline(always)]
    fn window(&self, (s, outside): (&Conv2dShape, u8), row: usize, to: &mut impl Sink) {
        let (image, y, x) = (
            row / (s.out_h * s.out_w),
            row / s.out_w % s.out_h,
            row % s.out_w,
        );
        let start = (x * s.stride_w) as isize - s.pad_left as isize;
        for fy in 0..s.filter_h {
            let in_y = (y * s.stride_h + fy * s.dil_h) as isize - s.pad_top as isize;
            if in_y < 0 || in_y as usize >= s.in_h {
                to.fill(s.filter_w * s.in_c, outside);
                continue;
            }
            let line = (image * s.in_h + in_y as usize) * s.in_w;
            if s.dil_w == 1 {
                // The columns before, inside and behind the image.
                let before = (-start).clamp(0, s.filter_w as isize) as usize;
                let end = (s.in_w as isize - start).clamp(before as isize, s.filter_w as isize);
                let end = end as usize;
                to.fill(before * s.in_c, outside);
                if end > before {
                    let first = line + (start + before as isize) as usize;
                    to.copy(&self.codes[first * s.in_c..][..(end - before) * s.in_c]);
                }
                to.fill((s.filter_w - end) * s.in_c, outside);
                continue;
            }
            for fx in 0..s.filter_w {
                let in_x = start + (fx * s.dil_w) as isize;
                match usize::try_from(in_x).ok().filter(|x| *x < s.in_w) {
                    Some(in_x) => to.copy(&self.codes[(line + in_x) * s.in_c..][..s.in_c]),
                    None => to.fill(s.in_c, outside),
                }
            }
        }
        to.end();
    }
}

/// Where a row is written, piece by piece.
trait Sink {
    fn copy(&mut self, codes: &[u8]);
    fn fill(&mut self, n: usize, code: u8);
    fn end(&mut self);
}

/// Four codes to an element; the number says how many were written.
struct Bytes<'a>(&'a mut [i32], usize);
/// Two codes to an element.
struct Halves<'a>(&'a mut [i32], usize);

fn as_bytes(ints: &mut [i32]) -> &mut [u8] {
    // SAFETY: bytes have no alignment and no invalid values; the slice is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(ints.as_mut_ptr().cast(), ints.len() * 4) }
}

fn as_halves(ints: &mut [i32]) -> &mut [i16] {
    // SAFETY: halves need less alignment and have no invalid values; the slice is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(ints.as_mut_ptr().cast(), ints.len() * 2) }
}

impl Sink for Bytes<'_> {
    #[inline(always)]
    fn copy(&mut self, codes: &[u8]) {
        as_bytes(self.0)[self.1..][..codes.len()].copy_from_slice(codes);
        self.1 += codes.len();
    }
    #[inline(always)]
    fn fill(&mut self, n: usize, code: u8) {
        as_bytes(self.0)[self.1..][..n].fill(code);
        self.1 += n;
    }
    #[inline(always)]
    fn end(&mut self) {
        as_bytes(self.0)[self.1..].fill(0);
    }
}

impl Sink for Halves<'_> {
    #[inline(always)]
    fn copy(&mut self, codes: &[u8]) {
        let to = &mut as_halves(self.0)[self.1..][..codes.len()];
        to.iter_mut()
            .zip(codes)
            .for_each(|(to, c)| *to = i16::from(*c));
        self.1 += codes.len();
    }
    #[inline(always)]
    fn fill(&mut self, n: usize, code: u8) {
        as_halves(self.0)[self.1..][..n].fill(i16::from(code));
        self.1 += n;
    }
    #[inline(always)]
    fn end(&mut self) {
        as_halves(self.0)[self.1..].fill(0);
    }
}

#[inline(always)]
fn bytes(codes: &[u8], to: &mut [i32]) {
    let mut to = Bytes(to, 0);
    to.copy(codes);
    to.end();
}

#[inline(always)]
fn halves(codes: &[u8], to: &mut [i32]) {
    let mut to = Halves(to, 0);
    to.copy(codes);
    to.end();
}
