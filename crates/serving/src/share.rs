//! [`Share`]: how many threads a step computes with.

use ferroflow_runtime::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What steps that run at the same time have of the processors. While there are fewer than processors, each has the models'
/// pool; otherwise each computes with the thread that runs it, since threads that wait for each other's parts of a step
/// keep the processors from other steps.
pub(crate) struct Share {
    running: AtomicUsize,
    processors: usize,
    /// No threads but those that run steps.
    alone: Arc<Pool>,
}

/// A step's share, until it is dropped.
pub(crate) struct Shared<'a> {
    share: &'a Share,
    /// The pool of the step, if it is not the models'.
    pub(crate) pool: Option<Arc<Pool>>,
}

impl Share {
    pub(crate) fn new(processors: usize) -> Share {
        Share {
            running: AtomicUsize::new(0),
            processors,
            alone: Arc::new(Pool::new(1)),
        }
    }

    /// Begins a step.
    pub(crate) fn begin(&self) -> Shared<'_> {
        let others = self.running.fetch_add(1, Ordering::Relaxed);
        let is_alone = others > 0 && others + 1 >= self.processors;
        Shared {
            share: self,
            pool: is_alone.then(|| self.alone.clone()),
        }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.share.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_compute_alone() {
        for (processors, expected) in [
            (1, [false, true, true]),
            (2, [false, true, true]),
            (3, [false, false, true]),
        ] {
            let share = Share::new(processors);
            let steps: Vec<_> = (0..3).map(|_| share.begin()).collect();
            let alone: Vec<bool> = steps.iter().map(|s| s.pool.is_some()).collect();
            assert_eq!(alone, expected, "{processors}");
            drop(steps);
            assert!(share.begin().pool.is_none());
        }
    }
}
