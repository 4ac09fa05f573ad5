//! Pooling over channels-last tensors: [`pool2d`], [`pool3d`], [`global_average`].

#[cfg(test)]
mod tests;

use super::aligned::{Scratch, SendPtr};
use super::gemm::check;
use super::rows::{ReduceOp, reduce_middle};
use super::table::DispatchTable;
use super::vector::{Simd, array};
use ferroflow_sync::{Parallelism, par_chunks_mut};

/// The reduction of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Its largest element. The lowest finite number for an empty window.
    Max,
    /// As `Max`, but NaN if an element is.
    MaxOrNan,
    /// The average of the elements that exist; padding does not count. 0 for an empty window.
    Average,
}

/// One spatial axis of a pooling op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAxis {
    /// Input positions.
    pub input: usize,
    /// Output positions.
    pub output: usize,
    /// Positions of a window.
    pub window: usize,
    /// Input positions from one window to the next.
    pub stride: usize,
    /// Positions before the input where the first window starts.
    pub pad: usize,
}

impl PoolAxis {
    /// Returns an axis without pooling.
    pub fn identity(size: usize) -> Self {
        PoolAxis {
            input: size,
            output: size,
            window: 1,
            stride: 1,
            pad: 0,
        }
    }

    /// Returns how many windows from this one on are whole, at least one.
    fn whole_from(&self, out: usize) -> usize {
        let last = (self.input + self.pad).checked_sub(self.window);
        match last.map(|last| (last / self.stride.max(1)).min(self.output - 1)) {
            Some(last) if out * self.stride >= self.pad && out <= last => last - out + 1,
            _ => 1,
        }
    }

    /// Returns the input positions under a window.
    fn range(&self, out: usize) -> std::ops::Range<usize> {
        let start = out * self.stride;
        let end = (start + self.window)
            .saturating_sub(self.pad)
            .min(self.input);
        start.saturating_sub(self.pad).min(end)..end
    }
}

const MAX: u8 = PoolKind::Max as u8;
const MAX_OR_NAN: u8 = PoolKind::MaxOrNan as u8;

/// Output pixels in a row: each is the reduction of the pixels of a window.
pub(crate) struct PoolJob {
    /// The pixels of the first window.
    pub pixels: *const SendPtr<f32>,
    pub n_pixels: usize,
    pub n: usize,
    pub out: *mut f32,
    /// Output pixels.
    pub count: usize,
    /// Elements from a window to the next.
    pub step: usize,
}

/// # Safety
/// Every pixel of each window and the output are valid for `n` channels; there is at least one pixel.
#[inline(always)]
pub(crate) unsafe fn pool_pixels<S: Simd, const KIND: u8>(s: S, j: &PoolJob) {
    for i in 0..j.count {
        // SAFETY: every access is below channel `n` of window `i`.
        unsafe {
            let (from, out) = (i * j.step, j.out.add(i * j.n));
            let mut c = 0;
            while c + 4 * S::N <= j.n {
                let (load, store) = (|p| s.load(p), |p, x| s.store(p, x));
                block::<S, KIND, 4>(s, j, from + c, out.add(c), load, store);
                c += 4 * S::N;
            }
            while c + S::N <= j.n {
                let (load, store) = (|p| s.load(p), |p, x| s.store(p, x));
                block::<S, KIND, 1>(s, j, from + c, out.add(c), load, store);
                c += S::N;
            }
            if c < j.n {
                let n = j.n - c;
                let (load, store) = (|p| s.load_part(p, n), |p, x| s.store_part(p, x, n));
                block::<S, KIND, 1>(s, j, from + c, out.add(c), load, store);
            }
        }
    }
}

/// # Safety
/// As for [`pool_pixels`], `load` and `store` touching only channels that exist.
#[inline(always)]
unsafe fn block<S: Simd, const KIND: u8, const U: usize>(
    s: S,
    j: &PoolJob,
    at: usize,
    out: *mut f32,
    load: impl Fn(*const f32) -> S::V,
    store: impl Fn(*mut f32, S::V),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let first = (*j.pixels).get();
        let mut acc: [S::V; U] = array(|u| load(first.add(at + u * S::N)));
        for t in 1..j.n_pixels {
            let p = (*j.pixels.add(t)).get();
            for (u, acc) in acc.iter_mut().enumerate() {
                let x = load(p.add(at + u * S::N));
                *acc = match KIND {
                    MAX => s.max(*acc, x),
                    MAX_OR_NAN => s.select(s.unordered(*acc, *acc), *acc, s.max(*acc, x)),
                    _ => s.add(*acc, x),
                };
            }
        }
        let n = j.n_pixels as f32;
        for (u, x) in acc.into_iter().enumerate() {
            let x = match KIND {
                MAX | MAX_OR_NAN => x,
                // The product is the quotient.
                _ if j.n_pixels.is_power_of_two() => s.mul(x, s.splat(n.recip())),
                _ => s.div(x, s.splat(n)),
            };
            store(out.add(u * S::N), x);
        }
    }
}

