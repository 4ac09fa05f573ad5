//! [`AllocationLog`]: which blocks a step allocates, and for how long.

use crate::arena;
use crate::buffer::Buffer;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A block that a step allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedUse {
    /// What allocated it.
    pub owner: u32,
    /// How many blocks the same owner allocated before it.
    pub nth: u32,
    /// Its bytes.
    pub len: usize,
    /// When it was allocated. Each begin and end of a block is a moment of its own.
    pub from: u32,
    /// When it was freed, if it was.
    pub to: Option<u32>,
}

/// Records the blocks of a step. Blocks that are freed serve later ones of the step until the log is finished, and go back
/// to the allocator then, as later steps have an arena.
///
/// ```
/// use ferroflow_tensor::{AllocationLog, DType, Shape, Tensor};
/// let log = std::sync::Arc::new(AllocationLog::default());
/// let zeros = || Tensor::zeros(DType::Float, Shape::from(&[2000][..])).unwrap();
/// drop(log.watch(5, zeros));
/// let uses = log.finish();
/// assert_eq!((uses[0].owner, uses[0].len, uses[0].to), (5, 8000, Some(1)));
/// ```
#[derive(Default)]
pub struct AllocationLog(Mutex<Log>);

#[derive(Default)]
struct Log {
    uses: Vec<LoggedUse>,
    now: u32,
    /// The blocks that are in use, by address.
    live: BTreeMap<usize, usize>,
    /// Freed blocks, for the rest of the step.
    free: Vec<Buffer>,
    /// The bytes of all blocks, and those of blocks in use beyond what was asked for.
    bytes: usize,
    wasted: usize,
    is_finished: bool,
}

impl AllocationLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` and records the blocks of [`BlockPlace::MIN_BYTES`] and more that this thread allocates for `owner`.
    ///
    /// [`BlockPlace::MIN_BYTES`]: crate::BlockPlace::MIN_BYTES
    pub fn watch<R>(self: &Arc<Self>, owner: u32, f: impl FnOnce() -> R) -> R {
        arena::logged(self, owner, f)
    }

    /// Returns the block that holds the byte at `address`, by position, if it is in use.
    pub fn block_at(&self, address: usize) -> Option<usize> {
        let log = self.lock();
        let (start, &index) = log.live.range(..=address).next_back()?;
        (address - start < log.uses[index].len).then_some(index)
    }

    /// Ends the log: returns all blocks, in the order in which they were allocated.
    pub fn finish(&self) -> Vec<LoggedUse> {
        let mut log = self.lock();
        log.is_finished = true;
        log.free = Vec::new();
        std::mem::take(&mut log.uses)
    }

    /// Allocates a block; `None` if there is too little memory.
    pub(crate) fn allocate(self: &Arc<Self>, owner: u32, nth: u32, len: usize) -> Option<Buffer> {
        let mut log = self.lock();
        let freed = log.free.iter().enumerate();
        // What outlives the step keeps all of its block.
        let waste = (log.bytes / 4).saturating_sub(log.wasted).max(len / 4);
        let most = len.saturating_mul(4).min(len + waste);
        let fitting = freed.filter(|(_, b)| (len..=most).contains(&b.len()));
        let smallest = fitting.min_by_key(|(_, b)| b.len());
        let memory = match smallest.map(|(at, _)| at) {
            Some(at) => log.free.swap_remove(at),
            None => {
                let memory = Buffer::uncached(len).ok()?;
                log.bytes += len;
                memory
            }
        };
        log.wasted += memory.len() - len;
        let (from, index) = (log.now, log.uses.len());
        log.now += 1;
        log.live.insert(memory.ptr().addr().get(), index);
        log.uses.push(LoggedUse {
            owner,
            nth,
            len,
            from,
            to: None,
        });
        drop(log);
        let block = LoggedBlock(Box::new(Logged {
            ptr: memory.ptr(),
            memory: Some(memory),
            log: self.clone(),
            index,
        }));
        Some(Buffer::logged(block, len))
    }
}

/// A block of a log.
pub(crate) struct LoggedBlock(Box<Logged>);

struct Logged {
    ptr: NonNull<u8>,
    memory: Option<Buffer>,
    log: Arc<AllocationLog>,
    index: usize,
}

impl LoggedBlock {
    /// The first byte; the block is its owner's alone.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.0.ptr
    }
}

impl Drop for LoggedBlock {
    fn drop(&mut self) {
        let mut log = self.0.log.lock();
        if log.is_finished {
            return;
        }
        let now = log.now;
        log.now += 1;
        log.live.remove(&self.0.ptr.addr().get());
        if let Some(used) = log.uses.get_mut(self.0.index) {
            used.to = Some(now);
        }
        if let Some(memory) = self.0.memory.take() {
            let asked = log.uses.get(self.0.index).map_or(0, |used| used.len);
            log.wasted -= memory.len() - asked;
            log.free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Shape, Tensor};

    fn filled(bytes: usize, value: u8) -> Tensor {
        let shape = Shape::from(&[bytes][..]);
        let mut t = Tensor::for_overwrite(DType::Uint8, shape).expect("small");
        t.slice_mut::<u8>().expect("bytes").fill(value);
        t
    }

    fn is_filled(t: &Tensor, value: u8) -> bool {
        t.slice::<u8>().expect("bytes").iter().all(|b| *b == value)
    }

    #[test]
    fn a_log_has_all_blocks_with_their_times() {
        let log = Arc::new(AllocationLog::default());
        let a = log.watch(3, || filled(8000, 1));
        let [b, small] = log.watch(4, || [filled(500_000, 2), filled(10, 0)]);
        let address = |t: &Tensor, at: usize| t.bytes().expect("plain").as_ptr().addr() + at;
        let (inside, behind) = (address(&b, 499_999), address(&b, 500_000));
        assert_eq!([inside, behind].map(|a| log.block_at(a)), [Some(1), None]);
        drop(a);
        let c = log.watch(5, || {
            drop(filled(4096, 0));
            filled(8000, 3)
        });
        assert!(is_filled(&b, 2) && is_filled(&c, 3));
        drop((b, small));
        assert_eq!(log.block_at(inside), None);
        let used = |owner, nth, len, from, to| LoggedUse {
            owner,
            nth,
            len,
            from,
            to,
        };
        let expected = [
            used(3, 0, 8000, 0, Some(2)),
            used(4, 0, 500_000, 1, Some(6)),
            used(5, 0, 4096, 3, Some(4)),
            used(5, 1, 8000, 5, None),
        ];
        assert_eq!(log.finish(), expected);
        assert!(is_filled(&c, 3));
        drop(c);
    }
}
