//! Filter gradients of convolutions as matrix products: the input pixels under each window (im2col)
//! times the gradients of the windows.

use crate::conv_reference::{each_offset, pixel};
use ferroflow_primitives::conv::{
    Conv3dShape, conv2d_filter_gradient_in_tiles, conv3d_filter_gradient, suits_filter_gradient,
    suits_filter_gradient_in_tiles,
};
use ferroflow_primitives::gemm::{Epilogue, GemmShape, gemm, gemm_add};
use ferroflow_primitives::transpose::permute_elements;
use ferroflow_sync::{Inline, Parallelism, par_chunks_mut};
use std::iter::StepBy;
use std::ops::Range;

/// Numbers in the matrix of windows that is built at a time.
const WINDOWS: usize = 1 << 18;

/// Writes the filter gradient of an ungrouped convolution to `out`, which is
/// `[offsets * in_c, out_c]`.
pub(crate) fn by_filter(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    x: &[f32],
    dy: &[f32],
    out: &mut [f32],
) {
    let p = &s.plane;
    let (in_c, out_c) = (p.in_c, p.out_c);
    let offsets = s.filter_d * p.filter_h * p.filter_w;
    let width = offsets * in_c;
    let n_pixels = dy.len() / out_c.max(1);
    if width == 0 || out_c == 0 || n_pixels == 0 {
        return out.fill(0.0);
    }
    let is_pointwise = offsets == 1
        && (s.stride_d, p.stride_h, p.stride_w) == (1, 1, 1)
        && (s.in_d, p.in_h, p.in_w) == (s.out_d, p.out_h, p.out_w)
        && (s.pad_front, p.pad_top, p.pad_left) == (0, 0, 0);
    if is_pointwise {
        return by_channels(par, [in_c, out_c], x, dy, out);
    }
    if [s.in_d, s.filter_d, s.out_d] == [1; 3] && suits_filter_gradient_in_tiles(p) {
        return conv2d_filter_gradient_in_tiles(par, p, x, dy, out);
    }
    if suits_filter_gradient(s) {
        return conv3d_filter_gradient(par, s, x, dy, out);
    }
    // A pixel of the output is a row; parts of windows outside the input stay zero.
    let slab = (WINDOWS / width).clamp(64, n_pixels.max(64)).min(n_pixels);
    let n_slabs = n_pixels.div_ceil(slab);
    let is_turned = is_turned([width, out_c], n_pixels);
    let write: &WriteSum = &|inner, slabs, sum| {
        let mut windows = vec![0f32; slab * width];
        let mut is_first = true;
        for n in slabs {
            let start = n * slab;
            let rows = slab.min(n_pixels - start);
            for (i, row) in windows.chunks_exact_mut(width).take(rows).enumerate() {
                fill_row(s, start + i, x, row);
            }
            let windows = (&windows[..rows * width], width);
            let dy = (&dy[start * out_c..][..rows * out_c], out_c);
            let (left, right) = if is_turned {
                (dy, windows)
            } else {
                (windows, dy)
            };
            multiply(inner, rows, left, right, sum, is_first);
            is_first = false;
        }
    };
    sum_of_slabs(
        par,
        [n_slabs, usize::MAX],
        [width, out_c],
        is_turned,
        write,
        out,
    );
}

/// Whether to compute the transpose of the product `[rows, n_pixels] · [n_pixels, cols]`, whose left side is transposed:
/// it may have fewer empty columns and move less.
fn is_turned([rows, cols]: [usize; 2], n_pixels: usize) -> bool {
    let work = |rows: usize, cols: usize| rows * cols.next_multiple_of(LANES) * n_pixels / LANES;
    let straight = work(rows, cols) + 2 * rows * n_pixels;
    let turned = work(cols, rows) + 2 * (cols * n_pixels + rows * cols);
    turned < straight
}

/// Writes `leftᵀ · right` to `sum`, or adds it; both have a row for each of `k` pixels.
fn multiply(
    par: &dyn Parallelism,
    k: usize,
    (left, rows): (&[f32], usize),
    (right, cols): (&[f32], usize),
    sum: &mut [f32],
    is_first: bool,
) {
    let shape = GemmShape::dense(rows, cols, k, true, false);
    match is_first {
        true => gemm(par, &shape, left, right, sum, &Epilogue::none()),
        false => gemm_add(par, &shape, left, right, sum, &Epilogue::none()),
    }
}

/// Writes the sum of some slabs, at least one.
type WriteSum<'a> = dyn Fn(&dyn Parallelism, StepBy<Range<usize>>, &mut [f32]) + Sync + 'a;