/// Pools `[batch, height, width, channels]`.
///
/// # Panics
/// If a slice is too short.
pub fn pool2d(
    par: &dyn Parallelism,
    kind: PoolKind,
    batch: usize,
    axes: [PoolAxis; 2],
    channels: usize,
    input: &[f32],
    out: &mut [f32],
) {
    let [h, w] = axes;
    pool3d(
        par,
        kind,
        batch,
        [PoolAxis::identity(1), h, w],
        channels,
        input,
        out,
    );
}

/// Pools `[batch, depth, height, width, channels]`.
///
/// # Panics
/// If a slice is too short.
pub fn pool3d(
    par: &dyn Parallelism,
    kind: PoolKind,
    batch: usize,
    axes: [PoolAxis; 3],
    channels: usize,
    input: &[f32],
    out: &mut [f32],
) {
    let [d, h, w] = axes;
    check(
        input.len(),
        batch * d.input * h.input * w.input,
        channels,
        channels,
        "input",
    );
    let total = batch * d.output * h.output * w.output * channels;
    assert!(out.len() >= total, "output: too short");
    if total == 0 {
        return;
    }
    let whole = |a: &PoolAxis| a.output == 1 && a.range(0) == (0..a.input) && a.input > 0;
    if kind == PoolKind::Average && axes.iter().all(whole) {
        let pixels = d.input * h.input * w.input;
        return global_average(par, batch, pixels, channels, input, out);
    }
    let table = DispatchTable::current();
    let kernel = table.pool[kind as usize];
    let row_len = w.output * channels;
    let work = row_len * d.window * h.window * w.window;
    let rows = batch * d.output * h.output;
    let group = (32 * 1024 / work.max(1))
        .max(1)
        .min(rows.div_ceil(par.width()));
    par_chunks_mut(par, &mut out[..total], row_len, group, &|row, out| {
        let (n, z, y) = (
            row / h.output / d.output,
            row / h.output % d.output,
            row % h.output,
        );
        let (zs, ys) = (d.range(z), h.range(y));
        let mut scratch = Scratch::take();
        let pixels = scratch.alloc::<SendPtr<f32>>(zs.len() * ys.len() * w.window.min(w.input));
        let (mut x, mut rest) = (0, out);
        while x < w.output {
            let (xs, count) = (w.range(x), w.whole_from(x));
            let (out, others) = std::mem::take(&mut rest).split_at_mut(count * channels);
            (x, rest) = (x + count, others);
            let mut n_pixels = 0;
            for z in zs.clone() {
                for y in ys.clone() {
                    let line = ((n * d.input + z) * h.input + y) * w.input;
                    for x in xs.clone() {
                        let pixel = &input[(line + x) * channels..][..channels];
                        pixels[n_pixels] = SendPtr(pixel.as_ptr().cast_mut());
                        n_pixels += 1;
                    }
                }
            }
            if n_pixels == 0 {
                out.fill(if kind == PoolKind::Average {
                    0.0
                } else {
                    f32::MIN
                });
                continue;
            }
            let (pixels, out) = (pixels.as_ptr(), out.as_mut_ptr());
            // SAFETY: each pixel has `channels` elements, also those of the whole windows that follow, and the
            // output has them for each window; there is a pixel.
            unsafe {
                kernel(&PoolJob {
                    pixels,
                    n_pixels,
                    n: channels,
                    out,
                    count,
                    step: w.stride * channels,
                })
            };
        }
    });
}

/// Computes the average of all `pixels` pixels of each image.
///
/// # Panics
/// If a slice is too short.
pub fn global_average(
    par: &dyn Parallelism,
    batch: usize,
    pixels: usize,
    channels: usize,
    input: &[f32],
    out: &mut [f32],
) {
    reduce_middle(par, ReduceOp::Mean, [batch, pixels, channels], input, out);
}
