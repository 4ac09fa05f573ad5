//! The right-hand matrix in the layout that the kernels read.

use super::kernel::{Ahead, PackJob};
use super::{GemmElement, GemmShape};
use crate::aligned::{Aligned, Scratch, SendPtr};
use crate::bf16::Bf16Weights;
use crate::table::GemmTable;
use crate::transpose::plane_strip;
use bytes::Bytes;
use ferroflow_sync::{Parallelism, parallel_for};
use std::ops::Range;

/// A constant right-hand matrix `[k, n]`, packed once.
///
/// The columns are stored in panels two vectors wide, each panel row after row, the last one padded
/// with zeros, so that a kernel reads one panel sequentially.
pub struct PackedB<T: GemmElement = f32> {
    data: Aligned,
    k: usize,
    n: usize,
    table: &'static GemmTable<T>,
    /// Instead of `data`, numbers of half the size; only products of floats have them.
    bf16: Option<Bf16Weights>,
    marker: std::marker::PhantomData<T>,
}

impl<T: GemmElement> Clone for PackedB<T> {
    fn clone(&self) -> Self {
        PackedB {
            data: self.data.clone(),
            bf16: self.bf16.clone(),
            ..*self
        }
    }
}

impl<T: GemmElement> std::fmt::Debug for PackedB<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedB[{}, {}]", self.k, self.n)
    }
}

impl<T: GemmElement> PackedB<T> {
    /// Packs `b[k][n]` with row stride `ldb`.
    ///
    /// # Panics
    /// If `b` is too short.
    pub fn from_rows(par: &dyn Parallelism, b: &[T], ldb: usize, k: usize, n: usize) -> Self {
        let mut p = Self::empty(Aligned::fresh());
        p.pack(par, b, ldb, false, k, n);
        p
    }

    /// Packs the transpose of `b[n][k]` with row stride `ldb`.
    ///
    /// # Panics
    /// If `b` is too short.
    pub fn from_transposed(par: &dyn Parallelism, b: &[T], ldb: usize, k: usize, n: usize) -> Self {
        let mut p = Self::empty(Aligned::fresh());
        p.pack(par, b, ldb, true, k, n);
        p
    }

    /// Packs `count` matrices of one size, `per_task` rows of all of them at a time: `fill` sets those rows of the first
    /// matrix, then of the next one.
    pub(crate) fn from_row_blocks(
        par: &dyn Parallelism,
        [count, k, n]: [usize; 3],
        per_task: usize,
        fill: &(dyn Fn(Range<usize>, &mut [T]) + Sync),
    ) -> Vec<Self> {
        let mut made: Vec<Self> = (0..count).map(|_| Self::empty(Aligned::fresh())).collect();
        let pointers: Vec<SendPtr<T>> = made
            .iter_mut()
            .map(|p| {
                p.shape(k, n);
                SendPtr(p.alloc().as_mut_ptr())
            })
            .collect();
        if n == 0 {
            return made;
        }
        let table = T::table();
        let nr = 2 * table.lanes;
        parallel_for(par, k.div_ceil(per_task), 1, &|range| {
            let mut block = vec![T::ZERO; count * per_task.min(k) * n];
            for first in range.map(|i| i * per_task) {
                let rows = per_task.min(k - first);
                let block = &mut block[..count * rows * n];
                fill(first..first + rows, block);
                for (to, rows_of) in pointers.iter().zip(block.chunks_exact(rows * n)) {
                    for (panel, col) in (0..n).step_by(nr).enumerate() {
                        // SAFETY: rows of a panel of a buffer just made, visited by one task only.
                        let dst = unsafe {
                            let at = (panel * k + first) * nr;
                            std::slice::from_raw_parts_mut(to.get().add(at), rows * nr)
                        };
                        pack_block(table, &rows_of[col..], n, n - col, rows, dst);
                    }
                }
            }
        });
        made
    }

    /// Packs the matrix whose element in row `k` and column `n` is `f(k, n)`.
    pub fn from_fn(k: usize, n: usize, f: impl Fn(usize, usize) -> T) -> Self {
        let mut p = Self::empty(Aligned::fresh());
        let nr = p.shape(k, n);
        let dst = p.data.alloc::<T>(k * n.next_multiple_of(nr));
        for (i, x) in dst.iter_mut().enumerate() {
            let (panel, r) = (i / (nr * k), i % (nr * k));
            let col = panel * nr + r % nr;
            *x = if col < n { f(r / nr, col) } else { T::ZERO };
        }
        p
    }

    /// Returns the matrix whose [`PackedB::packed`] is `bytes`; `None` if there are more or fewer
    /// of them.
    pub fn from_packed(k: usize, n: usize, bytes: Bytes) -> Option<Self> {
        let mut p = Self::empty(Aligned::default());
        let nr = p.shape(k, n);
        let size = n.checked_next_multiple_of(nr)?.checked_mul(k)?;
        if size.checked_mul(size_of::<T>())? != bytes.len() {
            return None;
        }
        p.data = Aligned::shared(bytes);
        Some(p)
    }

