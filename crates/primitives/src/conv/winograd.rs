//! Winograd convolution (Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR
//! 2016) for 3×3 and 5×5 filters with stride 1: F(2×2, 3×3) takes 16 multiplications for four
//! outputs instead of 36, F(2×2, 5×5) 36 instead of 100, and F(4×4, 5×5) 64 for sixteen outputs
//! instead of 400.
//!
//! Tiles are transformed, multiplied channel by channel as one matrix product per tile position,
//! and transformed back: a product of polynomials by its values at as many points (Toom–Cook). For
//! 3×3 all factors are 0, ½ or 1, and the result is about as accurate as the direct sum; 5×5 loses
//! about a digit in tiles of six and a little more in tiles of eight, which are used for training
//! only.

mod filter;
mod gradient;
pub(crate) mod tile;

pub(super) use filter::{pack, pack_positions, transforms_on_use};
pub use gradient::{conv2d_filter_gradient_in_tiles, suits_filter_gradient_in_tiles};

use super::Conv2dShape;
use super::rows::ZEROS;
use crate::aligned::{Scratch, SendPtr};
use crate::gemm::drive::{Planes, Right, drive_planes};
use crate::gemm::{Epilogue, PackedB};
use crate::math::unary_with;
use crate::table::DispatchTable;
use ferroflow_sync::{Inline, Parallelism, parallel_for};
use std::ops::Range;
use tile::{GradientJob, InputJob, OutputJob};

/// Channels below which the transforms cost more than they save.
const MIN_CHANNELS: usize = 32;
/// Dilations up to which images are taken to have a whole tile of pixels that are so far apart.
const MAX_DILATION: usize = 8;
/// Tiles below which reading the filter for tiles of eight costs more than they save.
const MANY_TILES: usize = 64;
/// Tiles up to which all are multiplied at once by a filter that is transformed on use.
const FEW_TILES: usize = 128;
/// Elements of the transformed tiles of a block, to stay in the second-level cache.
const BLOCK: usize = 96 * 1024;

/// Elements between planes, so that the positions of a tile do not map to the same cache set.
const GAP: usize = 16;

/// The transforms for one filter and tile size.
#[derive(Debug)]
pub(super) struct WinogradTransform {
    /// Rows and columns of the filter.
    filter_size: usize,
    /// Rows and columns of a tile.
    tile: usize,
    /// Fewest tiles of a block, so that reading the filter pays off.
    min_block_tiles: usize,
    /// Its index in the tables of functions.
    index: usize,
    /// Transforms a sum of products to the gradient of a filter, `[filter_size][tile]`.
    sum: &'static [&'static [f32]],
}

/// Interpolation points: 0, 1, -1, ∞; those and ±2; those and ±½.
static TRANSFORMS: [WinogradTransform; 3] = [
    WinogradTransform {
        filter_size: 3,
        tile: 4,
        min_block_tiles: 32,
        index: 0,
        sum: &[
            &[1.0, 1.0, 1.0, 0.0],
            &[0.0, 1.0, -1.0, 0.0],
            &[0.0, 1.0, 1.0, 1.0],
        ],
    },
    WinogradTransform {
        filter_size: 5,
        tile: 6,
        min_block_tiles: 32,
        index: 1,
        sum: &[
            &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
            &[0.0, 1.0, -1.0, 2.0, -2.0, 0.0],
            &[0.0, 1.0, 1.0, 4.0, 4.0, 0.0],
            &[0.0, 1.0, -1.0, 8.0, -8.0, 0.0],
            &[0.0, 1.0, 1.0, 16.0, 16.0, 1.0],
        ],
    },
    WinogradTransform {
        filter_size: 5,
        tile: 8,
        min_block_tiles: 16,
        index: 2,
        sum: &[
            &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
            &[0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 0.0],
            &[0.0, 1.0, 1.0, 4.0, 4.0, 0.25, 0.25, 0.0],
            &[0.0, 1.0, -1.0, 8.0, -8.0, 0.125, -0.125, 0.0],
            &[0.0, 1.0, 1.0, 16.0, 16.0, 0.0625, 0.0625, 1.0],
        ],
    },
];

