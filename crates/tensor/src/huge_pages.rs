//! Pages of 2 MB for large blocks, which take fewer entries of the TLB.

use std::ptr::NonNull;

/// Smaller blocks may have no whole page of 2 MB.
const LARGE: usize = 2 * HUGE;
const HUGE: usize = 2 << 20;

/// Asks the system for huge pages behind a new block, if it is large.
#[cfg(target_os = "linux")]
pub(crate) fn advise(block: NonNull<u8>, len: usize) {
    if len < LARGE {
        return;
    }
    let address = block.as_ptr() as usize;
    let (start, end) = (
        address.next_multiple_of(HUGE),
        (address + len) / HUGE * HUGE,
    );
    // SAFETY: the pages are inside the block, and advice does not change what they hold.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
}

/// Other systems choose the size of pages themselves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_: NonNull<u8>, _: usize) {}
