//! Memory of values: freed blocks are reused by later values of the same thread.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;

/// Sizes of blocks: most values are a header with a payload of up to two words; tensor handles and
/// tensors are larger.
const SIZES: [usize; 3] = [32, 64, 128];
const ALIGN: usize = 16;
/// Blocks of each size that a thread keeps for reuse.
const MAX_FREE: usize = 512;
/// Whether blocks are kept; not under tools that detect uses of freed memory.
const KEEPS: bool = !cfg!(any(loom, asan));

/// A free block.
struct Free {
    next: *mut Free,
}

struct FreeList {
    first: Cell<*mut Free>,
    len: Cell<usize>,
}

/// The free lists of a thread, by size.
struct FreeLists([FreeList; SIZES.len()]);

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (list, size) in self.0.iter().zip(SIZES) {
            let mut block = list.first.get();
            while let Some(free) = NonNull::new(block) {
                // SAFETY: the list has free blocks of this size only, each once.
                unsafe {
                    block = free.as_ref().next;
                    let layout = Layout::from_size_align_unchecked(size, ALIGN);
                    dealloc(free.as_ptr().cast(), layout);
                }
            }
        }
    }
}

thread_local! {
    static FREE: FreeLists = const {
        FreeLists(
            [const { FreeList { first: Cell::new(std::ptr::null_mut()), len: Cell::new(0) } };
                SIZES.len()],
        )
    };
}

/// Returns the index of the smallest size class that fits such a value, if any.
#[inline]
const fn class_of(layout: Layout) -> Option<usize> {
    let mut class = 0;
    while class < SIZES.len() {
        if layout.size() <= SIZES[class] && layout.align() <= ALIGN {
            return Some(class);
        }
        class += 1;
    }
    None
}

/// Returns the layout of the block for a value of this layout.
#[inline]
fn block(layout: Layout) -> Layout {
    let size = class_of(layout).and_then(|class| SIZES.get(class));
    size.and_then(|size| Layout::from_size_align(*size, ALIGN).ok())
        .unwrap_or(layout)
}

/// Allocates memory of at least this layout.
#[inline]
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    let reused = class_of(layout).and_then(|class| {
        let take = |lists: &FreeLists| {
            let free = lists.0.get(class)?;
            let block = NonNull::new(free.first.get())?;
            // SAFETY: the list has free blocks only, and this thread alone has the list.
            free.first.set(unsafe { block.as_ref() }.next);
            free.len.set(free.len.get() - 1);
            Some(block.cast())
        };
        FREE.try_with(take).ok().flatten()
    });
    match reused {
        Some(block) => block,
        None => from_system(block(layout)),
    }
}

#[cold]
fn from_system(layout: Layout) -> NonNull<u8> {
    // SAFETY: every value has a header, so the layout is not empty.
    match NonNull::new(unsafe { alloc(layout) }) {
        Some(memory) => memory,
        None => handle_alloc_error(layout),
    }
}

/// Releases memory.
///
/// # Safety
/// It comes from [`allocate`] with the same layout and is not used any more.
#[inline]
pub(super) unsafe fn free(memory: NonNull<u8>, layout: Layout) {
    let keep = |lists: &FreeLists| -> bool {
        let Some(free) = class_of(layout).and_then(|class| lists.0.get(class)) else {
            return false;
        };
        let keep = KEEPS && free.len.get() < MAX_FREE;
        if keep {
            let block = memory.cast::<Free>();
            // SAFETY: a block is large enough and aligned for it, and unused now.
            unsafe {
                block.write(Free {
                    next: free.first.get(),
                });
            }
            free.first.set(block.as_ptr());
            free.len.set(free.len.get() + 1);
        }
        keep
    };
    if !FREE.try_with(keep).unwrap_or(false) {
        // SAFETY: `allocate` took it from the system with this layout.
        unsafe { dealloc(memory.as_ptr(), block(layout)) };
    }
}
