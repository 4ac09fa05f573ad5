//! [`Exchange`]: values on their way from those that send them to those that receive them.

use crate::atomic::{Mutex, MutexGuard};
use ferroflow_base::{Result, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Receives the value of a key, or why there is none.
pub type Received<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Values sent and not yet received, and receivers that wait, by key. Sending never waits; what is sent under one
/// key is received in the same order. Every receiver is called once: with a value, or with the reason that ended
/// the exchange. No lock is held while it is called.
///
/// ```
/// use ferroflow_sync::Exchange;
/// use std::sync::mpsc;
/// let exchange = Exchange::default();
/// let (sender, receiver) = mpsc::channel();
/// exchange.recv("x", Box::new(move |got| sender.send(got).unwrap()));
/// exchange.send("x", 7).unwrap();
/// assert_eq!(receiver.recv().unwrap().unwrap(), 7);
/// exchange.abort(ferroflow_base::aborted!("over"));
/// assert!(exchange.send("x", 8).is_err());
/// ```
pub struct Exchange<T>(Mutex<Pending<T>>);

struct Pending<T> {
    keys: FxHashMap<String, Queue<T>>,
    aborted: Option<Status>,
}

/// What waits under one key: values or receivers, never both, never none.
enum Queue<T> {
    Sent(VecDeque<T>),
    Waiting(VecDeque<Received<T>>),
}

impl<T> Default for Exchange<T> {
    fn default() -> Self {
        Exchange(Mutex::new(Pending {
            keys: FxHashMap::default(),
            aborted: None,
        }))
    }
}

impl<T> Exchange<T> {
    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a value to the receiver of a key, now or later.
    ///
    /// # Errors
    /// The reason of [`abort`](Self::abort).
    pub fn send(&self, key: &str, value: T) -> Result<()> {
        let mut pending = self.lock();
        if let Some(reason) = &pending.aborted {
            return Err(reason.clone());
        }
        let receiver = pop(&mut pending.keys, key, |queue| match queue {
            Queue::Waiting(waiting) => Some(waiting),
            Queue::Sent(_) => None,
        });
        if let Some(receiver) = receiver {
            drop(pending);
            receiver(Ok(value));
            return Ok(());
        }
        match pending.keys.get_mut(key) {
            Some(Queue::Sent(sent)) => sent.push_back(value),
            _ => {
                let sent = Queue::Sent(VecDeque::from([value]));
                pending.keys.insert(key.to_string(), sent);
            }
        }
        Ok(())
    }

    /// Calls `done` with the value of a key, at once or when it is sent.
    pub fn recv(&self, key: &str, done: Received<T>) {
        let mut pending = self.lock();
        if let Some(reason) = pending.aborted.clone() {
            drop(pending);
            return done(Err(reason));
        }
        let sent = pop(&mut pending.keys, key, |queue| match queue {
            Queue::Sent(sent) => Some(sent),
            Queue::Waiting(_) => None,
        });
        if let Some(value) = sent {
            drop(pending);
            return done(Ok(value));
        }
        match pending.keys.get_mut(key) {
            Some(Queue::Waiting(waiting)) => waiting.push_back(done),
            _ => {
                let waiting = Queue::Waiting(VecDeque::from([done]));
                pending.keys.insert(key.to_string(), waiting);
            }
        }
    }

    /// Ends all waits, present and future, and drops what was not received. The first reason counts.
    pub fn abort(&self, reason: Status) {
        let queues = {
            let mut pending = self.lock();
            pending.aborted.get_or_insert_with(|| reason.clone());
            std::mem::take(&mut pending.keys)
        };
        for queue in queues.into_values() {
            if let Queue::Waiting(waiting) = queue {
                waiting
                    .into_iter()
                    .for_each(|done| done(Err(reason.clone())));
            }
        }
    }

    /// Returns the number of values that were sent and not received, and of receivers that wait.
    pub fn len(&self) -> usize {
        let count = |queue: &Queue<T>| match queue {
            Queue::Sent(sent) => sent.len(),
            Queue::Waiting(waiting) => waiting.len(),
        };
        self.lock().keys.values().map(count).sum()
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Takes the first element of the queue of `key`, and the queue if that was the last one.
fn pop<T, E>(
    keys: &mut FxHashMap<String, Queue<T>>,
    key: &str,
    of: impl Fn(&mut Queue<T>) -> Option<&mut VecDeque<E>>,
) -> Option<E> {
    let queue = of(keys.get_mut(key)?)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        keys.remove(key);
    }
    first
}
