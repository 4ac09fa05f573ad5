//! When freed memory goes back to the system.

use std::time::Duration;

/// `mi_option_purge_delay` of `mimalloc.h`, which the bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Makes mimalloc, if it is the program's allocator, return freed memory to the system after
/// `delay` instead of a second. Call this before other threads exist.
///
/// A server whose steps exchange messages of a hundred megabytes would otherwise hold those of
/// previous steps next to those of the current one.
pub fn return_freed_memory_after(delay: Duration) {
    let delay = delay.as_millis().min(1 << 30) as std::ffi::c_long;
    // SAFETY: writes a number that allocations read; the option exists in this version.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, delay) };
}

/// Makes mimalloc, if it is the program's allocator, return free memory of the program to the system now.
pub(crate) fn collect() {
    // SAFETY: frees what is not in use, and waits for nothing.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
