//! Products of groups of columns whose left rows are neighboring parts of the same rows.

use super::drive::{BLOCK_K, MIN_TASK, RowSource, Tiles, sweep_tiles};
use super::kernel::{Ahead, Sweep};
use super::{Epilogue, GemmElement, PackedB};
use crate::aligned::{Scratch, SendPtr};
use ferroflow_sync::Parallelism;
use std::ops::Range;

/// Elements of the rows of a task, to stay in the second-level cache.
const BLOCK: usize = 64 * 1024;

/// A product for each group: group `g` reads elements `g * run..(g + 1) * run` behind each pointer of a row and writes
/// the columns after those of the groups before.
pub(crate) struct GroupedProduct<'a, T: GemmElement> {
    /// The right sides, all of one size.
    pub groups: &'a [PackedB<T>],
    /// The left rows; a pointer has `groups.len() * run` elements behind it.
    pub source: &'a dyn RowSource<T>,
    pub run: usize,
    /// How many times as much as the elements behind one pointer each further row reads.
    pub step: usize,
    pub out: SendPtr<T>,
    pub epilogue: &'a Epilogue<'a, T>,
}

impl<T: GemmElement> GroupedProduct<'_, T> {
    /// Returns whether [`GroupedProduct::drive`] computes products of this length.
    pub(crate) fn fits(k: usize) -> bool {
        k <= BLOCK_K + BLOCK_K / 2
    }

    fn columns(&self) -> usize {
        self.groups.iter().map(PackedB::n).sum()
    }

    /// Computes `m` rows. The pointers of a row are made once for all groups.
    ///
    /// # Safety
    /// The rows stay readable, `out` is writable for `m` rows and no other thread accesses it; the epilogue's
    /// matrices are as large.
    pub(crate) unsafe fn drive(&self, par: &dyn Parallelism, m: usize) {
        let Some(first) = self.groups.first() else {
            return;
        };
        let max_mr = first.table().kernels.len();
        let elements = self.groups.len() * self.run * self.step;
        let fit = (BLOCK / elements.max(1))
            .max(2 * max_mr)
            .next_multiple_of(max_mr);
        let mut tasks = m.div_ceil(fit);
        if par.width() > 1 {
            let most = (m * self.columns() * first.k() / MIN_TASK).clamp(1, par.width() * 4);
            tasks = tasks.max(most.min(m.div_ceil(max_mr)));
            if tasks > 1 {
                tasks = tasks.next_multiple_of(par.width()).min(m);
            }
        }
        par.run_blocks(tasks, &|i| {
            let rows = m * i / tasks..m * (i + 1) / tasks;
            // SAFETY: tasks own disjoint rows; the rest is the caller's promise.
            unsafe { self.run_task(rows) };
        });
    }

    /// # Safety
    /// As for [`GroupedProduct::drive`], for these rows.
    unsafe fn run_task(&self, rows: Range<usize>) {
        let table = self.groups[0].table();
        let (lanes, nr, ldc) = (table.lanes, 2 * table.lanes, self.columns());
        let n_offsets = self.source.n_offsets();
        let tiles = Tiles::of(rows.len(), table.kernels.len());
        let (mut pointers, mut spare) = (Scratch::take(), Scratch::take());
        let pointers = pointers.alloc::<SendPtr<T>>(rows.len() * n_offsets);
        self.source.fill(rows.clone(), tiles, pointers, &mut spare);
        let ep = self.epilogue;
        let limits = ep.act.limits();
        let limits = limits.map(|(lo, hi)| (T::from_f32(lo), T::from_f32(hi)));
        let mut first_col = 0;
        for (g, b) in self.groups.iter().enumerate() {
            for panel in 0..b.panels() {
                let width = nr.min(b.n() - panel * nr);
                let col = first_col + panel * nr;
                let part =
                    |values: Option<&[T]>| values.map_or(std::ptr::null(), |v| v[col..].as_ptr());
                let side = ep
                    .side
                    .map(|(s, ld)| (s[rows.start * ld + col..].as_ptr(), ld));
                let mut sweep = Sweep {
                    rows: std::ptr::null(),
                    tiles: 0,
                    tile_stride: 0,
                    n_offsets,
                    off: g * self.run,
                    len: self.run,
                    b: b.panel(panel).as_ptr(),
                    next: Ahead::nothing(),
                    c: self.out.get().wrapping_add(rows.start * ldc + col),
                    ldc,
                    n: width,
                    accumulate: false,
                    last: true,
                    scale: part(ep.scale),
                    bias: part(ep.bias),
                    side: side.map_or(std::ptr::null(), |s| s.0),
                    ld_side: side.map_or(0, |s| s.1),
                    limits,
                };
                let vectors = usize::from(width > lanes);
                // SAFETY: a pointer for each offset of each row, with the group's elements behind it; the panel has
                // a row for each of them; `c` and the epilogue cover these rows and columns.
                unsafe {
                    sweep_tiles(table, tiles, pointers, [n_offsets, 0], vectors, &mut sweep);
                }
            }
            first_col += b.n();
        }
        if let Some(op) = ep.act.function() {
            let (from, n) = (rows.start * ldc, rows.len() * ldc);
            // SAFETY: the rows of this task.
            let done = unsafe { std::slice::from_raw_parts_mut(self.out.get().add(from), n) };
            T::apply(op, done);
        }
    }
}