/// Sets `out`, of `rows` and `cols`, to what `write` computes of all slabs, or to its transpose. They are added up
/// separately by each thread that may work on one, at most `most` of them; where that is one, `write` computes in
/// parallel.
fn sum_of_slabs(
    par: &dyn Parallelism,
    [n_slabs, most]: [usize; 2],
    [rows, cols]: [usize; 2],
    is_turned: bool,
    write: &WriteSum,
    out: &mut [f32],
) {
    let size = rows * cols;
    let n_sums = par.width().min(n_slabs).min(most);
    let mut others = vec![0f32; size * (n_sums - 1 + usize::from(is_turned))];
    let (turned, others) = others.split_at_mut(if is_turned { size } else { 0 });
    let sum = if is_turned { &mut *turned } else { &mut *out };
    if n_sums == 1 {
        write(par, (0..n_slabs).step_by(1), sum);
    } else {
        let mut sums: Vec<&mut [f32]> = vec![&mut *sum];
        sums.extend(others.chunks_exact_mut(size));
        par_chunks_mut(par, &mut sums, 1, 1, &|lane, sums| {
            write(&Inline, (lane..n_slabs).step_by(n_sums), sums[0]);
        });
        for other in others.chunks_exact(size) {
            sum.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
        }
    }
    if is_turned {
        permute_elements(par, &[cols, rows], &[1, 0], turned, out);
    }
}

/// Elements of inputs and gradients that are multiplied at a time, to stay in the second-level cache.
const PIXELS: usize = 1 << 16;
/// Least pixels that are multiplied at a time: the length of the reductions.
const MIN_PIXELS: usize = 256;
/// Columns of a product that are computed at once.
const LANES: usize = 16;

/// Writes the filter gradient of a convolution of single pixels to `out`: `xᵀ · dy`.
fn by_channels(
    par: &dyn Parallelism,
    [in_c, out_c]: [usize; 2],
    x: &[f32],
    dy: &[f32],
    out: &mut [f32],
) {
    let n_pixels = dy.len() / out_c;
    let is_turned = is_turned([in_c, out_c], n_pixels);
    let (left, right) = match is_turned {
        false => ((x, in_c), (dy, out_c)),
        true => ((dy, out_c), (x, in_c)),
    };
    let n_slabs = n_pixels.div_ceil((PIXELS / (in_c + out_c)).max(MIN_PIXELS));
    let size = in_c * out_c;
    // The sums should not be larger than what they are computed from.
    let fit = (in_c + out_c).saturating_mul(n_pixels) / size;
    let n_sums = par.width().min(n_slabs).min(fit.max(1));
    let slab = n_pixels.div_ceil(n_slabs.next_multiple_of(n_sums));
    let n_slabs = n_pixels.div_ceil(slab);
    let write: &WriteSum = &|inner, slabs, sum| {
        let mut is_first = true;
        for n in slabs {
            let pixels = n * slab..((n + 1) * slab).min(n_pixels);
            let [left, right] = [left, right]
                .map(|(x, width)| (&x[pixels.start * width..pixels.end * width], width));
            multiply(inner, pixels.len(), left, right, sum, is_first);
            is_first = false;
        }
    };
    sum_of_slabs(par, [n_slabs, n_sums], [in_c, out_c], is_turned, write, out);
}

/// Copies the input pixels under the window of output pixel `i`; zero outside the input.
fn fill_row(s: &Conv3dShape, i: usize, x: &[f32], row: &mut [f32]) {
    let c = s.plane.in_c;
    // Offsets are in order, so runs of missing ones are between them.
    let mut next = 0;
    each_offset(s, pixel(s, i), |offset, from| {
        if offset > next {
            row[next * c..offset * c].fill(0.0);
        }
        row[offset * c..][..c].copy_from_slice(&x[from * c..][..c]);
        next = offset + 1;
    });
    row[next * c..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_sync::Pool;

    #[test]
    fn single_pixels_of_any_number_of_channels() {
        let numbers = |n: usize, seed: usize| -> Vec<f32> {
            let number = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
            (0..n).map(number).collect()
        };
        let pool = Pool::new(2);
        for [pixels, in_c, out_c] in [
            [1, 1, 1],
            [700, 3, 40],
            [1500, 40, 3],
            [1030, 17, 33],
            [5000, 16, 16],
            [300, 200, 180],
            [4, 130, 50],
            [33, 20, 90],
        ] {
            let (x, dy) = (numbers(pixels * in_c, 1), numbers(pixels * out_c, 2));
            for par in [&Inline as &dyn Parallelism, &pool] {
                let mut out = vec![0.0; in_c * out_c];
                by_channels(par, [in_c, out_c], &x, &dy, &mut out);
                for (i, got) in out.iter().enumerate() {
                    let (c, o) = (i / out_c, i % out_c);
                    let term = |p: usize| f64::from(x[p * in_c + c]) * f64::from(dy[p * out_c + o]);
                    let want: f64 = (0..pixels).map(term).sum();
                    let error = (f64::from(*got) - want).abs();
                    let what = [pixels, in_c, out_c, par.width()];
                    assert!(error < 1e-5 * pixels as f64, "{got} for {want}: {what:?}");
                }
            }
        }
    }
}
