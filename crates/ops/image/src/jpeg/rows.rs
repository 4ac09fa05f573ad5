//! Rows of a picture: chroma upsampling and color conversion (libjpeg: `jdsample.c`, `jdcolor.c`).

use super::headers::Space;
use ferroflow_primitives::triples::interleave;
use ferroflow_primitives::vectorized;

/// The samples of a component.
pub(super) struct Plane {
    pub(super) samples: Vec<u8>,
    pub(super) stride: usize,
    /// The columns to use.
    pub(super) from: usize,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) upsampling: Upsampling,
}

/// How samples become pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upsampling {
    /// Samples are repeated, `n` times in each direction.
    Repeat(usize, usize),
    /// Pairs are weighted 3 to 1 in a row.
    Row,
    /// The same in a column.
    Column,
    Both,
}

impl Plane {
    fn row(&self, y: usize) -> &[u8] {
        let row = self.samples.get(y * self.stride + self.from..);
        row.and_then(|row| row.get(..self.width))
            .unwrap_or_default()
    }

    /// Returns the row that is nearer to row `y` of the picture, and the one on its other side.
    fn rows(&self, y: usize) -> (&[u8], &[u8]) {
        let near = y / 2;
        let other = match y % 2 {
            0 => near.saturating_sub(1),
            _ => (near + 1).min(self.height.saturating_sub(1)),
        };
        (self.row(near), self.row(other))
    }

    /// Writes the pixels of row `y`, of which there are as many as samples, or twice as many.
    pub(super) fn expand<'p>(
        &'p self,
        y: usize,
        out: &'p mut Vec<u8>,
        sums: &mut Vec<i16>,
    ) -> &'p [u8] {
        match self.upsampling {
            Upsampling::Repeat(1, n) => return self.row(y / n),
            Upsampling::Repeat(h, v) => {
                out.resize(self.width * h, 0);
                for (out, &sample) in out.chunks_exact_mut(h).zip(self.row(y / v)) {
                    out.fill(sample);
                }
            }
            Upsampling::Row => {
                out.resize(self.width * 2, 0);
                vectorized(
                    #[inline(always)]
                    || in_row(self.row(y), out),
                );
            }
            Upsampling::Column => {
                let (near, other) = self.rows(y);
                let bias = if y.is_multiple_of(2) { 1 } else { 2 };
                out.resize(self.width, 0);
                for ((out, &a), &b) in out.iter_mut().zip(near).zip(other) {
                    *out = ((u16::from(a) * 3 + u16::from(b) + bias) >> 2) as u8;
                }
            }
            Upsampling::Both => {
                let (near, other) = self.rows(y);
                out.resize(self.width * 2, 0);
                sums.resize(self.width, 0);
                vectorized(
                    #[inline(always)]
                    || {
                        for ((sum, &a), &b) in sums.iter_mut().zip(near).zip(other) {
                            *sum = i16::from(a) * 3 + i16::from(b);
                        }
                        in_both(sums, out);
                    },
                );
            }
        }
        out
    }
}

#[inline(always)]
fn in_row(row: &[u8], out: &mut [u8]) {
    let (Some(&first), Some(&last)) = (row.first(), row.last()) else {
        return;
    };
    let n = row.len();
    let inner = out
        .get_mut(1..(2 * n).saturating_sub(1))
        .unwrap_or_default();
    for (pair, w) in inner.chunks_exact_mut(2).zip(row.windows(2)) {
        let (a, b) = (u16::from(w[0]), u16::from(w[1]));
        pair[0] = ((a * 3 + b + 2) >> 2) as u8;
        pair[1] = ((b * 3 + a + 1) >> 2) as u8;
    }
    if let [start, .., end] = out {
        (*start, *end) = (first, last);
    }
}

#[inline(always)]
fn in_both(sums: &[i16], out: &mut [u8]) {
    let (Some(&first), Some(&last)) = (sums.first(), sums.last()) else {
        return;
    };
    let n = sums.len();
    let inner = out
        .get_mut(1..(2 * n).saturating_sub(1))
        .unwrap_or_default();
    for (pair, w) in inner.chunks_exact_mut(2).zip(sums.windows(2)) {
        pair[0] = ((w[0] * 3 + w[1] + 7) >> 4) as u8;
        pair[1] = ((w[1] * 3 + w[0] + 8) >> 4) as u8;
    }
    if let [start, .., end] = out {
        *start = ((first * 4 + 8) >> 4) as u8;
        *end = ((last * 4 + 7) >> 4) as u8;
    }
}

