//! Products and convolutions of 8-bit codes, with the steps that follow them.
//!
//! Activations are unsigned bytes with a zero point, weights are signed bytes with a scale for each
//! output channel. Sums are exact integers of 32 bits in every instruction set; what follows is
//! computed in single precision without fused operations, so that all instruction sets agree to the bit:
//! `clamp(sum * scale + bias + side * factor)`, which is rounded, ties to even, if the output is codes.
//!
//! [`Int8Weights`] are packed in panels; [`int8_dense`] and [`int8_conv2d`] multiply rows by them, the
//! latter windows of an image that are copied a block at a time, or Winograd's tiles. [`DepthwiseWeights`] and
//! [`int8_depthwise2d`] convolve each channel by itself. [`quantize`], [`quantize_finely`],
//! [`dequantize`] and [`combine`] work on single numbers.

mod depthwise;
mod dot;
mod each;
mod kernel;
mod rows;
#[cfg(test)]
mod tests;
mod winograd;

pub use depthwise::{DepthwiseWeights, int8_depthwise2d};
pub use each::{combine, dequantize, quantize, quantize_finely};

use crate::aligned::{Aligned, Scratch};
use crate::amx;
use crate::conv::Conv2dShape;
use crate::gemm::check;
use crate::gemm::drive::Tiles;
use dot::Kind;
use ferroflow_sync::Parallelism;
use kernel::{Added, Finish, MAX_ROWS, Sums, Sweep, Table, To};
pub(crate) use rows::RowsOf;
use std::ops::Range;

/// What is added to the results before they are clamped, in the shape of the output, and its factor.
#[derive(Clone, Copy, Debug)]
pub enum Int8Side<'a> {
    /// Codes.
    Codes(&'a [u8], f32),
    /// Floats.
    Floats(&'a [f32], f32),
}

/// Where results go.
#[derive(Debug)]
pub enum Int8Out<'a> {
    /// Rounded to codes.
    Codes(&'a mut [u8]),
    /// As they are.
    Floats(&'a mut [f32]),
}

/// The last steps of a product.
#[derive(Debug)]
pub struct Int8Epilogue<'a> {
    /// What is added.
    pub side: Option<Int8Side<'a>>,
    /// The limits of the results, which are numbers; those of codes are also 0 and 255.
    pub limits: (f32, f32),
    /// Where results go.
    pub out: Int8Out<'a>,
}

/// A number for each output channel.
#[derive(Clone, Copy, Debug)]
pub struct Channels<'a> {
    /// The factor of the sums.
    pub scale: &'a [f32],
    /// What is added to the products.
    pub bias: &'a [f32],
}

impl Int8Epilogue<'_> {
    /// Returns the epilogue as pointers.
    ///
    /// # Panics
    /// If a slice is shorter than `len`.
    fn finish(&mut self, len: usize, ld: usize, scale: &[f32], bias: &[f32]) -> Finish {
        let (side, factor) = match self.side {
            None => (Added::Nothing, 0.0),
            Some(Int8Side::Codes(codes, factor)) => {
                check(codes.len(), 1, len, len, "side input");
                (Added::Codes(codes.as_ptr()), factor)
            }
            Some(Int8Side::Floats(floats, factor)) => {
                check(floats.len(), 1, len, len, "side input");
                (Added::Floats(floats.as_ptr()), factor)
            }
        };
        let (low, high) = self.limits;
        let (to, low, high) = match &mut self.out {
            Int8Out::Codes(codes) => {
                check(codes.len(), 1, len, len, "output");
                (
                    To::Codes(codes.as_mut_ptr()),
                    low.clamp(0.0, 255.0),
                    high.clamp(0.0, 255.0),
                )
            }
            Int8Out::Floats(floats) => {
                check(floats.len(), 1, len, len, "output");
                (To::Floats(floats.as_mut_ptr()), low, high)
            }
        };
        Finish {
            scale: scale.as_ptr(),
            bias: bias.as_ptr(),
            side,
            factor,
            to,
            ld,
            low,
            high,
        }
    }
}

/// How weights lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Layout {
    /// `[k][n]`.
    Rows,
    /// `[n][k]`.
    Columns,
}

/// Weights of a product or a convolution, packed for this machine, with what follows the sums.
pub struct Int8Weights {
    k: usize,
    n: usize,
    kind: Kind,
    /// Whether it is a filter that was transformed for Winograd's tiles.
    winograd: bool,
    /// The code of zero in the activations.
    zero: u8,
    data: Aligned,
    /// What sums, or four times those of a transformed filter, start with: the zero point times the sums of weights. This
    /// and the numbers of channels are padded to whole panels.
    start: Vec<i32>,
    scale: Vec<f32>,
    bias: Vec<f32>,
}

