//! [`Buffers`]: parts of tensors that members of this task offer to others (TensorFlow:
//! `core/common_runtime/buf_rendezvous.h`).

use crate::master_session::lock;
use ferroflow_base::{Result, Status, aborted, internal};
use ferroflow_tensor::Tensor;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

enum Entry {
    /// The tensor, and the member that waits until it is taken.
    Offered(Tensor, oneshot::Sender<Result<()>>),
    Wanted(oneshot::Sender<Result<Tensor>>),
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// What was carried here and is not taken yet, by key.
    arrived: HashMap<String, VecDeque<Vec<u8>>>,
    /// The members that wait for what is carried here.
    expected: HashMap<String, oneshot::Sender<Result<Vec<u8>>>>,
    aborted: Option<Status>,
}

/// The buffers of one step, by key.
#[derive(Default)]
pub(crate) struct StepBuffers(Mutex<State>);

impl StepBuffers {
    /// Offers a tensor and waits until it is taken.
    ///
    /// # Errors
    /// INTERNAL if the key is taken; the reason of [`StepBuffers::abort`].
    pub(crate) async fn send(&self, key: &str, tensor: Tensor) -> Result<()> {
        let receiver = self.offer(key, tensor)?;
        match receiver {
            Some(taken) => taken.await.map_err(|_| ended())?,
            None => Ok(()),
        }
    }

    fn offer(&self, key: &str, tensor: Tensor) -> Result<Option<oneshot::Receiver<Result<()>>>> {
        let mut state = lock(&self.0);
        if let Some(reason) = &state.aborted {
            return Err(reason.clone());
        }
        let tensor = match state.entries.remove(key) {
            Some(Entry::Wanted(receiver)) => match receiver.send(Ok(tensor)) {
                Ok(()) => return Ok(None),
                // The one that asked has hung up.
                Err(back) => back?,
            },
            Some(offered) => {
                state.entries.insert(key.to_string(), offered);
                return Err(internal!("Collective send found a buffer of the key {key}"));
            }
            None => tensor,
        };
        let (sender, receiver) = oneshot::channel();
        let entry = Entry::Offered(tensor, sender);
        state.entries.insert(key.to_string(), entry);
        Ok(Some(receiver))
    }

    /// Takes the tensor of a key, once it is offered.
    ///
    /// # Errors
    /// INTERNAL if it is taken twice; the reason of [`StepBuffers::abort`].
    pub(crate) async fn recv(&self, key: &str) -> Result<Tensor> {
        let receiver = {
            let mut state = lock(&self.0);
            if let Some(reason) = &state.aborted {
                return Err(reason.clone());
            }
            match state.entries.remove(key) {
                Some(Entry::Offered(tensor, taken)) => {
                    // The member is gone if its step failed.
                    let _ = taken.send(Ok(()));
                    return Ok(tensor);
                }
                Some(Entry::Wanted(other)) if !other.is_closed() => {
                    state.entries.insert(key.to_string(), Entry::Wanted(other));
                    return Err(internal!(
                        "Collective recv found a receiver of the key {key}"
                    ));
                }
                _ => {}
            }
            let (sender, receiver) = oneshot::channel();
            let entry = Entry::Wanted(sender);
            state.entries.insert(key.to_string(), entry);
            receiver
        };
        receiver.await.map_err(|_| ended())?
    }

    /// Takes in what was carried here.
    pub(super) fn arrive(&self, key: &str, bytes: Vec<u8>) {
        let mut state = lock(&self.0);
        if state.aborted.is_some() {
            return;
        }
        let bytes = match state.expected.remove(key) {
            None => bytes,
            Some(receiver) => match receiver.send(Ok(bytes)) {
                // The one that waited has hung up.
                Err(Ok(bytes)) => bytes,
                _ => return,
            },
        };
        let queue = state.arrived.entry(key.to_string()).or_default();
        queue.push_back(bytes);
    }

    /// Takes the bytes of a key, once they are carried here.
    ///
    /// # Errors
    /// The reason of [`StepBuffers::abort`].
    pub(crate) async fn carried(&self, key: &str) -> Result<Vec<u8>> {
        let receiver = {
            let mut state = lock(&self.0);
            if let Some(reason) = &state.aborted {
                return Err(reason.clone());
            }
            if let Some(queue) = state.arrived.get_mut(key)
                && let Some(bytes) = queue.pop_front()
            {
                if queue.is_empty() {
                    state.arrived.remove(key);
                }
                return Ok(bytes);
            }
            let (sender, receiver) = oneshot::channel();
            state.expected.insert(key.to_string(), sender);
            receiver
        };
        receiver.await.map_err(|_| ended())?
    }

    fn is_aborted(&self) -> bool {
        lock(&self.0).aborted.is_some()
    }

