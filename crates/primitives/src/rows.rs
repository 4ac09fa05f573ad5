//! Operations along rows and columns: [`softmax`], [`layer_norm`], [`reduce_rows`],
//! [`reduce_middle`].

#[cfg(test)]
mod tests;

use super::aligned::SendPtr;
use super::functions::{EXP_MIN, exp_bounded};
use super::table::DispatchTable;
use super::vector::{Simd, array};
use ferroflow_sync::{Parallelism, par_chunks_mut, parallel_for};
use std::ops::RangeInclusive;

/// A reduction of many numbers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// The average; NaN for no numbers.
    Mean,
    /// The maximum; minus infinity for no numbers. Whether NaN propagates is unspecified.
    Max,
    /// The minimum; infinity for no numbers. Whether NaN propagates is unspecified.
    Min,
    /// The sum of their squares.
    SumSquares,
}

/// Elements that are summed in single precision before the sums are added in double.
const CHUNK: usize = 2048;
/// Rows whose columns are summed before the sums are added.
const ROWS: usize = 128;
/// Least elements per task.
const MIN_TASK: usize = 16 * 1024;

/// Adds `x` to an accumulator; the operations are those of [`reduce`].
#[inline(always)]
fn join<S: Simd, const OP: usize>(s: S, acc: S::V, x: S::V, shift: S::V) -> S::V {
    match OP {
        0 => s.add(acc, x),
        1 => {
            let d = s.sub(x, shift);
            s.fma(d, d, acc)
        }
        2 => s.max(acc, x),
        _ => s.min(acc, x),
    }
}

/// Reduces: sum (0), sum of squared distances from `p` (1), maximum (2), minimum (3).
///
/// # Safety
/// `src` is valid for `n > 0` elements.
#[inline(always)]
pub(crate) unsafe fn reduce<S: Simd, const OP: usize>(
    s: S,
    src: *const f32,
    n: usize,
    p: f32,
) -> f32 {
    let shift = s.splat(p);
    let start = match OP {
        2 => s.splat(f32::NEG_INFINITY),
        3 => s.splat(f32::INFINITY),
        _ => s.zero(),
    };
    let mut acc = [start; 4];
    let mut i = 0;
    // SAFETY: every access is below `n`.
    unsafe {
        while i + 4 * S::N <= n {
            acc[0] = join::<S, OP>(s, acc[0], s.load(src.add(i)), shift);
            acc[1] = join::<S, OP>(s, acc[1], s.load(src.add(i + S::N)), shift);
            acc[2] = join::<S, OP>(s, acc[2], s.load(src.add(i + 2 * S::N)), shift);
            acc[3] = join::<S, OP>(s, acc[3], s.load(src.add(i + 3 * S::N)), shift);
            i += 4 * S::N;
        }
        while i + S::N <= n {
            acc[0] = join::<S, OP>(s, acc[0], s.load(src.add(i)), shift);
            i += S::N;
        }
    }
    let mut r = match OP {
        2 => s.hmax(s.max(s.max(acc[0], acc[1]), s.max(acc[2], acc[3]))),
        3 => s.hmin(s.min(s.min(acc[0], acc[1]), s.min(acc[2], acc[3]))),
        _ => s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3]))),
    };
    while i < n {
        // SAFETY: `i < n`.
        let x = unsafe { *src.add(i) };
        r = match OP {
            0 => r + x,
            1 => r + (x - p) * (x - p),
            2 => r.max(x),
            _ => r.min(x),
        };
        i += 1;
    }
    r
}

/// Rows to reduce, one to each element of `dst`.
pub(crate) struct RowsJob {
    pub src: *const f32,
    pub cols: usize,
    pub dst: *mut f32,
    pub rows: usize,
}

/// [`reduce`] of each row: in one call, which takes longer than a short row.
///
/// # Safety
/// `src` is valid for `rows` rows of `cols > 0` elements, `dst` for `rows`.
#[inline(always)]
pub(crate) unsafe fn reduce_each<S: Simd, const OP: usize>(s: S, j: &RowsJob) {
    for r in 0..j.rows {
        // SAFETY: the caller's promise.
        unsafe { *j.dst.add(r) = reduce::<S, OP>(s, j.src.add(r * j.cols), j.cols, 0.0) };
    }
}

