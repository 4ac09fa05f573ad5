//! The components of an image: color conversion and downsampling (libjpeg: `jccolor.c`, `jcsample.c`, `jcprepct.c`,
//! `jccoefct.c`).

use super::transform::{Block, Divisors, block};
use super::{Component, Layout};
use ferroflow_primitives::vectorized;
use std::ops::Range;

/// An image, of which one row of units is transformed at a time.
pub(super) struct Planes<'a> {
    pixels: &'a [u8],
    layout: &'a Layout,
    divisors: [Divisors; 2],
}

impl<'a> Planes<'a> {
    pub(super) fn new(pixels: &'a [u8], layout: &'a Layout, tables: &[[u32; 64]; 2]) -> Self {
        Planes {
            pixels,
            layout,
            divisors: tables.each_ref().map(Divisors::new),
        }
    }

    /// Calls `f` with the blocks of each component, for each row of units.
    pub(super) fn each(&self, mut f: impl FnMut(&[Vec<Block>])) {
        let layout = self.layout;
        let most = layout.most();
        let (height, width) = (8 * most, layout.columns * 8 * most);
        let n = layout.components.len();
        let mut planes = vec![vec![0; width * height]; n];
        let mut smaller = vec![0; width * height / 4];
        let mut blocks = vec![Vec::new(); n];
        for row in 0..layout.rows {
            let there = (layout.height - row * height).min(height);
            for y in 0..there {
                self.convert(row * height + y, &mut planes, y * width..(y + 1) * width);
            }
            for ((component, plane), out) in
                layout.components.iter().zip(&mut planes).zip(&mut blocks)
            {
                // A pair of rows is completed first, and the smaller rows repeat.
                let paired = there.next_multiple_of(most);
                repeat(plane, width, there..paired);
                let (samples, stride, rows) = match component.factor < most {
                    true => {
                        shrink(plane, width, &mut smaller);
                        (&mut smaller, width / 2, paired / 2)
                    }
                    false => (plane, width, paired),
                };
                repeat(samples, stride, rows..8 * component.factor);
                out.clear();
                self.transform(component, row, samples, stride, out);
            }
            f(&blocks);
        }
    }

    /// Writes row `y` of the image to a part of each plane, whose rest repeats the last sample.
    fn convert(&self, y: usize, planes: &mut [Vec<u8>], part: Range<usize>) {
        let (width, channels) = (self.layout.width, planes.len());
        let pixels = self.pixels.get(y * width * channels..);
        let pixels = pixels.and_then(|pixels| pixels.get(..width * channels));
        let pixels = pixels.unwrap_or_default();
        let rows = planes
            .iter_mut()
            .map(|plane| plane.get_mut(part.clone()).unwrap_or_default());
        let mut rows: Vec<&mut [u8]> = rows.collect();
        match &mut rows[..] {
            [luma] => luma[..width].copy_from_slice(pixels),
            [luma, blue, red] => vectorized(
                #[inline(always)]
                || {
                    let (luma, blue, red) = (luma.iter_mut(), blue.iter_mut(), red.iter_mut());
                    let pixels = pixels.as_chunks::<3>().0;
                    for (((pixel, y), cb), cr) in pixels.iter().zip(luma).zip(blue).zip(red) {
                        let [r, g, b] = pixel.map(i32::from);
                        *y = ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8;
                        *cb = ((-11059 * r - 21709 * g + 32768 * b + (128 << 16) + 32767) >> 16)
                            as u8;
                        *cr =
                            ((32768 * r - 27439 * g - 5329 * b + (128 << 16) + 32767) >> 16) as u8;
                    }
                },
            ),
            _ => {}
        }
        for row in rows {
            let last = row[width - 1];
            row[width..].fill(last);
        }
    }

    /// Appends the blocks of a component in a row of units. Those behind the image only have a mean: that of the block
    /// before, or of the unit's last one in the row above.
    fn transform(
        &self,
        component: &Component,
        row: usize,
        samples: &[u8],
        stride: usize,
        out: &mut Vec<Block>,
    ) {
        let factor = component.factor;
        let divisors = &self.divisors[component.table & 1];
        let columns = self.layout.columns * factor;
        for y in 0..factor {
            let real = match row * factor + y < component.height {
                true => component.width,
                false => 0,
            };
            let start = out.len();
            out.resize(start + real, [0; 64]);
            vectorized(
                #[inline(always)]
                || {
                    for (x, out) in out[start..].iter_mut().enumerate() {
                        block(samples, y * 8 * stride + x * 8, stride, divisors, out);
                    }
                },
            );
            for x in real..columns {
                let from = match real {
                    0 => (y - 1) * columns + x - x % factor + factor - 1,
                    _ => out.len() - 1,
                };
                let mut mean = [0; 64];
                mean[0] = out[from][0];
                out.push(mean);
            }
        }
    }
}

/// Fills rows of `width` samples with the row before them.
fn repeat(plane: &mut [u8], width: usize, rows: Range<usize>) {
    for row in rows {
        plane.copy_within((row - 1) * width..row * width, row * width);
    }
}

/// Writes the means of squares of four samples, rounded down and up in turn.
fn shrink(plane: &[u8], width: usize, out: &mut [u8]) {
    for (rows, out) in plane
        .chunks_exact(2 * width)
        .zip(out.chunks_exact_mut(width / 2))
    {
        let (above, below) = rows.split_at(width);
        vectorized(
            #[inline(always)]
            || {
                let pairs = above
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .zip(below.as_chunks::<4>().0);
                for (out, (a, b)) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                    let sums: [u16; 4] = std::array::from_fn(|i| u16::from(a[i]) + u16::from(b[i]));
                    *out = [(sums[0] + sums[1] + 1) >> 2, (sums[2] + sums[3] + 2) >> 2]
                        .map(|v| v as u8);
                }
            },
        );
    }
}