    /// Ends all waits, present and future, with this error. The first reason wins.
    pub(crate) fn abort(&self, reason: Status) {
        let (entries, expected) = {
            let mut state = lock(&self.0);
            if state.aborted.is_some() {
                return;
            }
            state.aborted = Some(reason.clone());
            state.arrived.clear();
            let entries = std::mem::take(&mut state.entries);
            (entries, std::mem::take(&mut state.expected))
        };
        for receiver in expected.into_values() {
            drop(receiver.send(Err(reason.clone())));
        }
        for entry in entries.into_values() {
            // The waiting member may be gone.
            match entry {
                Entry::Offered(_, taken) => drop(taken.send(Err(reason.clone()))),
                Entry::Wanted(receiver) => drop(receiver.send(Err(reason.clone()))),
            }
        }
    }
}

fn ended() -> Status {
    aborted!("the step is over")
}

/// This many failed steps are remembered.
const MAX_FAILED: usize = 256;

/// The buffers of the steps in progress, by step id.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Steps>);

#[derive(Default)]
struct Steps {
    running: HashMap<i64, Arc<StepBuffers>>,
    /// Steps that failed here, which members elsewhere may not know yet.
    failed: VecDeque<(i64, Arc<StepBuffers>)>,
}

impl Buffers {
    /// The buffers of a step. A peer may ask for one before the step begins here.
    pub(crate) fn step(&self, id: i64) -> Arc<StepBuffers> {
        let mut steps = lock(&self.0);
        let failed = steps.failed.iter().find(|(step, _)| *step == id);
        match failed {
            Some((_, buffers)) => buffers.clone(),
            None => steps.running.entry(id).or_default().clone(),
        }
    }

    /// Removes the buffers of a step that is over.
    pub(crate) fn end_step(&self, id: i64) {
        let removed = {
            let mut steps = lock(&self.0);
            let removed = steps.running.remove(&id);
            if let Some(removed) = &removed
                && removed.is_aborted()
            {
                steps.failed.push_back((id, removed.clone()));
                if steps.failed.len() > MAX_FAILED {
                    steps.failed.pop_front();
                }
            }
            removed
        };
        if let Some(removed) = removed {
            removed.abort(aborted!("Cleanup {id}"));
        }
    }

    /// Removes all buffers.
    pub(crate) fn clear(&self) {
        let removed = std::mem::take(&mut *lock(&self.0));
        for step in removed.running.values() {
            step.abort(aborted!("the collectives were reset"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_buffer_is_taken_once() {
        let buffers = Arc::new(StepBuffers::default());
        let (early, late) = (buffers.clone(), buffers.clone());
        let early = tokio::spawn(async move { early.recv("a").await });
        tokio::task::yield_now().await;
        buffers.send("a", Tensor::scalar(1i32)).await.unwrap();
        assert_eq!(early.await.unwrap().unwrap().to_scalar::<i32>().unwrap(), 1);
        let sending = tokio::spawn(async move { late.send("b", Tensor::scalar(2i32)).await });
        tokio::task::yield_now().await;
        assert!(buffers.send("b", Tensor::scalar(3i32)).await.is_err());
        assert_eq!(
            buffers.recv("b").await.unwrap().to_scalar::<i32>().unwrap(),
            2
        );
        sending.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_receiver_that_left_does_not_count() {
        let buffers = StepBuffers::default();
        let left = tokio::time::timeout(std::time::Duration::from_millis(1), buffers.recv("a"));
        assert!(left.await.is_err());
        let (sent, received) =
            tokio::join!(buffers.send("a", Tensor::scalar(1i32)), buffers.recv("a"));
        assert!(sent.is_ok() && received.is_ok());
    }

    #[tokio::test]
    async fn members_that_come_late_learn_of_the_failure() {
        let buffers = Buffers::default();
        buffers.step(3).abort(internal!("bad"));
        buffers.end_step(3);
        assert_eq!(
            buffers.step(3).recv("a").await.unwrap_err().message(),
            "bad"
        );
    }

    #[tokio::test]
    async fn aborting_ends_all_waits() {
        let buffers = Buffers::default();
        let step = buffers.step(1);
        let (wanted, offered) = (step.clone(), step.clone());
        let wanted = tokio::spawn(async move { wanted.recv("a").await.map(drop) });
        let offered = tokio::spawn(async move { offered.send("b", Tensor::scalar(1i32)).await });
        tokio::task::yield_now().await;
        buffers.end_step(1);
        for ended in [wanted.await.unwrap(), offered.await.unwrap()] {
            assert_eq!(ended.unwrap_err().message(), "Cleanup 1");
        }
        assert!(step.recv("c").await.is_err());
    }
}
