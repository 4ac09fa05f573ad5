//! Splits a product into tasks and blocks and runs the kernels on them.

use super::kernel::{Ahead, Sweep};
use super::pack::Stored;
use super::{Epilogue, GemmElement, PackedB};
use crate::aligned::{Scratch, SendPtr};
use crate::math::UnaryOp;
use crate::table::GemmTable;
use ferroflow_sync::Parallelism;
use std::ops::Range;

/// The left rows of a product, by pointers.
pub(crate) trait RowSource<T>: Sync {
    /// Pointers to a row, each with `run` elements behind it.
    fn n_offsets(&self) -> usize;
    /// Elements behind each pointer.
    fn run(&self) -> usize;
    /// Writes the pointers of the rows `rows` tile after tile, `[offset][row of the tile]`.
    ///
    /// `spare` is memory for rows that have to be copied; it must not grow more than once per call.
    fn fill(&self, rows: Range<usize>, tiles: Tiles, out: &mut [SendPtr<T>], spare: &mut Scratch);
}

/// Consecutive rows as tiles: first `big` tiles of `mr` rows, then `small` ones of `mr - 1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub mr: usize,
    pub big: usize,
    pub small: usize,
}

impl Tiles {
    /// As few tiles as possible, all of nearly the same height.
    pub(crate) fn of(rows: usize, max: usize) -> Tiles {
        let n = rows.div_ceil(max).max(1);
        let mr = rows.div_ceil(n);
        let small = n * mr - rows;
        Tiles {
            mr,
            big: n - small,
            small,
        }
    }

    /// Calls `f(first row, rows)` for each tile in order.
    pub(crate) fn each(self, mut f: impl FnMut(usize, usize)) {
        let mut row = 0;
        for i in 0..self.big + self.small {
            let mr = if i < self.big { self.mr } else { self.mr - 1 };
            f(row, mr);
            row += mr;
        }
    }
}

/// A block of the reduction: offsets `offset..offset + offsets`, elements `off..off + len` of each.
#[derive(Clone, Copy)]
struct Block {
    offset: usize,
    n_offsets: usize,
    off: usize,
    len: usize,
    /// Its first row in the panel.
    k: usize,
}

/// Reduction steps per block, so that these rows of a panel stay in the first-level cache.
pub(crate) const BLOCK_K: usize = 384;
/// Elements of the left side per task, to stay in the second-level cache.
const BLOCK_A: usize = 32 * 1024;
/// Elements of a right side that does not fit a second-level cache.
const LARGE_B: usize = 256 * 1024;
/// Multiply-adds that make a task worth dispatching to another thread.
pub(crate) const MIN_TASK: usize = 64 * 1024;
/// Rows per task that packs the right side itself: packing costs little compared with their
/// products.
const STORED_ROWS: usize = 1024;
/// Columns after which an activation function is applied to the stored result.
const ACT_COLUMNS: usize = 128;

/// Returns the `i`-th block of the reduction.
fn block(i: usize, blocks: usize, n_offsets: usize, run: usize) -> Block {
    if blocks <= n_offsets {
        let (t0, t1) = (n_offsets * i / blocks, n_offsets * (i + 1) / blocks);
        Block {
            offset: t0,
            n_offsets: t1 - t0,
            off: 0,
            len: run,
            k: t0 * run,
        }
    } else {
        let pieces = blocks / n_offsets;
        let (offset, p) = (i / pieces, i % pieces);
        let (a, b) = (run * p / pieces, run * (p + 1) / pieces);
        Block {
            offset,
            n_offsets: 1,
            off: a,
            len: b - a,
            k: offset * run + a,
        }
    }
}

/// Returns the number of blocks; more than `n_offsets` only as a multiple of it.
fn count_blocks(n_offsets: usize, run: usize, rows: usize, mr: usize) -> usize {
    let k = n_offsets * run;
    if rows <= 2 * mr || k <= BLOCK_K + BLOCK_K / 2 {
        return 1;
    }
    if run <= BLOCK_K + BLOCK_K / 2 {
        k.div_ceil(BLOCK_K).clamp(1, n_offsets)
    } else {
        n_offsets * run.div_ceil(BLOCK_K)
    }
}