impl WinogradTransform {
    /// Positions of a tile, each with a matrix of its own.
    pub(super) fn planes(&self) -> usize {
        self.tile * self.tile
    }

    /// Rows and columns of a tile's outputs.
    fn step(&self) -> usize {
        self.tile + 1 - self.filter_size
    }

    /// Returns whether the transform applies to a convolution and is faster than the direct way.
    pub(super) fn suits(&self, s: &Conv2dShape) -> bool {
        [self.filter_size; 2] == [s.filter_h, s.filter_w]
            && [s.stride_h, s.stride_w, s.groups] == [1; 3]
            && s.dil_h.max(s.dil_w) <= MAX_DILATION
            && s.in_c >= MIN_CHANNELS
            && s.out_c >= MIN_CHANNELS
            && s.in_c <= ZEROS.len()
    }

    /// Returns the number of row products of a convolution.
    fn rows(&self, s: &Conv2dShape) -> usize {
        self.planes().saturating_mul(Grid::new(self, s).tiles())
    }
}

/// Returns the transforms that apply to a convolution.
pub(super) fn applicable(s: &Conv2dShape) -> impl Iterator<Item = &'static WinogradTransform> {
    TRANSFORMS.iter().filter(|f| f.suits(s))
}

/// Returns the transform for a convolution whose filter only is known.
pub(super) fn transform(s: &Conv2dShape) -> Option<&'static WinogradTransform> {
    applicable(s).next()
}

/// Output pixels below which transforming a filter takes longer than its product saves.
const MANY_PIXELS: usize = 256;

/// Returns [`fastest_transform`] unless transforming a filter for one use takes longer.
pub(super) fn transform_for_one_use(s: &Conv2dShape) -> Option<&'static WinogradTransform> {
    match s.batch * s.out_h * s.out_w {
        MANY_PIXELS.. => fastest_transform(s),
        _ => None,
    }
}

/// Returns the transform with the fewest multiplications, for known sizes and if some accuracy
/// may be lost.
pub(super) fn fastest_transform(s: &Conv2dShape) -> Option<&'static WinogradTransform> {
    let sizes = [s.out_h, s.out_w, s.filter_h, s.filter_w];
    // Sizes are those of an attr: the output need not fit any memory.
    let direct = sizes
        .iter()
        .fold(s.batch, |n, size| n.saturating_mul(*size));
    let is_paid = |f: &&WinogradTransform| {
        f.rows(s) < direct && (f.tile < 8 || Grid::new(f, s).tiles() >= MANY_TILES)
    };
    applicable(s).filter(is_paid).min_by_key(|f| f.rows(s))
}

/// The tiles of a convolution, image after image.
///
/// The pixels of a dilated convolution's tile are as far apart as those of its filter, so there are tiles for each
/// position of the first one.
struct Grid<'a> {
    s: &'a Conv2dShape,
    transform: &'a WinogradTransform,
    /// Tiles of one first row, and of one first column.
    rows: usize,
    cols: usize,
}

impl<'a> Grid<'a> {
    fn new(transform: &'a WinogradTransform, s: &'a Conv2dShape) -> Self {
        Grid {
            s,
            transform,
            rows: s.out_h.div_ceil(s.dil_h).div_ceil(transform.step()),
            cols: s.out_w.div_ceil(s.dil_w).div_ceil(transform.step()),
        }
    }

    /// Rows and columns of tiles.
    fn size(&self) -> [usize; 2] {
        let s = self.s;
        // Each has an output.
        [
            self.rows * s.dil_h.min(s.out_h),
            self.cols * s.dil_w.min(s.out_w),
        ]
    }

    fn tiles(&self) -> usize {
        let [rows, cols] = self.size();
        self.s.batch.saturating_mul(rows).saturating_mul(cols)
    }

    /// Returns the image and the first output pixel of a tile.
    fn corner(&self, tile: usize) -> [usize; 3] {
        let (s, step, [rows, cols]) = (self.s, self.transform.step(), self.size());
        let (image, rest) = (tile / (rows * cols), tile % (rows * cols));
        let at = |i: usize, tiles: usize, dilation: usize| match dilation {
            1 => i * step,
            _ => i % tiles * step * dilation + i / tiles,
        };
        let (y, x) = (rest / cols, rest % cols);
        [image, at(y, self.rows, s.dil_h), at(x, self.cols, s.dil_w)]
    }

