//! Columns of matrices as rows of a buffer: for what works along an axis that is not the last one.

use super::aligned::SendPtr;
use super::transpose::plane_strip;
use ferroflow_sync::{Parallelism, parallel_for};

/// Columns that are copied at a time: two cache lines of complex numbers.
const COLUMNS: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Least elements per task.
const MIN_TASK: usize = 16 * 1024;

/// Replaces the columns of matrices with `rows` rows and `columns` columns, which follow each other in
/// `data`: copies several of them to a buffer, one behind the other, calls `f` with it, and copies them back.
///
/// ```
/// use ferroflow_primitives::columns::each_columns;
/// let mut data = [1, 2, 3, 4, 5, 6];
/// each_columns(&ferroflow_sync::Inline, 3, 2, &mut data, &|columns| {
///     columns.chunks_mut(3).for_each(<[i32]>::reverse);
/// });
/// assert_eq!(data, [5, 6, 3, 4, 1, 2]);
/// ```
///
/// # Panics
/// If the data are not whole matrices.
pub fn each_columns<T: Copy + Send + Sync>(
    par: &dyn Parallelism,
    rows: usize,
    columns: usize,
    data: &mut [T],
    f: &(dyn Fn(&mut [T]) + Sync),
) {
    let size = rows * columns;
    let Some(&any) = data.first().filter(|_| size > 0) else {
        return;
    };
    assert!(
        data.len().is_multiple_of(size),
        "columns: {} elements for matrices of {rows} × {columns}",
        data.len(),
    );
    let n_matrices = data.len() / size;
    let (width, blocks) = (COLUMNS.min(columns), columns.div_ceil(COLUMNS));
    let data = SendPtr(data.as_mut_ptr());
    let per_task = (MIN_TASK / (rows * width)).max(1);
    parallel_for(par, n_matrices * blocks, per_task, &|range| {
        let mut buffer = vec![any; rows * width + LINE];
        // Whole cache lines are written.
        let aligned = buffer.as_ptr().align_offset(LINE).min(LINE);
        let buffer = &mut buffer[aligned..];
        for i in range {
            let (matrix, first) = (i / blocks, i % blocks * COLUMNS);
            let n = width.min(columns - first);
            let buffer = &mut buffer[..n * rows];
            let at = data.get().wrapping_add(matrix * size + first);
            // SAFETY: `n` columns of one matrix, which no other block has; the buffer holds them.
            unsafe { plane_strip(at, columns, buffer.as_mut_ptr(), rows, n, rows) };
            f(buffer);
            // SAFETY: as above.
            unsafe { plane_strip(buffer.as_ptr(), rows, at, columns, rows, n) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::TwoThreads;
    use ferroflow_sync::Inline;

    fn compare(n_matrices: usize, rows: usize, columns: usize) {
        let data: Vec<u64> = (0..n_matrices * rows * columns)
            .map(|i| i as u64 * 7)
            .collect();
        let mut wanted = data.clone();
        for matrix in wanted.chunks_mut((rows * columns).max(1)) {
            for c in 0..columns {
                // Running sums downwards.
                for r in 1..rows {
                    matrix[r * columns + c] += matrix[(r - 1) * columns + c];
                }
            }
        }
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            let mut got = data.clone();
            each_columns(par, rows, columns, &mut got, &|all| {
                for column in all.chunks_mut(rows) {
                    (1..rows).for_each(|r| column[r] += column[r - 1]);
                }
            });
            assert_eq!(got, wanted, "{n_matrices} of {rows} × {columns}");
        }
    }

    #[test]
    fn all_shapes() {
        for (rows, columns) in [
            (1, 1),
            (3, 1),
            (1, 40),
            (5, 16),
            (16, 5),
            (31, 31),
            (200, 33),
            (0, 3),
            (3, 0),
        ] {
            compare(1, rows, columns);
            compare(3, rows, columns);
        }
    }
}
