//! Buffers of host programs: one allocator trait, several implementations.
//!
//! An allocator accounts for buffers and may keep their memory; it never exposes raw memory. A
//! [`HostBuffer`] returns its bytes to its allocator when it is dropped.

use crate::Buffer;
use ferroflow_base::{Result, internal, resource_exhausted};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Accounts for buffers: may refuse an allocation, and is notified of deallocations.
pub trait HostAllocator: Send + Sync {
    /// Called before `size` bytes are allocated.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the allocation is refused.
    fn allocate(&self, size: usize) -> Result<()>;
    /// Called after `size` bytes were freed.
    fn deallocate(&self, size: usize);
    /// Returns zeroed memory for a buffer of `size` bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the allocation is refused or fails.
    fn block(&self, size: usize) -> Result<Buffer> {
        self.allocate(size)?;
        Buffer::allocate(size, true).inspect_err(|_| self.deallocate(size))
    }
    /// Takes back the memory of a buffer of `size` bytes.
    fn give_back(&self, block: Buffer, size: usize) {
        drop(block);
        self.deallocate(size);
    }
    /// Returns a line to print at exit, and whether it reports a problem.
    fn report(&self) -> Option<(String, bool)> {
        None
    }
}

/// Allows everything and keeps no accounts.
#[derive(Default)]
pub struct MallocAllocator;

impl HostAllocator for MallocAllocator {
    fn allocate(&self, _size: usize) -> Result<()> {
        Ok(())
    }

    fn deallocate(&self, _size: usize) {}
}

/// Blocks up to this size are not counted by [`FixedSizeAllocator`].
const SMALL: usize = 32;

/// Has a fixed capacity and prints every allocation: for tests.
pub struct FixedSizeAllocator {
    size: usize,
    used: AtomicUsize,
}

impl FixedSizeAllocator {
    /// Creates an allocator with a capacity of `size` bytes.
    pub fn new(size: usize) -> Self {
        FixedSizeAllocator {
            size,
            used: AtomicUsize::new(0),
        }
    }
}

impl HostAllocator for FixedSizeAllocator {
    fn allocate(&self, size: usize) -> Result<()> {
        if size <= SMALL {
            return Ok(());
        }
        let fits = |used: usize| used.checked_add(size).filter(|n| *n <= self.size);
        match self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
        {
            Ok(used) => {
                let left = self.size - used - size;
                eprintln!("I Allocating {size} bytes. {left} remaining.");
                Ok(())
            }
            Err(used) => {
                let left = self.size - used;
                eprintln!(
                    "E Attempted to allocate {size} bytes. However current capacity is only {left}."
                );
                Err(resource_exhausted!(
                    "out of memory: {size} bytes requested, {left} left"
                ))
            }
        }
    }

    fn deallocate(&self, size: usize) {
        if size > SMALL {
            let used = self.used.fetch_sub(size, Ordering::AcqRel) - size;
            let left = self.size - used;
            eprintln!("I Freeing {size} bytes. {left} available.");
        }
    }
}

/// Counts the allocations of another allocator.
pub struct ProfiledAllocator {
    inner: Arc<dyn HostAllocator>,
    n_allocations: AtomicUsize,
    current: AtomicUsize,
    n_current: AtomicUsize,
    peak: AtomicUsize,
    total: AtomicUsize,
    is_leak_check: bool,
}

impl ProfiledAllocator {
    /// Prints figures at exit.
    pub fn profiled(inner: Arc<dyn HostAllocator>) -> Self {
        Self::new(inner, false)
    }

    /// Reports memory that was not freed at exit.
    pub fn leak_check(inner: Arc<dyn HostAllocator>) -> Self {
        Self::new(inner, true)
    }

    fn new(inner: Arc<dyn HostAllocator>, is_leak_check: bool) -> Self {
        ProfiledAllocator {
            inner,
            n_allocations: AtomicUsize::new(0),
            current: AtomicUsize::new(0),
            n_current: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            is_leak_check,
        }
    }
}

