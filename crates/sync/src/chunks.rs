//! Disjoint mutable chunks of one slice, handed to several threads.

use crate::Parallelism;

struct SendPtr<T>(*mut T);
// SAFETY: the pointer is only used to make disjoint `&mut` chunks of a slice of `T: Send`.
unsafe impl<T: Send> Sync for SendPtr<T> {}

/// What is called for each chunk. `dyn Fn` would do, but its vtable also holds `call_mut` and `call_once`: two more
/// functions for each of the thousands of closures of kernels.
trait ForChunk<T>: Sync {
    fn call(&self, i: usize, chunk: &mut [T]);
}

impl<T, F: Fn(usize, &mut [T]) + Sync> ForChunk<T> for F {
    #[inline]
    fn call(&self, i: usize, chunk: &mut [T]) {
        self(i, chunk);
    }
}

/// Calls `f(i, chunk)` for every `chunk_len`-long chunk of `data` (the last may be shorter),
/// `group` consecutive chunks to a block, spread over the threads of `par`.
///
/// ```
/// use ferroflow_sync::{Inline, par_chunks_mut};
/// let mut v = [0; 5];
/// par_chunks_mut(&Inline, &mut v, 2, 1, &|i, c| c.fill(i));
/// assert_eq!(v, [0, 0, 1, 1, 2]);
/// ```
#[inline]
pub fn par_chunks_mut<T: Send>(
    par: &dyn Parallelism,
    data: &mut [T],
    chunk_len: usize,
    group: usize,
    f: &(impl Fn(usize, &mut [T]) + Sync),
) {
    for_chunks(par, data, chunk_len, group, f);
}

fn for_chunks<T: Send>(
    par: &dyn Parallelism,
    data: &mut [T],
    chunk_len: usize,
    group: usize,
    f: &dyn ForChunk<T>,
) {
    let (len, chunk_len, group) = (data.len(), chunk_len.max(1), group.max(1));
    let n_chunks = len.div_ceil(chunk_len);
    let n_blocks = n_chunks.div_ceil(group);
    if n_blocks <= 1 || par.width() == 1 {
        for (i, chunk) in data.chunks_mut(chunk_len).enumerate() {
            f.call(i, chunk);
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
            f.call(i, chunk);
        }
    });
}
