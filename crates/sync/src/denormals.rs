//! Denormal numbers as zeros, which is how TensorFlow's threads compute (TensorFlow: `core/platform/denormal.cc`). Where
//! they are not, sums that decay for ever stay at the smallest of them, and each operation on one takes a hundred times
//! as long.
//!
//! Rust's compiler assumes that the control register of the floating-point unit has its initial value. It may fold constants
//! on that assumption, which differ for denormal numbers alone; nothing that memory safety rests on is a float.

use std::marker::PhantomData;

/// While this lives, denormal operands and results of this thread's floating-point operations are zeros.
///
/// ```
/// let denormal = std::hint::black_box(1e-40f32);
/// let flush = ferroflow_sync::FlushDenormals::new();
/// # #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
/// assert_eq!(std::hint::black_box(denormal * 2.0), 0.0);
/// drop(flush);
/// assert!(std::hint::black_box(denormal * 2.0) > 0.0);
/// ```
#[must_use = "it ends where it is dropped"]
#[derive(Debug)]
pub struct FlushDenormals {
    /// The control register's value, if it was changed.
    before: Option<control::Word>,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl FlushDenormals {
    /// Begins; a nested one changes nothing.
    #[inline]
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        let now = control::read();
        let is_set = now & control::FLUSH == control::FLUSH;
        if !is_set {
            control::write(now | control::FLUSH);
        }
        FlushDenormals {
            before: (!is_set).then_some(now),
            thread: PhantomData,
        }
    }

    /// Begins, for as long as the thread lives.
    pub(crate) fn on_this_thread() {
        std::mem::forget(Self::new());
    }
}

impl Drop for FlushDenormals {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            control::write(before);
        }
    }
}

/// MXCSR.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// Flush to zero, and denormals are zeros.
    pub(super) const FLUSH: Word = 1 << 15 | 1 << 6;

    #[inline]
    pub(super) fn read() -> Word {
        let mut word = 0;
        // SAFETY: writes four bytes to `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: reads four bytes of `word`, a value that was read with at most the two bits of `FLUSH` changed, so that
        // every exception stays masked and the rounding as it was.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags, readonly)) };
    }
}

/// FPCR.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// Flush operands and results to zero.
    pub(super) const FLUSH: Word = 1 << 24;

    #[inline]
    pub(super) fn read() -> Word {
        let word;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: `word` was read with at most the bit of `FLUSH` changed.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Other processors keep denormal numbers.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) type Word = u32;
    pub(super) const FLUSH: Word = 0;

    pub(super) fn read() -> Word {
        0
    }

    pub(super) fn write(_: Word) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use crate::{Parallelism, Pool};
    use std::hint::black_box;

    fn is_kept() -> bool {
        black_box(black_box(f64::MIN_POSITIVE) / 4.0) > 0.0
    }

    #[test]
    fn each_ends_where_it_began() {
        assert!(is_kept());
        let outer = FlushDenormals::new();
        let inner = FlushDenormals::new();
        assert!(!is_kept());
        drop(inner);
        assert!(!is_kept());
        drop(outer);
        assert!(is_kept());
        let unwound = std::panic::catch_unwind(|| {
            let _flush = FlushDenormals::new();
            panic!("ends it");
        });
        assert!(unwound.is_err() && is_kept());
    }

    #[test]
    fn threads_of_a_pool_flush() {
        let pool = Pool::new(3);
        let flush = FlushDenormals::new();
        pool.run_blocks(100, &|_| assert!(!is_kept()));
        drop(flush);
        assert!(is_kept());
    }
}