    /// Returns the matrix of numbers that [`gemm_packed`](super::gemm_packed) multiplies in `bfloat16`.
    pub(crate) fn of_bf16(weights: Bf16Weights) -> Self {
        let mut p = Self::empty(Aligned::default());
        p.shape(weights.k(), weights.n());
        p.bf16 = Some(weights);
        p
    }

    /// Returns the numbers of half the size, if the matrix has those.
    pub fn bf16(&self) -> Option<&Bf16Weights> {
        self.bf16.as_ref()
    }

    /// Returns all elements in the kernels' layout, which depends on [`Isa`](crate::Isa).
    pub fn packed(&self) -> &[T] {
        let len = self.panels() * 2 * self.table.lanes * self.k;
        self.data.get::<T>().get(..len).unwrap_or_default()
    }

    /// Returns an empty matrix over the memory `data`.
    fn empty(data: Aligned) -> Self {
        PackedB {
            data,
            k: 0,
            n: 0,
            table: T::table(),
            bf16: None,
            marker: std::marker::PhantomData,
        }
    }

    /// Sets the size; returns the panel width.
    fn shape(&mut self, k: usize, n: usize) -> usize {
        (self.k, self.n) = (k, n);
        2 * self.table.lanes
    }

    /// Packs into the memory of a scratch buffer, runs `f` and returns the memory.
    pub(crate) fn with_scratch<R>(
        par: &dyn Parallelism,
        (b, ldb, transposed): (&[T], usize, bool),
        k: usize,
        n: usize,
        f: impl FnOnce(&Self) -> R,
    ) -> R {
        Self::in_scratch(k, n, |p| {
            p.pack(par, b, ldb, transposed, k, n);
            f(p)
        })
    }

    /// Runs `f` on a matrix whose elements, in a scratch buffer, are unspecified.
    pub(crate) fn in_scratch<R>(k: usize, n: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        Self::in_scratch_for(T::table(), k, n, f)
    }

    /// Runs `f` on a matrix whose elements, in a scratch buffer, are unspecified and whose panels
    /// are as wide as those of this one.
    pub(crate) fn in_scratch_alike<R>(
        &self,
        k: usize,
        n: usize,
        f: impl FnOnce(&mut Self) -> R,
    ) -> R {
        Self::in_scratch_for(self.table, k, n, f)
    }

    fn in_scratch_for<R>(
        table: &'static GemmTable<T>,
        k: usize,
        n: usize,
        f: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let mut scratch = Scratch::take();
        let mut p = Self::empty(std::mem::take(scratch.inner()));
        p.table = table;
        p.shape(k, n);
        p.alloc();
        let r = f(&mut p);
        *scratch.inner() = p.data;
        r
    }

    /// Returns all elements for writing, in the kernels' layout.
    pub(crate) fn alloc(&mut self) -> &mut [T] {
        self.data
            .alloc(self.panels() * 2 * self.table.lanes * self.k)
    }

    fn pack(
        &mut self,
        par: &dyn Parallelism,
        b: &[T],
        ldb: usize,
        transposed: bool,
        k: usize,
        n: usize,
    ) {
        let nr = self.shape(k, n);
        let (rows, cols) = if transposed { (n, k) } else { (k, n) };
        super::check(b.len(), rows, cols, ldb, "right-hand matrix");
        if k == 0 || n == 0 {
            return;
        }
        let panels = n.div_ceil(nr);
        let dst = SendPtr(self.data.alloc::<T>(panels * nr * k).as_mut_ptr());
        if transposed {
            let per_task = (16 * 1024 / (nr * k)).max(1);
            return parallel_for(par, panels, per_task, &|range| {
                for panel in range {
                    // SAFETY: panel `panel` of the buffer just made, visited by one task only.
                    let dst = unsafe {
                        std::slice::from_raw_parts_mut(dst.get().add(panel * nr * k), nr * k)
                    };
                    let col = panel * nr;
                    pack_transposed(&b[col * ldb..], ldb, nr.min(n - col), nr, k, dst);
                }
            });
        }
        // A row of all panels at a time, so that reads are contiguous; for many panels several
        // rows, so that writes are contiguous, too.
        let rows = match panels {
            1 => k.min(ROWS_OF_ONE),
            2..=MANY_PANELS => 1,
            _ => ROWS,
        };
        let per_task = (16 * 1024 / (n * rows)).max(1);
        let table = self.table;
        parallel_for(par, k.div_ceil(rows), per_task, &|range| {
            for block in range {
                let (first, rows) = (block * rows, rows.min(k - block * rows));
                for panel in 0..panels {
                    // SAFETY: rows of a panel of the buffer just made, visited once.
                    let dst = unsafe {
                        let at = (panel * k + first) * nr;
                        std::slice::from_raw_parts_mut(dst.get().add(at), rows * nr)
                    };
                    let col = panel * nr;
                    pack_block(table, &b[first * ldb + col..], ldb, n - col, rows, dst);
                }
            }
        });
    }

