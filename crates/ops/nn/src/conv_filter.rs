//! Filter gradients of convolutions as matrix products: the input pixels under each window (im2col)
//! times the gradients of the windows.

use crate::conv_reference::{each_offset, pixel};
use ferroflow_primitives::conv::{
    Conv3dShape, conv2d_filter_gradient_in_tiles, conv3d_filter_gradient, suits_filter_gradient,
    suits_filter_gradient_in_tiles,
};
use ferroflow_primitives::gemm::{Epilogue, GemmShape, gemm_add};
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
    out.fill(0.0);
    if width == 0 || out_c == 0 || n_pixels == 0 {
        return;
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
    let sum = sum_of_slabs(
        par,
        [n_slabs, usize::MAX],
        width * out_c,
        &|inner, slabs, sum| {
            let mut windows = vec![0f32; slab * width];
            for n in slabs {
                let start = n * slab;
                let rows = slab.min(n_pixels - start);
                for (i, row) in windows.chunks_exact_mut(width).take(rows).enumerate() {
                    fill_row(s, start + i, x, row);
                }
                let left = &windows[..rows * width];
                let right = &dy[start * out_c..][..rows * out_c];
                // The transposed product transposes the gradients, which are fewer than the windows.
                let shape = GemmShape::dense(out_c, width, rows, true, false);
                gemm_add(inner, &shape, right, left, sum, &Epilogue::none());
            }
        },
    );
    add_transposed(&sum, width, out_c, out);
}

/// Adds some slabs to a sum.
type AddSlabs<'a> = dyn Fn(&dyn Parallelism, StepBy<Range<usize>>, &mut [f32]) + Sync + 'a;

/// Returns what `add` adds of all slabs to `size` zeros. They are added up separately by each thread that may work on
/// one, at most `most` of them; where that is one, `add` computes in parallel.
fn sum_of_slabs(
    par: &dyn Parallelism,
    [n_slabs, most]: [usize; 2],
    size: usize,
    add: &AddSlabs,
) -> Vec<f32> {
    let n_sums = par.width().min(n_slabs).min(most);
    let inner: &dyn Parallelism = if n_sums > 1 { &Inline } else { par };
    let mut sums = vec![0f32; size * n_sums];
    par_chunks_mut(par, &mut sums, size, 1, &|lane, sum| {
        add(inner, (lane..n_slabs).step_by(n_sums), sum);
    });
    let (sum, others) = sums.split_at_mut(size);
    for other in others.chunks_exact(size) {
        sum.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
    }
    sums.truncate(size);
    sums
}

/// Adds the transpose of `sum[out_c][width]` to `out`.
fn add_transposed(sum: &[f32], width: usize, out_c: usize, out: &mut [f32]) {
    for (o, sum) in sum.chunks_exact(width).enumerate() {
        for (out, sum) in out.chunks_exact_mut(out_c).zip(sum) {
            out[o] += sum;
        }
    }
}

/// Elements of inputs and gradients that are multiplied at a time, to stay in the second-level cache.
const PIXELS: usize = 1 << 16;
/// Least pixels that are multiplied at a time: the length of the reductions.
const MIN_PIXELS: usize = 256;
/// Columns of a product that are computed at once.
const LANES: usize = 16;

/// Adds the filter gradient of a convolution of single pixels to `out`: `xᵀ · dy`.
fn by_channels(
    par: &dyn Parallelism,
    [in_c, out_c]: [usize; 2],
    x: &[f32],
    dy: &[f32],
    out: &mut [f32],
) {
    let n_pixels = dy.len() / out_c;
    // Or its transpose, whichever has fewer empty columns, then whichever transposes less.
    let work = |rows: usize, cols: usize| (rows * cols.next_multiple_of(LANES), rows);
    let is_turned = work(out_c, in_c) < work(in_c, out_c);
    let ((rows, left), (cols, right)) = match is_turned {
        false => ((in_c, x), (out_c, dy)),
        true => ((out_c, dy), (in_c, x)),
    };
    let n_slabs = n_pixels.div_ceil((PIXELS / (in_c + out_c)).max(MIN_PIXELS));
    let size = in_c * out_c;
    // The sums should not be larger than what they are computed from.
    let fit = (in_c + out_c).saturating_mul(n_pixels) / size;
    let n_sums = par.width().min(n_slabs).min(fit.max(1));
    let slab = n_pixels.div_ceil(n_slabs.next_multiple_of(n_sums));
    let n_slabs = n_pixels.div_ceil(slab);
    let sum = sum_of_slabs(par, [n_slabs, n_sums], size, &|inner, slabs, sum| {
        for n in slabs {
            let pixels = n * slab..((n + 1) * slab).min(n_pixels);
            let shape = GemmShape::dense(rows, cols, pixels.len(), true, false);
            let left = &left[pixels.start * rows..pixels.end * rows];
            let right = &right[pixels.start * cols..pixels.end * cols];
            gemm_add(inner, &shape, left, right, sum, &Epilogue::none());
        }
    });
    match is_turned {
        false => out.copy_from_slice(&sum),
        true => add_transposed(&sum, in_c, out_c, out),
    }
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
