//! Products of a matrix with one column: a dot product for each row, as fast as the rows are read.
//!
//! The kernel of wider products would multiply whole vectors of columns, of which one is used.

use super::{Activation, Epilogue, GemmElement};
use crate::aligned::SendPtr;
use crate::vector::Lanes;
use ferroflow_sync::{Parallelism, parallel_for};

/// Rows that share what is loaded of the column.
const TOGETHER: usize = 4;
/// Elements of rows from which this is faster.
const MIN_K: usize = 32;
/// Multiply-adds that make a task worth dispatching to another thread.
const MIN_TASK: usize = 64 * 1024;

/// Neighboring rows and a column.
pub(crate) struct DotsJob<T> {
    pub a: *const T,
    pub lda: usize,
    pub rows: usize,
    pub k: usize,
    pub b: *const T,
    pub out: *mut T,
}

/// Writes the dot products of the rows of a job with its column.
///
/// # Safety
/// The pointers of `j` are valid for its sizes, and no other thread accesses `out` meanwhile.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes>(l: L, j: &DotsJob<L::T>) {
    let whole = j.rows / TOGETHER * TOGETHER;
    // SAFETY: the caller's promise.
    unsafe {
        for row in (0..whole).step_by(TOGETHER) {
            some_rows::<L, TOGETHER>(l, j, row);
        }
        for row in whole..j.rows {
            some_rows::<L, 1>(l, j, row);
        }
    }
}

/// # Safety
/// As for [`dots`]; there are `R` rows at `row`.
#[inline(always)]
unsafe fn some_rows<L: Lanes, const R: usize>(l: L, j: &DotsJob<L::T>, row: usize) {
    let mut acc = [[l.zero(); 2]; R];
    // SAFETY: the caller's promise; columns are below `k`.
    unsafe {
        let a = j.a.add(row * j.lda);
        let mut k = 0;
        while k + 2 * L::N <= j.k {
            let b = [l.load(j.b.add(k)), l.load(j.b.add(k + L::N))];
            let mut r = 0;
            while r < R {
                let a = a.add(r * j.lda + k);
                acc[r][0] = l.fma(l.load(a), b[0], acc[r][0]);
                acc[r][1] = l.fma(l.load(a.add(L::N)), b[1], acc[r][1]);
                r += 1;
            }
            k += 2 * L::N;
        }
        while k < j.k {
            let n = (j.k - k).min(L::N);
            let part = |p: *const L::T| match n == L::N {
                true => l.load(p),
                false => l.load_part(p, n),
            };
            let b = part(j.b.add(k));
            let mut r = 0;
            while r < R {
                acc[r][0] = l.fma(part(a.add(r * j.lda + k)), b, acc[r][0]);
                r += 1;
            }
            k += n;
        }
        let mut r = 0;
        while r < R {
            *j.out.add(row + r) = l.sum(l.add(acc[r][0], acc[r][1]));
            r += 1;
        }
    }
}

/// Returns whether [`multiply`] computes a product with `n` columns and `k` terms whose rows have the
/// stride `ldc`.
pub(super) fn suits<T>(n: usize, k: usize, ldc: usize, ep: &Epilogue<'_, T>) -> bool {
    n == 1 && ldc == 1 && k >= MIN_K && ep.side.is_none()
}

/// Computes `out = epilogue(a · b)` for a column `b`. The caller has checked the sizes.
pub(super) fn multiply<T: GemmElement>(
    par: &dyn Parallelism,
    (a, lda): (&[T], usize),
    b: &[T],
    out: &mut [T],
    ep: &Epilogue<'_, T>,
) {
    let k = b.len();
    let base = SendPtr(out.as_mut_ptr());
    parallel_for(par, out.len(), (MIN_TASK / k).max(TOGETHER), &|rows| {
        // SAFETY: tasks have rows of their own.
        let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(rows.start), rows.len()) };
        let a = &a[rows.start * lda..];
        assert!(
            a.len() >= (rows.len() - 1) * lda + k,
            "rows of {k} elements"
        );
        let job = DotsJob {
            a: a.as_ptr(),
            lda,
            rows: rows.len(),
            k,
            b: b.as_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: the rows were checked; the table is that of the CPU.
        unsafe { (T::table().dots)(&job) };
        let first = |values: Option<&[T]>| values.map(|v| v[0]);
        if ep.scale.is_some() || ep.bias.is_some() {
            let scale = first(ep.scale).unwrap_or(T::from_f32(1.0));
            T::affine(out, scale, first(ep.bias).unwrap_or(T::ZERO));
        }
        if ep.act != Activation::None {
            T::apply(ep.act.as_unary(), out);
        }
    });
}
