//! Cancellation of a step, explicitly or by deadline.

use crate::atomic::{AtomicBool, Mutex, MutexGuard, Ordering};
use crate::timer;
use ferroflow_base::{Result, cancelled, deadline_exceeded};
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Tells whether work should stop. Clones share the same flag.
///
/// ```
/// use ferroflow_sync::CancelToken;
/// let token = CancelToken::new();
/// assert!(token.check().is_ok());
/// token.clone().cancel();
/// assert!(token.check().is_err());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<Shared>,
    deadline: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Shared {
    flag: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    /// The earliest deadline that the timer is armed for.
    armed: Option<Instant>,
    /// The callbacks at fixed places: thousands may be taken back, in any order.
    callbacks: Vec<Option<Callback>>,
    /// The places that are free.
    free: Vec<usize>,
}

impl Waiting {
    /// Adds a callback; returns its place.
    fn add(&mut self, callback: Callback) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.callbacks[at] = Some(callback);
                at
            }
            None => {
                self.callbacks.push(Some(callback));
                self.callbacks.len() - 1
            }
        }
    }

    /// Takes the callback at a place if `is_it` selects it.
    fn take_if(&mut self, at: usize, is_it: impl FnOnce(&Callback) -> bool) -> Option<Callback> {
        let taken = self.callbacks.get_mut(at)?.take_if(|c| is_it(c));
        if taken.is_some() {
            self.free.push(at);
            if self.free.len() == self.callbacks.len() {
                self.callbacks.clear();
                self.free.clear();
            }
        }
        taken
    }
}

struct Callback {
    id: u64,
    deadline: Option<Instant>,
    run: Box<dyn FnOnce() + Send>,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token that expires `timeout` from now and is cancelled with `self`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let deadline = Instant::now().checked_add(timeout);
        let deadline = match (self.deadline, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        CancelToken {
            shared: self.shared.clone(),
            deadline,
        }
    }

    /// Creates a separate token that expires when this one does but is not cancelled with it.
    #[must_use]
    pub fn with_same_deadline(&self) -> Self {
        CancelToken {
            shared: Arc::default(),
            deadline: self.deadline,
        }
    }

    /// Cancels the token and runs the callbacks registered with [`CancelToken::on_cancel`].
    pub fn cancel(&self) {
        self.shared.flag.store(true, Ordering::Release);
        self.shared.run(|_| true);
    }

