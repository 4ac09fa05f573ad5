//! Pages of 2 MB for large blocks, which take fewer entries of the TLB.

use std::ptr::NonNull;

/// Asks the system for huge pages behind a new block, if there are whole ones.
#[cfg(target_os = "linux")]
#[inline]
pub(crate) fn advise(block: NonNull<u8>, len: usize) {
    const HUGE: usize = 2 << 20;
    // Most blocks are small.
    if len < HUGE {
        return;
    }
    let address = block.as_ptr() as usize;
    let start = address.next_multiple_of(HUGE);
    let end = (address + len) / HUGE * HUGE;
    if start >= end {
        return;
    }
    // SAFETY: the pages are inside the block, and advice does not change what they hold.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
}

/// Other systems choose the size of pages themselves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_: NonNull<u8>, _: usize) {}