impl HostAllocator for ProfiledAllocator {
    fn allocate(&self, size: usize) -> Result<()> {
        self.inner.allocate(size)?;
        self.n_allocations.fetch_add(1, Ordering::AcqRel);
        self.n_current.fetch_add(1, Ordering::AcqRel);
        self.total.fetch_add(size, Ordering::AcqRel);
        let now = self.current.fetch_add(size, Ordering::AcqRel) + size;
        self.peak.fetch_max(now, Ordering::AcqRel);
        Ok(())
    }

    fn deallocate(&self, size: usize) {
        self.current.fetch_sub(size, Ordering::AcqRel);
        self.n_current.fetch_sub(1, Ordering::AcqRel);
        self.inner.deallocate(size);
    }

    fn report(&self) -> Option<(String, bool)> {
        let read = |n: &AtomicUsize| n.load(Ordering::Acquire);
        if self.is_leak_check {
            let (count, bytes) = (read(&self.n_current), read(&self.current));
            let text =
                format!("Memory leak detected: {count} alive allocations, {bytes} alive bytes");
            return (count > 0).then_some((text, true));
        }
        let text = format!(
            "HostAllocator profile:\nCurrent number of allocations = {}\nMax number of allocations \
             = {}\nTotal number of allocations = {}\nCurrent number of bytes allocated = {}\nMax \
             number of bytes allocated = {}\nTotal number of bytes allocated = {}",
            read(&self.n_current),
            read(&self.n_allocations),
            read(&self.n_allocations),
            read(&self.current),
            read(&self.peak),
            read(&self.total)
        );
        Some((text, false))
    }
}

/// Keeps freed memory for later buffers, up to a number of bytes; the rest goes back to another
/// allocator.
///
/// ```
/// use ferroflow_tensor::{CachingAllocator, HostAllocator, HostBuffer, MallocAllocator};
/// use std::sync::Arc;
/// let caching = Arc::new(CachingAllocator::new(Arc::new(MallocAllocator), 1 << 20));
/// let allocator: Arc<dyn HostAllocator> = caching.clone();
/// for _ in 0..3 {
///     assert_eq!(HostBuffer::new(&allocator, 100)?.bytes(), [0; 100]);
/// }
/// assert_eq!(caching.n_reused(), 2);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct CachingAllocator {
    inner: Arc<dyn HostAllocator>,
    limit: usize,
    free: Mutex<Free>,
    n_reused: AtomicUsize,
}

#[derive(Default)]
struct Free {
    bytes: usize,
    /// Free blocks by requested size, which is that of a size class.
    blocks: BTreeMap<usize, Vec<Buffer>>,
}

impl CachingAllocator {
    /// Keeps at most `limit` bytes of `inner`'s memory.
    pub fn new(inner: Arc<dyn HostAllocator>, limit: usize) -> Self {
        CachingAllocator {
            inner,
            limit,
            free: Mutex::default(),
            n_reused: AtomicUsize::new(0),
        }
    }

    /// Returns the number of buffers that reused freed memory.
    pub fn n_reused(&self) -> usize {
        self.n_reused.load(Ordering::Acquire)
    }

