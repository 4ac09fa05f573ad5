//! Data parallelism inside one kernel: blocks of a range, run by whoever is free.

use std::ops::Range;

/// Something that can run numbered blocks of work, the caller taking part.
///
/// `run_blocks` returns when every block has run. Blocks may run in any order and on any thread;
/// nesting is allowed and cannot deadlock, because the caller itself works through the blocks.
pub trait Parallelism: Sync {
    /// How many threads can work at the same time, the caller included. At least 1.
    fn width(&self) -> usize;

    /// Runs `f(0) … f(n_blocks - 1)`, each exactly once.
    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync));
}

/// Runs every block on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Parallelism for Inline {
    fn width(&self) -> usize {
        1
    }

    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
        for i in 0..n_blocks {
            f(i);
        }
    }
}

/// Splits `0..total` into ranges of at least `min_block` items and runs `f` on each.
///
/// Up to four ranges a thread are made so that an uneven machine still finishes together.
///
/// ```
/// use ferroflow_sync::{Inline, parallel_for};
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// parallel_for(&Inline, 10, 3, &|range| { sum.fetch_add(range.sum(), Ordering::Relaxed); });
/// assert_eq!(sum.into_inner(), 45);
/// ```
pub fn parallel_for(
    par: &dyn Parallelism,
    total: usize,
    min_block: usize,
    f: &(dyn Fn(Range<usize>) + Sync),
) {
    if total == 0 {
        return;
    }
    let width = par.width();
    let max_blocks = total / min_block.max(1);
    if width == 1 || max_blocks <= 1 {
        return f(0..total);
    }
    let n_blocks = max_blocks.min(width * 4);
    par.run_blocks(n_blocks, &|i| {
        let start = total * i / n_blocks;
        let end = total * (i + 1) / n_blocks;
        f(start..end);
    });
}
