//! Winograd convolution of codes (F(2×2, 3×3): Lavin and Gray, "Fast algorithms for convolutional neural
//! networks", CVPR 2016): 16 products of 16 bits for four outputs instead of 36.
//!
//! A filter is transformed to four times its values, so that no factor is a half and everything is an
//! integer: the codes of a tile to at most ±1020, the weights to at most ±1152. Sums that are too large
//! for 32 bits wrap around, but four times an output is not, so that results are exact.

use super::dot::{Dot, Kind};
use super::kernel::{Finish, MAX_ROWS, Sums, Sweep, Table, To};
use super::{Shared, WORTH_A_TASK, split};
use crate::aligned::{Aligned, Scratch};
use crate::conv::Conv2dShape;
use crate::gemm::drive::Tiles;
use crate::isa::{Loops, run};
use crate::vector::{Lanes, Simd};
use ferroflow_sync::Parallelism;
use std::ops::Range;

/// Channels below which the transforms cost more than they save.
const MIN_CHANNELS: usize = 32;
/// Channels up to which four times a sum fits: `4 * 9 * 255 * 128` of them are below two to the 31st.
const MAX_CHANNELS: usize = 1827;
/// Positions of a tile.
const POSITIONS: usize = 16;
/// The position that all outputs of a tile take with a factor of one.
const EVERYWHERE: usize = 5;
/// Elements of a block's transformed codes.
const BLOCK: usize = 128 * 1024;
/// The fewest tiles of a block, so that reading the filter pays off, and the most.
const TILES: [usize; 2] = [24, 64];
/// Elements between the positions' planes, so that they do not map to the same cache set.
const GAP: usize = 32;

/// Returns whether a convolution is computed so: where products are of 16 bits in any case.
pub(super) fn suits(kind: Kind, s: &Conv2dShape) -> bool {
    kind.group() == 2 && has_form(s) && (MIN_CHANNELS..=MAX_CHANNELS).contains(&s.in_c)
}

/// Returns whether a convolution has the filter, strides and dilations that tiles are for.
pub(super) fn has_form(s: &Conv2dShape) -> bool {
    [s.filter_h, s.filter_w] == [3, 3] && [s.stride_h, s.stride_w, s.dil_h, s.dil_w] == [1; 4]
}

/// Returns four times a filter's values in a tile.
fn of_filter(g: [[i32; 3]; 3]) -> [i32; POSITIONS] {
    let line = |[a, b, c]: [i32; 3]| [2 * a, a + b + c, a - b + c, 2 * c];
    let rows = g.map(line);
    let mut out = [0; POSITIONS];
    for x in 0..4 {
        let column = line([rows[0][x], rows[1][x], rows[2][x]]);
        for (y, value) in column.into_iter().enumerate() {
            out[4 * y + x] = value;
        }
    }
    out
}

/// Packs a filter `[3][3][c][n]`: `[panel][position][step][column]`.
pub(super) fn pack(kind: Kind, weights: &[i8], [c, n]: [usize; 2]) -> Aligned {
    let (table, steps) = (Table::of(kind), kind.steps(c));
    let width = table.lanes * table.vectors;
    let mut data = Aligned::fresh();
    let ints = data.alloc::<i32>(n.div_ceil(width) * POSITIONS * steps * width);
    let at = |channel: usize, column: usize| match channel < c && column < n {
        true => {
            let tap = |tap: usize| i32::from(weights[(tap * c + channel) * n + column]);
            of_filter([0, 3, 6].map(|row| [0, 1, 2].map(|x| tap(row + x))))
        }
        false => [0; POSITIONS],
    };
    for (p, panel) in ints
        .chunks_exact_mut((POSITIONS * steps * width).max(1))
        .enumerate()
    {
        for i in 0..steps * width {
            let (step, column) = (i / width, p * width + i % width);
            let (a, b) = (at(2 * step, column), at(2 * step + 1, column));
            for position in 0..POSITIONS {
                panel[position * steps * width + i] = a[position] & 0xffff | b[position] << 16;
            }
        }
    }
    data
}

