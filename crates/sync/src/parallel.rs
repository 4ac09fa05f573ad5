//! Data parallelism inside one kernel: blocks of a range, run by idle threads.

use crate::{AsyncValue, Chain, Diagnostic, Promise, Spawner, WorkQueue};
use ferroflow_base::internal;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs numbered blocks of work; the caller takes part.
///
/// `run_blocks` returns when every block has run. Blocks may run in any order and on any thread;
/// nesting is allowed and cannot deadlock, because the caller itself works through the blocks.
pub trait Parallelism: Sync {
    /// Returns the number of threads that can work at the same time, including the caller. At least
    /// 1.
    fn width(&self) -> usize;

    /// Runs `f(0) … f(n_blocks - 1)`, each exactly once.
    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync));

    /// Returns where tasks go that outlive the caller; `None` without further threads.
    fn spawner(&self) -> Option<Spawner> {
        None
    }
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

/// Most blocks per thread, so that threads of uneven speed still finish together.
const BLOCKS_PER_THREAD: usize = 4;
/// The duration of a block that justifies a task, in nanoseconds.
const WORTH_A_TASK: f64 = 20_000.0;

/// How to split a range into blocks.
///
/// ```
/// use ferroflow_sync::BlockSizes;
/// assert_eq!(BlockSizes::Fixed(100).blocks(1000, 2), 10);
/// assert_eq!(BlockSizes::Min(100).blocks(1000, 2), 8);
/// assert_eq!(BlockSizes::Min(400).blocks(1000, 2), 2);
/// // 1000 items of 50 ns are worth two tasks.
/// assert_eq!(BlockSizes::Cost(50.0).blocks(1000, 8), 2);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum BlockSizes {
    /// Each block has this many items, except for the last one.
    Fixed(usize),
    /// Blocks have at least this many items, and there are at most a few per thread.
    Min(usize),
    /// Blocks take long enough to justify a task if an item takes this many nanoseconds, and there
    /// are at most a few per thread.
    Cost(f64),
}

impl From<usize> for BlockSizes {
    fn from(min: usize) -> Self {
        BlockSizes::Min(min)
    }
}

impl BlockSizes {
    /// Returns the number of blocks for `total` items and `width` threads.
    pub fn blocks(self, total: usize, width: usize) -> usize {
        let at_least = |min: usize| match width {
            0 | 1 => total.min(1),
            _ => {
                let n = (total / min.max(1)).clamp(total.min(1), width * BLOCKS_PER_THREAD);
                // As many for every thread.
                if n > width { n - n % width } else { n }
            }
        };
        match self {
            BlockSizes::Fixed(size) => total.div_ceil(size.max(1)),
            BlockSizes::Min(min) => at_least(min),
            // NaN counts as zero.
            BlockSizes::Cost(nanos) => at_least((WORTH_A_TASK / nanos.max(0.01)).ceil() as usize),
        }
    }

    /// Returns the items of block `i` of `n`.
    fn range(self, total: usize, i: usize, n: usize) -> Range<usize> {
        match self {
            BlockSizes::Fixed(size) => {
                let start = i.saturating_mul(size.max(1));
                start..start.saturating_add(size.max(1)).min(total)
            }
            _ => total * i / n..total * (i + 1) / n,
        }
    }
}

/// Splits `0..total` into blocks, runs `f` on each, and returns when all are done. A number for
/// `sizes` stands for [`BlockSizes::Min`].
///
/// ```
/// use ferroflow_sync::{Inline, parallel_for};
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// parallel_for(&Inline, 10, 3, &|range| { sum.fetch_add(range.sum(), Ordering::Relaxed); });
/// assert_eq!(sum.into_inner(), 45);
/// ```
#[inline]
pub fn parallel_for(
    par: &dyn Parallelism,
    total: usize,
    sizes: impl Into<BlockSizes>,
    f: &(impl Fn(Range<usize>) + Sync),
) {
    for_ranges(par, total, sizes.into(), f);
}

/// What is called for each range; `chunks.rs` says why this is not a `dyn Fn`.
trait ForRange: Sync {
    fn call(&self, range: Range<usize>);
}

impl<F: Fn(Range<usize>) + Sync> ForRange for F {
    #[inline]
    fn call(&self, range: Range<usize>) {
        self(range);
    }
}

