//! Filter gradients: products of transformed tiles of the input and of the output's gradient.

use super::{GAP, Grid, fastest_transform};
use crate::aligned::{Scratch, SendPtr};
use crate::conv::Conv2dShape;
use crate::gemm::drive::{Planes, Right, drive_planes};
use crate::gemm::{PackedB, check, turn};
use crate::table::DispatchTable;
use ferroflow_sync::{Inline, Parallelism, par_chunks_mut, parallel_for};
use std::ops::Range;

/// Least tiles per block: the length of the reductions.
const MIN_TILES: usize = 64;
/// Tiles below which transforming the sums back costs too much.
const FEW_TILES: usize = 48;

/// Returns whether [`conv2d_filter_gradient_in_tiles`] is fast.
pub fn suits_filter_gradient_in_tiles(s: &Conv2dShape) -> bool {
    fastest_transform(s).is_some_and(|transform| {
        s.out_c <= super::ZEROS.len() && Grid::new(transform, s).tiles() >= FEW_TILES
    })
}

/// Writes the gradient of a convolution by its filter, `[filter_h, filter_w, in_c, out_c]`, given
/// its input and the gradient of its output, by Winograd's algorithm. Fast if
/// [`suits_filter_gradient_in_tiles`].
///
/// # Panics
/// If a slice is too short or the filter has no such transform.
pub fn conv2d_filter_gradient_in_tiles(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    input: &[f32],
    dy: &[f32],
    out: &mut [f32],
) {
    let transform = fastest_transform(s).expect("a filter that has a transform");
    let grid = Grid::new(transform, s);
    check(
        input.len(),
        s.batch * s.in_h * s.in_w,
        s.in_c,
        s.in_c,
        "input",
    );
    check(
        dy.len(),
        s.batch * s.out_h * s.out_w,
        s.out_c,
        s.out_c,
        "gradient",
    );
    check(
        out.len(),
        s.filter_h * s.filter_w * s.in_c,
        s.out_c,
        s.out_c,
        "filter",
    );
    assert!(
        s.in_c.max(s.out_c) <= super::ZEROS.len(),
        "too many channels"
    );
    let (tiles, planes) = (grid.tiles(), transform.planes());
    if tiles == 0 {
        return out.fill(0.0);
    }
    let (channels, size) = (s.in_c + s.out_c, s.in_c * s.out_c);
    // The accumulators should not be larger than the operands. Odd, so that the positions of a
    // tile do not map to the same cache set.
    let fit = (super::BLOCK / (planes * channels))
        .max(size / channels)
        .max(MIN_TILES)
        | 1;
    let blocks = tiles.div_ceil(fit);
    // Blocks are added up separately by each thread that may work on one.
    let lanes = par.width().min(blocks);
    let inner: &dyn Parallelism = if lanes > 1 { &Inline } else { par };
    let mut sums = vec![0.0; planes * size * lanes];
    par_chunks_mut(par, &mut sums, planes * size, 1, &|lane, sums| {
        for i in (lane..blocks).step_by(lanes) {
            let block = i * fit..((i + 1) * fit).min(tiles);
            add_block(inner, &grid, block, input, dy, sums);
        }
    });
    let (sum, others) = sums.split_at_mut(planes * size);
    for other in others.chunks_exact(planes * size) {
        sum.iter_mut().zip(other).for_each(|(s, o)| *s += *o);
    }
    sandwich(transform.sum, sum, out, size);
}

/// Adds the contribution of some tiles to the sums, `[plane][in_c][out_c]`.
fn add_block(
    par: &dyn Parallelism,
    grid: &Grid,
    block: Range<usize>,
    input: &[f32],
    dy: &[f32],
    sums: &mut [f32],
) {
    let (s, n, planes, table) = (
        grid.s,
        block.len(),
        grid.transform.planes(),
        DispatchTable::current(),
    );
    let row = 2 * table.gemm.lanes;
    let (panels, panel) = (s.out_c.div_ceil(row), row * n);
    let (mut tiles, mut left) = (Scratch::take(), Scratch::take());
    let plane = n * s.in_c + GAP;
    let tiles = SendPtr(tiles.alloc::<f32>(planes * plane).as_mut_ptr());
    let left = SendPtr(left.alloc::<f32>(planes * n * s.in_c).as_mut_ptr());
    let sums = SendPtr(sums.as_mut_ptr());
    PackedB::<f32>::in_scratch(n, planes * panels * row, |right| {
        let packed = SendPtr(right.alloc().as_mut_ptr());
        parallel_for(par, n, 4, &|range| {
            for t in range {
                let number = block.start + t;
                // SAFETY: tile `t` of each plane, and row `t` of each panel, are visited once.
                unsafe {
                    let dst = tiles.get().add(t * s.in_c);
                    grid.input(table, number, input, dst, plane);
                    let dst = packed.get().add(t * row);
                    grid.gradient(table, number, dy, dst, [panel, panels * panel]);
                }
            }
        });
        let right = &*right;
        let products = Planes {
            size: [s.in_c, s.out_c, n],
            a: left,
            plane_a: n * s.in_c,
            ld_a: n,
            b: &|i| Right {
                b: right,
                first: i * panels,
                n: s.out_c,
            },
            out: sums,
            plane_out: s.in_c * s.out_c,
            ld_out: s.out_c,
            add: true,
        };
        parallel_for(par, planes, 4, &|planes| {
            // SAFETY: the planes of the tiles are complete, and only this call has these of `left`
            // and of the sums; each product is `in_c × out_c` over `n` tiles.
            unsafe {
                for i in planes.clone() {
                    let from = tiles.get().add(i * plane);
                    let from = std::slice::from_raw_parts(from, n * s.in_c);
                    let turned = left.get().add(i * n * s.in_c);
                    let turned = std::slice::from_raw_parts_mut(turned, n * s.in_c);
                    turn(&Inline, from, s.in_c, [n, s.in_c], turned, n);
                }
                drive_planes(&products, planes);
            }
        });
    });
}

/// Computes `M X Mᵀ` for each of `size` square matrices `X`, stored in planes.
fn sandwich(m: &[&[f32]], from: &[f32], to: &mut [f32], size: usize) {
    const TOGETHER: usize = 64;
    let (rows, cols) = (m.len(), m.first().map_or(0, |r| r.len()));
    let mut half = vec![[0.0; TOGETHER]; rows * cols];
    for start in (0..size).step_by(TOGETHER) {
        let n = TOGETHER.min(size - start);
        for (u, factors) in m.iter().enumerate() {
            for x in 0..cols {
                let plane = |y: usize| &from[(y * cols + x) * size + start..][..n];
                combine(factors, plane, &mut half[u * cols + x][..n]);
            }
        }
        for u in 0..rows {
            for (v, factors) in m.iter().enumerate() {
                let plane = |x: usize| &half[u * cols + x][..n];
                combine(
                    factors,
                    plane,
                    &mut to[(u * rows + v) * size + start..][..n],
                );
            }
        }
    }
}

/// Returns the sum of planes times factors.
fn combine<'a>(factors: &[f32], plane: impl Fn(usize) -> &'a [f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for (i, factor) in factors.iter().enumerate().filter(|(_, f)| **f != 0.0) {
        sum.iter_mut()
            .zip(plane(i))
            .for_each(|(s, x)| *s += factor * x);
    }
}
