//! Depthwise convolutions over channels-last tensors: [`depthwise2d`].

#[cfg(test)]
mod tests;

use super::aligned::{Plain, Scratch, SendPtr};
use super::epilogue::Activation;
use super::gemm::check;
use super::math::unary_with;
use super::table::DispatchTable;
use super::vector::Simd;
use ferroflow_sync::{Parallelism, par_chunks_mut};

/// The sizes of a depthwise convolution: input `[batch, in_h, in_w, channels]`, filter
/// `[filter_h, filter_w, channels, multiplier]`, output
/// `[batch, out_h, out_w, channels * multiplier]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthwiseShape {
    /// Images.
    pub batch: usize,
    /// Input rows.
    pub in_h: usize,
    /// Input columns.
    pub in_w: usize,
    /// Input channels.
    pub channels: usize,
    /// Output channels for each input channel.
    pub multiplier: usize,
    /// Filter rows.
    pub filter_h: usize,
    /// Filter columns.
    pub filter_w: usize,
    /// Input rows from one output row to the next.
    pub stride_h: usize,
    /// Input columns from one output column to the next.
    pub stride_w: usize,
    /// Input rows from one filter row to the next.
    pub dil_h: usize,
    /// Input columns from one filter column to the next.
    pub dil_w: usize,
    /// Zero rows above the input.
    pub pad_top: usize,
    /// Zero columns left of the input.
    pub pad_left: usize,
    /// Output rows.
    pub out_h: usize,
    /// Output columns.
    pub out_w: usize,
}

/// Output pixels computed together.
pub(crate) const PIXELS: usize = 4;
/// Channels per pass over the pixels, so that the filter stays cached.
const CHANNEL_CHUNK: usize = 256;

/// Consecutive tiles of one output row, for the fixed filter sizes.
pub(crate) struct DepthwiseJob {
    /// `[filter_h][columns]`: pointers to input pixels, or to zeros.
    pub pixels: *const SendPtr<f32>,
    /// Pointers from one filter row to the next.
    pub columns: usize,
    pub tiles: usize,
    /// Channels to compute, and channels of a pixel.
    pub n: usize,
    pub stride: usize,
    /// First channel.
    pub first: usize,
    pub filter: *const f32,
    pub bias: *const f32,
    pub out: *mut f32,
    pub limits: [f32; 2],
}