/// Returns `v * by / 65536`, rounded.
#[inline(always)]
fn part(v: i16, by: i16) -> i16 {
    (((i32::from(v) * 2 * i32::from(by)) >> 16) as i16 + 1) >> 1
}

#[inline(always)]
fn red(y: u8, cr: u8) -> i16 {
    let cr = i16::from(cr) - 128;
    i16::from(y) + cr + part(cr, 26345)
}

#[inline(always)]
fn green(y: u8, cb: u8, cr: u8) -> i16 {
    let (cb, cr) = (i32::from(cb) - 128, i32::from(cr) - 128);
    i16::from(y) + ((cb * -22554 + cr * -46802 + 32768) >> 16) as i16
}

#[inline(always)]
fn blue(y: u8, cb: u8) -> i16 {
    let cb = i16::from(cb) - 128;
    i16::from(y) + cb * 2 + part(cb, -14942)
}

#[inline(always)]
fn clamp(v: i16) -> u8 {
    v.clamp(0, 255) as u8
}

/// Converts a row of YCbCr to RGB.
fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    const N: usize = 256;
    let mut planes = [[0u8; N]; 3];
    let rows = y.chunks(N).zip(cb.chunks(N)).zip(cr.chunks(N));
    for (((y, cb), cr), out) in rows.zip(out.chunks_mut(3 * N)) {
        let [r, g, b] = &mut planes;
        vectorized(
            #[inline(always)]
            || {
                for ((r, y), cr) in r.iter_mut().zip(y).zip(cr) {
                    *r = clamp(red(*y, *cr));
                }
                for (((g, y), cb), cr) in g.iter_mut().zip(y).zip(cb).zip(cr) {
                    *g = clamp(green(*y, *cb, *cr));
                }
                for ((b, y), cb) in b.iter_mut().zip(y).zip(cb) {
                    *b = clamp(blue(*y, *cb));
                }
            },
        );
        let n = out.len() / 3;
        interleave([&r[..n], &g[..n], &b[..n]], &mut out[..3 * n]);
    }
}

/// Converts a row of components to pixels with `channels` samples.
pub(super) fn convert(space: Space, rows: &[&[u8]], adobe: bool, channels: usize, out: &mut [u8]) {
    match (space, channels, rows) {
        (Space::Gray | Space::Ycc, 1, [gray, ..]) => {
            out.iter_mut().zip(*gray).for_each(|(out, v)| *out = *v);
        }
        (Space::Gray, _, [gray, ..]) => {
            for (pixel, &v) in out.chunks_exact_mut(3).zip(*gray) {
                pixel.fill(v);
            }
        }
        (Space::Rgb, 1, [r, g, b]) => {
            for (((out, &r), &g), &b) in out.iter_mut().zip(*r).zip(*g).zip(*b) {
                let [r, g, b] = [r, g, b].map(u32::from);
                *out = ((r * 19595 + g * 38470 + b * 7471 + 32768) >> 16) as u8;
            }
        }
        (Space::Rgb, _, [r, g, b]) => {
            for (((pixel, &r), &g), &b) in out.chunks_exact_mut(3).zip(*r).zip(*g).zip(*b) {
                pixel.copy_from_slice(&[r, g, b]);
            }
        }
        (Space::Ycc, _, [y, cb, cr]) => ycc(y, cb, cr, out),
        (Space::Cmyk | Space::Ycck, _, [c, m, y, k]) => {
            for (i, pixel) in out.chunks_exact_mut(3).enumerate() {
                let at = |row: &[u8]| row.get(i).copied().unwrap_or_default();
                let (first, second, third) = (at(c), at(m), at(y));
                let inks = match space {
                    Space::Cmyk => [first, second, third],
                    _ => [
                        255 - clamp(red(first, third)),
                        255 - clamp(green(first, second, third)),
                        255 - clamp(blue(first, second)),
                    ],
                };
                let k = u32::from(at(k));
                for (out, ink) in pixel.iter_mut().zip(inks.map(u32::from)) {
                    *out = match adobe {
                        true => (k * ink / 255) as u8,
                        false => ((255 - k) * (255 - ink) / 255) as u8,
                    };
                }
            }
        }
        _ => {}
    }
}