    /// Returns a tile's output pixels, as far as they exist.
    fn outputs(&self, tile: usize) -> [Option<usize>; 16] {
        let ([image, y, x], s, step) = (self.corner(tile), self.s, self.transform.step());
        let mut pixels = [None; 16];
        for (i, pixels) in pixels.chunks_exact_mut(step).take(step).enumerate() {
            let y = y + i * s.dil_h;
            if y >= s.out_h {
                break;
            }
            let line = (image * s.out_h + y) * s.out_w;
            for (j, pixel) in pixels.iter_mut().enumerate() {
                let x = x + j * s.dil_w;
                *pixel = (x < s.out_w).then_some(line + x);
            }
        }
        pixels
    }

    /// Sets `pixels` to the input pixels of a tile; those that do not exist are zeros.
    fn inputs(&self, tile: usize, input: &[f32], pixels: &mut [SendPtr<f32>; 64]) {
        let ([image, y, x], s, size) = (self.corner(tile), self.s, self.transform.tile);
        let pointer = |pixel: &[f32]| SendPtr(pixel.as_ptr().cast_mut());
        pixels[..size * size].fill(pointer(&ZEROS[..s.in_c]));
        for (i, pixels) in pixels.chunks_exact_mut(size).take(size).enumerate() {
            let y = (y + i * s.dil_h).wrapping_sub(s.pad_top);
            if y >= s.in_h {
                continue;
            }
            let line = &input[(image * s.in_h + y) * s.in_w * s.in_c..][..s.in_w * s.in_c];
            for (j, pixel) in pixels.iter_mut().enumerate() {
                let x = (x + j * s.dil_w).wrapping_sub(s.pad_left);
                if x < s.in_w {
                    *pixel = pointer(&line[x * s.in_c..][..s.in_c]);
                }
            }
        }
    }

    /// Transforms the input of a tile.
    ///
    /// # Safety
    /// `dst` is valid for the input channels in each plane, which are `plane` elements apart.
    unsafe fn input(
        &self,
        table: &DispatchTable,
        tile: usize,
        input: &[f32],
        dst: *mut f32,
        plane: usize,
    ) {
        let mut pixels = [SendPtr(std::ptr::null_mut()); 64];
        self.inputs(tile, input, &mut pixels);
        let job = InputJob {
            pixels: pixels.as_ptr(),
            n: self.s.in_c,
            dst,
            plane,
        };
        // SAFETY: the pixels are checked slices; the rest is the caller's promise.
        unsafe { (table.winograd_input[self.transform.index])(&job) };
    }

    /// Transforms the gradient of a tile's output.
    ///
    /// # Safety
    /// `dst` is valid for a row of each panel of each plane, at these distances.
    unsafe fn gradient(
        &self,
        table: &DispatchTable,
        tile: usize,
        dy: &[f32],
        dst: *mut f32,
        [panel, plane]: [usize; 2],
    ) {
        let out_c = self.s.out_c;
        let pixels = self.outputs(tile).map(|at| {
            let pixel = match at {
                Some(pixel) => &dy[pixel * out_c..][..out_c],
                None => &ZEROS[..out_c],
            };
            SendPtr(pixel.as_ptr().cast_mut())
        });
        let job = GradientJob {
            pixels: pixels.as_ptr(),
            n: out_c,
            dst,
            panel,
            plane,
        };
        // SAFETY: the pixels are checked slices; the rest is the caller's promise.
        unsafe { (table.winograd_gradient[self.transform.index])(&job) };
    }
}

/// A convolution whose sizes are checked.
struct Convolution<'a> {
    grid: Grid<'a>,
    table: &'static DispatchTable,
    input: &'a [f32],
    /// Valid for the output, which no other thread accesses.
    out: SendPtr<f32>,
    ep: &'a Epilogue<'a>,
}

