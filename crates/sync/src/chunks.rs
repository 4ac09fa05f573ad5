//! Disjoint mutable chunks of one slice, handed to several threads.

use crate::Parallelism;

struct SendPtr<T>(*mut T);
// SAFETY: the pointer is only used to make disjoint `&mut` chunks of a slice of `T: Send`.
unsafe impl<T: Send> Sync for SendPtr<T> {}

/// Calls `f(i, chunk)` for every `chunk_len`-long chunk of `data` (the last may be shorter),
/// `group` consecutive chunks to a block, spread over the threads of `par`.
///
/// ```
/// use ferroflow_sync::{Inline, par_chunks_mut};
/// let mut v = [0; 5];
/// par_chunks_mut(&Inline, &mut v, 2, 1, &|i, c| c.fill(i));
/// assert_eq!(v, [0, 0, 1, 1, 2]);
/// ```
pub fn par_chunks_mut<T: Send>(
    par: &dyn Parallelism,
    data: &mut [T],
    chunk_len: usize,
    group: usize,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let (len, chunk_len, group) = (data.len(), chunk_len.max(1), group.max(1));
    let n_chunks = len.div_ceil(chunk_len);
    let n_blocks = n_chunks.div_ceil(group);
    if n_blocks <= 1 || par.width() == 1 {
        for (i, chunk) in data.chunks_mut(chunk_len).enumerate() {
            f(i, chunk);
        }
        return;
    }
    let base = SendPtr(data.as_mut_ptr());
    let base = &base;
    par.run_blocks(n_blocks, &|block| {
        for i in block * group..((block + 1) * group).min(n_chunks) {
            let start = i * chunk_len;
            let end = (start + chunk_len).min(len);
            debug_assert!(start < end && end <= len);
            // SAFETY: `run_blocks` runs each block once, so each chunk index is visited once and
            // the chunks `[start, end)` are disjoint and inside the exclusively borrowed slice,
            // which outlives the call.
            let chunk = unsafe { std::slice::from_raw_parts_mut(base.0.add(start), end - start) };
            f(i, chunk);
        }
    });
}