/// The destination of a product.
#[derive(Clone, Copy)]
pub(crate) enum Out<'a, T> {
    /// A matrix and its row stride.
    Matrix(SendPtr<T>, usize),
    /// A sink that takes it tile by tile; the reduction must fit one block.
    Tiles(&'a dyn TileSink<T>),
}

/// Takes the tiles of a product as they are computed.
pub(crate) trait TileSink<T>: Sync {
    /// The tile at this row and column, of this size, comes next.
    fn bring(&self, row: usize, col: usize, size: [usize; 2]);

    /// A tile with its row stride.
    ///
    /// # Safety
    /// `tile` is readable for its size, and each element of the product comes once.
    unsafe fn take(&self, row: usize, col: usize, size: [usize; 2], tile: *const T, ld: usize);
}

/// Neighboring columns of a packed matrix.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a, T: GemmElement> {
    pub b: &'a PackedB<T>,
    /// The first panel.
    pub first: usize,
    /// Number of columns.
    pub n: usize,
}

impl<'a, T: GemmElement> From<&'a PackedB<T>> for Right<'a, T> {
    fn from(b: &'a PackedB<T>) -> Self {
        Right {
            b,
            first: 0,
            n: b.n(),
        }
    }
}

impl<T: GemmElement> Right<'_, T> {
    fn panels(&self) -> usize {
        self.n.div_ceil(2 * self.b.table().lanes)
    }

    fn panel(&self, i: usize) -> &[T] {
        self.b.panel(self.first + i)
    }

    /// Returns a block of panel `i`, to be prefetched.
    fn ahead(&self, i: usize, block: Block) -> Ahead<T> {
        let line = 64 / size_of::<T>();
        Ahead {
            first: self.panel(i)[block.k * 2 * self.b.table().lanes..].as_ptr(),
            lines: 1,
            share: block.n_offsets * (block.len / 4) * line,
            pace: line,
        }
    }
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Columns<'a, T: GemmElement> {
    Packed(Right<'a, T>),
    /// Packed, but divided into blocks and tasks as if it were stored, so that sums have the same bits.
    Kept(Right<'a, T>),
    /// Each task packs the panels that it uses.
    Stored(Stored<'a, T>),
}

impl<'a, T: GemmElement> From<&'a PackedB<T>> for Columns<'a, T> {
    fn from(b: &'a PackedB<T>) -> Self {
        Columns::Packed(b.into())
    }
}

impl<T: GemmElement> Columns<'_, T> {
    /// Returns the number of rows and columns.
    pub(crate) fn size(&self) -> [usize; 2] {
        match self {
            Columns::Packed(b) | Columns::Kept(b) => [b.b.k(), b.n],
            Columns::Stored(b) => b.size(),
        }
    }

    fn table(&self) -> &'static GemmTable<T> {
        match self {
            Columns::Packed(b) | Columns::Kept(b) => b.b.table(),
            Columns::Stored(b) => b.table(),
        }
    }
}

