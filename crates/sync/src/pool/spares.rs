//! Threads that stand in for threads of a pool that wait.

use super::{Shared, lock};
use crate::sleep::Sleepers;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Threads beyond the pool's width, of which as many work as others wait.
#[derive(Default)]
pub(super) struct Spares {
    n_waiting: AtomicUsize,
    idle: Sleepers,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A thread runs tasks in place of the caller, which is about to wait for one, until this is dropped.
pub struct StandIn(Arc<Shared>);

impl Drop for StandIn {
    fn drop(&mut self) {
        self.0.spares.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Spares {
    /// Wakes the threads of a pool that stops, and returns them.
    pub(super) fn stop(&self) -> Vec<JoinHandle<()>> {
        self.idle.wake(true);
        std::mem::take(&mut *lock(&self.threads))
    }
}

impl Shared {
    /// See [`Spawner::stand_in`].
    pub(crate) fn stand_in(self: Arc<Self>) -> StandIn {
        let wanted = self.spares.n_waiting.fetch_add(1, Ordering::AcqRel) + 1;
        let mut threads = lock(&self.spares.threads);
        let (n, stops) = (threads.len(), self.stop.load(Ordering::Acquire));
        if n < wanted.min(self.width) && !stops {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name(format!("ferroflow-spare-{n}"));
            threads.extend(thread.spawn(move || shared.work_as_spare(n)).ok());
        }
        drop(threads);
        self.spares.idle.wake(true);
        StandIn(self)
    }

    /// Runs tasks while more than `n` threads wait.
    fn work_as_spare(&self, n: usize) {
        crate::FlushDenormals::on_this_thread();
        let stops = || self.stop.load(Ordering::Acquire);
        let is_wanted = || self.spares.n_waiting.load(Ordering::Acquire) > n;
        while !stops() {
            self.work_until(&|| stops() || !is_wanted());
            // The last wake-up may have been meant for a thread that continues.
            if self.has_work() {
                self.sleepers.wake(false);
            }
            self.spares.idle.sleep(|| stops() || is_wanted());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Parallelism, Pool};

    #[test]
    fn a_waiting_thread_is_replaced() {
        let pool = Pool::new(2);
        let spawner = pool.spawner().expect("two threads");
        let (send, receive) = std::sync::mpsc::channel();
        let inner = spawner.clone();
        // The pool's own thread waits for a task that only another thread can run.
        for round in 0..3 {
            let (send, inner) = (send.clone(), inner.clone());
            spawner.spawn(move || {
                let (done, wait) = std::sync::mpsc::channel();
                let _stand_in = inner.stand_in();
                inner.spawn(move || done.send(round).expect("a receiver"));
                send.send(wait.recv()).expect("a receiver");
            });
            assert_eq!(receive.recv(), Ok(Ok(round)));
        }
        drop(pool);
        assert!(spawner.stand_in().is_none());
    }
}
