//! [`Dispatch`]: the thread that enqueues the operations of a device.

use crate::Device;
use ferroflow_base::{Result, internal};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

type Task = Box<dyn FnOnce() + Send>;

/// A thread that runs tasks in order, and ends with its handle. One thread for a device: its context stays
/// current there, and launches of several steps do not contend for the driver.
pub(crate) struct Dispatch(Sender<Task>);

impl Dispatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// INTERNAL if the process has too many threads.
    pub(crate) fn new(device: &Device) -> Result<Dispatch> {
        let (sender, tasks) = channel::<Task>();
        let name = format!("{}{}", device.backend().kind(), device.ordinal());
        let thread = std::thread::Builder::new().name(name);
        // A task that panics has ended its own step; those of others go on.
        let run = move || {
            tasks
                .into_iter()
                .for_each(|task| drop(catch_unwind(AssertUnwindSafe(task))));
        };
        let started = thread.spawn(run);
        started.map_err(|e| internal!("no thread for {device}: {e}"))?;
        Ok(Dispatch(sender))
    }

    /// Runs a task behind those before.
    pub(crate) fn spawn(&self, task: Task) {
        // The thread lives as long as the sender.
        let _ = self.0.send(task);
    }
}
