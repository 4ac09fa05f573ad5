//! Aligned memory that is always initialised, with a cache for recurring sizes.

use crate::MappedFile;
use crate::allocation_log::LoggedBlock;
use crate::arena::{self, Arena};
use crate::derived::Derived;
use crate::huge_pages;
use crate::memory::{MemoryBlock, current};
use ferroflow_base::{Result, resource_exhausted};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Alignment of every allocation, in bytes: a cache line, and a full AVX-512 register.
pub(crate) const ALIGN: usize = 64;
/// Smaller blocks go straight to the system allocator.
const MIN_CACHED: usize = 1024;
/// Most bytes the cache keeps for reuse.
const MAX_CACHED_BYTES: usize = 1 << 29;
/// Four size classes per power of two.
const N_CLASSES: usize = 4 * usize::BITS as usize;

/// A block of initialised bytes: allocated by us, a part of a mapped file, or another owner's.
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    source: Backing,
    derived: Derived,
}

enum Backing {
    /// `is_cached` if the block goes back to the cache.
    Heap {
        capacity: usize,
        is_cached: bool,
    },
    Mapped {
        _file: Arc<MappedFile>,
    },
    Owned {
        _owner: Arc<dyn ByteOwner>,
    },
    Block {
        block: Box<dyn MemoryBlock>,
    },
    /// A part of an arena, in use there from `offset` on.
    Part {
        arena: Arc<Arena>,
        offset: usize,
    },
    /// A block of the heap whose end a log records.
    Logged {
        _block: LoggedBlock,
    },
}

/// An owner of bytes that tensors may share, such as memory of a client.
///
/// The slice must stay the same as long as the owner lives.
pub trait ByteOwner: AsRef<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + Send + Sync> ByteOwner for T {}

// SAFETY: the buffer owns its bytes (or keeps the mapping or the owner alive), and shared access only
// reads them; writing needs `&mut Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

struct FreeList(Mutex<Vec<usize>>);

static CACHE: [FreeList; N_CLASSES] = [const { FreeList(Mutex::new(Vec::new())) }; N_CLASSES];
static CACHED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the size class of `len` and the capacity of its blocks.
fn size_class(len: usize) -> (usize, usize) {
    let len = len.max(MIN_CACHED);
    let log = (len - 1).ilog2() as usize;
    let step = 1usize << (log - 2);
    let quarter = (len - (1 << log)).div_ceil(step);
    (log * 4 + quarter - 1, (1 << log) + quarter * step)
}

/// Returns the capacity of the blocks of a size class.
fn class_capacity(class: usize) -> usize {
    let (log, quarter) = (class / 4, class % 4 + 1);
    (1 << log) + quarter * (1 << (log - 2))
}

/// Returns the most bytes that one tensor may take: the physical memory of the machine.
pub fn memory_limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let kib = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
                line.split_whitespace().nth(1)?.parse::<usize>().ok()
            });
        kib.map_or(isize::MAX as usize, |kib| kib.saturating_mul(1024))
    })
}

/// Returns free memory of the program to the system now, if its allocator is mimalloc.
pub fn return_freed_memory() {
    #[cfg(feature = "mimalloc")]
    crate::give_back::collect();
}

impl Buffer {
    /// Allocates `len` bytes with arbitrary but initialised content; all zero if `zeroed`.
    pub(crate) fn allocate(len: usize, zeroed: bool) -> Result<Buffer> {
        let exhausted =
            || resource_exhausted!("OOM when allocating a tensor of {len} bytes on the CPU");
        if len > memory_limit() {
            return Err(exhausted());
        }
        if let Some(memory) = current() {
            let mut buffer = Self::block(memory.allocate(len)?, len);
            if zeroed {
                // SAFETY: a new block has `len` bytes and no other owner.
                unsafe { buffer.as_mut_ptr().write_bytes(0, len) };
            }
            return Ok(buffer);
        }
        match arena::allocate(len) {
            Some(mut buffer) => {
                if zeroed {
                    // SAFETY: a part has `len` bytes, and no other owner while it is in use.
                    unsafe { buffer.as_mut_ptr().write_bytes(0, len) };
                }
                Ok(buffer)
            }
            None => Self::heap(len, zeroed),
        }
    }