/// Computes `out[m][n] = epilogue(rows · b)`, or adds it to `out`.
///
/// # Safety
/// The rows of `source` stay readable, `out` is writable for `m` rows with `b.n` columns (and
/// initialized, to be added to) and no other thread accesses it, and the epilogue's matrices are as
/// large. Tiles are taken of a reduction of at most [`BLOCK_K`], with nothing added and no function
/// applied.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
pub(crate) unsafe fn drive<T: GemmElement>(
    par: &dyn Parallelism,
    m: usize,
    source: &dyn RowSource<T>,
    b: Columns<'_, T>,
    out: Out<'_, T>,
    ep: &Epilogue<'_, T>,
    add: bool,
) {
    let [k, n] = b.size();
    if m == 0 || n == 0 {
        return;
    }
    let width = par.width();
    let panels = n.div_ceil(2 * b.table().lanes);
    let max_mr = b.table().kernels.len();
    // Rows per task: as many whole tiles as fit the cache; more if the right side does not.
    let block_a = if k * n > LARGE_B {
        2 * BLOCK_A
    } else {
        BLOCK_A
    };
    let fit = (block_a / k.clamp(1, BLOCK_K))
        .max(4 * max_mr)
        .next_multiple_of(max_mr);
    let stored = !matches!(b, Columns::Packed(_));
    let fit = if stored { fit.max(STORED_ROWS) } else { fit };
    let mut row_tasks = m.div_ceil(fit);
    let mut col_tasks = 1;
    if width > 1 {
        let most = (m * n * k / MIN_TASK).clamp(1, width * 4);
        // Tasks that share rows and differ in columns do not pack a panel twice.
        let by_columns = stored && row_tasks * panels >= most;
        if row_tasks < most && m >= 4 * most * max_mr && !by_columns {
            row_tasks = most;
        }
        // As much for every thread.
        if row_tasks > 1 && !stored {
            row_tasks = row_tasks.next_multiple_of(width).min(m);
        }
        if row_tasks < most {
            col_tasks = most.div_ceil(row_tasks).min(panels);
            let is_uneven = 8 * panels.div_ceil(width) * width > 9 * panels;
            if row_tasks == 1 && is_uneven && most >= width && m >= 4 * width && !stored {
                row_tasks = width;
                col_tasks = 1;
            } else if !row_tasks.is_multiple_of(width) && col_tasks > width {
                col_tasks -= col_tasks % width;
            }
        }
    }
    let task = |i: usize| {
        let (r, c) = (i / col_tasks, i % col_tasks);
        let rows = m * r / row_tasks..m * (r + 1) / row_tasks;
        let cols = panels * c / col_tasks..panels * (c + 1) / col_tasks;
        // SAFETY: tasks own disjoint rows or columns; the rest is the caller's promise.
        unsafe { run_task(rows, cols, source, b, out, ep, add) };
    };
    let tasks = row_tasks * col_tasks;
    if width == 1 || tasks == 1 {
        (0..tasks).for_each(task);
    } else {
        par.run_blocks(tasks, &task);
    }
}

/// Runs the kernels on the tiles of a panel, for this number of vectors; `sweep` has everything but
/// the positions of the tiles.
///
/// # Safety
/// `pointers` has `n_offsets` pointers for each row of `tiles`, of which the sweep takes some from
/// the `offset`-th on; they are valid for all rows.
pub(super) unsafe fn sweep_tiles<T: GemmElement>(
    table: &GemmTable<T>,
    tiles: Tiles,
    pointers: &[SendPtr<T>],
    [n_offsets, offset]: [usize; 2],
    vectors: usize,
    sweep: &mut Sweep<T>,
) {
    let table_ptr = pointers.as_ptr().cast::<*const T>();
    if tiles.big > 0 && tiles.mr > 0 {
        sweep.tiles = tiles.big;
        sweep.tile_stride = n_offsets * tiles.mr;
        // SAFETY: the caller's promise.
        unsafe {
            sweep.rows = table_ptr.add(offset * tiles.mr);
            (table.kernels[tiles.mr - 1][vectors])(sweep);
        }
    }
    if tiles.small > 0 && tiles.mr > 1 {
        let mr = tiles.mr - 1;
        let first = tiles.big * tiles.mr;
        sweep.tiles = tiles.small;
        sweep.tile_stride = n_offsets * mr;
        // SAFETY: the caller's promise, for the rows after the big tiles.
        unsafe {
            sweep.rows = table_ptr.add(first * n_offsets + offset * mr);
            sweep.c = sweep.c.add(first * sweep.ldc);
            if !sweep.side.is_null() {
                sweep.side = sweep.side.add(first * sweep.ld_side);
            }
            (table.kernels[mr - 1][vectors])(sweep);
        }
    }
}

/// Runs the kernel on one tile of `mr` rows; `at` has the start of its pointers and its index in
/// the panel.
///
/// # Safety
/// As for [`sweep_tiles`], `c` being the tile's.
unsafe fn sweep_tile<T: GemmElement>(
    table: &GemmTable<T>,
    mr: usize,
    pointers: &[SendPtr<T>],
    [first, tile]: [usize; 2],
    vectors: usize,
    sweep: &Sweep<T>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sweep = Sweep {
            rows: pointers.as_ptr().cast::<*const T>().add(first),
            tiles: 1,
            next: sweep.next.alone(tile, Ahead::<T>::tiles(table.lanes)),
            ..*sweep
        };
        (table.kernels[mr - 1][vectors])(&sweep);
    }
}