/// `K × K` filters with stride `ST`, tiles of `P` pixels.
///
/// # Safety
/// The pointers of `j` are valid for its sizes, each pixel for `first + n` channels.
#[inline(always)]
pub(crate) unsafe fn tiles<S: Simd, const K: usize, const ST: usize, const P: usize>(
    s: S,
    j: &DepthwiseJob,
) {
    for tile in 0..j.tiles {
        // SAFETY: the caller's promise; the tile's windows start `tile * P * ST` columns in.
        unsafe {
            let pixels = j.pixels.add(tile * P * ST);
            let out = j.out.add(tile * P * j.stride);
            let mut c = j.first;
            let end = j.first + j.n;
            // Two vectors of channels at a time: enough independent sums to hide the latency.
            while c + 2 * S::N <= end {
                let acc = accumulate::<S, K, ST, P, 2>(s, j, pixels, c, |p| s.load(p));
                for (p, x) in acc.into_iter().enumerate() {
                    s.store(out.add(p * j.stride + c), x[0]);
                    s.store(out.add(p * j.stride + c + S::N), x[1]);
                }
                c += 2 * S::N;
            }
            if c + S::N <= end {
                let acc = accumulate::<S, K, ST, P, 1>(s, j, pixels, c, |p| s.load(p));
                for (p, x) in acc.into_iter().enumerate() {
                    s.store(out.add(p * j.stride + c), x[0]);
                }
                c += S::N;
            }
            if c < end {
                let n = end - c;
                let acc = accumulate::<S, K, ST, P, 1>(s, j, pixels, c, |p| s.load_part(p, n));
                for (p, x) in acc.into_iter().enumerate() {
                    s.store_part(out.add(p * j.stride + c), x[0], n);
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
    pixels: *const SendPtr<f32>,
    c: usize,
    load: impl Fn(*const f32) -> S::V,
) -> [[S::V; U]; P] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut start = [s.zero(); U];
        if !j.bias.is_null() {
            start = std::array::from_fn(|u| load(j.bias.add(c + u * S::N)));
        }
        let mut acc = [start; P];
        let mut ky = 0;
        while ky < K {
            let row = pixels.add(ky * j.columns);
            let filter = j.filter.add(ky * K * j.stride + c);
            let mut w = [[s.zero(); U]; K];
            let mut kx = 0;
            while kx < K {
                w[kx] = std::array::from_fn(|u| load(filter.add(kx * j.stride + u * S::N)));
                kx += 1;
            }
            let mut col = 0;
            while col < (P - 1) * ST + K {
                let pixel = (*row.add(col)).get().add(c);
                let x: [S::V; U] = std::array::from_fn(|u| load(pixel.add(u * S::N)));
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
            ky += 1;
        }
        let (lo, hi) = (s.splat(j.limits[0]), s.splat(j.limits[1]));
        for x in acc.as_flattened_mut() {
            *x = s.min(hi, s.max(lo, *x));
        }
        acc
    }
}

/// One output pixel of any filter: a list of input pixels with their filter pixels.
pub(crate) struct PixelJob {
    pub offsets: *const KernelOffset,
    pub n_offsets: usize,
    pub n: usize,
    pub bias: *const f32,
    pub out: *mut f32,
    pub limits: [f32; 2],
}

/// An input pixel and its filter pixel.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelOffset {
    input: *const f32,
    filter: *const f32,
}
// SAFETY: two pointers; null bytes are null pointers, others are written before they are read.
unsafe impl Plain for KernelOffset {}
// SAFETY: only addresses; every dereference has its own justification.
unsafe impl Send for KernelOffset {}
// SAFETY: as above.
unsafe impl Sync for KernelOffset {}

/// # Safety
/// The pointers of `j` are valid for `n` channels.
#[inline(always)]
pub(crate) unsafe fn pixel<S: Simd>(s: S, j: &PixelJob) {
    // SAFETY: every access is below channel `n`.
    unsafe {
        let mut c = 0;
        while c + 4 * S::N <= j.n {
            block::<S, 4>(s, j, c, |p| s.load(p), |p, x| s.store(p, x));
            c += 4 * S::N;
        }
        while c + S::N <= j.n {
            block::<S, 1>(s, j, c, |p| s.load(p), |p, x| s.store(p, x));
            c += S::N;
        }
        if c < j.n {
            let n = j.n - c;
            block::<S, 1>(s, j, c, |p| s.load_part(p, n), |p, x| s.store_part(p, x, n));
        }
    }
}

/// # Safety
/// As for [`pixel`], `load` and `store` touching only channels that exist.
#[inline(always)]
unsafe fn block<S: Simd, const U: usize>(
    s: S,
    j: &PixelJob,
    c: usize,
    load: impl Fn(*const f32) -> S::V,
    store: impl Fn(*mut f32, S::V),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [s.zero(); U];
        if !j.bias.is_null() {
            acc = std::array::from_fn(|u| load(j.bias.add(c + u * S::N)));
        }
        for t in 0..j.n_offsets {
            let t = &*j.offsets.add(t);
            for (u, acc) in acc.iter_mut().enumerate() {
                let at = c + u * S::N;
                *acc = s.fma(load(t.input.add(at)), load(t.filter.add(at)), *acc);
            }
        }
        let (lo, hi) = (s.splat(j.limits[0]), s.splat(j.limits[1]));
        for (u, x) in acc.into_iter().enumerate() {
            store(j.out.add(c + u * S::N), s.min(hi, s.max(lo, x)));
        }
    }
}

impl DepthwiseShape {
    /// Returns the number of input elements.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.channels
    }

    /// Returns the number of output elements.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_h * self.out_w * self.channels * self.multiplier
    }

    /// Returns the number of filter elements.
    pub fn filter_len(&self) -> usize {
        self.filter_h * self.filter_w * self.channels * self.multiplier
    }

    /// Returns the input row under filter row `ky` at output row `y`, of image `n`, if it exists.
    fn line<'a>(&self, input: &'a [f32], n: usize, y: usize, ky: usize) -> Option<&'a [f32]> {
        let iy = (y * self.stride_h + ky * self.dil_h).checked_sub(self.pad_top)?;
        let len = self.in_w * self.channels;
        let at = (n * self.in_h + iy) * len;
        (iy < self.in_h).then(|| &input[at..at + len])
    }
}

