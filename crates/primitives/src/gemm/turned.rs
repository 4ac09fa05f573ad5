//! Products of a transposed matrix, and transposing.

use super::{Epilogue, GemmElement, GemmShape, check, gemm, stream};
use crate::aligned::{Scratch, SendPtr};
use crate::transpose::{STRIP, plane_strip};
use ferroflow_sync::{Parallelism, parallel_for};

/// Returns whether [`multiply`] moves less than transposing the left-hand matrix.
pub(super) fn suits<T>(s: &GemmShape, ep: &Epilogue<'_, T>) -> bool {
    s.trans_a && ep.is_none() && 2 * s.n * (s.k + s.m) <= s.m * s.k
}

/// Computes `aᵀ · op(b)` as `(op(b)ᵀ · a)ᵀ`, where `b` and the product are much smaller than `a`, which is read as it
/// is stored.
pub(super) fn multiply<T: GemmElement>(
    par: &dyn Parallelism,
    s: &GemmShape,
    a: &[T],
    b: &[T],
    out: &mut [T],
) {
    let (mut rows, mut product) = (Scratch::take(), Scratch::take());
    let (b, ld) = match s.trans_b || (s.n, s.ldb) == (1, 1) {
        true => (b, if s.trans_b { s.ldb } else { s.k }),
        false => {
            let rows = rows.alloc::<T>(s.n * s.k);
            turn(par, b, s.ldb, [s.k, s.n], rows, s.k);
            (&*rows, s.k)
        }
    };
    check(a.len(), s.k, s.m, s.lda, "left-hand matrix");
    check(b.len(), s.n, s.k, ld, "right-hand matrix");
    let product_of_rows = |to: &mut [T]| match stream::suits(s.n, s.k) {
        true => stream::multiply(par, (b, ld), (a, s.lda), (to, s.m), [s.n, s.m, s.k]),
        false => {
            let shape = GemmShape {
                lda: ld,
                ldb: s.lda,
                ..GemmShape::dense(s.n, s.m, s.k, false, false)
            };
            gemm(par, &shape, b, a, to, &Epilogue::none());
        }
    };
    if (s.n, s.ldc) == (1, 1) {
        return product_of_rows(&mut out[..s.m]);
    }
    let product = product.alloc::<T>(s.n * s.m);
    product_of_rows(product);
    turn(par, product, s.m, [s.n, s.m], out, s.ldc);
}

/// Rows that are transposed at a time: fewer than the second-level TLB has entries.
const TURNED_ROWS: usize = 512;

/// Transposes: `to[c][r] = from[r][c]`, both with a row stride.
pub(crate) fn turn<T: GemmElement>(
    par: &dyn Parallelism,
    from: &[T],
    ld: usize,
    [rows, cols]: [usize; 2],
    to: &mut [T],
    ld_to: usize,
) {
    check(from.len(), rows, cols, ld, "matrix");
    check(to.len(), cols, rows, ld_to, "transpose");
    let to = SendPtr(to.as_mut_ptr());
    let (strips, blocks) = (cols.div_ceil(STRIP), rows.div_ceil(TURNED_ROWS));
    // The output written at a time stays in the first-level cache.
    let per_task = (16 * 1024 / (STRIP * rows.min(TURNED_ROWS)).max(1)).max(1);
    parallel_for(par, blocks * strips, per_task, &|range| {
        for i in range {
            let (row, col) = (i / strips * TURNED_ROWS, i % strips * STRIP);
            let (rows, cols) = (TURNED_ROWS.min(rows - row), STRIP.min(cols - col));
            // SAFETY: just checked; blocks of strips do not overlap.
            unsafe {
                let (from, to) = (
                    from.as_ptr().add(row * ld + col),
                    to.get().add(col * ld_to + row),
                );
                plane_strip(from, ld, to, ld_to, cols, rows);
            }
        }
    });
}