/// A convolution in tiles.
pub(super) struct InTiles<'a> {
    pub s: &'a Conv2dShape,
    pub codes: &'a [u8],
    pub kind: Kind,
    /// The code outside the image.
    pub outside: u8,
    pub filter: &'a [i32],
    /// What four times the sums start with, padded to panels.
    pub start: &'a [i32],
}

/// Tiles of an image that are computed together.
struct Block {
    image: usize,
    /// Rows and columns of tiles.
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Block {
    fn tiles(&self) -> usize {
        self.rows.len() * self.columns.len()
    }
}

impl InTiles<'_> {
    /// Computes the convolution.
    ///
    /// # Safety
    /// The epilogue's pointers are valid for all outputs, which no one else accesses.
    pub(super) unsafe fn run(&self, par: &dyn Parallelism, finish: Finish) {
        let (s, table) = (self.s, Table::of(self.kind));
        let size = [s.out_h.div_ceil(2), s.out_w.div_ceil(2)];
        let most = BLOCK / (POSITIONS * s.in_c);
        let most = most.clamp(TILES[0], TILES[1]);
        let wide = size[1].div_ceil(size[1].div_ceil(most));
        let high = (most / wide).clamp(1, size[0]);
        let high = size[0].div_ceil(size[0].div_ceil(high));
        let of_image = [size[0].div_ceil(high), size[1].div_ceil(wide)];
        let blocks = s.batch * of_image[0] * of_image[1];
        let panels = s.out_c.div_ceil(table.lanes * table.vectors);
        let work = (s.batch * s.out_h * s.out_w).saturating_mul(s.out_c * s.in_c * 4);
        let wanted = (work / WORTH_A_TASK).clamp(1, par.width().max(1));
        let finish = Shared(finish);
        let part = |i: usize, size: usize, all: usize| i * size..((i + 1) * size).min(all);
        let task = |rows: Range<usize>, panels: Range<usize>| {
            for i in rows.start.div_ceil(MAX_ROWS)..rows.end.div_ceil(MAX_ROWS) {
                let (row, column) = (i / of_image[1] % of_image[0], i % of_image[1]);
                let block = Block {
                    image: i / of_image[1] / of_image[0],
                    rows: part(row, high, size[0]),
                    columns: part(column, wide, size[1]),
                };
                // SAFETY: tasks own disjoint blocks or panels of the outputs.
                unsafe { self.block(&block, panels.clone(), &finish.get()) };
            }
        };
        // A block stands for a tile of rows.
        split(par, [blocks * MAX_ROWS, MAX_ROWS], panels, wanted, &task);
    }

