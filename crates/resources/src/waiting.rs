//! [`Waiting`]: state whose users wait, without a thread, until it lets them proceed.
//!
//! Calls and registrations neither finish nor drop under the lock.

use ferroflow_base::{Code, Result, Status};
use ferroflow_opdef::AsyncCall;
use ferroflow_sync::Registration;
use ferroflow_tensor::Tensor;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Answer = Result<Vec<Tensor>>;
type Try<S> = Box<dyn FnMut(&mut S) -> Option<Answer> + Send>;

/// A value of type `S` and the asynchronous calls that wait for it to change.
///
/// ```
/// use ferroflow_opdef::AsyncCall;
/// use ferroflow_resources::waiting::{Order, Waiting};
/// use std::sync::mpsc::channel;
/// let (sender, receiver) = channel();
/// let call = AsyncCall::new(Vec::new(), Default::default(), move |r| sender.send(r.is_ok()).unwrap());
/// let flag = std::sync::Arc::new(Waiting::new(false, Order::Any));
/// let cancelled = ferroflow_base::cancelled!("cancelled");
/// flag.attempt(call, cancelled, |set| set.then(|| Ok(Vec::new())));
/// assert!(receiver.try_recv().is_err());
/// flag.update(|set| *set = true);
/// assert_eq!(receiver.try_recv(), Ok(true));
/// ```
pub struct Waiting<S> {
    state: Mutex<State<S>>,
    order: Order,
}

/// Which of the waiting calls may proceed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Any of them, the oldest first.
    Any,
    /// Only the oldest.
    First,
}

struct State<S> {
    value: S,
    next_id: u64,
    attempts: VecDeque<Attempt<S>>,
}

struct Attempt<S> {
    id: u64,
    proceed: Try<S>,
    cancelled: Status,
    call: AsyncCall,
    registration: Option<Registration>,
}

/// A call that ended, with its answer.
type Ended = (AsyncCall, Answer, Option<Registration>);

impl<S: Send + 'static> Waiting<S> {
    /// Returns the value, without anyone waiting.
    pub fn new(value: S, order: Order) -> Self {
        Waiting {
            state: Mutex::new(State {
                value,
                next_id: 0,
                attempts: VecDeque::new(),
            }),
            order,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value, or looks at it, and lets calls proceed.
    pub fn update<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let result = change(&mut state.value);
        state.serve(self.order, &mut ended);
        drop(state);
        finish(ended);
        result
    }

    /// Finishes `call` with the answer of `proceed`: now, or once a change lets it return one. The
    /// error of a cancelled call is `cancelled`, unless its deadline passed.
    pub fn attempt(
        self: &Arc<Self>,
        call: AsyncCall,
        cancelled: Status,
        proceed: impl FnMut(&mut S) -> Option<Answer> + Send + 'static,
    ) {
        if let Err(error) = call.cancel.check() {
            return call.finish(Err(error));
        }
        let cancel = call.cancel.clone();
        let mut ended = Vec::new();
        let (id, waits) = {
            let mut state = self.lock();
            let id = state.next_id;
            state.next_id += 1;
            state.attempts.push_back(Attempt {
                id,
                proceed: Box::new(proceed),
                cancelled,
                call,
                registration: None,
            });
            state.serve(self.order, &mut ended);
            (id, state.attempts.iter().any(|a| a.id == id))
        };
        finish(ended);
        if !waits {
            return;
        }
        let (this, check) = (Arc::downgrade(self), cancel.clone());
        let registration = cancel.on_cancel(move || {
            if let Some(this) = this.upgrade() {
                this.give_up(id, check.check().err());
            }
        });
        let mut state = self.lock();
        let unused = match state.attempts.iter_mut().find(|a| a.id == id) {
            Some(attempt) => attempt.registration.replace(registration),
            None => Some(registration),
        };
        drop(state);
        drop(unused);
    }

    /// Ends a call whose step was cancelled.
    fn give_up(&self, id: u64, reason: Option<Status>) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let at = state.attempts.iter().position(|a| a.id == id);
        if let Some(attempt) = at.and_then(|at| state.attempts.remove(at)) {
            let error = match reason {
                Some(e) if e.code() == Code::DeadlineExceeded => e,
                _ => attempt.cancelled,
            };
            ended.push((attempt.call, Err(error), attempt.registration));
        }
        state.serve(self.order, &mut ended);
        drop(state);
        finish(ended);
    }
}

impl<S> State<S> {
    fn serve(&mut self, order: Order, ended: &mut Vec<Ended>) {
        let mut at = 0;
        while let Some(attempt) = self.attempts.get_mut(at) {
            match (attempt.proceed)(&mut self.value) {
                Some(answer) => {
                    if let Some(attempt) = self.attempts.remove(at) {
                        ended.push((attempt.call, answer, attempt.registration));
                    }
                    // The change may let an older call proceed.
                    at = 0;
                }
                None if order == Order::First => return,
                None => at += 1,
            }
        }
    }
}

fn finish(ended: Vec<Ended>) {
    for (call, answer, registration) in ended {
        drop(registration);
        call.finish(answer);
    }
}

impl<S> Drop for Waiting<S> {
    fn drop(&mut self) {
        // Pending calls finish with CANCELLED when they drop, which must not happen in the lock.
        let state = self.state.get_mut();
        let attempts = &mut state.unwrap_or_else(PoisonError::into_inner).attempts;
        drop(std::mem::take(attempts));
    }
}
