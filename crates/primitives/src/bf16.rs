//! Products and convolutions of `bfloat16` numbers with sums in single precision, on CPUs that have
//! instructions for them: AMX's tiles, or AVX-512's pairs (`vdpbf16ps`), which serve the rows that fill no
//! tile.
//!
//! Floats are rounded to `bfloat16`, ties to even, as they are read; the weights are rounded when they are
//! packed. Sums, and the steps that follow them, stay in single precision: oneDNN's floating-point math
//! mode `bf16`.

mod kernel;
#[cfg(test)]
mod tests;

use crate::aligned::{Aligned, Scratch, SendPtr};
use crate::amx;
use crate::conv::Conv2dShape;

use crate::gemm::{Epilogue, check, check_epilogue};
use crate::halves::round_bf16;
use crate::int8::{RowsOf, split};
use crate::isa::{Isa, vectorized};
use crate::math::unary_in_place;
use bytes::Bytes;
use ferroflow_sync::{Parallelism, parallel_for};
use kernel::{Sweep, WIDTH};
use std::ops::Range;

/// A constant right-hand matrix `[k, n]` of `bfloat16` numbers, packed once.
///
/// Panels of 64 columns hold two rows at a time, the pair of a column together; rows are padded with
/// zeros to whole tiles.
#[derive(Clone)]
pub struct Bf16Weights {
    k: usize,
    n: usize,
    data: Aligned,
}

impl std::fmt::Debug for Bf16Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bf16Weights[{}, {}]", self.k, self.n)
    }
}

/// Returns the pairs of `k` numbers, as many as whole tiles have.
fn steps(k: usize) -> usize {
    k.div_ceil(2).next_multiple_of(amx::CHUNK / 4)
}

impl Bf16Weights {
    /// Returns whether this CPU multiplies `bfloat16` numbers.
    pub fn is_supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return Isa::current() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Packs `weights[k][n]`, or the transpose of `weights[n][k]`.
    ///
    /// # Panics
    /// If the slice is too short.
    pub fn new(
        par: &dyn Parallelism,
        weights: &[f32],
        [k, n]: [usize; 2],
        transposed: bool,
    ) -> Self {
        check(weights.len(), 1, k * n, k * n, "weights");
        let (panels, steps) = (n.div_ceil(WIDTH), steps(k));
        let mut data = Aligned::fresh();
        let to = SendPtr(data.alloc::<i32>(panels * steps * WIDTH).as_mut_ptr());
        parallel_for(par, panels, 1, &|range| {
            for panel in range {
                // SAFETY: the panel of the memory just made, visited by one task only.
                let to = unsafe {
                    let first = to.get().add(panel * steps * WIDTH);
                    std::slice::from_raw_parts_mut(first, steps * WIDTH)
                };
                let columns = panel * WIDTH..n.min((panel + 1) * WIDTH);
                match transposed {
                    false => pack_rows(weights, n, k, columns, to),
                    true => pack_columns(weights, k, columns, to),
                }
            }
        });
        Bf16Weights { k, n, data }
    }

    /// Returns the matrix whose [`Bf16Weights::packed`] is `bytes`; `None` if there are more or fewer of them.
    pub fn from_packed(k: usize, n: usize, bytes: Bytes) -> Option<Self> {
        let rows = k.div_ceil(2).checked_next_multiple_of(amx::CHUNK / 4)?;
        let size = n.checked_next_multiple_of(WIDTH)?.checked_mul(rows)?;
        (size.checked_mul(4)? == bytes.len()).then(|| Bf16Weights {
            k,
            n,
            data: Aligned::shared(bytes),
        })
    }

    /// Returns all pairs, as they lie in memory.
    pub fn packed(&self) -> &[i32] {
        let len = self.n.next_multiple_of(WIDTH) * steps(self.k);
        self.data.get::<i32>().get(..len).unwrap_or_default()
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
        self.data.bytes()
    }

    /// Returns a panel's pairs.
    fn panel(&self, i: usize) -> &[i32] {
        &self.data.get::<i32>()[i * steps(self.k) * WIDTH..]
    }
}

/// Returns a column's numbers of two rows.
fn pair(low: f32, high: f32) -> i32 {
    i32::from(round_bf16(low)) | i32::from(round_bf16(high)) << 16
}

/// Packs some columns of `[k][n]`; `to` is a panel.
fn pack_rows(weights: &[f32], n: usize, k: usize, columns: Range<usize>, to: &mut [i32]) {
    vectorized(
        #[inline(always)]
        || {
            let row = |i: usize| &weights[i * n..][columns.clone()];
            for (step, to) in to.chunks_exact_mut(WIDTH).enumerate() {
                to.fill(0);
                match k.saturating_sub(2 * step) {
                    0 => {}
                    1 => {
                        for (to, x) in to.iter_mut().zip(row(2 * step)) {
                            *to = pair(*x, 0.0);
                        }
                    }
                    _ => {
                        let both = row(2 * step).iter().zip(row(2 * step + 1));
                        for (to, (x, y)) in to.iter_mut().zip(both) {
                            *to = pair(*x, *y);
                        }
                    }
                }
            }
        },
    );
}

