//! Winograd's way for 3×3 filters with stride 1: four outputs of a 4×4 input tile take 16
//! multiplications instead of 36.
//!
//! The tiles are transformed, multiplied channel by channel as 16 matrix products, and
//! transformed back. All factors are 0, ½ or 1, so the result is about as accurate as the direct
//! sum.

use super::Conv2dShape;
use super::rows::ZEROS;
use crate::simd::aligned::{Scratch, SendPtr};
use crate::simd::gemm::{Epilogue, PackedB, gemm_packed};
use crate::simd::math::unary_with;
use crate::simd::table::Table;
use crate::simd::vector::Simd;
use ferroflow_sync::{Inline, Parallelism, parallel_for};

/// Channels below which the transforms cost more than they save.
const MIN_CHANNELS: usize = 32;
/// Elements of the transformed tiles of a block, to stay in the second-level cache.
const BLOCK: usize = 96 * 1024;

/// Tiles to a block at least, so that reading the filter pays.
const MIN_TILES: usize = 32;

/// Whether the convolution can, and should, be done this way.
pub(super) fn suits(s: &Conv2dShape) -> bool {
    [s.filter_h, s.filter_w] == [3, 3]
        && [s.stride_h, s.stride_w, s.dil_h, s.dil_w, s.groups] == [1; 5]
        && s.in_c >= MIN_CHANNELS
        && s.out_c >= MIN_CHANNELS
        && s.in_c <= ZEROS.len()
}

/// The transformed filter: a matrix for each of the 16 positions.
pub(super) fn pack(
    par: &dyn Parallelism,
    filter: &[f32],
    in_c: usize,
    out_c: usize,
) -> Vec<PackedB> {
    // G = [1 0 0; ½ ½ ½; ½ -½ ½; 0 0 1], applied to three numbers.
    let transform = |g: [f32; 3]| {
        [
            g[0],
            0.5 * (g[0] + g[1] + g[2]),
            0.5 * (g[0] - g[1] + g[2]),
            g[2],
        ]
    };
    let size = in_c * out_c;
    let mut planes = vec![vec![0.0; size]; 16];
    for i in 0..size {
        let rows: [[f32; 4]; 3] = std::array::from_fn(|y| {
            transform(std::array::from_fn(|x| filter[(y * 3 + x) * size + i]))
        });
        for x in 0..4 {
            let column = transform(std::array::from_fn(|y| rows[y][x]));
            for (y, value) in column.into_iter().enumerate() {
                planes[y * 4 + x][i] = value;
            }
        }
    }
    planes
        .iter()
        .map(|p| PackedB::from_rows(par, p, out_c, in_c, out_c))
        .collect()
}

/// A tile on its way in.
pub(crate) struct InputJob {
    /// The 16 pixels.
    pixels: [SendPtr<f32>; 16],
    n: usize,
    /// The tile in the first plane, and the distance to the next.
    dst: *mut f32,
    plane: usize,
}

/// # Safety
/// The pixels and the tile in each of the 16 planes are valid for `n` channels.
#[inline(always)]
pub(crate) unsafe fn input_tile<S: Simd>(s: S, j: &InputJob) {
    let mut c = 0;
    // SAFETY: channels stay below `n`.
    unsafe {
        while c + S::N <= j.n {
            let d = std::array::from_fn(|i| s.load(j.pixels[i].get().add(c)));
            for (i, x) in input_transform(s, d).into_iter().enumerate() {
                s.store(j.dst.add(i * j.plane + c), x);
            }
            c += S::N;
        }
        if c < j.n {
            let left = j.n - c;
            let d = std::array::from_fn(|i| s.load_part(j.pixels[i].get().add(c), left));
            for (i, x) in input_transform(s, d).into_iter().enumerate() {
                s.store_part(j.dst.add(i * j.plane + c), x, left);
            }
        }
    }
}

/// `Bᵀ d B` with `Bᵀ = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]`.
#[inline(always)]
fn input_transform<S: Simd>(s: S, mut d: [S::V; 16]) -> [S::V; 16] {
    let mut i = 0;
    while i < 4 {
        let t = four(s, [d[i], d[4 + i], d[8 + i], d[12 + i]]);
        (d[i], d[4 + i], d[8 + i], d[12 + i]) = (t[0], t[1], t[2], t[3]);
        i += 1;
    }
    let mut i = 0;
    while i < 16 {
        let t = four(s, [d[i], d[i + 1], d[i + 2], d[i + 3]]);
        (d[i], d[i + 1], d[i + 2], d[i + 3]) = (t[0], t[1], t[2], t[3]);
        i += 4;
    }
    d
}