fn padded(values: &[f32], len: usize) -> Vec<f32> {
    let mut all = values.to_vec();
    all.resize(len, 0.0);
    all
}

/// # Panics
/// If a slice is too short.
fn check_packed(weights: &[i8], [k, n]: [usize; 2], channels: &Channels<'_>) {
    check(weights.len(), 1, k * n, k * n, "weights");
    assert!(
        channels.scale.len() >= n && channels.bias.len() >= n,
        "a scale and a bias for each of {n} columns"
    );
}

impl Int8Weights {
    /// Packs `k · n` weights for activations whose zero is the code `zero`.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn new(
        weights: &[i8],
        [k, n]: [usize; 2],
        layout: Int8Layout,
        zero: u8,
        channels: Channels<'_>,
    ) -> Int8Weights {
        check_packed(weights, [k, n], &channels);
        let kind = Kind::for_products(k);
        let (table, group) = (Table::of(kind), kind.group());
        let width = table.lanes * table.vectors;
        let (panels, steps) = (n.div_ceil(width), kind.steps(k));
        let mut data = Aligned::fresh();
        let ints = data.alloc::<i32>(panels * steps * width);
        let mut start = vec![0i32; panels * width];
        let at = |row: usize, column: usize| match layout {
            Int8Layout::Rows => weights[row * n + column],
            Int8Layout::Columns => weights[column * k + row],
        };
        for (p, panel) in ints.chunks_exact_mut((steps * width).max(1)).enumerate() {
            let columns = width.min(n - p * width);
            for (step, row) in panel.chunks_exact_mut(width).enumerate() {
                let there = group.min(k.saturating_sub(step * group));
                for (j, to) in row.iter_mut().take(columns).enumerate() {
                    let column = p * width + j;
                    let mut codes = [0i8; 4];
                    for (i, code) in codes.iter_mut().take(there).enumerate() {
                        *code = at(step * group + i, column);
                        start[column] -= i32::from(zero) * i32::from(*code);
                    }
                    *to = packed(kind, codes);
                }
            }
        }
        Int8Weights {
            k,
            n,
            kind,
            winograd: false,
            zero,
            data,
            scale: padded(channels.scale, start.len()),
            bias: padded(channels.bias, start.len()),
            start,
        }
    }

    /// Packs a filter `[height · width · channels][out_c]` for a convolution of these strides and dilations, and
    /// for activations whose zero is the code `zero`. Only the filter's sizes, channels, strides and dilations of
    /// `s` are read.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn of_filter(
        weights: &[i8],
        s: &Conv2dShape,
        zero: u8,
        channels: Channels<'_>,
    ) -> Int8Weights {
        let (k, n) = (s.filter_h * s.filter_w * s.in_c, s.out_c);
        let kind = Kind::for_products(k);
        if !winograd::suits(kind, s) {
            return Int8Weights::new(weights, [k, n], Int8Layout::Rows, zero, channels);
        }
        check_packed(weights, [k, n], &channels);
        let table = Table::of(kind);
        let mut start = vec![0i32; n.next_multiple_of(table.lanes * table.vectors)];
        for row in weights[..k * n].chunks_exact(n.max(1)) {
            for (start, w) in start.iter_mut().zip(row) {
                *start -= 4 * i32::from(zero) * i32::from(*w);
            }
        }
        Int8Weights {
            k,
            n,
            kind,
            winograd: true,
            zero,
            data: winograd::pack(kind, weights, [s.in_c, n]),
            scale: padded(channels.scale, start.len()),
            bias: padded(channels.bias, start.len()),
            start,
        }
    }

    /// Returns the length of the reduction.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.start.len() * 12
    }
}

/// Returns the weights of one step as they lie in memory: four bytes, or two halves.
fn packed(kind: Kind, codes: [i8; 4]) -> i32 {
    match kind.group() {
        4 => i32::from_ne_bytes(codes.map(|c| c as u8)),
        _ => i32::from(codes[0]) & 0xffff | i32::from(codes[1]) << 16,
    }
}

/// Computes `m` rows: `out = epilogue((codes - zero) · weights)`.
///
/// # Panics
/// If a slice is too short.
pub fn int8_dense(
    par: &dyn Parallelism,
    m: usize,
    codes: &[u8],
    weights: &Int8Weights,
    mut epilogue: Int8Epilogue<'_>,
) {
    check(codes.len(), 1, m * weights.k, m * weights.k, "codes");
    assert!(!weights.winograd, "a transformed filter is not a matrix");
    let rows = RowsOf::matrix(codes, weights.k);
    drive(par, m, &rows, weights, &mut epilogue);
}