    /// Returns all kept memory to the inner allocator.
    pub fn clear(&self) {
        let free = std::mem::take(&mut *self.lock());
        for (class, blocks) in free.blocks {
            for block in blocks {
                self.inner.give_back(block, class);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the size class of `size` bytes: four classes per power of two.
fn class_of(size: usize) -> Option<usize> {
    let size = size.max(256);
    let step = (size.checked_next_power_of_two()? / 8).max(64);
    size.checked_next_multiple_of(step)
}

impl HostAllocator for CachingAllocator {
    fn allocate(&self, size: usize) -> Result<()> {
        self.inner.allocate(size)
    }

    fn deallocate(&self, size: usize) {
        self.inner.deallocate(size);
    }

    fn block(&self, size: usize) -> Result<Buffer> {
        let Some(class) = class_of(size) else {
            return Err(resource_exhausted!("a buffer of {size} bytes is too large"));
        };
        let found = {
            let mut free = self.lock();
            let found = free.blocks.get_mut(&class).and_then(Vec::pop);
            free.bytes -= if found.is_some() { class } else { 0 };
            found
        };
        let Some(mut block) = found else {
            return self.inner.block(class);
        };
        self.n_reused.fetch_add(1, Ordering::AcqRel);
        let n = size.min(block.len());
        // SAFETY: the block is ours alone and has at least that many bytes.
        unsafe { block.as_mut_ptr().write_bytes(0, n) };
        Ok(block)
    }

    fn give_back(&self, block: Buffer, size: usize) {
        let class = class_of(size).unwrap_or(size);
        {
            let mut free = self.lock();
            if free.bytes.saturating_add(class) <= self.limit {
                free.bytes += class;
                return free.blocks.entry(class).or_default().push(block);
            }
        }
        self.inner.give_back(block, class);
    }

    fn report(&self) -> Option<(String, bool)> {
        self.clear();
        self.inner.report()
    }
}

impl Drop for CachingAllocator {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Bytes from an allocator.
pub struct HostBuffer {
    /// `Some` until the buffer is dropped.
    buffer: Option<Buffer>,
    allocator: Arc<dyn HostAllocator>,
    size: usize,
}

impl HostBuffer {
    /// Allocates `size` bytes, all zero, aligned to 64 bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the allocator refuses; INTERNAL if its block is too small or
    /// read-only.
    pub fn new(allocator: &Arc<dyn HostAllocator>, size: usize) -> Result<HostBuffer> {
        let block = allocator.block(size)?;
        if !block.is_writable() || block.len() < size {
            return Err(internal!("the allocator returned unusable memory"));
        }
        Ok(HostBuffer {
            buffer: Some(block),
            allocator: allocator.clone(),
            size,
        })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.buffer {
            // SAFETY: the buffer has at least that many initialised bytes, and only `&mut self`
            // changes them.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.as_ptr(), self.size.min(buffer.len()))
            },
            None => &[],
        }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let size = self.size;
        match &mut self.buffer {
            // SAFETY: the buffer is ours alone and has at least that many initialised bytes.
            Some(buffer) => unsafe {
                std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), size.min(buffer.len()))
            },
            None => &mut [],
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.allocator.give_back(buffer, self.size);
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caching_allocator_reuses_what_fits_and_keeps_to_its_limit() {
        // Sizes of consecutive buffers, the limit, and how many reuse memory.
        let rows: &[(&[usize], usize, usize)] = &[
            (&[100, 100, 100], 1 << 20, 2),
            (&[1000, 1010, 900, 5000, 4999], 1 << 20, 3),
            (&[0, 0, 1], 1 << 20, 2),
            (&[1000, 1000], 100, 0),
            (&[1 << 20, 1 << 20, 1 << 10], 1 << 20, 1),
        ];
        for (sizes, limit, n_reused) in rows {
            let profiled = Arc::new(ProfiledAllocator::leak_check(Arc::new(MallocAllocator)));
            let caching = Arc::new(CachingAllocator::new(profiled.clone(), *limit));
            let allocator: Arc<dyn HostAllocator> = caching.clone();
            for size in *sizes {
                let mut buffer = HostBuffer::new(&allocator, *size).expect("there is memory");
                assert_eq!(buffer.bytes().len(), *size);
                assert!(buffer.bytes().iter().all(|b| *b == 0), "{sizes:?}");
                buffer.bytes_mut().fill(7);
            }
            assert_eq!(caching.n_reused(), *n_reused, "{sizes:?}");
            assert!(
                caching.report().is_none(),
                "{sizes:?}: all goes back in the end"
            );
        }
        assert!(class_of(usize::MAX).is_none());
    }
}
