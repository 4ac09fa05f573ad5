//! One thread that wakes cancellation tokens at their deadlines; started when first needed.

use crate::cancel::Shared;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

struct Timer {
    queue: Mutex<BinaryHeap<Entry>>,
    wake: Condvar,
}

struct Entry {
    at: Instant,
    token: Weak<Shared>,
}

/// The earliest deadline is the greatest entry, for the heap has the greatest on top.
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

/// Lets the token look at its callbacks at `at`, unless it is gone by then.
pub(crate) fn at(at: Instant, token: Weak<Shared>) {
    static TIMER: OnceLock<&'static Timer> = OnceLock::new();
    let timer = TIMER.get_or_init(|| {
        let timer: &'static Timer = Box::leak(Box::new(Timer {
            queue: Mutex::default(),
            wake: Condvar::new(),
        }));
        let thread = std::thread::Builder::new().name("ferroflow-timer".into());
        // Without the thread, waiting callers still look at their deadlines themselves.
        drop(thread.spawn(move || {
            crate::pin::to_all_processors();
            timer.run()
        }));
        timer
    });
    let mut queue = timer.queue.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = queue.peek().is_none_or(|first| at < first.at);
    queue.push(Entry { at, token });
    if is_first {
        timer.wake.notify_one();
    }
}

impl Timer {
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
                    if let Some(token) = due.and_then(|entry| entry.token.upgrade()) {
                        // A callback that panics must not take the timer with it.
                        let run = std::panic::AssertUnwindSafe(|| token.expire(now));
                        drop(std::panic::catch_unwind(run));
                    }
                    self.queue.lock().unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}