/// Computes a convolution of one group over `[batch, height, width, channels]` with a filter packed as
/// `[height · width · channels][out_c]`; outside the image there are zeros.
///
/// # Panics
/// If a slice is too short, or the filter has other sizes.
pub fn int8_conv2d(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    codes: &[u8],
    weights: &Int8Weights,
    mut epilogue: Int8Epilogue<'_>,
) {
    assert!(
        s.groups == 1 && weights.k == s.filter_h * s.filter_w * s.in_c && weights.n == s.out_c,
        "the filter was packed for another convolution"
    );
    let pixels = s.batch * s.in_h * s.in_w;
    check(codes.len(), pixels, s.in_c, s.in_c, "codes");
    let m = s.batch * s.out_h * s.out_w;
    if weights.winograd {
        assert!(
            winograd::has_form(s),
            "the filter was packed for another convolution"
        );
        let n = weights.n;
        let finish = epilogue.finish(m * n, n, &weights.scale, &weights.bias);
        if m == 0 || n == 0 {
            return;
        }
        let job = winograd::InTiles {
            s,
            codes,
            kind: weights.kind,
            outside: weights.zero,
            filter: weights.data.get(),
            start: &weights.start,
        };
        // SAFETY: the output is borrowed exclusively, and its size was checked.
        return unsafe { job.run(par, finish) };
    }
    let rows = match s.is_pointwise() {
        true => RowsOf::matrix(codes, weights.k),
        false => RowsOf::windows(codes, s, weights.zero),
    };
    drive(par, m, &rows, weights, &mut epilogue);
}

/// Bytes of rows that stay in the second-level cache while the panels pass.
const BLOCK: usize = 192 * 1024;
/// Products below which a task is not worth dispatching.
const WORTH_A_TASK: usize = 1 << 20;

/// A job's pointers, used by threads that write different rows or columns.
struct Shared(Finish);
// SAFETY: tasks read the same memory and write to disjoint parts of the output.
unsafe impl Sync for Shared {}

impl Shared {
    /// Returns the pointers (a method, so that closures capture the wrapper).
    fn get(&self) -> Finish {
        self.0
    }
}

fn drive(
    par: &dyn Parallelism,
    m: usize,
    rows: &RowsOf<'_>,
    weights: &Int8Weights,
    epilogue: &mut Int8Epilogue<'_>,
) {
    let n = weights.n;
    let finish = epilogue.finish(m * n, n, &weights.scale, &weights.bias);
    if m == 0 || n == 0 {
        return;
    }
    let finish = Shared(finish);
    let table = Table::of(weights.kind);
    let panels = n.div_ceil(table.lanes * table.vectors);
    let work = m.saturating_mul(n).saturating_mul(weights.k.max(1));
    let wanted = (work / WORTH_A_TASK).clamp(1, par.width().max(1));
    let unit = match weights.kind {
        Kind::Amx => amx::BLOCK,
        _ => 1,
    };
    split(par, [m, unit], panels, wanted, &|rows_of, columns| {
        // SAFETY: tasks own disjoint rows or columns of an exclusively borrowed output, whose size was
        // checked.
        unsafe { run_task(table, rows_of, columns, rows, weights, &finish.get()) };
    });
}

/// Runs `task` on disjoint rows and panels: about `wanted` parts, of whole units of rows where there is more than
/// one of those.
pub(crate) fn split(
    par: &dyn Parallelism,
    [m, unit]: [usize; 2],
    panels: usize,
    wanted: usize,
    task: &(dyn Fn(Range<usize>, Range<usize>) + Sync),
) {
    let row_tasks = wanted.min(m.div_ceil(MAX_ROWS.max(unit)));
    let column_tasks = wanted.div_ceil(row_tasks).min(panels);
    let part = |i: usize| {
        let (r, c) = (i / column_tasks, i % column_tasks);
        let first = |r: usize| (m * r / row_tasks).next_multiple_of(unit).min(m);
        let columns = panels * c / column_tasks..panels * (c + 1) / column_tasks;
        task(first(r)..first(r + 1), columns);
    };
    match row_tasks * column_tasks {
        1 => part(0),
        tasks => par.run_blocks(tasks, &part),
    }
}

/// Rows in tiles, times a panel.
struct Panel {
    rows: *const u8,
    /// A multiple of [`amx::SIDE`].
    height: usize,
    steps: usize,
    columns: *const i32,
    start: *const i32,
    n: usize,
    finish: Finish,
}