/// Packs some rows of `[n][k]`; `to` is a panel.
fn pack_columns(weights: &[f32], k: usize, columns: Range<usize>, to: &mut [i32]) {
    to.fill(0);
    for (j, column) in columns.enumerate() {
        let (pairs, rest) = weights[column * k..][..k].as_chunks::<2>();
        for (step, [x, y]) in pairs.iter().enumerate() {
            to[step * WIDTH + j] = pair(*x, *y);
        }
        if let [x] = rest {
            to[pairs.len() * WIDTH + j] = pair(*x, 0.0);
        }
    }
}

/// The left rows of a product.
enum Left<'a> {
    /// Floats and their row stride.
    Floats(&'a [f32], usize),
    /// `bfloat16` numbers, as bytes.
    Halves(RowsOf<'a>),
}

/// Computes `out = epilogue(a · weights)` with `a[m][k]` of row stride `lda` and `out[m][n]` of row
/// stride `ldc`.
///
/// # Panics
/// If a slice is too short, or the CPU is not [supported](Bf16Weights::is_supported).
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub fn bf16_gemm(
    par: &dyn Parallelism,
    a: &[f32],
    lda: usize,
    m: usize,
    weights: &Bf16Weights,
    out: &mut [f32],
    ldc: usize,
    ep: &Epilogue<'_>,
) {
    check(a.len(), m, weights.k, lda, "left-hand matrix");
    drive(par, m, &Left::Floats(a, lda), weights, (out, ldc), ep);
}

/// Computes a convolution of one group over `[batch, height, width, channels]` with a filter packed as
/// `[height · width · channels][out_c]`.
///
/// # Panics
/// As [`bf16_gemm`], or if the filter has other sizes.
pub fn bf16_conv2d(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    input: &[f32],
    weights: &Bf16Weights,
    out: &mut [f32],
    ep: &Epilogue<'_>,
) {
    assert!(
        s.groups == 1 && weights.k == s.filter_h * s.filter_w * s.in_c && weights.n == s.out_c,
        "the filter was packed for another convolution"
    );
    check(
        input.len(),
        s.batch * s.in_h * s.in_w,
        s.in_c,
        s.in_c,
        "input",
    );
    let m = s.batch * s.out_h * s.out_w;
    if s.is_pointwise() {
        return bf16_gemm(par, input, s.in_c, m, weights, out, s.out_c, ep);
    }
    // The whole image is rounded once; its pixels are twice as many bytes.
    let mut scratch = Scratch::take();
    let halves = scratch.alloc::<u16>(s.input_len());
    assert!(Bf16Weights::is_supported(), "no products of bfloat16 here");
    // SAFETY: as just checked.
    unsafe { round_all(par, &input[..s.input_len()], halves) };
    // SAFETY: bytes have no alignment and every pattern is a value.
    let bytes =
        unsafe { std::slice::from_raw_parts(halves.as_ptr().cast::<u8>(), halves.len() * 2) };
    let doubled = Conv2dShape {
        in_c: 2 * s.in_c,
        ..*s
    };
    let rows = Left::Halves(RowsOf::windows(bytes, &doubled, 0));
    drive(par, m, &rows, weights, (out, s.out_c), ep);
}

/// Rounds numbers, each thread its own.
///
/// # Safety
/// The CPU is supported.
unsafe fn round_all(par: &dyn Parallelism, from: &[f32], to: &mut [u16]) {
    const AT_ONCE: usize = 16 * 1024;
    let out = SendPtr(to.as_mut_ptr());
    parallel_for(par, from.len().div_ceil(AT_ONCE), 2, &|range| {
        for first in range.map(|i| i * AT_ONCE) {
            let from = &from[first..from.len().min(first + AT_ONCE)];
            // SAFETY: numbers of the output that this task alone writes.
            let to = unsafe { std::slice::from_raw_parts_mut(out.get().add(first), from.len()) };
            // SAFETY: the caller's CPU is supported.
            unsafe { kernel::round(from, to) };
        }
    });
}

/// Bytes of rows that stay in the second-level cache while the panels pass.
const BLOCK: usize = 256 * 1024;
/// Products below which a task is not worth dispatching.
const WORTH_A_TASK: usize = 1 << 21;

fn drive(
    par: &dyn Parallelism,
    m: usize,
    rows: &Left<'_>,
    weights: &Bf16Weights,
    (out, ldc): (&mut [f32], usize),
    ep: &Epilogue<'_>,
) {
    let n = weights.n;
    check(out.len(), m, n, ldc, "output");
    check_epilogue(ep, m, n);
    assert!(Bf16Weights::is_supported(), "no products of bfloat16 here");
    if m == 0 || n == 0 {
        return;
    }
    let out = SendPtr(out.as_mut_ptr());
    let panels = n.div_ceil(WIDTH);
    let work = m.saturating_mul(n).saturating_mul(weights.k.max(1));
    let wanted = (work / WORTH_A_TASK).clamp(1, par.width().max(1));
    split(par, [m, amx::BLOCK], panels, wanted, &|rows_of, columns| {
        // SAFETY: tasks own disjoint rows or columns of an exclusively borrowed output, whose size was
        // checked.
        unsafe { run_task(rows_of, columns, rows, weights, (out, ldc), ep) };
    });
}

/// # Safety
/// The CPU is supported; `out` is writable in these rows and panels, which no other thread touches.
unsafe fn run_task(
    all: Range<usize>,
    panels: Range<usize>,
    rows: &Left<'_>,
    weights: &Bf16Weights,
    (out, ldc): (SendPtr<f32>, usize),
    ep: &Epilogue<'_>,
) {
    let steps = steps(weights.k);
    let is_tiled = all.len() >= amx::SIDE && amx::Support::current().bf16 && !Isa::is_limited();
    // SAFETY: there is support, and this thread has no other tiles.
    let tiles = is_tiled.then(|| unsafe { amx::Tiles::new() });
    let block = (BLOCK / (4 * steps).max(1)).max(2 * amx::BLOCK) / amx::BLOCK * amx::BLOCK;
    let mut scratch = Scratch::take();
    for row in all.clone().step_by(block) {
        let height = block.min(all.end - row);
        let to = scratch.alloc::<i32>(height * steps);
        match rows {
            // SAFETY: the CPU is supported.
            Left::Floats(a, lda) => unsafe {
                round_rows(a, *lda, row..row + height, weights.k, to)
            },
            Left::Halves(rows) => rows.fill_whole_tiles(row..row + height, 2 * weights.k, to),
        }
        for panel in panels.clone() {
            let column = panel * WIDTH;
            let n = WIDTH.min(weights.n - column);
            let job = Sweep {
                rows: to.as_ptr(),
                height,
                steps,
                columns: weights.panel(panel).as_ptr(),
                n,
                // SAFETY: within the task's rows and columns.
                out: unsafe { out.get().add(row * ldc + column) },
                ldc,
            };
            // SAFETY: `height` rows of `steps` pairs, and a panel as long; the output is the caller's promise.
            unsafe {
                job.run(tiles.as_ref());
                finish(&job, row, column, ep);
            }
        }
    }
}

/// Writes rows of floats as pairs, padded with zeros.
///
/// # Safety
/// The CPU is supported.
unsafe fn round_rows(a: &[f32], lda: usize, rows: Range<usize>, k: usize, to: &mut [i32]) {
    for (row, to) in rows.zip(to.chunks_exact_mut(steps(k).max(1))) {
        // SAFETY: halves need less alignment and every pattern is a value; the slice is borrowed exclusively.
        let halves =
            unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u16>(), 2 * to.len()) };
        // SAFETY: the caller's promise.
        unsafe { kernel::round(&a[row * lda..][..k], &mut halves[..k]) };
        halves[k..].fill(0);
    }
}