#[inline(always)]
fn four<S: Simd>(s: S, d: [S::V; 4]) -> [S::V; 4] {
    [
        s.sub(d[0], d[2]),
        s.add(d[1], d[2]),
        s.sub(d[2], d[1]),
        s.sub(d[1], d[3]),
    ]
}

/// A tile on its way out.
pub(crate) struct OutputJob {
    src: *const f32,
    plane: usize,
    n: usize,
    scale: *const f32,
    bias: *const f32,
    /// The four pixels of the side input, or null.
    side: [SendPtr<f32>; 4],
    out: [SendPtr<f32>; 4],
    limits: [f32; 2],
}

/// # Safety
/// The tile in each of the 16 planes, the outputs and, where not null, the scale, the bias and
/// the side inputs are valid for `n` channels.
#[inline(always)]
pub(crate) unsafe fn output_tile<S: Simd>(s: S, j: &OutputJob) {
    let mut c = 0;
    // SAFETY: channels stay below `n`.
    unsafe {
        while c + S::N <= j.n {
            output_vector(s, j, c, |p| s.load(p), |p, x| s.store(p, x));
            c += S::N;
        }
        if c < j.n {
            let left = j.n - c;
            output_vector(
                s,
                j,
                c,
                |p| s.load_part(p, left),
                |p, x| s.store_part(p, x, left),
            );
        }
    }
}

/// # Safety
/// As for [`output_tile`], `load` and `store` touching only channels that exist.
#[inline(always)]
unsafe fn output_vector<S: Simd>(
    s: S,
    j: &OutputJob,
    c: usize,
    load: impl Fn(*const f32) -> S::V,
    store: impl Fn(*mut f32, S::V),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let m: [S::V; 16] = std::array::from_fn(|i| load(j.src.add(i * j.plane + c)));
        // Aᵀ m A with Aᵀ = [1 1 1 0; 0 1 -1 -1].
        let top: [S::V; 4] = std::array::from_fn(|x| s.add(s.add(m[x], m[4 + x]), m[8 + x]));
        let low: [S::V; 4] = std::array::from_fn(|x| s.sub(s.sub(m[4 + x], m[8 + x]), m[12 + x]));
        let or = |p: *const f32, otherwise: S::V| match p.is_null() {
            true => otherwise,
            false => load(p.add(c)),
        };
        let (scale, bias) = (or(j.scale, s.splat(1.0)), or(j.bias, s.zero()));
        let (lo, hi) = (s.splat(j.limits[0]), s.splat(j.limits[1]));
        let y = [
            s.add(s.add(top[0], top[1]), top[2]),
            s.sub(s.sub(top[1], top[2]), top[3]),
            s.add(s.add(low[0], low[1]), low[2]),
            s.sub(s.sub(low[1], low[2]), low[3]),
        ];
        let mut i = 0;
        while i < 4 {
            let mut x = s.fma(y[i], scale, bias);
            if !j.side[i].get().is_null() {
                x = s.add(x, load(j.side[i].get().add(c)));
            }
            store(j.out[i].get().add(c), s.min(hi, s.max(lo, x)));
            i += 1;
        }
    }
}

