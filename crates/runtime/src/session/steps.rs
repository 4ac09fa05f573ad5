//! [`RunningSteps`]: the steps of a session in progress, for closing it.

use ferroflow_base::{Code, Result, Status, failed_precondition};
use ferroflow_sync::{CancelToken, Registration};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// Set in `RunningSteps::state` when the session is closed; the other bits count steps.
const CLOSED: usize = 1;
const STEP: usize = 2;

/// Counts steps and cancels them when the session is closed.
#[derive(Default)]
pub(crate) struct RunningSteps {
    state: AtomicUsize,
    /// Why the session is closed.
    reason: OnceLock<Status>,
    closing: CancelToken,
    mutex: Mutex<()>,
    none_left: Condvar,
}

impl RunningSteps {
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

    /// Cancels the steps in progress and refuses new ones. The first reason counts.
    pub(crate) fn close(&self, reason: Status) {
        let _ = self.reason.set(reason);
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.closing.cancel();
    }

    /// Waits for the end of the last step of a closed session.
    pub(crate) fn join(&self) {
        let mut guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        while self.state.load(Ordering::Acquire) >= STEP {
            let waited = self.none_left.wait(guard);
            guard = waited.unwrap_or_else(PoisonError::into_inner);
        }
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
            Some(reason) if e.code() == Code::Cancelled => reason.clone(),
            _ => e,
        }
    }
}

impl<R: Deref<Target = RunningSteps>> Drop for StepGuard<R> {
    fn drop(&mut self) {
        drop(self.registration.take());
        let before = self.steps.state.fetch_sub(STEP, Ordering::AcqRel);
        if before == STEP | CLOSED {
            // Under the lock: `join` has either seen the count or waits already.
            let _guard = self
                .steps
                .mutex
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.steps.none_left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_base::cancelled;
    use std::sync::Arc;

    #[test]
    fn closing_cancels_and_waits() {
        let steps = Arc::new(RunningSteps::default());
        let own = CancelToken::new();
        let first = RunningSteps::begin(steps.clone(), None).expect("open");
        let second = RunningSteps::begin(steps.clone(), Some(&own)).expect("open");
        assert_eq!((steps.len(), own.check().is_ok()), (2, true));
        steps.close(cancelled!("closed"));
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
        let steps = RunningSteps::default();
        let own = CancelToken::new();
        drop(RunningSteps::begin(&steps, Some(&own)).expect("open"));
        steps.close(cancelled!("closed"));
        assert!(own.check().is_ok());
    }
}
