//! The inner loops of depthwise convolutions, for one line of output pixels.

use crate::aligned::{Plain, SendPtr};
use crate::vector::{Simd, array};

/// Output pixels computed together.
pub(crate) const PIXELS: usize = 4;
/// The same where registers hold as many sums, for a narrow filter.
pub(crate) const LONG: usize = 8;

/// A row of the filter, and the input pixels under it along an output line.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FilterRow {
    /// Pointers to input pixels, or to zeros.
    pub pixels: *const SendPtr<f32>,
    pub filter: *const f32,
}
// SAFETY: two pointers; null bytes are null pointers, others are written before they are read.
unsafe impl Plain for FilterRow {}
// SAFETY: only addresses; every dereference has its own justification.
unsafe impl Send for FilterRow {}
// SAFETY: as above.
unsafe impl Sync for FilterRow {}

/// Consecutive tiles of one output line.
pub(crate) struct DepthwiseJob {
    pub rows: *const FilterRow,
    pub n_rows: usize,
    /// Filter pixels of a row, for the kernel of any filter.
    pub width: usize,
    /// Pointers from one output pixel to the next, and from one filter pixel to the next, for the
    /// kernel of any filter.
    pub step: usize,
    pub dilation: usize,
    pub tiles: usize,
    /// Channels to compute, those of a pixel of filter and output, and the first one.
    pub n: usize,
    pub stride: usize,
    pub first: usize,
    /// What channel `first` has in the pointers to pixels.
    pub first_input: usize,
    /// Null, or one number for each channel.
    pub scale: *const f32,
    pub bias: *const f32,
    pub out: *mut f32,
    pub limits: [f32; 2],
}

/// Filters `K` pixels wide with stride `ST`, or any if `K` is zero; tiles of `P` pixels.
///
/// # Safety
/// The pointers of `j` are valid for its sizes: each pixel for `first_input + n` channels, filter
/// rows and the output for `first + n` of a pixel.
#[inline(always)]
pub(crate) unsafe fn tiles<S: Simd, const K: usize, const ST: usize, const P: usize>(
    s: S,
    j: &DepthwiseJob,
) {
    let step = if K == 0 { j.step } else { ST };
    for tile in 0..j.tiles {
        // SAFETY: the caller's promise; the tile's windows start `tile * P * step` columns in.
        unsafe {
            let column = tile * P * step;
            let out = j.out.add(tile * P * j.stride);
            let mut c = 0;
            // Two vectors of channels at a time: enough independent sums to hide the latency.
            // Wide filters leave too few registers for it if there are only 16.
            if K < 7 || S::N >= 16 {
                while c + 2 * S::N <= j.n {
                    let acc = accumulate::<S, K, ST, P, 2>(s, j, column, c, |p| s.load(p));
                    for (p, x) in acc.into_iter().enumerate() {
                        s.store(out.add(p * j.stride + j.first + c), x[0]);
                        s.store(out.add(p * j.stride + j.first + c + S::N), x[1]);
                    }
                    c += 2 * S::N;
                }
            }
            while c + S::N <= j.n {
                let acc = accumulate::<S, K, ST, P, 1>(s, j, column, c, |p| s.load(p));
                for (p, x) in acc.into_iter().enumerate() {
                    s.store(out.add(p * j.stride + j.first + c), x[0]);
                }
                c += S::N;
            }
            if c < j.n {
                let n = j.n - c;
                let acc = accumulate::<S, K, ST, P, 1>(s, j, column, c, |p| s.load_part(p, n));
                for (p, x) in acc.into_iter().enumerate() {
                    s.store_part(out.add(p * j.stride + j.first + c), x[0], n);
                }
            }
        }
    }
}

/// # Safety
/// As for [`tiles`], `load` reading only channels that exist.
#[inline(always)]
unsafe fn accumulate<S: Simd, const K: usize, const ST: usize, const P: usize, const U: usize>(
    s: S,
    j: &DepthwiseJob,
    column: usize,
    c: usize,
    load: impl Fn(*const f32) -> S::V,
) -> [[S::V; U]; P] {
    // SAFETY: the caller's promise.
    unsafe {
        let at = j.first + c;
        let mut bias = [s.zero(); U];
        if !j.bias.is_null() {
            bias = array(|u| load(j.bias.add(at + u * S::N)));
        }
        let mut acc = if j.scale.is_null() {
            [bias; P]
        } else {
            [[s.zero(); U]; P]
        };
        for row in 0..j.n_rows {
            let row = &*j.rows.add(row);
            let (pixels, filter) = (row.pixels.add(column), row.filter.add(at));
            if K == 0 {
                any_row(s, j, pixels, filter, j.first_input + c, &load, &mut acc);
            } else {
                fixed_row::<S, K, ST, P, U>(
                    s,
                    (pixels, filter, j.stride),
                    j.first_input + c,
                    &load,
                    &mut acc,
                );
            }
        }
        if !j.scale.is_null() {
            let scale: [S::V; U] = array(|u| load(j.scale.add(at + u * S::N)));
            for pixel in &mut acc {
                for (u, x) in pixel.iter_mut().enumerate() {
                    *x = s.fma(*x, scale[u], bias[u]);
                }
            }
        }
        let (lo, hi) = (s.splat(j.limits[0]), s.splat(j.limits[1]));
        for x in acc.as_flattened_mut() {
            *x = s.min(hi, s.max(lo, *x));
        }
        acc
    }
}