/// Returns `e^(x - shift)`, zero where that would be nearly subnormal.
#[inline(always)]
fn shifted_exp<S: Simd>(s: S, x: S::V, shift: S::V) -> S::V {
    let d = s.sub(x, shift);
    let floor = s.splat(EXP_MIN);
    s.select(s.lt(d, floor), s.zero(), exp_bounded(s, s.max(floor, d)))
}

/// Computes `dst = e^(src - p)`; returns the sum.
///
/// # Safety
/// Both are valid for `n` elements, equal or disjoint.
#[inline(always)]
pub(crate) unsafe fn exp_sum<S: Simd>(
    s: S,
    src: *const f32,
    dst: *mut f32,
    n: usize,
    p: f32,
) -> f32 {
    let shift = s.splat(p);
    let mut acc = [s.zero(); 2];
    let mut i = 0;
    // SAFETY: every access is below `n`.
    unsafe {
        while i + 2 * S::N <= n {
            let y = [
                shifted_exp(s, s.load(src.add(i)), shift),
                shifted_exp(s, s.load(src.add(i + S::N)), shift),
            ];
            s.store(dst.add(i), y[0]);
            s.store(dst.add(i + S::N), y[1]);
            acc = [s.add(acc[0], y[0]), s.add(acc[1], y[1])];
            i += 2 * S::N;
        }
        let mut rest = 0.0;
        while i < n {
            let left = (n - i).min(S::N);
            let mut buf = [0.0f32; 16];
            let x = if left == S::N {
                s.load(src.add(i))
            } else {
                s.load_part(src.add(i), left)
            };
            let y = shifted_exp(s, x, shift);
            s.store(buf.as_mut_ptr(), y);
            for (k, y) in buf[..left].iter().enumerate() {
                *dst.add(i + k) = *y;
                rest += y;
            }
            i += left;
        }
        s.sum(s.add(acc[0], acc[1])) + rest
    }
}

/// A row to normalize.
pub(crate) struct NormJob {
    pub src: *const f32,
    pub dst: *mut f32,
    pub n: usize,
    pub mean: f32,
    pub inv: f32,
    pub scale: *const f32,
    pub offset: *const f32,
}

/// Computes `dst = (src - mean) * inv * scale + offset`.
///
/// # Safety
/// All four are valid for `n` elements; `src` and `dst` are equal or disjoint.
#[inline(always)]
pub(crate) unsafe fn normalize<S: Simd>(s: S, j: &NormJob) {
    let (mean, inv) = (s.splat(j.mean), s.splat(j.inv));
    let mut i = 0;
    // SAFETY: every access is below `n`.
    unsafe {
        while i + S::N <= j.n {
            let (a, b) = (s.load(j.scale.add(i)), s.load(j.offset.add(i)));
            let x = s.mul(s.sub(s.load(j.src.add(i)), mean), inv);
            s.store(j.dst.add(i), s.fma(x, a, b));
            i += S::N;
        }
        if i < j.n {
            let left = j.n - i;
            let x = s.load_part(j.src.add(i), left);
            let (a, b) = (
                s.load_part(j.scale.add(i), left),
                s.load_part(j.offset.add(i), left),
            );
            s.store_part(j.dst.add(i), s.fma(s.mul(s.sub(x, mean), inv), a, b), left);
        }
    }
}

/// Computes `dst[c] = op(dst[c], src[0][c], src[1][c], …)`.
///
/// # Safety
/// `src` is valid for `rows` rows of `n` elements and stride `ld`, `dst` for `n`.
#[inline(always)]
pub(crate) unsafe fn reduce_columns<S: Simd, const OP: usize>(
    s: S,
    src: *const f32,
    rows: usize,
    ld: usize,
    dst: *mut f32,
    n: usize,
) {
    // SAFETY: every access is below row `rows` and column `n`.
    unsafe {
        let mut c = 0;
        while c + 4 * S::N <= n {
            let (p, d) = (src.add(c), dst.add(c));
            columns::<S, OP, 4>(s, p, rows, ld, d, |p| s.load(p), |p, x| s.store(p, x));
            c += 4 * S::N;
        }
        while c + S::N <= n {
            let (p, d) = (src.add(c), dst.add(c));
            columns::<S, OP, 1>(s, p, rows, ld, d, |p| s.load(p), |p, x| s.store(p, x));
            c += S::N;
        }
        if c < n {
            let left = n - c;
            let load = |p: *const f32| s.load_part(p, left);
            let store = |p: *mut f32, x: S::V| s.store_part(p, x, left);
            columns::<S, OP, 1>(s, src.add(c), rows, ld, dst.add(c), load, store);
        }
    }
}

