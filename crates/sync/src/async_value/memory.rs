//! Where values lie: a block that one of them leaves is the next one's on the same thread.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;

/// What most values need: the header, and a payload of up to two words.
const BLOCK: Layout = match Layout::from_size_align(32, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};
/// Blocks a thread keeps for reuse.
const MAX_FREE: usize = 512;
/// None are kept where a tool looks for uses of memory that was freed.
const KEEPS: bool = !cfg!(any(loom, asan));

/// A block that nobody uses.
struct Free {
    next: *mut Free,
}

struct FreeList {
    first: Cell<*mut Free>,
    len: Cell<usize>,
}

impl Drop for FreeList {
    fn drop(&mut self) {
        let mut block = self.first.get();
        while let Some(free) = NonNull::new(block) {
            // SAFETY: the list has free blocks only, each once.
            unsafe {
                block = free.as_ref().next;
                dealloc(free.as_ptr().cast(), BLOCK);
            }
        }
    }
}

thread_local! {
    static FREE: FreeList = const {
        FreeList { first: Cell::new(std::ptr::null_mut()), len: Cell::new(0) }
    };
}

#[inline]
const fn fits(layout: Layout) -> bool {
    layout.size() <= BLOCK.size() && layout.align() <= BLOCK.align()
}

/// Memory of this layout, or more.
#[inline]
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    if !fits(layout) {
        return from_system(layout);
    }
    let reused = FREE.try_with(|free| {
        let block = NonNull::new(free.first.get())?;
        // SAFETY: the list has free blocks only, and this thread alone has the list.
        free.first.set(unsafe { block.as_ref() }.next);
        free.len.set(free.len.get() - 1);
        Some(block.cast())
    });
    match reused {
        Ok(Some(block)) => block,
        _ => from_system(BLOCK),
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

/// Gives memory back.
///
/// # Safety
/// It comes from [`allocate`] with the same layout, and nobody uses it any more.
#[inline]
pub(super) unsafe fn free(memory: NonNull<u8>, layout: Layout) {
    let is_kept = fits(layout)
        && FREE
            .try_with(|free| {
                let keep = KEEPS && free.len.get() < MAX_FREE;
                if keep {
                    let block = memory.cast::<Free>();
                    // SAFETY: a block is large enough and aligned for it, and is nobody's now.
                    unsafe {
                        block.write(Free {
                            next: free.first.get(),
                        });
                    }
                    free.first.set(block.as_ptr());
                    free.len.set(free.len.get() + 1);
                }
                keep
            })
            .unwrap_or(false);
    if !is_kept {
        let layout = if fits(layout) { BLOCK } else { layout };
        // SAFETY: `allocate` took it from the system with this layout.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
}
