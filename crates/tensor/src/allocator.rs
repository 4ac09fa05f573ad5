//! Where the buffers of host programs come from: one trait, several implementations.
//!
//! An allocator accounts for buffers; it does not hand out raw memory. A [`HostBuffer`] gives its
//! bytes back to its allocator when it is dropped.

use crate::Buffer;
use ferroflow_base::{Result, resource_exhausted};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Decides whether a buffer may be had, and hears when it is gone.
pub trait HostAllocator: Send + Sync {
    /// Called before `size` bytes are allocated.
    fn allocate(&self, size: usize) -> Result<()>;
    /// Called after they were freed.
    fn deallocate(&self, size: usize);
    /// What the allocator has to say at the end: a line to print, and whether something is wrong.
    fn report(&self) -> Option<(String, bool)> {
        None
    }
}

/// Allows everything and remembers nothing.
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

/// Has a fixed number of bytes in all, and says what happens to them: for tests.
pub struct FixedSizeAllocator {
    size: usize,
    used: AtomicUsize,
}

impl FixedSizeAllocator {
    /// An allocator of `size` bytes.
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
                    "out of memory: {size} bytes wanted, {left} left"
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

/// Counts what goes through to another allocator.
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
    /// Prints figures at the end.
    pub fn profiled(inner: Arc<dyn HostAllocator>) -> Self {
        Self::new(inner, false)
    }

    /// Complains at the end if something was not freed.
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

/// Bytes of an allocator.
pub struct HostBuffer {
    buffer: Buffer,
    allocator: Arc<dyn HostAllocator>,
    size: usize,
}

impl HostBuffer {
    /// `size` bytes, all zero, aligned to 64 bytes.
    pub fn new(allocator: &Arc<dyn HostAllocator>, size: usize) -> Result<HostBuffer> {
        allocator.allocate(size)?;
        match Buffer::allocate(size, true) {
            Ok(buffer) => Ok(HostBuffer {
                buffer,
                allocator: allocator.clone(),
                size,
            }),
            Err(error) => {
                allocator.deallocate(size);
                Err(error)
            }
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer has at least `size` initialised bytes, and only `&mut self` changes them.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr(), self.size) }
    }

    /// The bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let size = self.size;
        // SAFETY: the buffer is ours alone and has at least `size` initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_mut_ptr(), size) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        self.allocator.deallocate(self.size);
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.size)
    }
}
