//! `tfrt.parallel_for.i32` and `tfrt.parallel_call.i32`: a function over blocks of a range.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::host::{
    ExecutionContext, Frame, Function, KernelFrame, KernelRegistry, Values,
};
use ferroflow_sync::{AsyncValue, Chain, Promise};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

struct Blocks {
    ctx: ExecutionContext,
    body: Function,
    args: Values,
    range: Range<i32>,
    block_size: i32,
    n_blocks: usize,
    /// The block that begins next.
    next: AtomicUsize,
    left: AtomicUsize,
    done: Mutex<Option<Promise<Chain>>>,
    error: Mutex<Option<AsyncValue>>,
}

impl Blocks {
    /// Runs one block after the other until none is left to begin.
    fn run(self: &Arc<Self>) {
        loop {
            let block = self.next.fetch_add(1, Ordering::Relaxed);
            if block >= self.n_blocks {
                return;
            }
            let start = i64::from(self.range.start) + block as i64 * i64::from(self.block_size);
            let end = (start + i64::from(self.block_size)).min(self.range.end.into());
            let mut args = Values::new();
            args.push(AsyncValue::new(start as i32));
            args.push(AsyncValue::new(end as i32));
            args.extend(self.args.iter().cloned());
            let mut results = self.body.execute(&self.ctx, args);
            match results.pop() {
                Some(done) if !done.is_available() => {
                    let this = self.clone();
                    let waiting = done.clone();
                    waiting.and_then(move || this.finish(Some(done)));
                }
                done => self.finish(done),
            }
        }
    }

    fn finish(&self, result: Option<AsyncValue>) {
        let lock = |m: &Mutex<Option<AsyncValue>>, value: AsyncValue| {
            let mut slot = m.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert(value);
        };
        if let Some(error) = result.filter(AsyncValue::is_error) {
            lock(&self.error, error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let promise = self
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let error = self
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (promise, error) {
            (Some(promise), None) => promise.emplace(Chain),
            (Some(promise), Some(error)) => {
                if let Some(diagnostic) = error.error() {
                    promise.set_error(diagnostic.clone());
                }
            }
            (None, _) => {}
        }
    }
}

fn parallel_for(frame: &mut KernelFrame) -> Result<()> {
    let (start, end) = (*frame.arg::<i32>(0)?, *frame.arg::<i32>(1)?);
    let block_size = *frame.arg::<i32>(2)?;
    let body = frame.function(0)?;
    let n_results = body.arity().1;
    if n_results > 1 {
        return Err(invalid_argument!(
            "Invalid parallel body function result types"
        ));
    }
    body.check_arity(frame.n_args() - 1, n_results)?;
    if block_size <= 0 {
        return Err(invalid_argument!(
            "block size must be positive, not {block_size}"
        ));
    }
    let total = (i64::from(end) - i64::from(start)).max(0);
    let n_blocks = (total as u64).div_ceil(block_size as u64) as usize;
    if n_blocks == 0 {
        frame.emplace(0, Chain);
        return Ok(());
    }
    let args = frame.take_args_from(3);
    let done = frame.allocate::<Chain>(0);
    let blocks = Arc::new(Blocks {
        ctx: frame.ctx().clone(),
        body,
        args,
        range: start..end,
        block_size,
        n_blocks,
        next: AtomicUsize::new(0),
        left: AtomicUsize::new(n_blocks),
        done: Mutex::new(Some(done)),
        error: Mutex::new(None),
    });
    let n_threads = blocks.ctx.host().work_queue().parallelism_level();
    for _ in 1..n_threads.min(n_blocks) {
        let this = blocks.clone();
        blocks.ctx.enqueue(move || this.run());
    }
    blocks.run();
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add_raw("tfrt.parallel_for.i32", parallel_for)
        .add_raw("tfrt.parallel_call.i32", parallel_for);
}
