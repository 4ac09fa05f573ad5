//! `tfrt.parallel_for.i32` and `tfrt.parallel_call.i32`: a function over blocks of a range.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Frame, KernelFrame, KernelRegistry, Values};
use ferroflow_sync::{AsyncValue, BlockSizes, Chain, parallel_for_async};

/// Calls a function over blocks of a range. Arguments: start, end, block size and further ones; the
/// function gets the start and end of a block and the further arguments, and may return a chain.
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
    let block_size = usize::try_from(block_size).ok().filter(|n| *n > 0);
    let block_size = block_size.ok_or_else(|| {
        let size = frame.arg::<i32>(2).copied().unwrap_or(0);
        invalid_argument!("block size must be positive, not {size}")
    })?;
    let total = usize::try_from(i64::from(end) - i64::from(start)).unwrap_or(0);
    let (args, ctx) = (frame.take_args_from(3), frame.ctx().clone());
    let queue = ctx.host().work_queue().clone();
    let run = move |range: std::ops::Range<usize>| {
        // Between the two 32-bit numbers of the range.
        let at = |i: usize| AsyncValue::new((i64::from(start) + i as i64) as i32);
        let mut values = Values::new();
        values.push(at(range.start));
        values.push(at(range.end));
        values.extend(args.iter().cloned());
        let mut results = body.execute(&ctx, values);
        results.pop().unwrap_or_else(|| AsyncValue::new(Chain))
    };
    let done = parallel_for_async(&queue, total, BlockSizes::Fixed(block_size), run);
    frame.set_result(0, done);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add_raw("tfrt.parallel_for.i32", parallel_for)
        .add_raw("tfrt.parallel_call.i32", parallel_for);
}