/// The transformed tiles of a block: its input and its products.
#[derive(Clone, Copy)]
struct Block {
    tiles: usize,
    input: SendPtr<f32>,
    /// Elements of a plane of the input, and of the products.
    plane_in: usize,
    out: SendPtr<f32>,
    plane_out: usize,
}

impl Convolution<'_> {
    /// Multiplies by a transformed filter.
    fn run<'b>(&self, par: &dyn Parallelism, filter: &'b (dyn Fn(usize) -> Right<'b, f32> + Sync)) {
        let (s, transform, tiles) = (self.grid.s, self.grid.transform, self.grid.tiles());
        let planes = transform.planes();
        let fit = (BLOCK / (planes * (s.in_c + s.out_c))).max(transform.min_block_tiles);
        let mut blocks = tiles.div_ceil(fit);
        // Few blocks: all threads work on one, and each matrix is read by one thread only.
        let (outer, inner): (&dyn Parallelism, &dyn Parallelism) = if blocks < 2 * par.width() {
            (&Inline, par)
        } else {
            blocks = blocks.next_multiple_of(par.width()).min(tiles);
            (par, &Inline)
        };
        outer.run_blocks(blocks, &|i| {
            let tiles = tiles * i / blocks..tiles * (i + 1) / blocks;
            self.run_block(inner, tiles, &|block| {
                let products = Planes {
                    size: [block.tiles, s.out_c, s.in_c],
                    a: block.input,
                    plane_a: block.plane_in,
                    ld_a: s.in_c,
                    b: filter,
                    out: block.out,
                    plane_out: block.plane_out,
                    ld_out: s.out_c,
                    add: false,
                };
                parallel_for(inner, planes, 4, &|planes| {
                    // SAFETY: the input is complete; only this call writes these planes.
                    unsafe { drive_planes(&products, planes) }
                });
            });
        });
    }

    /// Multiplies some tiles at once by a filter that is stored by its positions, of which each task
    /// transforms the panels that it multiplies by.
    fn run_by_panels(&self, par: &dyn Parallelism, tiles: Range<usize>, filter: &[PackedB]) {
        let (s, transform) = (self.grid.s, self.grid.transform);
        let (planes, width) = (transform.planes(), panel_width(filter));
        let blocks = filter::row_blocks(transform, filter);
        let multiply = |block: Block, panel: usize, rows: Range<usize>| {
            let (first_row, k, col) = (rows.start, rows.len(), panel * width);
            filter::with_transformed_rows(self.table, transform, filter, panel, rows, |right| {
                let n = width.min(s.out_c - col);
                let products = Planes {
                    size: [block.tiles, n, k],
                    a: SendPtr(block.input.get().wrapping_add(first_row)),
                    plane_a: block.plane_in,
                    ld_a: s.in_c,
                    b: &|first| Right { b: right, first, n },
                    out: SendPtr(block.out.get().wrapping_add(col)),
                    plane_out: block.plane_out,
                    ld_out: s.out_c,
                    add: first_row > 0,
                };
                // SAFETY: the input is complete; only this call writes these columns.
                unsafe { drive_planes(&products, 0..planes) };
            });
        };
        self.run_block(par, tiles, &|block| {
            parallel_for(par, s.out_c.div_ceil(width), 1, &|panels| {
                for panel in panels {
                    for i in 0..blocks {
                        let rows = s.in_c * i / blocks..s.in_c * (i + 1) / blocks;
                        multiply(block, panel, rows);
                    }
                }
            });
        });
    }

    /// Computes some tiles of the output; `multiply` sets the products of a block's input.
    fn run_block(&self, par: &dyn Parallelism, tiles: Range<usize>, multiply: &dyn Fn(Block)) {
        let (s, planes) = (self.grid.s, self.grid.transform.planes());
        let n = tiles.len();
        let (mut a, mut b) = (Scratch::take(), Scratch::take());
        let (plane_in, plane_out) = (n * s.in_c + GAP, n * s.out_c + GAP);
        let block = Block {
            tiles: n,
            input: SendPtr(a.alloc::<f32>(planes * plane_in).as_mut_ptr()),
            plane_in,
            out: SendPtr(b.alloc::<f32>(planes * plane_out).as_mut_ptr()),
            plane_out,
        };
        parallel_for(par, n, 4, &|range| {
            for t in range {
                let dst = block.input.get().wrapping_add(t * s.in_c);
                // SAFETY: tile `t` of each plane is inside the block's input.
                unsafe {
                    let tile = tiles.start + t;
                    self.grid.input(self.table, tile, self.input, dst, plane_in);
                }
            }
        });
        multiply(block);
        parallel_for(par, n, 4, &|range| {
            // Pixels beyond the edge are written here.
            let mut spare = Scratch::take();
            let spare = spare.alloc::<f32>(s.out_c);
            range.for_each(|t| self.output_tile(block, t, tiles.start + t, spare));
        });
    }

    /// Transforms the products of a block's tile `t`, which is `tile` of the convolution.
    fn output_tile(&self, block: Block, t: usize, tile: usize, spare: &mut [f32]) {
        let (s, out, ep) = (self.grid.s, self.out, self.ep);
        let spare = SendPtr(spare.as_mut_ptr());
        let pixels = self.grid.outputs(tile);
        let targets = pixels.map(|at| match at {
            Some(pixel) => SendPtr(out.get().wrapping_add(pixel * s.out_c)),
            None => spare,
        });
        let sides = pixels.map(|at| match (ep.side, at) {
            (Some((side, ld)), Some(pixel)) => {
                SendPtr(side[pixel * ld..][..s.out_c].as_ptr().cast_mut())
            }
            _ => SendPtr(std::ptr::null_mut()),
        });
        let limits = ep.act.limits();
        let (lo, hi) = limits.unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
        let job = OutputJob {
            src: block.out.get().wrapping_add(t * s.out_c),
            plane: block.plane_out,
            n: s.out_c,
            scale: ep.scale.map_or(std::ptr::null(), <[f32]>::as_ptr),
            bias: ep.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            side: sides.as_ptr(),
            out: targets.as_ptr(),
            limits: [lo, hi],
        };
        // SAFETY: tile `t` of each plane is inside the products; a tile's pixels belong to it
        // alone, and are inside the output or are `spare`.
        unsafe { (self.table.winograd_output[self.grid.transform.index])(&job) };
        if let Some(op) = ep.act.function() {
            for pixel in pixels.into_iter().flatten() {
                let p = out.get().wrapping_add(pixel * s.out_c);
                // SAFETY: a pixel of this tile.
                unary_with(self.table, op, unsafe {
                    std::slice::from_raw_parts_mut(p, s.out_c)
                });
            }
        }
    }
}