fn for_ranges(par: &dyn Parallelism, total: usize, sizes: BlockSizes, f: &dyn ForRange) {
    match sizes.blocks(total, par.width()) {
        0 => {}
        1 => f.call(0..total),
        n => par.run_blocks(n, &|i| f.call(sizes.range(total, i, n))),
    }
}

/// Splits `0..total` into blocks and runs `f` on each, here and as tasks of `queue`, without
/// waiting. A block is done when the value that `f` returns is available; the value returned here
/// becomes a [`Chain`] when all blocks are done, or the first error.
///
/// A task with several blocks repeatedly enqueues the upper half of its range while worker threads
/// remain.
///
/// ```
/// use ferroflow_sync::{AsyncValue, BlockSizes, Chain, MultiThreadedWorkQueue, WorkQueue};
/// use ferroflow_sync::parallel_for_async;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::sync::Arc;
/// let queue: Arc<dyn WorkQueue> = Arc::new(MultiThreadedWorkQueue::new(2, 0));
/// let sum = Arc::new(AtomicUsize::new(0));
/// let of_blocks = sum.clone();
/// let done = parallel_for_async(&queue, 1000, BlockSizes::Fixed(7), move |range| {
///     of_blocks.fetch_add(range.sum(), Ordering::Relaxed);
///     AsyncValue::new(Chain)
/// });
/// queue.await_values(&[done]);
/// assert_eq!(sum.load(Ordering::Relaxed), 499_500);
/// ```
pub fn parallel_for_async(
    queue: &Arc<dyn WorkQueue>,
    total: usize,
    sizes: impl Into<BlockSizes>,
    f: impl Fn(Range<usize>) -> AsyncValue + Send + Sync + 'static,
) -> AsyncValue {
    let (sizes, width) = (sizes.into(), queue.parallelism_level());
    let n_blocks = sizes.blocks(total, width);
    if n_blocks == 0 {
        return AsyncValue::new(Chain);
    }
    let (promise, done) = Promise::new();
    let work = Arc::new(Blocks {
        queue: queue.clone(),
        f,
        sizes,
        total,
        n_blocks,
        left: AtomicUsize::new(n_blocks),
        end: Mutex::new((Some(promise), None)),
    });
    let per_task = n_blocks.div_ceil(width * BLOCKS_PER_THREAD);
    work.run(0..n_blocks, per_task);
    done.into()
}

/// A range in progress.
struct Blocks<F> {
    queue: Arc<dyn WorkQueue>,
    f: F,
    sizes: BlockSizes,
    total: usize,
    n_blocks: usize,
    left: AtomicUsize,
    /// The promise to fulfill at the end, and the first error.
    end: Mutex<(Option<Promise<Chain>>, Option<Diagnostic>)>,
}

impl<F: Fn(Range<usize>) -> AsyncValue + Send + Sync + 'static> Blocks<F> {
    /// Enqueues halves until `per_task` blocks are left, and runs those.
    fn run(self: &Arc<Self>, mut blocks: Range<usize>, per_task: usize) {
        while self.queue.parallelism_level() > 1 && blocks.len() > per_task {
            let middle = blocks.start + blocks.len() / 2;
            let (this, half) = (self.clone(), middle..blocks.end);
            let task = move || this.run(half, per_task);
            self.queue.add_task(Box::new(task));
            blocks.end = middle;
        }
        for block in blocks {
            let range = self.sizes.range(self.total, block, self.n_blocks);
            // A block that panics must not leave a waiter behind.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.f)(range)));
            match outcome {
                Ok(done) if done.is_available() => self.finish(&done),
                Ok(done) => {
                    let this = self.clone();
                    done.when_available(move |done| this.finish(&done));
                }
                Err(_) => self.finish(&AsyncValue::new_error(internal!("a block panicked"))),
            }
        }
    }

    fn finish(&self, done: &AsyncValue) {
        let lock = || self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = done.error() {
            lock().1.get_or_insert_with(|| error.clone());
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let end = std::mem::take(&mut *lock());
        match end {
            (Some(promise), None) => promise.emplace(Chain),
            (Some(promise), Some(error)) => promise.set_error(error),
            (None, _) => {}
        }
    }
}
