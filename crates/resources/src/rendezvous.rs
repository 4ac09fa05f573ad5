//! [`LocalRendezvous`]: passes tensors between the `_Send` and `_Recv` nodes of one process
//! (TensorFlow: `core/framework/local_rendezvous.h`).

use ferroflow_base::{Result, Status};
use ferroflow_opdef::{RecvDone, Rendezvous};
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tensors sent and not yet received, by key. Sending never waits; what is sent under one key is
/// received in the same order.
///
/// ```
/// use ferroflow_opdef::Rendezvous;
/// use ferroflow_resources::rendezvous::LocalRendezvous;
/// use ferroflow_tensor::Tensor;
/// let rendezvous = LocalRendezvous::default();
/// rendezvous.send("x", Some(Tensor::scalar(1i32))).unwrap();
/// let check = |got: ferroflow_base::Result<Option<Tensor>>| {
///     assert_eq!(got.unwrap().unwrap().to_scalar::<i32>().unwrap(), 1);
/// };
/// rendezvous.recv("x", Box::new(check));
/// ```
#[derive(Default)]
pub struct LocalRendezvous(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    keys: FxHashMap<String, Queue>,
    aborted: Option<Status>,
}

/// What waits under one key: tensors or receivers, never both, never none.
enum Queue {
    Sent(VecDeque<Option<Tensor>>),
    Waiting(VecDeque<RecvDone>),
}

impl LocalRendezvous {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of tensors that were sent and not received, and of receivers that wait.
    pub fn len(&self) -> usize {
        let count = |queue: &Queue| match queue {
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
fn pop<T>(
    keys: &mut FxHashMap<String, Queue>,
    key: &str,
    of: impl Fn(&mut Queue) -> Option<&mut VecDeque<T>>,
) -> Option<T> {
    let queue = of(keys.get_mut(key)?)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        keys.remove(key);
    }
    first
}

impl Rendezvous for LocalRendezvous {
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()> {
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
            receiver(Ok(tensor));
            return Ok(());
        }
        match pending.keys.get_mut(key) {
            Some(Queue::Sent(sent)) => sent.push_back(tensor),
            _ => {
                let sent = Queue::Sent(VecDeque::from([tensor]));
                pending.keys.insert(key.to_string(), sent);
            }
        }
        Ok(())
    }

    fn recv(&self, key: &str, done: RecvDone) {
        let mut pending = self.lock();
        if let Some(reason) = pending.aborted.clone() {
            drop(pending);
            return done(Err(reason));
        }
        let sent = pop(&mut pending.keys, key, |queue| match queue {
            Queue::Sent(sent) => Some(sent),
            Queue::Waiting(_) => None,
        });
        if let Some(tensor) = sent {
            drop(pending);
            return done(Ok(tensor));
        }
        match pending.keys.get_mut(key) {
            Some(Queue::Waiting(waiting)) => waiting.push_back(done),
            _ => {
                let waiting = Queue::Waiting(VecDeque::from([done]));
                pending.keys.insert(key.to_string(), waiting);
            }
        }
    }

    fn abort(&self, reason: Status) {
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
}
