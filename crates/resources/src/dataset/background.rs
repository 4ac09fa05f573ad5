//! Work of iterators that continues between steps, on the session's pool.
//!
//! A task never waits for room in a buffer: it ends when the buffer is full, and the reader starts
//! another. A reader never waits for a task that has not started: it does the work itself. So the
//! pool's threads only add speed, and none is kept by an idle iterator. While a reader waits for a
//! task that has started, another thread takes its place in the pool.

use ferroflow_base::Result;
use ferroflow_opdef::{Resources, StepServices};
use ferroflow_sync::{CancelToken, Parallelism, Spawner, StandIn};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks at the step's cancellation.
const PATIENCE: Duration = Duration::from_millis(10);

/// The tasks of one iterator; dropping it cancels them.
#[derive(Default)]
pub struct Background {
    cancel: CancelToken,
}

/// What a task provides to functions, in place of a step.
pub struct BackgroundServices {
    spawner: Spawner,
    cancel: CancelToken,
    resources: Resources,
}

impl BackgroundServices {
    /// Calls `f` with these services.
    pub fn with<R>(&self, f: impl FnOnce(&StepServices) -> R) -> R {
        f(&StepServices {
            par: &self.spawner,
            cancel: &self.cancel,
            resources: &self.resources,
            functions: &(),
            step_id: 0,
        })
    }

    /// Starts `task` with the same services; it is dropped if the pool is gone.
    pub fn spawn(self, task: impl FnOnce(BackgroundServices) + Send + 'static) {
        let spawner = self.spawner.clone();
        spawner.spawn(move || task(self));
    }
}

impl Background {
    /// Returns the services of a task, or `None` if the step has one thread only.
    pub fn services(&self, services: &StepServices) -> Option<BackgroundServices> {
        Some(BackgroundServices {
            spawner: services.par.spawner()?,
            cancel: self.cancel.clone(),
            resources: services.resources.clone(),
        })
    }

    /// Cancels the tasks.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns how many tasks should run at a time where the program leaves it open.
    pub fn width(services: &StepServices) -> usize {
        services.par.spawner().map_or(1, |s| s.width())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.cancel();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reader that waits for a task; the pool has one thread more as long as it does.
pub(crate) struct Waiter<'a> {
    services: &'a StepServices<'a>,
    stand_in: Option<StandIn>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(services: &'a StepServices<'a>) -> Self {
        Waiter {
            services,
            stand_in: None,
        }
    }

    /// Waits for a change that another thread announces, or for a moment.
    ///
    /// # Errors
    /// CANCELLED if the step is.
    pub(crate) fn wait<'g, T>(
        &mut self,
        changed: &Condvar,
        guard: MutexGuard<'g, T>,
    ) -> Result<MutexGuard<'g, T>> {
        self.services.cancel.check()?;
        if self.stand_in.is_none() {
            self.stand_in = self.services.par.spawner().and_then(|s| s.stand_in());
        }
        Ok(wait(changed, guard))
    }
}

/// Waits for a change that another thread announces, or for a moment.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(guard, PATIENCE);
    waited.map_or_else(|e| e.into_inner().0, |(guard, _)| guard)
}
