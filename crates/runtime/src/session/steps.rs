//! [`RunningSteps`]: the steps of a session in progress, for closing it.

use ferroflow_base::{Code, Result, Status, failed_precondition};
use ferroflow_sync::{CancelToken, Pool, Registration};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Set in `RunningSteps::state` when the session is closed; the other bits count steps.
const CLOSED: usize = 1;
const STEP: usize = 2;

/// Counts steps and cancels them when the session is closed.
pub(crate) struct RunningSteps {
    pool: Arc<Pool>,
    state: AtomicUsize,
    /// Why the session is closed; `None` if steps end with what their ops say.
    reason: OnceLock<Option<Status>>,
    closing: CancelToken,
}

impl RunningSteps {
    /// The steps of a session that computes on `pool`.
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        RunningSteps {
            pool,
            state: AtomicUsize::new(0),
            reason: OnceLock::new(),
            closing: CancelToken::new(),
        }
    }

    /// Fails if the session is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) & CLOSED {
            0 => Ok(()),
            _ => Err(failed_precondition!("Session is closed.")),
        }
    }

    /// Cancelled when the session is closed.
    pub(crate) fn closing(&self) -> &CancelToken {
        &self.closing
    }

    /// Begins a step; closing the session cancels `cancel`, if any, and [`RunningSteps::closing`].
    pub(crate) fn begin<R: Deref<Target = Self>>(
        steps: R,
        cancel: Option<&CancelToken>,
    ) -> Result<StepGuard<R>> {
        let before = steps.state.fetch_add(STEP, Ordering::AcqRel);
        let mut guard = StepGuard {
            steps,
            registration: None,
        };
        if before & CLOSED != 0 {
            return Err(failed_precondition!("Session is closed."));
        }
        guard.registration = cancel.map(|cancel| {
            let cancel = cancel.clone();
            guard.steps.closing.on_cancel(move || cancel.cancel())
        });
        Ok(guard)
    }

    /// Cancels the steps in progress, which fail with the reason if there is one, and refuses new ones. The first
    /// reason counts.
    pub(crate) fn close(&self, reason: Option<Status>) {
        let _ = self.reason.set(reason);
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.closing.cancel();
    }

    /// Waits for the end of the last step of a closed session. The calling thread helps: a pool of width 1
    /// has no other.
    pub(crate) fn join(&self) {
        self.pool.help_until(&|| self.len() == 0);
    }

    /// Steps in progress.
    pub(crate) fn len(&self) -> usize {
        self.state.load(Ordering::Acquire) / STEP
    }
}

/// A step in progress.
pub(crate) struct StepGuard<R: Deref<Target = RunningSteps>> {
    steps: R,
    registration: Option<Registration>,
}

impl<R: Deref<Target = RunningSteps>> StepGuard<R> {
    /// The step's error as its caller sees it: why the session was closed, if that cancelled it.
    pub(crate) fn cause(&self, e: Status) -> Status {
        match self.steps.reason.get() {
            Some(Some(reason)) if e.code() == Code::Cancelled => reason.clone(),
            _ => e,
        }
    }
}

impl<R: Deref<Target = RunningSteps>> Drop for StepGuard<R> {
    fn drop(&mut self) {
        drop(self.registration.take());
        let before = self.steps.state.fetch_sub(STEP, Ordering::AcqRel);
        if before == STEP | CLOSED {
            self.steps.pool.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_base::cancelled;

    #[test]
    fn closing_cancels_and_waits() {
        let steps = Arc::new(RunningSteps::new(Arc::new(Pool::new(1))));
        let own = CancelToken::new();
        let first = RunningSteps::begin(steps.clone(), None).expect("open");
        let second = RunningSteps::begin(steps.clone(), Some(&own)).expect("open");
        assert_eq!((steps.len(), own.check().is_ok()), (2, true));
        steps.close(Some(cancelled!("closed")));
        assert!(steps.closing().check().is_err() && own.check().is_err());
        assert!(RunningSteps::begin(&*steps, None).is_err() && steps.check_open().is_err());
        assert_eq!(first.cause(cancelled!("by hand")).message(), "closed");
        let thread = std::thread::spawn(move || drop((first, second)));
        steps.join();
        thread.join().expect("no panic");
        assert_eq!(steps.len(), 0);
    }

    #[test]
    fn a_token_outlives_its_step() {
        let steps = RunningSteps::new(Arc::new(Pool::new(1)));
        let own = CancelToken::new();
        let step = RunningSteps::begin(&steps, None).expect("open");
        drop(RunningSteps::begin(&steps, Some(&own)).expect("open"));
        steps.close(None);
        assert_eq!(step.cause(cancelled!("by the op")).message(), "by the op");
        assert!(own.check().is_ok());
    }
}