    /// Computes some panels of a block.
    ///
    /// # Safety
    /// The epilogue's pointers are valid for these outputs, which no other thread writes.
    unsafe fn block(&self, block: &Block, panels: Range<usize>, finish: &Finish) {
        let table = Table::of(self.kind);
        let (tiles, steps) = (block.tiles(), self.kind.steps(self.s.in_c));
        let (width, plane) = (table.lanes * table.vectors, tiles * steps * 2 + GAP);
        let (mut codes, mut products) = (Scratch::take(), Scratch::take());
        let codes = codes.alloc::<i16>(POSITIONS * plane);
        let mut columns = Scratch::take();
        run(Transform {
            job: self,
            block,
            to: codes,
            plane,
            columns: columns.alloc((2 * block.columns.len() + 2) * 4 * self.s.in_c),
        });
        let products = products.alloc::<i32>((POSITIONS + 4) * tiles * width);
        let (products, sums) = products.split_at_mut(POSITIONS * tiles * width);
        let zeros = vec![0i32; width];
        for panel in panels {
            let column = panel * width;
            let n = width.min(self.s.out_c - column);
            let sweeps = &table.sweeps[n.div_ceil(table.lanes) - 1];
            for position in 0..POSITIONS {
                let start = match position {
                    EVERYWHERE => &self.start[column..],
                    _ => &zeros[..],
                };
                let parts = Tiles::of(tiles, MAX_ROWS);
                let mut first = 0;
                for (count, mr) in [(parts.big, parts.mr), (parts.small, parts.mr.max(1) - 1)] {
                    if count == 0 || mr == 0 {
                        continue;
                    }
                    let to = &mut products[(first * POSITIONS + position) * width..];
                    let job = Sweep {
                        rows: codes[position * plane + first * steps * 2..]
                            .as_ptr()
                            .cast(),
                        ld: steps * 4,
                        tiles: count,
                        steps,
                        weights: self.filter[(panel * POSITIONS + position) * steps * width..]
                            .as_ptr(),
                        start: start.as_ptr(),
                        n: n.next_multiple_of(table.lanes),
                        finish: Finish {
                            to: To::Sums(to.as_mut_ptr()),
                            ld: POSITIONS * width,
                            ..finish.at(0, 0, column)
                        },
                    };
                    // SAFETY: the planes have `tiles` rows of `steps` elements, the filter as many vectors;
                    // the products have room for a panel of each tile, and the epilogue only writes those.
                    unsafe { sweeps[mr - 1](&job) };
                    first += count * mr;
                }
            }
            let job = Products {
                products: products.as_ptr(),
                tiles,
                wide: block.columns.len(),
                sums: sums.as_mut_ptr(),
            };
            // SAFETY: both have room for a panel of each tile; for the epilogue, the caller's promise.
            unsafe {
                (table.outputs)(&job);
                self.finish(block, table, sums, [column, n], finish);
            }
        }
    }

    /// Writes the results of a panel's sums, `[row][column][width]`.
    ///
    /// # Safety
    /// As for [`InTiles::block`].
    unsafe fn finish(
        &self,
        block: &Block,
        table: &Table,
        sums: &[i32],
        [column, n]: [usize; 2],
        finish: &Finish,
    ) {
        let (s, width) = (self.s, table.lanes * table.vectors);
        let (wide, x) = (2 * block.columns.len(), 2 * block.columns.start);
        for (i, y) in (2 * block.rows.start..s.out_h.min(2 * block.rows.end)).enumerate() {
            let job = Sums {
                sums: sums[i * wide * width..].as_ptr(),
                ld: width,
                rows: wide.min(s.out_w - x),
                n,
                finish: finish.at((block.image * s.out_h + y) * s.out_w + x, column, column),
            };
            // SAFETY: the sums have `wide` panels in each row; for the epilogue, the caller's promise.
            unsafe { (table.finish)(&job) };
        }
    }
}

/// The transform of a block's codes to `[position][tile][channel]`.
struct Transform<'a> {
    job: &'a InTiles<'a>,
    block: &'a Block,
    to: &'a mut [i16],
    /// Elements from a position to the next.
    plane: usize,
    /// Values of columns of pixels.
    columns: &'a mut [i16],
}

impl Loops for Transform<'_> {
    #[inline(always)]
    fn run(self) {
        let (s, c, plane) = (self.job.s, self.job.s.in_c, self.plane);
        let (wide, ld) = (self.block.columns.len(), self.job.kind.steps(c) * 2);
        let outside = vec![self.job.outside; c];
        for (i, row) in self.block.rows.clone().enumerate() {
            let pixel = |y: usize, x: usize| {
                let y = (2 * row + y).checked_sub(s.pad_top);
                let x = (2 * self.block.columns.start + x).checked_sub(s.pad_left);
                match (y.filter(|y| *y < s.in_h), x.filter(|x| *x < s.in_w)) {
                    (Some(y), Some(x)) => {
                        let pixel = (self.block.image * s.in_h + y) * s.in_w + x;
                        &self.job.codes[pixel * c..][..c]
                    }
                    _ => &outside[..],
                }
            };
            for (x, to) in self.columns.chunks_exact_mut(4 * c).enumerate() {
                let from = [pixel(0, x), pixel(1, x), pixel(2, x), pixel(3, x)];
                line(from, to.chunks_exact_mut(c));
            }
            for tile in 0..wide {
                for y in 0..4 {
                    let at = |x: usize| &self.columns[((2 * tile + x) * 4 + y) * c..][..c];
                    let to = self.to[4 * y * plane..][..4 * plane].chunks_exact_mut(plane);
                    let to = to.map(|to| &mut to[(i * wide + tile) * ld..][..c]);
                    line([at(0), at(1), at(2), at(3)], to);
                }
            }
        }
    }
}

