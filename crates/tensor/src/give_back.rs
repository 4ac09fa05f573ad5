//! How soon freed memory goes back to the system.

use std::time::Duration;

/// `mi_option_purge_delay` of `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Has mimalloc, where it is the allocator of the program, give freed memory back to the system after
/// `delay` instead of a second. To be called before there are other threads.
///
/// A server whose steps take and give messages of a hundred megabytes would else hold those of the
/// last ones beside those of this one.
pub fn return_freed_memory_after(delay: Duration) {
    let delay = delay.as_millis().min(1 << 30) as std::ffi::c_long;
    // SAFETY: writes a number that allocations read; the option exists in this version.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, delay) };
}