/// # Safety
/// As for [`reduce_columns`], `load` and `store` touching only columns that exist.
#[inline(always)]
unsafe fn columns<S: Simd, const OP: usize, const U: usize>(
    s: S,
    src: *const f32,
    rows: usize,
    ld: usize,
    dst: *mut f32,
    load: impl Fn(*const f32) -> S::V,
    store: impl Fn(*mut f32, S::V),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc: [S::V; U] = array(|u| load(dst.add(u * S::N)));
        for r in 0..rows {
            let p = src.add(r * ld);
            for (u, acc) in acc.iter_mut().enumerate() {
                let x = load(p.add(u * S::N));
                *acc = join::<S, OP>(s, *acc, x, s.zero());
            }
        }
        for (u, x) in acc.into_iter().enumerate() {
            store(dst.add(u * S::N), x);
        }
    }
}

/// Returns the kernel of an operation and the result of an empty reduction.
fn code(op: ReduceOp) -> (usize, f32) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => (0, 0.0),
        ReduceOp::SumSquares => (1, 0.0),
        ReduceOp::Max => (2, f32::NEG_INFINITY),
        ReduceOp::Min => (3, f32::INFINITY),
    }
}

/// Returns the sum (kernel 0) or the sum of squared distances from `p` (kernel 1).
fn long_sum(table: &DispatchTable, kernel: usize, x: &[f32], p: f32) -> f64 {
    x.chunks(CHUNK)
        // SAFETY: a chunk is valid for its length, which is not zero; the table is this CPU's.
        .map(|c| f64::from(unsafe { table.reduce[kernel](c.as_ptr(), c.len(), p) }))
        .sum()
}

fn reduce_one(table: &DispatchTable, op: ReduceOp, x: &[f32]) -> f32 {
    let (kernel, empty) = code(op);
    match op {
        ReduceOp::Max | ReduceOp::Min if x.is_empty() => empty,
        // SAFETY: `x` is valid for its length, which is not zero; the table is this CPU's.
        ReduceOp::Max | ReduceOp::Min => unsafe { table.reduce[kernel](x.as_ptr(), x.len(), 0.0) },
        ReduceOp::Mean => (long_sum(table, kernel, x, 0.0) / x.len() as f64) as f32,
        _ => long_sum(table, kernel, x, 0.0) as f32,
    }
}

/// Computes `dst[r] = op(src[r][..])` for `dst.len()` rows of `cols` elements.
///
/// # Panics
/// If `src` is not `dst.len() * cols` long.
pub fn reduce_rows(par: &dyn Parallelism, op: ReduceOp, src: &[f32], cols: usize, dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len() * cols, "reduce_rows: sizes differ");
    let table = DispatchTable::current();
    let group = (MIN_TASK / cols.max(1)).max(1);
    par_chunks_mut(par, dst, group, 1, &|i, dst| {
        let src = &src[i * group * cols..][..dst.len() * cols];
        if cols == 0 || cols > CHUNK {
            for (r, d) in dst.iter_mut().enumerate() {
                *d = reduce_one(table, op, &src[r * cols..(r + 1) * cols]);
            }
            return;
        }
        let job = RowsJob {
            src: src.as_ptr(),
            cols,
            dst: dst.as_mut_ptr(),
            rows: dst.len(),
        };
        // SAFETY: `src` has `cols` elements for each of `dst`; the table is this CPU's.
        unsafe { table.reduce_each[code(op).0](&job) };
        if op == ReduceOp::Mean {
            let n = cols as f64;
            dst.iter_mut().for_each(|d| *d = (f64::from(*d) / n) as f32);
        }
    });
}