/// Returns the columns of a panel.
fn panel_width(filter: &[PackedB]) -> usize {
    filter.first().map_or(1, |b| 2 * b.table().lanes)
}

/// Runs the convolution; the sizes are checked.
///
/// # Safety
/// `out` is valid for the output and no other thread accesses it.
pub(super) unsafe fn run(
    par: &dyn Parallelism,
    transform: &WinogradTransform,
    s: &Conv2dShape,
    input: &[f32],
    filter: &[PackedB],
    out: SendPtr<f32>,
    ep: &Epilogue<'_>,
) {
    let grid = Grid::new(transform, s);
    let tiles = grid.tiles();
    if tiles == 0 || s.out_c == 0 {
        return;
    }
    let convolution = Convolution {
        grid,
        table: DispatchTable::current(),
        input,
        out,
        ep,
    };
    if filter.len() == transform.planes() {
        return convolution.run(par, &|i| (&filter[i]).into());
    }
    // Products of planes are split into no more tasks.
    let most_tasks = par.width().min(transform.planes() / 4);
    let has_panels = s.out_c.div_ceil(panel_width(filter)) >= most_tasks;
    if filter::is_small(transform, filter) && (tiles > FEW_TILES || !has_panels) {
        return filter::with_transformed(par, transform, filter, &|right, panels| {
            convolution.run(par, &|i| Right {
                b: right,
                first: i * panels,
                n: s.out_c,
            });
        });
    }
    let parts = tiles.div_ceil(FEW_TILES);
    for part in 0..parts {
        let tiles = tiles * part / parts..tiles * (part + 1) / parts;
        convolution.run_by_panels(par, tiles, filter);
    }
}