    /// Allocates `len` bytes of the heap; see [`Buffer::allocate`].
    pub(crate) fn heap(len: usize, zeroed: bool) -> Result<Buffer> {
        if len < MIN_CACHED {
            // Allocators find aligned blocks of whole cache lines fastest.
            return Self::fresh(len, len.max(1).next_multiple_of(ALIGN), false);
        }
        let (class, capacity) = size_class(len);
        debug_assert!(capacity >= len);
        let Some(mut buffer) = Self::cached(class, capacity, len) else {
            return Self::fresh(len, capacity, true);
        };
        if zeroed {
            // SAFETY: the block has `capacity >= len` bytes and no other owner.
            unsafe { buffer.as_mut_ptr().write_bytes(0, len) };
        }
        Ok(buffer)
    }

    /// Like [`Buffer::heap`], with the smallest block that the cache has if it is below twice `len`: the memory of one step
    /// serves others that need somewhat less.
    pub(crate) fn heap_of_at_least(len: usize) -> Result<Buffer> {
        let (first, _) = size_class(len);
        for class in first..(first + 4).min(N_CLASSES) {
            let capacity = class_capacity(class);
            if let Some(buffer) = Self::cached(class, capacity, len) {
                return Ok(buffer);
            }
        }
        Self::heap(len, false)
    }

    /// Takes a block out of the cache.
    fn cached(class: usize, capacity: usize, len: usize) -> Option<Buffer> {
        let address = CACHE[class].0.lock().ok()?.pop()?;
        CACHED_BYTES.fetch_sub(capacity, Ordering::Relaxed);
        Some(Buffer {
            // SAFETY: the list holds only addresses of live blocks of this class, put there
            // by `drop`; popping transferred the ownership.
            ptr: unsafe { NonNull::new_unchecked(address as *mut u8) },
            len,
            source: Backing::Heap {
                capacity,
                is_cached: true,
            },
            derived: Derived::default(),
        })
    }

    /// Returns zeroed memory of the system allocator.
    fn fresh(len: usize, capacity: usize, is_cached: bool) -> Result<Buffer> {
        let exhausted =
            || resource_exhausted!("OOM when allocating a tensor of {len} bytes on the CPU");
        let layout = Layout::from_size_align(capacity, ALIGN).map_err(|_| exhausted())?;
        // SAFETY: the layout has a non-zero size.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        huge_pages::advise(ptr, capacity);
        Ok(Buffer {
            ptr,
            len,
            source: Backing::Heap {
                capacity,
                is_cached,
            },
            derived: Derived::default(),
        })
    }

    /// Returns a block that never enters the cache.
    pub(crate) fn uncached(len: usize) -> Result<Buffer> {
        Self::fresh(len, len.max(1).next_multiple_of(ALIGN), false)
    }

    /// Returns the bytes of `arena` from `offset` on; the range is inside it, and marked there as in use by this buffer
    /// alone.
    pub(crate) fn part(
        arena: Arc<Arena>,
        memory: NonNull<u8>,
        offset: usize,
        len: usize,
    ) -> Buffer {
        Buffer {
            // SAFETY: the caller checked that the range is inside the memory.
            ptr: unsafe { memory.add(offset) },
            len,
            source: Backing::Part { arena, offset },
            derived: Derived::default(),
        }
    }

    /// Returns a block of the heap that a log follows.
    pub(crate) fn logged(block: LoggedBlock, len: usize) -> Buffer {
        Buffer {
            ptr: block.ptr(),
            len,
            source: Backing::Logged { _block: block },
            derived: Derived::default(),
        }
    }

    /// Copies the bytes of a constant to memory that the cache never holds: constants are packed and dropped while a
    /// model is loaded, or live as long as it does.
    pub(crate) fn constant(bytes: &[u8]) -> Result<Buffer> {
        let exhausted =
            || resource_exhausted!("OOM when allocating a constant of {} bytes", bytes.len());
        let capacity = bytes.len().max(1).next_multiple_of(ALIGN);
        let layout = Layout::from_size_align(capacity, ALIGN).map_err(|_| exhausted())?;
        // SAFETY: the layout has a non-zero size.
        let ptr = NonNull::new(unsafe { alloc(layout) }).ok_or_else(exhausted)?;
        huge_pages::advise(ptr, capacity);
        // SAFETY: the new block has `capacity >= bytes.len()` bytes, which are all initialised here.
        unsafe {
            ptr.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            ptr.add(bytes.len()).write_bytes(0, capacity - bytes.len());
        }
        Ok(Buffer {
            ptr,
            len: bytes.len(),
            source: Backing::Heap {
                capacity,
                is_cached: false,
            },
            derived: Derived::default(),
        })
    }

