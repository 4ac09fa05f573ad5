//! Calls under way: how many there are, and on which threads they may block.

use ferroflow_base::{Result, resource_exhausted};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Steps that may block at the same time.
pub(crate) const MAX_STEPS: usize = 8192;
/// Calls without a step that may block at the same time.
const MAX_CONTROL: usize = 64;

/// What the calls of a server share.
///
/// A step may wait for another one, for ever. Calls that run no step have threads of their own, so
/// that a session can be closed however many steps wait.
pub(crate) struct Calls {
    steps: Arc<Semaphore>,
    /// Only its threads for blocking work are used.
    control: Option<Runtime>,
    handle: Handle,
    under_way: Arc<AtomicUsize>,
}

impl Calls {
    pub(crate) fn new() -> std::io::Result<Calls> {
        let control = Builder::new_current_thread()
            .max_blocking_threads(MAX_CONTROL)
            .thread_name("ferroflow-control")
            .build()?;
        Ok(Calls {
            steps: Arc::new(Semaphore::new(MAX_STEPS)),
            handle: control.handle().clone(),
            control: Some(control),
            under_way: Arc::default(),
        })
    }

    /// Counts a call as under way until the guard is dropped.
    pub(crate) fn begin(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.under_way.clone())
    }

    /// How many calls are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Acquire)
    }

    /// The right to run a step that may block.
    pub(crate) fn begin_step(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.steps.clone().try_acquire_owned();
        permit.map_err(|_| {
            resource_exhausted!(
                "the server runs {MAX_STEPS} steps already, the most it may; do they wait for each \
                 other? Closing their sessions ends them"
            )
        })
    }

    /// The threads of calls that run no step.
    pub(crate) fn control(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // The last owner may be a task, where waiting for threads is not allowed.
        if let Some(control) = self.control.take() {
            control.shutdown_background();
        }
    }
}

/// A call under way.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