/// Channels that are transformed together.
const TOGETHER: usize = 16;

/// Transforms four lines of channels.
#[inline(always)]
fn line<'a, T: Copy + Into<i16>>(
    [a, b, c, d]: [&[T]; 4],
    mut to: impl Iterator<Item = &'a mut [i16]>,
) {
    let mut next = || to.next().unwrap_or_default().as_chunks_mut::<TOGETHER>();
    let (p, q, r, t) = (next(), next(), next(), next());
    let (a, b, c, d) = (a.as_chunks(), b.as_chunks(), c.as_chunks(), d.as_chunks());
    chunks([a.0, b.0, c.0, d.0], [p.0, q.0, r.0, t.0]);
    let [a, b, c, d] = [a.1, b.1, c.1, d.1].map(|rest| rest.as_chunks::<1>().0);
    let [p, q, r, t] = [p.1, q.1, r.1, t.1].map(|rest| rest.as_chunks_mut::<1>().0);
    chunks([a, b, c, d], [p, q, r, t]);
}

/// Transforms chunks of lines, each of which is read before it is written.
#[inline(always)]
fn chunks<T: Copy + Into<i16>, const N: usize>(
    [a, b, c, d]: [&[[T; N]]; 4],
    [p, q, r, t]: [&mut [[i16; N]]; 4],
) {
    let from = a.iter().zip(b).zip(c).zip(d);
    let to = p.iter_mut().zip(q).zip(r).zip(t);
    for ((((a, b), c), d), (((p, q), r), t)) in from.zip(to) {
        let mut out = [[0i16; N]; 4];
        for i in 0..N {
            let [a, b, c, d]: [i16; 4] = [a[i], b[i], c[i], d[i]].map(Into::into);
            (out[0][i], out[1][i]) = (a - c, b + c);
            (out[2][i], out[3][i]) = (c - b, b - d);
        }
        [*p, *q, *r, *t] = out;
    }
}

/// Products of a panel's columns and tiles.
pub(super) struct Products {
    /// `[tile][position][column]`.
    products: *const i32,
    tiles: usize,
    /// Tiles of a row.
    wide: usize,
    /// `[output row][output column][column]`.
    sums: *mut i32,
}

/// Transforms products to the sums of outputs.
///
/// # Safety
/// The products are readable, the sums writable.
#[inline(always)]
pub(super) unsafe fn outputs<D: Dot>(d: D, job: &Products) {
    let (s, lanes) = (d.simd(), <D::S as Lanes>::N);
    let width = lanes * D::VECTORS;
    let line =
        |[a, b, c, e]: [<D::S as Simd>::I; 4]| [s.iadd(s.iadd(a, b), c), s.isub(s.isub(b, c), e)];
    for tile in 0..job.tiles {
        let place = tile / job.wide * 4 * job.wide + tile % job.wide * 2;
        for column in (0..width).step_by(lanes) {
            // SAFETY: the caller's promise: positions of the tile, and its four outputs.
            unsafe {
                let from = job.products.add(tile * POSITIONS * width + column);
                let at = |i: usize| d.ints(from.add(i * width));
                let of = |x: usize| line([at(x), at(4 + x), at(8 + x), at(12 + x)]);
                let [a, b, c, e] = [of(0), of(1), of(2), of(3)];
                for y in 0..2 {
                    let to = job.sums.add((place + y * 2 * job.wide) * width + column);
                    let [left, right] = line([a[y], b[y], c[y], e[y]]);
                    s.store(to.cast(), s.float(s.isar::<2>(left)));
                    s.store(to.add(width).cast(), s.float(s.isar::<2>(right)));
                }
            }
        }
    }
}
