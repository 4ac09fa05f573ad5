//! Convolutions of few channels, each by itself: neighboring pixels of a line are computed as one pixel that has as many
//! channels as fill vectors.

use super::kernel::FilterRow;
use super::lines::{Groups, inside};
use super::{finish, line};
use crate::aligned::SendPtr;
use crate::conv::{Conv2dShape, Conv3dShape};
use crate::epilogue::{Activation, Epilogue};
use crate::table::DispatchTable;
use ferroflow_sync::{Parallelism, par_chunks_mut};

/// Returns the number of pixels of `c` channels that fill vectors.
fn together(c: usize) -> usize {
    let lanes = DispatchTable::current().gemm.lanes;
    // Lanes are a power of two.
    lanes >> c.trailing_zeros().min(lanes.trailing_zeros())
}

/// Returns whether pixels are worth being joined.
pub(super) fn suits(s: &Conv3dShape) -> bool {
    let p = &s.plane;
    Groups::of(s).are_plain()
        && (s.in_d, s.filter_d, s.out_d, s.pad_front) == (1, 1, 1, 0)
        && p.stride_w == 1
        && p.filter_h * p.filter_w > 1
        && 2 * p.in_c <= DispatchTable::current().gemm.lanes
        && p.out_w >= 2 * together(p.in_c)
        // The input is copied with as many columns more.
        && (p.filter_w - 1) * p.dil_w <= p.in_w
}

/// Lines of the input with zeros around, and a pointer to each of their pixels.
struct Padded {
    columns: usize,
    pixels: Vec<SendPtr<f32>>,
    /// What they point to.
    _lines: Vec<f32>,
}

impl Padded {
    fn new(par: &dyn Parallelism, p: &Conv2dShape, input: &[f32], columns: usize) -> Padded {
        let (c, in_len) = (p.in_c, p.in_w * p.in_c);
        let mut lines = vec![0.0; p.batch * p.in_h * columns * c];
        let before = p.pad_left.min(columns) * c;
        par_chunks_mut(par, &mut lines, columns * c, 64, &|i, to| {
            let to = &mut to[before..];
            let n = in_len.min(to.len());
            to[..n].copy_from_slice(&input[i * in_len..][..n]);
        });
        let base = lines.as_mut_ptr();
        let pixel = |i: usize| SendPtr(base.wrapping_add(i * c));
        Padded {
            columns,
            pixels: (0..lines.len() / c).map(pixel).collect(),
            _lines: lines,
        }
    }
}

/// Computes a convolution that [`suits`].
pub(super) fn compute(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[f32],
    filter: &[f32],
    out: &mut [f32],
    ep: &Epilogue<'_>,
) {
    let p = &s.plane;
    let (c, n) = (p.in_c, together(p.in_c));
    let (wide, tiles) = (n * c, p.out_w.div_ceil(n));
    // The last window begins with the last group of pixels.
    let padded = Padded::new(par, p, input, tiles * n + (p.filter_w - 1) * p.dil_w);
    let taps = filter[..p.filter_h * p.filter_w * c].chunks_exact(c);
    let filter: Vec<f32> = taps.flat_map(|tap| tap.repeat(n)).collect();
    let repeated = |x: Option<&[f32]>| x.map(|x| x[..c].repeat(n));
    let (scale, bias) = (repeated(ep.scale), repeated(ep.bias));
    let inner = Epilogue {
        scale: scale.as_deref(),
        bias: bias.as_deref(),
        side: None,
        // It comes behind the side, if there is one.
        act: match ep.side {
            Some(_) => Activation::None,
            None => ep.act,
        },
    };
    let mut joined = *s;
    (joined.plane.in_c, joined.plane.out_c) = (wide, wide);
    (joined.plane.stride_w, joined.plane.out_w) = (n, tiles);
    let table = DispatchTable::current();
    let (line_len, work) = (p.out_w * c, tiles * wide * p.filter_h * p.filter_w);
    let lines = (32 * 1024 / work).max(1);
    par_chunks_mut(par, out, lines * line_len, 1, &|i, out| {
        let mut whole = vec![0.0; tiles * wide];
        let mut rows = Vec::with_capacity(p.filter_h);
        for (l, out) in out.chunks_exact_mut(line_len).enumerate() {
            let number = i * lines + l;
            let (image, y) = (number / p.out_h, number % p.out_h);
            rows.clear();
            rows.extend((0..p.filter_h).filter_map(|ky| {
                let at = inside(y * p.stride_h + ky * p.dil_h, p.pad_top, p.in_h)?;
                let at = image * p.in_h + at;
                Some(FilterRow {
                    pixels: padded.pixels[at * padded.columns..].as_ptr(),
                    filter: filter[ky * p.filter_w * wide..].as_ptr(),
                })
            }));
            line(table, &joined, &rows, (0..wide, 0), &inner, &mut whole);
            out.copy_from_slice(&whole[..line_len]);
        }
        finish(table, c, i * lines * p.out_w, ep, out);
    });
}