/// Computes `out = act(depthwise(input, filter) + bias)`.
///
/// # Panics
/// If a slice is too short.
pub fn depthwise2d(
    par: &dyn Parallelism,
    s: &DepthwiseShape,
    input: &[f32],
    filter: &[f32],
    bias: Option<&[f32]>,
    act: Activation,
    out: &mut [f32],
) {
    let out_c = s.channels * s.multiplier;
    check(
        input.len(),
        s.batch * s.in_h * s.in_w,
        s.channels,
        s.channels,
        "input",
    );
    check(
        filter.len(),
        s.filter_h * s.filter_w,
        out_c,
        out_c,
        "filter",
    );
    assert!(out.len() >= s.output_len(), "output: too short");
    if let Some(b) = bias {
        assert!(b.len() >= out_c, "bias: too short");
    }
    let row_len = s.out_w * out_c;
    if s.output_len() == 0 {
        return;
    }
    let table = DispatchTable::current();
    let (lo, hi) = act.limits().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
    let limits = [lo, hi];
    let fixed = (s.multiplier == 1
        && s.filter_h == s.filter_w
        && s.stride_h == s.stride_w
        && (s.dil_h, s.dil_w) == (1, 1)
        && s.out_w >= PIXELS)
        .then(|| table.depthwise(s.filter_h, s.stride_h))
        .flatten();
    let zeros = if fixed.is_some() {
        vec![0.0; s.channels]
    } else {
        Vec::new()
    };
    let work = row_len * s.filter_h * s.filter_w;
    let group = (32 * 1024 / work.max(1)).clamp(1, s.batch * s.out_h);
    let group = group.min((s.batch * s.out_h).div_ceil(par.width()));
    par_chunks_mut(
        par,
        &mut out[..s.output_len()],
        row_len,
        group,
        &|row, out| {
            let (n, y) = (row / s.out_h, row % s.out_h);
            let mut scratch = Scratch::take();
            let bias_ptr = bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
            if let Some(kernel) = fixed {
                let columns = (s.out_w - 1) * s.stride_w + s.filter_w;
                let pixels = scratch.alloc::<SendPtr<f32>>(s.filter_h * columns);
                for (ky, row) in pixels.chunks_exact_mut(columns).enumerate() {
                    let none = SendPtr(zeros.as_ptr().cast_mut());
                    let Some(line) = s.line(input, n, y, ky) else {
                        row.fill(none);
                        continue;
                    };
                    let before = s.pad_left.min(columns);
                    let inside = (columns - before).min(s.in_w);
                    row[..before].fill(none);
                    let base = line.as_ptr().cast_mut();
                    for (x, p) in row[before..before + inside].iter_mut().enumerate() {
                        *p = SendPtr(base.wrapping_add(x * s.channels));
                    }
                    row[before + inside..].fill(none);
                }
                let tiles = s.out_w / PIXELS;
                for first in (0..s.channels).step_by(CHANNEL_CHUNK) {
                    let mut job = DepthwiseJob {
                        pixels: pixels.as_ptr(),
                        columns,
                        tiles,
                        n: CHANNEL_CHUNK.min(s.channels - first),
                        stride: s.channels,
                        first,
                        filter: filter.as_ptr(),
                        bias: bias_ptr,
                        out: out.as_mut_ptr(),
                        limits,
                    };
                    // SAFETY: there are `columns` pointers a filter row, each to a whole pixel or
                    // to as many zeros; tiles of `PIXELS` pixels fit the row, also the last one,
                    // which is moved left over the one before.
                    unsafe {
                        kernel(&job);
                        if tiles * PIXELS < s.out_w {
                            let x = s.out_w - PIXELS;
                            job.tiles = 1;
                            job.pixels = job.pixels.add(x * s.stride_w);
                            job.out = job.out.add(x * s.channels);
                            kernel(&job);
                        }
                    }
                }
            } else if s.multiplier == 1 {
                let offsets = scratch.alloc::<KernelOffset>(s.filter_h * s.filter_w);
                for (x, out) in out.chunks_exact_mut(out_c).enumerate() {
                    let mut n_offsets = 0;
                    s.each_offset(input, (n, y, x), |k, pixel| {
                        let filter = filter[k * out_c..][..out_c].as_ptr();
                        offsets[n_offsets] = KernelOffset {
                            input: pixel.as_ptr(),
                            filter,
                        };
                        n_offsets += 1;
                    });
                    let job = PixelJob {
                        offsets: offsets.as_ptr(),
                        n_offsets,
                        n: out_c,
                        bias: bias_ptr,
                        out: out.as_mut_ptr(),
                        limits,
                    };
                    // SAFETY: every offset, the bias and the output have `out_c` channels.
                    unsafe { (table.depthwise_pixel)(&job) };
                }
            } else {
                for (x, out) in out.chunks_exact_mut(out_c).enumerate() {
                    match bias {
                        Some(b) => out.copy_from_slice(&b[..out_c]),
                        None => out.fill(0.0),
                    }
                    s.each_offset(input, (n, y, x), |k, pixel| {
                        let filter = filter[k * out_c..].chunks_exact(s.multiplier);
                        let out = out.chunks_exact_mut(s.multiplier);
                        for ((x, f), o) in pixel.iter().zip(filter).zip(out) {
                            for (o, f) in o.iter_mut().zip(f) {
                                *o += x * f;
                            }
                        }
                    });
                }
                if act.limits().is_some() {
                    unary_with(table, act.as_unary(), out);
                }
            }
            if let Some(op) = act.function() {
                unary_with(table, op, out);
            }
        },
    );
}

impl DepthwiseShape {
    /// Calls `f(filter pixel, input pixel)` for the input pixels that exist under a window.
    fn each_offset<'a>(
        &self,
        input: &'a [f32],
        (n, y, x): (usize, usize, usize),
        mut f: impl FnMut(usize, &'a [f32]),
    ) {
        for ky in 0..self.filter_h {
            let Some(line) = self.line(input, n, y, ky) else {
                continue;
            };
            for kx in 0..self.filter_w {
                let ix = (x * self.stride_w + kx * self.dil_w).wrapping_sub(self.pad_left);
                if ix < self.in_w {
                    f(
                        ky * self.filter_w + kx,
                        &line[ix * self.channels..][..self.channels],
                    );
                }
            }
        }
    }
}
