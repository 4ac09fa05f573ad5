//! Calls in progress, and the threads on which they may block.

use ferroflow_base::{Result, resource_exhausted};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most steps that block at the same time.
pub const MAX_STEPS: usize = 8192;
/// Most calls without a step that block at the same time.
const MAX_CONTROL: usize = 64;

/// State shared by the calls of a server.
///
/// A step may wait for another one without end. Calls that run no step use a separate thread pool, so that
/// blocked steps cannot starve the calls that cancel them.
pub struct Calls {
    steps: Arc<Semaphore>,
    /// Only its blocking threads are used.
    control: Option<Runtime>,
    handle: Handle,
    under_way: Arc<AtomicUsize>,
}

impl Calls {
    /// Returns the state of a server without calls.
    ///
    /// # Errors
    /// Those of creating threads.
    pub fn new() -> std::io::Result<Calls> {
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

    /// Counts a call until the guard is dropped.
    pub fn begin(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.under_way.clone())
    }

    /// The number of calls in progress.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Acquire)
    }

    /// Acquires the permit to run a step that may block.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if too many steps block.
    pub fn begin_step(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.steps.clone().try_acquire_owned();
        permit.map_err(|_| {
            resource_exhausted!(
                "the server runs {MAX_STEPS} steps already, the most it may; do they wait for each \
                 other? Closing their sessions ends them"
            )
        })
    }

    /// The threads of calls that run no step.
    pub fn control(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // The last owner may be a task, which must not wait for threads.
        if let Some(control) = self.control.take() {
            control.shutdown_background();
        }
    }
}

/// How long connections stay open after the last call.
const LINGER: Duration = Duration::from_secs(10);

/// Waits for the calls in progress, at most for `grace`, and then some seconds for connections to send their last
/// responses.
pub async fn finish(calls: &Calls, grace: Duration) {
    let give_up = tokio::time::Instant::now() + grace;
    while calls.under_way() > 0 {
        if tokio::time::Instant::now() >= give_up {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(LINGER).await;
}

/// A call in progress.
pub struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