/// Many small products of one size, `out = a · b` or `out += a · b`, with matrices in planes.
pub(crate) struct Planes<'a, T: GemmElement> {
    /// Rows of `a`, columns of `b`, and the length of the reduction.
    pub size: [usize; 3],
    pub a: SendPtr<T>,
    /// Distance between planes of `a`, and between its rows.
    pub plane_a: usize,
    pub ld_a: usize,
    /// The right side of a plane; its panels may have further rows.
    pub b: &'a (dyn Fn(usize) -> Right<'a, T> + Sync),
    pub out: SendPtr<T>,
    /// Distance between planes of `out`, and between its rows.
    pub plane_out: usize,
    pub ld_out: usize,
    pub add: bool,
}

/// Computes the products of some planes.
///
/// # Safety
/// `a` is readable and `out` writable (and initialized, to be added to) in these planes, and no
/// other thread touches them.
pub(crate) unsafe fn drive_planes<T: GemmElement>(p: &Planes<'_, T>, planes: Range<usize>) {
    let [m, n, k] = p.size;
    if m == 0 || n == 0 || planes.is_empty() {
        return;
    }
    let table = (p.b)(planes.start).b.table();
    let (lanes, nr) = (table.lanes, 2 * table.lanes);
    let tiles = Tiles::of(m, table.kernels.len());
    let mut pointers = Scratch::take();
    let pointers = pointers.alloc::<SendPtr<T>>(m);
    for (row, pointer) in pointers.iter_mut().enumerate() {
        *pointer = SendPtr(p.a.get().wrapping_add(row * p.ld_a));
    }
    for plane in planes {
        let b = (p.b)(plane);
        debug_assert!(b.n == n && b.b.k() >= k);
        let panels = b.panels();
        for panel in 0..panels {
            let col = panel * nr;
            let width = nr.min(n - col);
            let mut sweep = Sweep {
                rows: std::ptr::null(),
                tiles: 0,
                tile_stride: 0,
                n_offsets: 1,
                off: plane * p.plane_a,
                len: k,
                b: b.panel(panel).as_ptr(),
                next: b.ahead((panel + 1).min(panels - 1), block(0, 1, 1, k)),
                c: p.out.get().wrapping_add(plane * p.plane_out + col),
                ldc: p.ld_out,
                n: width,
                accumulate: p.add,
                last: true,
                scale: std::ptr::null(),
                bias: std::ptr::null(),
                side: std::ptr::null(),
                ld_side: 0,
                limits: None,
            };
            let vectors = if width <= lanes { 0 } else { 1 };
            // SAFETY: one pointer per row, and the plane's offset leads to `k` elements of it; the
            // panel has `k` rows; `c` covers these rows and columns.
            unsafe { sweep_tiles(table, tiles, pointers, [1, 0], vectors, &mut sweep) };
        }
    }
}