    /// Checks whether the work may continue.
    ///
    /// # Errors
    /// CANCELLED if the token is cancelled, DEADLINE_EXCEEDED if it has expired.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.shared.flag.load(Ordering::Acquire) {
            return Err(cancelled!("Step was cancelled by an explicit call"));
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                Err(deadline_exceeded!("Timed out waiting for notification"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the time at which the token expires, if any.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs `callback` once when the token is cancelled or expires; at once if it already has.
    ///
    /// Dropping the registration unregisters the callback, unless it is already running on another
    /// thread.
    ///
    /// ```
    /// use ferroflow_sync::CancelToken;
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// let (sender, receiver) = mpsc::channel();
    /// let token = CancelToken::new().with_timeout(Duration::from_millis(5));
    /// let registration = token.on_cancel(move || sender.send("late").unwrap());
    /// assert_eq!(receiver.recv().unwrap(), "late");
    /// drop(registration);
    /// ```
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) -> Registration {
        let mut waiting = self.shared.lock();
        // Under the lock: a cancellation after this check finds the callback in the list.
        if self.check().is_err() {
            drop(waiting);
            callback();
            return Registration::default();
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        let at = waiting.add(Callback {
            id,
            deadline: self.deadline,
            run: Box::new(callback),
        });
        let arm = self
            .deadline
            .filter(|&d| waiting.armed.is_none_or(|armed| d < armed));
        if arm.is_some() {
            waiting.armed = arm;
        }
        drop(waiting);
        if let Some(deadline) = arm {
            timer::at(deadline, Arc::downgrade(&self.shared));
        }
        Registration {
            of: Arc::downgrade(&self.shared),
            at,
            id,
        }
    }

    /// Runs the callbacks of tokens that have expired. A timer thread does the same; a caller that
    /// waits anyway may be earlier.
    pub fn run_expired(&self) {
        let now = Instant::now();
        self.shared.run(|c| c.deadline.is_some_and(|d| d <= now));
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("cancelled", &self.shared.flag)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs and removes the callbacks that `due` selects; not under the lock, which they may take.
    fn run(&self, due: impl Fn(&Callback) -> bool) {
        let mut picked = Vec::new();
        {
            let mut waiting = self.lock();
            // From the last: taking the last one of all empties the list.
            for at in (0..waiting.callbacks.len()).rev() {
                picked.extend(waiting.take_if(at, &due));
            }
            picked.sort_unstable_by_key(|callback| callback.id);
        }
        for callback in picked {
            (callback.run)();
        }
    }

    /// Runs the callbacks whose deadline has passed and arms the timer for the next one.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) {
        self.run(|c| c.deadline.is_some_and(|d| d <= now));
        let next = {
            let mut waiting = self.lock();
            let left = waiting.callbacks.iter().flatten();
            waiting.armed = left.filter_map(|c| c.deadline).min();
            waiting.armed
        };
        if let Some(deadline) = next {
            timer::at(deadline, Arc::downgrade(self));
        }
    }
}

/// Keeps a callback of [`CancelToken::on_cancel`] registered.
#[derive(Default)]
#[must_use = "dropping it takes the callback back"]
pub struct Registration {
    of: Weak<Shared>,
    at: usize,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(shared) = self.of.upgrade() else {
            return;
        };
        let mut waiting = shared.lock();
        let callback = waiting.take_if(self.at, |c| c.id == self.id);
        // Dropping what the callback owns may lock the list.
        drop(waiting);
        drop(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn counter() -> (Arc<AtomicUsize>, impl Fn() -> Box<dyn FnOnce() + Send>) {
        let count = Arc::new(AtomicUsize::new(0));
        let of_callbacks = count.clone();
        let callback = move || -> Box<dyn FnOnce() + Send> {
            let count = of_callbacks.clone();
            Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            })
        };
        (count, callback)
    }

    #[test]
    fn callbacks_run_once_and_only_while_registered() {
        let (count, callback) = counter();
        let token = CancelToken::new();
        let kept = token.on_cancel(callback());
        drop(token.on_cancel(callback()));
        let of_clone = token
            .with_timeout(Duration::from_secs(3600))
            .on_cancel(callback());
        token.cancel();
        token.cancel();
        assert_eq!(count.load(Ordering::SeqCst), 2);
        let late = token.on_cancel(callback());
        assert_eq!(count.load(Ordering::SeqCst), 3);
        drop((kept, of_clone, late));
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn deadlines_run_callbacks_in_their_order() {
        let (sender, receiver) = mpsc::channel();
        let token = CancelToken::new();
        let start = Instant::now();
        let registrations: Vec<_> = [60u64, 20, 40]
            .into_iter()
            .map(|ms| {
                let sender = sender.clone();
                let token = token.with_timeout(Duration::from_millis(ms));
                token.on_cancel(move || sender.send((ms, start.elapsed())).unwrap())
            })
            .collect();
        for expected in [20, 40, 60] {
            let (ms, elapsed) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(ms, expected);
            assert!(elapsed >= Duration::from_millis(ms), "{ms}: {elapsed:?}");
        }
        assert!(token.check().is_ok(), "the token itself has no deadline");
        drop(registrations);
    }

    #[test]
    fn callbacks_may_register_and_drop_others() {
        let token = CancelToken::new();
        let (count, callback) = counter();
        let other = token.on_cancel(callback());
        let of_callback = token.clone();
        let inner = callback();
        let first = token.on_cancel(move || {
            drop(other);
            drop(of_callback.on_cancel(inner));
        });
        token.cancel();
        drop(first);
        // The inner one ran at once; the other had been selected before it was dropped.
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn racing_registrations_are_never_lost() {
        for _ in 0..200 {
            let (count, callback) = counter();
            let token = CancelToken::new();
            let (of_thread, callback) = (token.clone(), callback());
            let thread = std::thread::spawn(move || of_thread.on_cancel(callback));
            token.cancel();
            let registration = thread.join().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), 1);
            drop(registration);
        }
    }
}