    /// Returns the number of rows (the length of the reduction).
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.bf16.as_ref().map_or(0, Bf16Weights::bytes)
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(2 * self.table.lanes)
    }

    pub(crate) fn table(&self) -> &'static GemmTable<T> {
        self.table
    }

    /// Returns all rows of a panel.
    pub(crate) fn panel(&self, i: usize) -> &[T] {
        let len = 2 * self.table.lanes * self.k;
        &self.data.get::<T>()[i * len..(i + 1) * len]
    }
}

/// A right-hand matrix as stored, of which a task packs one panel after the other.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a, T: GemmElement> {
    b: &'a [T],
    /// Row stride as stored.
    ld: usize,
    /// Whether it is stored `[n][k]` rather than `[k][n]`.
    transposed: bool,
    k: usize,
    n: usize,
    table: &'static GemmTable<T>,
}

impl<'a, T: GemmElement> Stored<'a, T> {
    /// Returns the right side of a product.
    ///
    /// # Panics
    /// If `b` is too short.
    pub(crate) fn new(s: &GemmShape, b: &'a [T]) -> Self {
        let (rows, cols) = if s.trans_b { (s.n, s.k) } else { (s.k, s.n) };
        super::check(b.len(), rows, cols, s.ldb, "right-hand matrix");
        Stored {
            b,
            ld: s.ldb,
            transposed: s.trans_b,
            k: s.k,
            n: s.n,
            table: T::table(),
        }
    }

    /// Returns the number of rows and columns.
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.k, self.n]
    }

    pub(crate) fn table(&self) -> &'static GemmTable<T> {
        self.table
    }

    /// Writes rows of a panel to `dst`, in the layout of [`PackedB`].
    pub(crate) fn pack(&self, rows: Range<usize>, panel: usize, dst: &mut [T]) {
        let nr = 2 * self.table.lanes;
        let col = panel * nr;
        if rows.is_empty() {
            return;
        }
        if self.transposed {
            let from = &self.b[col * self.ld + rows.start..];
            let width = nr.min(self.n - col);
            return pack_transposed(from, self.ld, width, nr, rows.len(), dst);
        }
        pack_block(
            self.table,
            &self.b[rows.start * self.ld + col..],
            self.ld,
            self.n - col,
            rows.len(),
            dst,
        );
    }

    /// Returns the rows of a panel, to be prefetched; those of a transposed matrix are in runs that
    /// the hardware prefetcher follows.
    pub(crate) fn ahead(&self, rows: Range<usize>, panel: usize) -> Ahead<T> {
        let first = self.b.as_ptr();
        let nr = 2 * self.table.lanes;
        let col = panel * nr;
        if self.transposed || col >= self.n {
            return Ahead::nothing();
        }
        Ahead {
            first: first.wrapping_add(rows.start * self.ld + col),
            lines: (nr * size_of::<T>() / 64).max(1),
            share: (rows.len() / 4) * self.ld,
            pace: self.ld,
        }
    }
}

/// Rows packed together, if there are many panels.
const ROWS: usize = 8;
const MANY_PANELS: usize = 32;
/// Rows packed together, if there is one panel.
const ROWS_OF_ONE: usize = 128;

/// Copies rows to a panel; `src` begins at its first column, after which there are `columns` in all.
fn pack_block<T: GemmElement>(
    table: &GemmTable<T>,
    src: &[T],
    ld: usize,
    columns: usize,
    rows: usize,
    dst: &mut [T],
) {
    let nr = 2 * table.lanes;
    let width = columns.min(nr);
    super::check(src.len(), rows, width, ld, "right-hand matrix");
    assert!(dst.len() >= rows * nr, "panel: too short");
    let job = PackJob {
        from: src.as_ptr(),
        ld,
        rows,
        width,
        to: dst.as_mut_ptr(),
    };
    // SAFETY: just checked.
    unsafe { (table.pack)(&job) };
}

/// Computes `dst[row][c] = src[c][row]` for `width` columns, the others zero.
fn pack_transposed<T: GemmElement>(
    src: &[T],
    ld: usize,
    width: usize,
    nr: usize,
    k: usize,
    dst: &mut [T],
) {
    if width < nr {
        dst.fill(T::ZERO);
    }
    super::check(src.len(), width, k, ld, "right-hand matrix");
    // Blocks of rows, so that both sides stay in the first-level cache.
    for (block, dst) in dst.chunks_mut(64 * nr).enumerate() {
        let (from, rows) = (block * 64, dst.len() / nr);
        // SAFETY: just checked; `dst` has this many rows of `nr >= width`.
        unsafe {
            plane_strip(
                src.as_ptr().add(from),
                ld,
                dst.as_mut_ptr(),
                nr,
                rows,
                width,
            )
        };
    }
}
