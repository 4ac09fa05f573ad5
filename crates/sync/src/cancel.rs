//! Cancelling a step, by hand or by deadline.

use ferroflow_base::{Result, cancelled, deadline_exceeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Says whether work should stop. Clones share the same flag.
///
/// ```
/// use ferroflow_sync::CancelToken;
/// let token = CancelToken::new();
/// assert!(token.check().is_ok());
/// token.clone().cancel();
/// assert!(token.check().is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that expires `timeout` from now and follows `self` as well.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let deadline = Instant::now().checked_add(timeout);
        let deadline = match (self.deadline, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        CancelToken {
            flag: self.flag.clone(),
            deadline,
        }
    }

    /// Asks all holders to stop.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// CANCELLED or DEADLINE_EXCEEDED when the work should stop.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.flag.load(Ordering::Acquire) {
            return Err(cancelled!("Step was cancelled by an explicit call"));
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(deadline_exceeded!(
                "Timed out waiting for the step to finish"
            )),
            _ => Ok(()),
        }
    }
}