/// The convolution; the sizes are checked.
///
/// # Safety
/// `out` is valid for the output and nobody else touches it.
pub(super) unsafe fn run(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    input: &[f32],
    filter: &[PackedB],
    out: SendPtr<f32>,
    ep: &Epilogue<'_>,
) {
    let (rows, cols) = (s.out_h.div_ceil(2), s.out_w.div_ceil(2));
    let tiles = s.batch * rows * cols;
    if tiles == 0 || s.out_c == 0 {
        return;
    }
    let fit = (BLOCK / (16 * (s.in_c + s.out_c))).max(MIN_TILES);
    let blocks = tiles.div_ceil(fit);
    // Few blocks: all threads work on one, and each matrix is read by one thread only.
    let (outer, inner): (&dyn Parallelism, &dyn Parallelism) = if blocks < 2 * par.width() {
        (&Inline, par)
    } else {
        (par, &Inline)
    };
    let table = Table::current();
    let (lo, hi) = ep
        .act
        .limits()
        .unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
    let work = |i: usize| {
        let block = tiles * i / blocks..tiles * (i + 1) / blocks;
        let n = block.len();
        let (mut a, mut b) = (Scratch::take(), Scratch::take());
        let a = SendPtr(a.room::<f32>(16 * n * s.in_c).as_mut_ptr());
        let b = SendPtr(b.room::<f32>(16 * n * s.out_c).as_mut_ptr());
        let corner = |tile: usize| {
            let (image, rest) = (tile / (rows * cols), tile % (rows * cols));
            (image, rest / cols * 2, rest % cols * 2)
        };
        let input_tile = |t: usize| {
            let (image, y, x) = corner(block.start + t);
            let pixels = std::array::from_fn(|i| {
                let iy = (y + i / 4).wrapping_sub(s.pad_top);
                let ix = (x + i % 4).wrapping_sub(s.pad_left);
                let pixel = if iy < s.in_h && ix < s.in_w {
                    &input[((image * s.in_h + iy) * s.in_w + ix) * s.in_c..][..s.in_c]
                } else {
                    &ZEROS[..s.in_c]
                };
                SendPtr(pixel.as_ptr().cast_mut())
            });
            let dst = a.get().wrapping_add(t * s.in_c);
            let job = InputJob {
                pixels,
                n: s.in_c,
                dst,
                plane: n * s.in_c,
            };
            // SAFETY: the pixels are checked slices; tile `t` of each plane is inside `a`.
            unsafe { (table.winograd_input)(&job) };
        };
        let multiply = |i: usize| {
            // SAFETY: plane `i` of both buffers; only this call writes the plane of `b`, and the
            // planes of `a` are complete.
            let (a, b) = unsafe {
                let (a, b) = (a.get().add(i * n * s.in_c), b.get().add(i * n * s.out_c));
                let b = std::slice::from_raw_parts_mut(b, n * s.out_c);
                (std::slice::from_raw_parts(a, n * s.in_c), b)
            };
            gemm_packed(
                &Inline,
                a,
                s.in_c,
                n,
                &filter[i],
                b,
                s.out_c,
                &Epilogue::none(),
            );
        };
        let output_tile = |t: usize, spare: &mut [f32]| {
            let (image, y, x) = corner(block.start + t);
            let spare = SendPtr(spare.as_mut_ptr());
            let at = |i: usize| {
                let (y, x) = (y + i / 2, x + i % 2);
                (y < s.out_h && x < s.out_w).then_some((image * s.out_h + y) * s.out_w + x)
            };
            let place = |i: usize| match at(i) {
                Some(pixel) => SendPtr(out.get().wrapping_add(pixel * s.out_c)),
                None => spare,
            };
            let side = |i: usize| match (ep.side, at(i)) {
                (Some((side, ld)), Some(pixel)) => {
                    SendPtr(side[pixel * ld..][..s.out_c].as_ptr().cast_mut())
                }
                _ => SendPtr(std::ptr::null_mut()),
            };
            let job = OutputJob {
                src: b.get().wrapping_add(t * s.out_c),
                plane: n * s.out_c,
                n: s.out_c,
                scale: ep.scale.map_or(std::ptr::null(), <[f32]>::as_ptr),
                bias: ep.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                side: std::array::from_fn(side),
                out: std::array::from_fn(place),
                limits: [lo, hi],
            };
            // SAFETY: tile `t` of each plane is inside `b`; a tile's pixels belong to it alone,
            // and are inside the output, which the caller vouches for, or are `spare`.
            unsafe { (table.winograd_output)(&job) };
            if let Some(op) = ep.act.function() {
                for pixel in (0..4).filter_map(at) {
                    let p = out.get().wrapping_add(pixel * s.out_c);
                    // SAFETY: a pixel of this tile.
                    unary_with(table, op, unsafe {
                        std::slice::from_raw_parts_mut(p, s.out_c)
                    });
                }
            }
        };
        parallel_for(inner, n, 4, &|tiles| tiles.for_each(input_tile));
        inner.run_blocks(16, &multiply);
        parallel_for(inner, n, 4, &|tiles| {
            // Where pixels beyond the edge are written.
            let mut spare = Scratch::take();
            let spare = spare.room::<f32>(s.out_c);
            tiles.for_each(|t| output_tile(t, spare));
        });
    };
    outer.run_blocks(blocks, &work);
}
