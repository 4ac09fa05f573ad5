//! The timer queue: one thread that runs timers and expires cancellation tokens; started when first
//! needed.

use crate::cancel::Shared;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

struct Queue {
    queue: Mutex<BinaryHeap<Entry>>,
    wake: Condvar,
}

struct Entry {
    at: Instant,
    what: Action,
}

enum Action {
    /// Expires the token, if it still exists.
    Token(Weak<Shared>),
    /// Runs the task unless it was cancelled.
    Task(Arc<Slot>),
}

type Slot = Mutex<Option<Box<dyn FnOnce() + Send>>>;

fn take(slot: &Slot) -> Option<Box<dyn FnOnce() + Send>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Action {
    fn run(self, now: Instant) {
        match self {
            Action::Token(token) => {
                if let Some(token) = token.upgrade() {
                    token.expire(now);
                }
            }
            Action::Task(slot) => {
                if let Some(task) = take(&slot) {
                    task();
                }
            }
        }
    }
}

/// A task that runs once at a point in time. Dropping the handle does not cancel it.
///
/// ```
/// use ferroflow_sync::Timer;
/// use std::sync::mpsc;
/// use std::time::{Duration, Instant};
/// let (send, receive) = mpsc::channel();
/// let (later, sooner) = (send.clone(), send);
/// let now = Instant::now();
/// let timer = Timer::schedule(now + Duration::from_secs(3600), move || later.send(1).unwrap());
/// Timer::schedule(now + Duration::from_millis(1), move || sooner.send(2).unwrap());
/// assert_eq!(receive.recv(), Ok(2));
/// assert!(timer.cancel());
/// assert!(receive.recv().is_err(), "the task is dropped, and with it the last sender");
/// ```
pub struct Timer(Arc<Slot>);

impl Timer {
    /// Runs `task` at `at`, or soon if that is past, on the thread of the timer queue. Other timers
    /// wait for it, so long or blocking tasks belong in a work queue.
    pub fn schedule(at: Instant, task: impl FnOnce() + Send + 'static) -> Timer {
        let slot = Arc::new(Mutex::new(Some(Box::new(task) as Box<dyn FnOnce() + Send>)));
        add(at, Action::Task(slot.clone()));
        Timer(slot)
    }

    /// Cancels and drops the task; returns whether it had not started.
    pub fn cancel(&self) -> bool {
        take(&self.0).is_some()
    }
}

/// Reversed order by deadline: the heap has the greatest entry on top.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

/// Expires the token at `at`, if it still exists.
pub(crate) fn at(at: Instant, token: Weak<Shared>) {
    add(at, Action::Token(token));
}

fn add(at: Instant, what: Action) {
    static TIMER: OnceLock<&'static Queue> = OnceLock::new();
    let timer = TIMER.get_or_init(|| {
        let timer: &'static Queue = Box::leak(Box::new(Queue {
            queue: Mutex::default(),
            wake: Condvar::new(),
        }));
        let thread = std::thread::Builder::new().name("ferroflow-timer".into());
        // Without the thread, waiting callers still check their deadlines themselves; timers do not
        // run.
        drop(thread.spawn(move || {
            crate::pin::to_all_processors();
            timer.run()
        }));
        timer
    });
    let mut queue = timer.queue.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = queue.peek().is_none_or(|first| at < first.at);
    queue.push(Entry { at, what });
    if is_first {
        timer.wake.notify_one();
    }
}

impl Queue {
    fn run(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            queue = match queue.peek().map(|first| first.at) {
                None => self
                    .wake
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.wake.wait_timeout(queue, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = queue.pop();
                    drop(queue);
                    if let Some(entry) = due {
                        // A task that panics must not kill the timer thread.
                        let run = std::panic::AssertUnwindSafe(|| entry.what.run(now));
                        drop(std::panic::catch_unwind(run));
                    }
                    self.queue.lock().unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}