/// Computes `dst[o][c] = op(src[o][..][c])` for `[outer, middle, cols]`; column sums have
/// `outer = 1`.
///
/// # Panics
/// If a slice is too short.
pub fn reduce_middle(
    par: &dyn Parallelism,
    op: ReduceOp,
    [outer, middle, cols]: [usize; 3],
    src: &[f32],
    dst: &mut [f32],
) {
    assert!(
        src.len() >= outer * middle * cols,
        "reduce_middle: input too short"
    );
    assert!(dst.len() >= outer * cols, "reduce_middle: output too short");
    if outer * cols == 0 {
        return;
    }
    let (kernel, empty) = code(op);
    let table = DispatchTable::current();
    // Columns per task: a few cache lines at least, all if there are enough other tasks.
    let wanted = (outer * middle * cols / MIN_TASK).clamp(1, 4 * par.width());
    let splits = wanted.div_ceil(outer).min(cols.div_ceil(64));
    let width = cols.div_ceil(splits).next_multiple_of(16);
    let splits = cols.div_ceil(width);
    let base = SendPtr(dst.as_mut_ptr());
    parallel_for(par, outer * splits, 1, &|range| {
        for task in range {
            let (o, c0) = (task / splits, task % splits * width);
            let n = width.min(cols - c0);
            // SAFETY: columns `c0..c0 + n` of output row `o`, which only this task visits.
            let dst = unsafe { std::slice::from_raw_parts_mut(base.get().add(o * cols + c0), n) };
            dst.fill(empty);
            let mut part = [0.0f32; 256];
            for (i, dst) in dst.chunks_mut(part.len()).enumerate() {
                let src = &src[o * middle * cols + c0 + i * part.len()..];
                let part = &mut part[..dst.len()];
                for r0 in (0..middle).step_by(ROWS) {
                    let rows = ROWS.min(middle - r0);
                    part.fill(empty);
                    let (p, n) = (src[r0 * cols..].as_ptr(), part.len());
                    // SAFETY: `rows` rows of `cols` from there are in `src`, `part` holds `n`.
                    unsafe { table.reduce_columns[kernel](p, rows, cols, part.as_mut_ptr(), n) };
                    for (d, p) in dst.iter_mut().zip(&*part) {
                        *d = match op {
                            ReduceOp::Max => d.max(*p),
                            ReduceOp::Min => d.min(*p),
                            _ => *d + *p,
                        };
                    }
                }
            }
            if op == ReduceOp::Mean {
                dst.iter_mut().for_each(|d| *d /= middle as f32);
            }
        }
    });
}

/// Computes `dst[r] = e^(src[r] - max) / Σ` for rows of `cols` elements.
///
/// # Panics
/// If the lengths differ.
pub fn softmax(par: &dyn Parallelism, src: &[f32], cols: usize, dst: &mut [f32]) {
    each_row(par, src, cols, dst, &|table, src, dst| {
        softmax_row(table, src, dst);
    });
}

/// Computes one row of [`softmax`]; returns its `max` and `Σ`.
fn softmax_row(table: &DispatchTable, src: &[f32], dst: &mut [f32]) -> [f32; 2] {
    let [max, sum] = exponentials(table, src, dst);
    let op = super::math::UnaryOp::Affine(1.0 / sum, 0.0);
    super::math::unary_with(table, op, dst);
    [max, sum]
}

/// Computes `dst = e^(src - max)`; returns `max` and the sum of `dst`.
fn exponentials(table: &DispatchTable, src: &[f32], dst: &mut [f32]) -> [f32; 2] {
    assert_eq!(src.len(), dst.len());
    let max = reduce_one(table, ReduceOp::Max, src);
    // SAFETY: both are as long; the table is this CPU's.
    let sum = unsafe { (table.exp_sum)(src.as_ptr(), dst.as_mut_ptr(), dst.len(), max) };
    [max, sum]
}

/// Like [`softmax`], followed by `out[r] = f(r, [max, ln Σ e^(src[r] - max)], dst[r])`.
///
/// # Panics
/// If the lengths differ, or `out` does not have one element per row.
pub fn softmax_then(
    par: &dyn Parallelism,
    src: &[f32],
    cols: usize,
    dst: &mut [f32],
    out: &mut [f32],
    f: impl Fn(usize, [f32; 2], &mut [f32]) -> f32 + Sync,
) {
    assert!(src.len() == dst.len() && out.len() * cols == dst.len());
    let (table, to) = (DispatchTable::current(), SendPtr(dst.as_mut_ptr()));
    let rows_to_task = (MIN_TASK / cols.max(1)).max(1);
    par_chunks_mut(par, out, 1, rows_to_task, &|r, out| {
        let src = &src[r * cols..][..cols];
        // SAFETY: row `r` of `dst`, which is exclusively borrowed and as long as all rows; each is
        // visited once.
        let dst = unsafe { std::slice::from_raw_parts_mut(to.get().add(r * cols), cols) };
        let [max, sum] = softmax_row(table, src, dst);
        out.fill(f(r, [max, sum.ln()], dst));
    });
}