/// Adds a filter row of `K` pixels.
///
/// # Safety
/// As for [`accumulate`].
#[inline(always)]
unsafe fn fixed_row<S: Simd, const K: usize, const ST: usize, const P: usize, const U: usize>(
    s: S,
    (pixels, filter, stride): (*const SendPtr<f32>, *const f32, usize),
    c: usize,
    load: &impl Fn(*const f32) -> S::V,
    acc: &mut [[S::V; U]; P],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut w = [[s.zero(); U]; K];
        let mut kx = 0;
        while kx < K {
            w[kx] = array(|u| load(filter.add(kx * stride + u * S::N)));
            kx += 1;
        }
        let mut col = 0;
        while col < (P - 1) * ST + K {
            let pixel = (*pixels.add(col)).get().add(c);
            let x: [S::V; U] = array(|u| load(pixel.add(u * S::N)));
            let mut p = 0;
            while p < P {
                if p * ST <= col && col - p * ST < K {
                    let mut u = 0;
                    while u < U {
                        acc[p][u] = s.fma(x[u], w[col - p * ST][u], acc[p][u]);
                        u += 1;
                    }
                }
                p += 1;
            }
            col += 1;
        }
    }
}

/// Adds a filter row of any width, stride and dilation.
///
/// # Safety
/// As for [`accumulate`].
#[inline(always)]
unsafe fn any_row<S: Simd, const P: usize, const U: usize>(
    s: S,
    j: &DepthwiseJob,
    pixels: *const SendPtr<f32>,
    filter: *const f32,
    c: usize,
    load: &impl Fn(*const f32) -> S::V,
    acc: &mut [[S::V; U]; P],
) {
    for kx in 0..j.width {
        // SAFETY: the caller's promise.
        unsafe {
            let filter = filter.add(kx * j.stride);
            let w: [S::V; U] = array(|u| load(filter.add(u * S::N)));
            for (p, acc) in acc.iter_mut().enumerate() {
                let pixel = (*pixels.add(p * j.step + kx * j.dilation)).get().add(c);
                for (u, acc) in acc.iter_mut().enumerate() {
                    *acc = s.fma(load(pixel.add(u * S::N)), w[u], *acc);
                }
            }
        }
    }
}

/// What one output line adds to the gradient of a filter row.
pub(crate) struct FilterGradientJob {
    /// Pointers to input pixels, or to zeros.
    pub pixels: *const SendPtr<f32>,
    /// Filter pixels of the row.
    pub width: usize,
    /// Pointers from one output pixel to the next, and from one filter pixel to the next.
    pub step: usize,
    pub dilation: usize,
    /// Output pixels.
    pub outputs: usize,
    /// Channels to compute, those of a pixel, the first one and what it is in the input pixels.
    pub n: usize,
    pub stride: usize,
    pub first: usize,
    pub first_input: usize,
    /// The gradient of the output line.
    pub dy: *const f32,
    pub out: *mut f32,
}

/// Adds to the gradient of a filter row.
///
/// # Safety
/// The pointers of `j` are valid for its sizes, as for [`tiles`].
#[inline(always)]
pub(crate) unsafe fn filter_gradient<S: Simd>(s: S, j: &FilterGradientJob) {
    let mut kx = 0;
    while kx < j.width {
        // SAFETY: the caller's promise.
        unsafe {
            match j.width - kx {
                1 => offsets::<S, 1>(s, j, kx),
                2 => offsets::<S, 2>(s, j, kx),
                3 => offsets::<S, 3>(s, j, kx),
                _ => offsets::<S, 4>(s, j, kx),
            }
        }
        kx += 4;
    }
}

/// Filter pixels `kx..kx + K`.
///
/// # Safety
/// As for [`filter_gradient`].
#[inline(always)]
unsafe fn offsets<S: Simd, const K: usize>(s: S, j: &FilterGradientJob, kx: usize) {
    let mut c = 0;
    // SAFETY: every access is below channel `n`.
    unsafe {
        while c + 2 * S::N <= j.n {
            products::<S, K, 2>(s, j, kx, c, |p| s.load(p), |p, x| s.store(p, x));
            c += 2 * S::N;
        }
        while c + S::N <= j.n {
            products::<S, K, 1>(s, j, kx, c, |p| s.load(p), |p, x| s.store(p, x));
            c += S::N;
        }
        if c < j.n {
            let n = j.n - c;
            let load = |p| s.load_part(p, n);
            products::<S, K, 1>(s, j, kx, c, load, |p, x| s.store_part(p, x, n));
        }
    }
}

/// # Safety
/// As for [`filter_gradient`], `load` and `store` touching only channels that exist.
#[inline(always)]
unsafe fn products<S: Simd, const K: usize, const U: usize>(
    s: S,
    j: &FilterGradientJob,
    kx: usize,
    c: usize,
    load: impl Fn(*const f32) -> S::V,
    store: impl Fn(*mut f32, S::V),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[s.zero(); U]; K];
        for x in 0..j.outputs {
            let dy = j.dy.add(x * j.stride + j.first + c);
            let dy: [S::V; U] = array(|u| load(dy.add(u * S::N)));
            for (k, acc) in acc.iter_mut().enumerate() {
                let column = x * j.step + (kx + k) * j.dilation;
                let pixel = (*j.pixels.add(column)).get().add(j.first_input + c);
                for (u, acc) in acc.iter_mut().enumerate() {
                    *acc = s.fma(load(pixel.add(u * S::N)), dy[u], *acc);
                }
            }
        }
        for (k, acc) in acc.into_iter().enumerate() {
            let out = j.out.add((kx + k) * j.stride + j.first + c);
            for (u, x) in acc.into_iter().enumerate() {
                let out = out.add(u * S::N);
                store(out, s.add(load(out), x));
            }
        }
    }
}
