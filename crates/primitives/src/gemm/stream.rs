//! Products of few rows with a matrix that is read once, row by row, as it is stored.
//!
//! The kernel of taller products would copy it first, for rows that do not come.

use super::GemmElement;
use crate::aligned::SendPtr;
use crate::vector::Lanes;
use ferroflow_sync::{Parallelism, parallel_for};

/// Rows of the matrix that are added at a time.
const TOGETHER: usize = 8;
/// Columns, so that the rows added at a time stay in the first-level cache for more than one row of the product.
const COLUMNS: usize = 512;
/// Most rows of the product for which this is faster.
const MAX_ROWS: usize = 4;
/// Multiply-adds that make a task worth dispatching to another thread.
const MIN_TASK: usize = 64 * 1024;

/// Rows, and some columns of a matrix and of their product.
pub(crate) struct StreamJob<T> {
    pub a: *const T,
    pub lda: usize,
    pub m: usize,
    pub k: usize,
    pub b: *const T,
    pub ldb: usize,
    pub n: usize,
    pub out: *mut T,
    pub ldc: usize,
}

/// Writes the product of a job.
///
/// # Safety
/// The pointers of `j` are valid for its sizes, and no other thread accesses these columns of `out` meanwhile.
#[inline(always)]
pub(crate) unsafe fn stream<L: Lanes>(l: L, j: &StreamJob<L::T>) {
    let whole = j.k / TOGETHER * TOGETHER;
    let width = if j.m == 1 { j.n.max(1) } else { COLUMNS };
    for first in (0..j.n).step_by(width) {
        let end = j.n.min(first + width);
        // SAFETY: the caller's promise.
        unsafe {
            for k in (0..whole).step_by(TOGETHER) {
                add_rows::<L, TOGETHER>(l, j, k, [first, end]);
            }
            for k in whole..j.k {
                add_rows::<L, 1>(l, j, k, [first, end]);
            }
        }
    }
}

/// Adds `R` rows of the matrix to each row of the product; the first ones begin it.
///
/// # Safety
/// As for [`stream`]; there are `R` rows at `k`, and columns `first..end`.
#[inline(always)]
unsafe fn add_rows<L: Lanes, const R: usize>(
    l: L,
    j: &StreamJob<L::T>,
    k: usize,
    [first, end]: [usize; 2],
) {
    for row in 0..j.m {
        // SAFETY: the caller's promise; a vector of columns is whole or `n` long.
        unsafe {
            let a = j.a.add(row * j.lda + k);
            let scales: [L::V; R] = crate::vector::array(|r| l.splat(*a.add(r)));
            let (b, out) = (j.b.add(k * j.ldb), j.out.add(row * j.ldc));
            let mut col = first;
            while col + L::N <= end {
                let to = out.add(col);
                let mut acc = if k == 0 { l.zero() } else { l.load(to) };
                let mut r = 0;
                while r < R {
                    acc = l.fma(scales[r], l.load(b.add(r * j.ldb + col)), acc);
                    r += 1;
                }
                l.store(to, acc);
                col += L::N;
            }
            if col < end {
                let (to, n) = (out.add(col), end - col);
                let mut acc = if k == 0 { l.zero() } else { l.load_part(to, n) };
                let mut r = 0;
                while r < R {
                    acc = l.fma(scales[r], l.load_part(b.add(r * j.ldb + col), n), acc);
                    r += 1;
                }
                l.store_part(to, acc, n);
            }
        }
    }
}

/// Returns whether [`multiply`] is faster for products of `m` rows with at least one term.
pub(super) fn suits(m: usize, k: usize) -> bool {
    (1..=MAX_ROWS).contains(&m) && k > 0
}

/// Computes `out = a · b`, with `[m, n, k]` rows, columns and terms. The caller has checked the sizes.
pub(super) fn multiply<T: GemmElement>(
    par: &dyn Parallelism,
    (a, lda): (&[T], usize),
    (b, ldb): (&[T], usize),
    (out, ldc): (&mut [T], usize),
    [m, n, k]: [usize; 3],
) {
    let out = SendPtr(out.as_mut_ptr());
    let line = 64 / size_of::<T>();
    let min = (MIN_TASK / (m * k) / line).max(1);
    parallel_for(par, n.div_ceil(line), min, &|lines| {
        let (first, end) = (lines.start * line, n.min(lines.end * line));
        let job = StreamJob {
            a: a.as_ptr(),
            lda,
            m,
            k,
            b: b[first..].as_ptr(),
            ldb,
            n: end - first,
            // SAFETY: a column of the product.
            out: unsafe { out.get().add(first) },
            ldc,
        };
        // SAFETY: the caller has checked the sizes, tasks have columns of their own, and the table is that of the CPU.
        unsafe { (T::table().stream)(&job) };
    });
}