/// Computes `dst[r] = src[r] - max - ln Σ e^(src[r] - max)` for rows of `cols` elements.
///
/// # Panics
/// If the lengths differ.
pub fn log_softmax(par: &dyn Parallelism, src: &[f32], cols: usize, dst: &mut [f32]) {
    each_row(par, src, cols, dst, &|table, src, dst| {
        let [max, sum] = exponentials(table, src, dst);
        let log = sum.ln();
        for (d, x) in dst.iter_mut().zip(src) {
            *d = (x - max) - log;
        }
    });
}

/// Computes `dst[r] = (src[r] - mean) / √(variance + epsilon) · scale + offset` for rows as long as
/// `scale`.
///
/// # Panics
/// If the lengths do not fit.
pub fn layer_norm(
    par: &dyn Parallelism,
    src: &[f32],
    scale: &[f32],
    offset: &[f32],
    epsilon: f32,
    dst: &mut [f32],
) {
    assert_eq!(scale.len(), offset.len(), "layer_norm: lengths differ");
    let n = scale.len();
    let is_far = dst.len() >= FAR && NEAR.contains(&n);
    each_row(par, src, n, dst, &|table, src, dst| {
        let mean = (long_sum(table, 0, src, 0.0) / n as f64) as f32;
        // While the variance is computed of what the first-level cache has, memory is free.
        if is_far {
            prefetch(dst);
        }
        let variance = (long_sum(table, 1, src, mean) / n as f64) as f32;
        let job = NormJob {
            src: src.as_ptr(),
            dst: dst.as_mut_ptr(),
            n,
            mean,
            inv: 1.0 / (variance + epsilon).sqrt(),
            scale: scale.as_ptr(),
            offset: offset.as_ptr(),
        };
        // SAFETY: all four slices are `n` long; the table is this CPU's.
        unsafe { (table.normalize)(&job) };
    });
}

/// Computes mean and (population) variance of each row.
///
/// # Panics
/// If `src` is not `mean.len()` rows of `cols`, or `mean` and `variance` differ in length.
pub fn moments(
    par: &dyn Parallelism,
    src: &[f32],
    cols: usize,
    mean: &mut [f32],
    variance: &mut [f32],
) {
    assert_eq!(mean.len(), variance.len(), "moments: lengths differ");
    reduce_rows(par, ReduceOp::Mean, src, cols, mean);
    let table = DispatchTable::current();
    let mean = &*mean;
    par_chunks_mut(
        par,
        variance,
        1,
        (MIN_TASK / cols.max(1)).max(1),
        &|r, v| {
            let row = &src[r * cols..(r + 1) * cols];
            v[0] = (long_sum(table, 1, row, mean[r]) / cols as f64) as f32;
        },
    );
}

type RowFn<'a> = dyn Fn(&DispatchTable, &[f32], &mut [f32]) + Sync + 'a;

/// Runs `f` on each pair of rows.
fn each_row(par: &dyn Parallelism, src: &[f32], cols: usize, dst: &mut [f32], f: &RowFn) {
    assert_eq!(src.len(), dst.len(), "rows: lengths differ");
    if dst.is_empty() {
        return;
    }
    assert!(
        cols > 0 && src.len().is_multiple_of(cols),
        "rows of {cols} elements"
    );
    let table = DispatchTable::current();
    par_chunks_mut(par, dst, cols, (MIN_TASK / 4 / cols).max(1), &|r, dst| {
        f(table, &src[r * cols..(r + 1) * cols], dst);
    });
}

/// Elements of an output that is not in the second-level cache when it is written.
const FAR: usize = 1 << 20;
/// Elements of a row that the first-level cache holds with that of the input, and of which there are enough to wait for.
const NEAR: RangeInclusive<usize> = 1 << 7..=1 << 12;

/// Asks for the lines of a row that is about to be written.
#[inline]
fn prefetch(row: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in row.chunks(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction has no effect but on caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}
