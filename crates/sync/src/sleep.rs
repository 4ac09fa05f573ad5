//! Sleeping and waking of idle threads, and counting of work.
//!
//! No wake-up is lost: a thread that found no work takes the lock, counts itself as a sleeper,
//! checks once more and only then waits. A thread that adds work makes it visible first and reads
//! the count after a full fence; if it is not zero, it takes the lock and notifies. Either the
//! sleeper's second check sees the work, or the adder sees the sleeper.

use crate::atomic::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence};
use std::sync::PoisonError;

/// Threads that sleep until there may be something to do.
#[derive(Debug)]
pub struct Sleepers {
    count: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Default for Sleepers {
    fn default() -> Self {
        Sleepers {
            count: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until this thread is woken; returns at once if there is something to do.
    pub fn sleep(&self, has_something_to_do: impl Fn() -> bool) {
        let guard = self.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !has_something_to_do() {
            drop(self.wake.wait(guard));
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes one sleeper, or `all`. The caller has already published the work they should find.
    pub fn wake(&self, all: bool) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            let _guard = self.lock();
            match all {
                true => self.wake.notify_all(),
                false => self.wake.notify_one(),
            }
        }
    }
}

/// The number of tasks that wait or run.
#[derive(Debug)]
pub struct Outstanding(AtomicUsize);

impl Default for Outstanding {
    fn default() -> Self {
        Outstanding(AtomicUsize::new(0))
    }
}

impl Outstanding {
    /// Counts a task that is about to be queued.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of a task, after the tasks that it queued were counted; returns whether none
    /// is left.
    #[must_use]
    pub fn end(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns whether there are none; the effects of the last one are visible then.
    pub fn is_zero(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}