/// Computes a panel's columns of rows in tiles.
///
/// # Safety
/// `height` rows of `4 * steps` bytes are readable, so are the panel and its starts, and for the epilogue, as
/// for [`run_task`].
unsafe fn multiply_tiles(tiles: &amx::Tiles, table: &Table, job: &Panel) {
    let (ld, width) = (job.steps * 4, table.lanes * table.vectors);
    let mut sums = [0i32; amx::BLOCK * amx::BLOCK];
    let sums = sums.as_mut_ptr();
    let vectors = job.n.div_ceil(amx::SIDE);
    for row in (0..job.height).step_by(amx::BLOCK) {
        let rows = amx::BLOCK.min(job.height - row);
        for vector in (0..vectors).step_by(2) {
            let column = vector * amx::SIDE;
            let block = amx::Block {
                rows: job.rows.wrapping_add(row * ld),
                ld_rows: ld,
                columns: job.columns.wrapping_add(column),
                ld_columns: width * 4,
                steps: ld / amx::CHUNK,
                start: job.start.wrapping_add(column),
                ld_start: 0,
                out: sums,
                ld_out: amx::BLOCK * 4,
            };
            let size = [rows / amx::SIDE, (vectors - vector).min(2)];
            let done = Sums {
                sums: sums.cast_const(),
                ld: amx::BLOCK,
                rows,
                n: amx::BLOCK.min(job.n - column),
                finish: job.finish.at(row, column, column),
            };
            // SAFETY: the caller's promise; the sums have room for the largest block.
            unsafe {
                tiles.multiply(amx::Numbers::Codes, size, &block);
                (table.finish)(&done);
            }
        }
    }
}

/// # Safety
/// The epilogue's pointers are valid for these rows and panels, which no other thread writes.
unsafe fn run_task(
    table: &Table,
    all: Range<usize>,
    panels: Range<usize>,
    rows: &RowsOf<'_>,
    weights: &Int8Weights,
    finish: &Finish,
) {
    let (multiple, tiles) = match weights.kind {
        // SAFETY: the kind is that of CPUs with tiles; this thread has no other tiles.
        Kind::Amx if all.len() >= amx::SIDE => (amx::BLOCK, Some(unsafe { amx::Tiles::new() })),
        _ => (MAX_ROWS, None),
    };
    // Without whole tiles, rows need no padding to their size.
    let kind = match weights.kind {
        Kind::Amx if tiles.is_none() => Kind::Vnni,
        kind => kind,
    };
    let steps = kind.steps(weights.k);
    let width = table.lanes * table.vectors;
    let of_panel = weights.kind.steps(weights.k) * width;
    let data = weights.data.get::<i32>();
    let direct = rows.direct(kind);
    let ld = steps * 4;
    let block = (BLOCK / ld.max(1)).max(multiple * 2) / multiple * multiple;
    let mut scratch = Scratch::take();
    let mut row = all.start;
    while row < all.end {
        let height = block.min(all.end - row);
        let base = match direct {
            Some(codes) => codes[row * weights.k..].as_ptr(),
            None => {
                let to = scratch.alloc::<i32>(height * steps);
                rows.fill(kind, row..row + height, weights.k, to);
                to.as_ptr().cast()
            }
        };
        let in_tiles = tiles.as_ref().map_or(0, |_| height / amx::SIDE * amx::SIDE);
        let rest = Tiles::of(height - in_tiles, MAX_ROWS);
        for panel in panels.clone() {
            let column = panel * width;
            let n = width.min(weights.n - column);
            let sweeps = &table.sweeps[n.div_ceil(table.lanes) - 1];
            let mut first = 0;
            if let Some(tiles) = &tiles {
                let job = Panel {
                    rows: base,
                    height: in_tiles,
                    steps,
                    columns: data[panel * of_panel..].as_ptr(),
                    start: weights.start[column..].as_ptr(),
                    n,
                    finish: finish.at(row, column, column),
                };
                // SAFETY: as below.
                unsafe { multiply_tiles(tiles, table, &job) };
                first = in_tiles;
            }
            for (count, mr) in [(rest.big, rest.mr), (rest.small, rest.mr.max(1) - 1)] {
                if count == 0 || mr == 0 {
                    continue;
                }
                let job = Sweep {
                    rows: base.wrapping_add(first * ld),
                    ld,
                    tiles: count,
                    steps,
                    weights: data[panel * of_panel..].as_ptr(),
                    start: weights.start[column..].as_ptr(),
                    n,
                    finish: finish.at(row + first, column, column),
                };
                // SAFETY: `height` rows of `ld` bytes, the panel's weights and starts; for the epilogue,
                // the caller's promise.
                unsafe { sweeps[mr - 1](&job) };
                first += count * mr;
            }
        }
        row += height;
    }
}
