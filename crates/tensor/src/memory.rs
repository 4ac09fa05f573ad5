//! [`TensorMemory`]: memory for tensors besides the heap, such as a device's.

use ferroflow_base::{Result, internal};
use std::any::Any;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A block of memory that a tensor takes over.
///
/// # Safety
/// [`MemoryBlock::ptr`] always returns the same address, aligned to 64 bytes, of at least as many
/// initialised bytes as were asked for. Nothing but the owner of the block reads or writes them while it
/// lives, except where that owner lets it. Where [`MemoryBlock::is_host`] is false, the address is a
/// device's, and the bytes may still be on their way.
pub unsafe trait MemoryBlock: Any + Send + Sync {
    /// The first byte.
    fn ptr(&self) -> NonNull<u8>;

    /// Whether the host reads and writes the bytes at their address. The elements of a tensor in other
    /// memory cannot be read: that is an error.
    fn is_host(&self) -> bool {
        true
    }

    /// Returns `len` bytes from byte `offset` on that the host does not reach at their address; waits for what writes
    /// them.
    ///
    /// # Errors
    /// Those of the device; INTERNAL if the block has none.
    fn read(&self, _offset: usize, _len: usize) -> Result<Vec<u8>> {
        Err(internal!("a block of memory cannot be read"))
    }
}

/// Allocates blocks for tensors.
pub trait TensorMemory: Send + Sync {
    /// Allocates `len` bytes with arbitrary content.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory.
    fn allocate(&self, len: usize) -> Result<Box<dyn MemoryBlock>>;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn TensorMemory>>> = const { RefCell::new(None) };
}

/// Whether any thread ever used other memory than the heap.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Sets back what was current, also in a panic.
struct Restore(Option<Arc<dyn TensorMemory>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Runs `f`; new tensors of this thread are in `memory`.
pub fn with_memory<R>(memory: &Arc<dyn TensorMemory>, f: impl FnOnce() -> R) -> R {
    IS_USED.store(true, Ordering::Relaxed);
    let _restore = Restore(CURRENT.replace(Some(memory.clone())));
    f()
}

/// The memory of this thread's new tensors, if it is not the heap.
#[inline]
pub(crate) fn current() -> Option<Arc<dyn TensorMemory>> {
    match IS_USED.load(Ordering::Relaxed) {
        false => None,
        true => CURRENT.with_borrow(Clone::clone),
    }
}

/// Whether new tensors of this thread are on the heap.
#[cold]
pub(crate) fn is_heap() -> bool {
    current().is_none()
}
