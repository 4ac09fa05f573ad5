//! [`Spawner`]: a pool as seen by state that may outlive it.

use crate::Parallelism;
use crate::pool::{Shared, StandIn};
use std::sync::{Arc, Weak};

/// Starts tasks on a pool's threads without keeping the pool alive.
///
/// ```
/// use ferroflow_sync::{Parallelism, Pool};
/// let pool = Pool::new(2);
/// let spawner = pool.spawner().unwrap();
/// let (send, receive) = std::sync::mpsc::channel();
/// assert!(spawner.spawn(move || send.send(1).unwrap()));
/// assert_eq!(receive.recv(), Ok(1));
/// drop(pool);
/// assert!(!spawner.spawn(|| ()));
/// ```
#[derive(Clone)]
pub struct Spawner {
    shared: Weak<Shared>,
    width: usize,
}

impl Spawner {
    pub(crate) fn new(shared: &Arc<Shared>) -> Spawner {
        Spawner {
            shared: Arc::downgrade(shared),
            width: shared.width(),
        }
    }

    /// Runs `task` on some thread, soon; returns false if the pool is gone. A task that has not
    /// started when the pool is dropped is dropped with it.
    pub fn spawn(&self, task: impl FnOnce() + Send + 'static) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.spawn(Box::new(task)))
    }

    /// Has another thread run tasks until the result is dropped: for a thread that is about to wait
    /// for one. `None` if the pool is gone.
    pub fn stand_in(&self) -> Option<StandIn> {
        self.shared.upgrade().map(Shared::stand_in)
    }
}

impl Parallelism for Spawner {
    fn width(&self) -> usize {
        self.width
    }

    fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
        match self.shared.upgrade() {
            Some(shared) => shared.run_blocks(n_blocks, f),
            None => (0..n_blocks).for_each(f),
        }
    }

    fn spawner(&self) -> Option<Spawner> {
        Some(self.clone())
    }
}
