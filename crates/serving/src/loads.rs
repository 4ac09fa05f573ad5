//! [`Loads`]: how many versions are loaded at the same time.

use crate::manager::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// Limits the number of concurrent loads.
pub(crate) struct Loads {
    running: Mutex<usize>,
    ended: Condvar,
    max: usize,
}

impl Loads {
    /// At most `max` loads at the same time, at least one.
    pub(crate) fn new(max: usize) -> Loads {
        Loads {
            running: Mutex::new(0),
            ended: Condvar::new(),
            max: max.max(1),
        }
    }

    /// Loads, once fewer loads are running than may be.
    pub(crate) fn run<R>(&self, load: impl FnOnce() -> R) -> R {
        let mut running = lock(&self.running);
        while *running >= self.max {
            running = self
                .ended
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        drop(running);
        let result = load();
        *lock(&self.running) -= 1;
        self.ended.notify_one();
        result
    }
}