/// # Safety
/// As for [`drive`], for the task's rows and panels.
#[allow(
    clippy::too_many_arguments,
    reason = "the usual shape of a matrix product"
)]
unsafe fn run_task<T: GemmElement>(
    rows: Range<usize>,
    cols: Range<usize>,
    source: &dyn RowSource<T>,
    b: Columns<'_, T>,
    out: Out<'_, T>,
    ep: &Epilogue<'_, T>,
    add: bool,
) {
    let table = b.table();
    let (lanes, nr, [k, n]) = (table.lanes, 2 * table.lanes, b.size());
    let (n_offsets, run) = (source.n_offsets(), source.run());
    let tiles = Tiles::of(rows.len(), table.kernels.len());
    let mut pointers = Scratch::take();
    let mut spare = Scratch::take();
    let pointers = pointers.alloc::<SendPtr<T>>(rows.len() * n_offsets);
    source.fill(rows.clone(), tiles, pointers, &mut spare);
    let (mut packed, mut tile) = (Scratch::take(), Scratch::take());
    let blocks = match b {
        Columns::Packed(_) => count_blocks(n_offsets, run, rows.len(), table.kernels.len()),
        Columns::Kept(_) | Columns::Stored(_) => k.div_ceil(BLOCK_K).max(1),
    };
    let limits = ep
        .act
        .limits()
        .map(|(lo, hi)| (T::from_f32(lo), T::from_f32(hi)));
    let function = ep.act.function();
    for i in 0..blocks {
        let block = block(i, blocks, n_offsets, run);
        let last = i + 1 == blocks;
        let mut done = cols.start * nr;
        for panel in cols.clone() {
            let col = panel * nr;
            let width = nr.min(n - col);
            let vectors = if width <= lanes { 0 } else { 1 };
            let (c, ldc) = match out {
                // SAFETY: `col < n` and `rows.start < m`.
                Out::Matrix(out, ld) => unsafe { (out.get().add(rows.start * ld + col), ld) },
                Out::Tiles(_) => (tile.alloc::<T>(tiles.mr * nr).as_mut_ptr(), nr),
            };
            let side = ep
                .side
                .map(|(s, ld)| (s[rows.start * ld + col..].as_ptr(), ld));
            let (right, next) = match &b {
                Columns::Packed(b) | Columns::Kept(b) => {
                    let next = b.ahead((panel + 1).min(cols.end - 1), block);
                    (b.panel(panel)[block.k * nr..].as_ptr(), next)
                }
                Columns::Stored(b) => {
                    let to = packed.alloc::<T>(block.len * nr);
                    let rows = block.off..block.off + block.len;
                    b.pack(rows.clone(), panel, to);
                    (to.as_ptr(), b.ahead(rows, panel + 1))
                }
            };
            let mut sweep = Sweep {
                rows: std::ptr::null(),
                tiles: 0,
                tile_stride: 0,
                n_offsets: block.n_offsets,
                off: block.off,
                len: block.len,
                b: right,
                next,
                c,
                ldc,
                n: width,
                accumulate: add || i > 0,
                last,
                scale: ep.scale.map_or(std::ptr::null(), |s| s[col..].as_ptr()),
                bias: ep.bias.map_or(std::ptr::null(), |b| b[col..].as_ptr()),
                side: side.map_or(std::ptr::null(), |s| s.0),
                ld_side: side.map_or(0, |s| s.1),
                limits,
            };
            if let Out::Tiles(sink) = out {
                assert!(blocks == 1 && !add && function.is_none(), "tiles are whole");
                // SAFETY: as below; the tile at `c` has room for the rows of each.
                unsafe {
                    sweep_to_sink(
                        sink,
                        table,
                        tiles,
                        pointers,
                        [rows.start, col],
                        vectors,
                        &sweep,
                    )
                };
                continue;
            }
            // SAFETY: the table holds `n_offsets` pointers per row, each with `run` elements; the
            // panel has the block's rows; `c` and the epilogue cover these rows and columns.
            unsafe {
                sweep_tiles(
                    table,
                    tiles,
                    pointers,
                    [n_offsets, block.offset],
                    vectors,
                    &mut sweep,
                )
            };
            let end = col + width;
            if let (Some(op), Out::Matrix(out, ldc)) = (function, out)
                && last
                && (end - done >= ACT_COLUMNS || panel + 1 == cols.end)
            {
                // SAFETY: columns of rows of this task, which were just written.
                unsafe { apply_to_columns(op, (out, ldc), rows.clone(), done..end) };
                done = end;
            }
        }
    }
}

/// Applies a function to columns of rows of a matrix with a row stride.
///
/// # Safety
/// The columns are initialized, and no other thread accesses them.
unsafe fn apply_to_columns<T: GemmElement>(
    op: UnaryOp,
    (out, ld): (SendPtr<T>, usize),
    rows: Range<usize>,
    columns: Range<usize>,
) {
    for r in rows {
        // SAFETY: the caller's promise.
        let row = unsafe {
            std::slice::from_raw_parts_mut(out.get().add(r * ld + columns.start), columns.len())
        };
        T::apply(op, row);
    }
}

/// Computes the tiles of a panel one after another and hands each to a sink.
///
/// # Safety
/// As for [`sweep_tile`], for each of the tiles; `first` is their first row and column.
unsafe fn sweep_to_sink<T: GemmElement>(
    sink: &dyn TileSink<T>,
    table: &GemmTable<T>,
    tiles: Tiles,
    pointers: &[SendPtr<T>],
    [row, col]: [usize; 2],
    vectors: usize,
    sweep: &Sweep<T>,
) {
    let mut tile = 0;
    tiles.each(|r, mr| {
        let at = [r * sweep.n_offsets, tile];
        sink.bring(row + r, col, [mr, sweep.n]);
        // SAFETY: the caller's promise.
        unsafe {
            sweep_tile(table, mr, pointers, at, vectors, sweep);
            sink.take(row + r, col, [mr, sweep.n], sweep.c, sweep.ldc);
        }
        tile += 1;
    });
}