    /// Returns a part of a mapped file; `range` must be inside it.
    pub(crate) fn mapped(file: &Arc<MappedFile>, range: Range<usize>) -> Buffer {
        let bytes = &(**file).as_ref()[range];
        Buffer {
            ptr: NonNull::from(bytes).cast(),
            len: bytes.len(),
            source: Backing::Mapped {
                _file: file.clone(),
            },
            derived: Derived::default(),
        }
    }

    /// Returns the bytes of `owner`, which lives as long as the buffer.
    pub(crate) fn owned(owner: Arc<dyn ByteOwner>) -> Buffer {
        let bytes = (*owner).as_ref();
        Buffer {
            ptr: NonNull::from(bytes).cast(),
            len: bytes.len(),
            source: Backing::Owned { _owner: owner },
            derived: Derived::default(),
        }
    }

    /// Returns a block of another allocator, of at least `len` bytes.
    pub(crate) fn block(block: Box<dyn MemoryBlock>, len: usize) -> Buffer {
        Buffer {
            ptr: block.ptr(),
            len,
            source: Backing::Block { block },
            derived: Derived::default(),
        }
    }

    /// Returns the block of another allocator, if the bytes are in one.
    pub(crate) fn as_block(&self) -> Option<&dyn MemoryBlock> {
        match &self.source {
            Backing::Block { block } => Some(&**block),
            _ => None,
        }
    }

    /// Returns what is derived from the bytes, if nothing writes them but their sole owner.
    pub(crate) fn derived(&self) -> Option<&Derived> {
        match self.source {
            Backing::Owned { .. } | Backing::Block { .. } => None,
            _ => Some(&self.derived),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether a sole owner may write the bytes.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.source, Backing::Mapped { .. } | Backing::Owned { .. })
    }

    /// The first byte.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        debug_assert!(self.is_writable());
        self.derived.clear();
        self.ptr.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (capacity, is_cached) = match &self.source {
            Backing::Heap {
                capacity,
                is_cached,
            } => (*capacity, *is_cached),
            Backing::Part { arena, offset } => return arena.release(*offset),
            _ => return,
        };
        if is_cached
            && CACHED_BYTES.fetch_add(capacity, Ordering::Relaxed) + capacity <= MAX_CACHED_BYTES
        {
            let (class, class_capacity) = size_class(capacity);
            debug_assert_eq!(class_capacity, capacity);
            if let Ok(mut list) = CACHE[class].0.lock() {
                list.push(self.ptr.as_ptr() as usize);
                return;
            }
        }
        if is_cached {
            CACHED_BYTES.fetch_sub(capacity, Ordering::Relaxed);
        }
        // SAFETY: allocated in `fresh` or `constant` with exactly this layout, and owned by us alone.
        unsafe {
            dealloc(
                self.ptr.as_ptr(),
                Layout::from_size_align_unchecked(capacity, ALIGN),
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_tight_and_stable() {
        for len in (1024..20_000).chain([1 << 20, (1 << 20) + 1, 3 << 30]) {
            let (class, capacity) = size_class(len);
            assert!(
                capacity >= len && capacity <= len + len / 4 + 1,
                "{len} -> {capacity}"
            );
            assert_eq!(size_class(capacity), (class, capacity), "{len}");
            assert_eq!(class_capacity(class), capacity, "{len}");
        }
    }

    #[test]
    fn reused_blocks_can_be_zeroed() {
        for _ in 0..3 {
            let mut b = Buffer::allocate(5000, true).expect("small");
            // SAFETY: sole owner, 5000 bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(b.as_mut_ptr(), b.len()) };
            assert!(bytes.iter().all(|&x| x == 0));
            bytes.fill(7);
        }
    }

    #[test]
    fn constants_are_exact_and_not_kept() {
        let bytes: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
        let buffer = Buffer::constant(&bytes).expect("small");
        // SAFETY: 5000 bytes, which nothing writes.
        let copy = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), buffer.len()) };
        assert_eq!(copy, bytes);
        assert!(matches!(
            buffer.source,
            Backing::Heap {
                capacity: 5056,
                is_cached: false
            }
        ));
    }

    #[test]
    fn too_large_is_an_error() {
        let e = Buffer::allocate(1 << 60, false).err().expect("must fail");
        assert_eq!(e.code(), ferroflow_base::Code::ResourceExhausted);
    }
}