/// Applies the epilogue to a block whose first element has this row and column.
///
/// # Safety
/// The block's output is initialized, and no other thread accesses it.
unsafe fn finish(job: &Sweep, row: usize, column: usize, ep: &Epilogue<'_>) {
    if ep.is_none() {
        return;
    }
    let n = job.n;
    let (mut scale, mut bias) = ([1.0f32; WIDTH], [0.0f32; WIDTH]);
    if let Some(values) = ep.scale {
        scale[..n].copy_from_slice(&values[column..][..n]);
    }
    if let Some(values) = ep.bias {
        bias[..n].copy_from_slice(&values[column..][..n]);
    }
    let is_affine = ep.scale.is_some() || ep.bias.is_some();
    let (limits, function) = (ep.act.limits(), ep.act.function());
    vectorized(
        #[inline(always)]
        || {
            for r in 0..job.height {
                // SAFETY: a row of the block, as the caller promises.
                let y = unsafe { std::slice::from_raw_parts_mut(job.out.add(r * job.ldc), n) };
                if is_affine {
                    for ((y, scale), bias) in y.iter_mut().zip(&scale).zip(&bias) {
                        *y = *y * scale + bias;
                    }
                }
                if let Some((side, ld)) = ep.side {
                    let side = &side[(row + r) * ld + column..][..n];
                    y.iter_mut().zip(side).for_each(|(y, s)| *y += s);
                }
                if let Some((low, high)) = limits {
                    // NaN stays.
                    for y in y.iter_mut() {
                        let x = if *y < low { low } else { *y };
                        *y = if x > high { high } else { x };
                    }
                }
            }
        },
    );
    if let Some(op) = function {
        for r in 0..job.height {
            // SAFETY: as above.
            let y = unsafe { std::slice::from_raw_parts_mut(job.out.add(r * job.ldc), n) };
            unary_in_place(op, y);
        }
    }
}
