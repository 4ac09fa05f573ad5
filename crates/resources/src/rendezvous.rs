//! [`Rendezvous`]: passes tensors between the `_Send` and `_Recv` nodes of a step (TensorFlow:
//! `core/framework/rendezvous.h`).

use ferroflow_base::{Result, Status};
use ferroflow_sync::CancelToken;
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Receiver = Box<dyn FnOnce(Result<Tensor>) + Send>;

/// Values sent and not yet received, by key. Sending never waits; what is sent under one key is
/// received in the same order.
///
/// ```
/// use ferroflow_resources::rendezvous::Rendezvous;
/// use ferroflow_tensor::Tensor;
/// let table = std::sync::Arc::new(Rendezvous::default());
/// table.send("x", Tensor::scalar(1i32)).unwrap();
/// table.recv("x", |got| assert_eq!(got.unwrap().to_scalar::<i32>().unwrap(), 1));
/// ```
#[derive(Default)]
pub struct Rendezvous(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    values: FxHashMap<String, Vec<Tensor>>,
    waiting: FxHashMap<String, Vec<Receiver>>,
    aborted: Option<Status>,
}

impl Rendezvous {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a value to the receiver of `key`, present or future.
    ///
    /// # Errors
    ///
    /// The reason of [`Rendezvous::abort`].
    pub fn send(&self, key: &str, value: Tensor) -> Result<()> {
        let mut table = self.lock();
        if let Some(reason) = &table.aborted {
            return Err(reason.clone());
        }
        let waiting = table.waiting.get_mut(key).filter(|w| !w.is_empty());
        match waiting.map(|w| w.remove(0)) {
            Some(receiver) => {
                drop(table);
                receiver(Ok(value));
            }
            None => table.values.entry(key.to_string()).or_default().push(value),
        }
        Ok(())
    }

    /// Calls `done` with the next value of `key`, at once or when it is sent.
    pub fn recv(&self, key: &str, done: impl FnOnce(Result<Tensor>) + Send + 'static) {
        let mut table = self.lock();
        if let Some(reason) = table.aborted.clone() {
            drop(table);
            return done(Err(reason));
        }
        let values = table.values.get_mut(key).filter(|v| !v.is_empty());
        match values.map(|v| v.remove(0)) {
            Some(value) => {
                drop(table);
                done(Ok(value));
            }
            None => {
                let waiting = table.waiting.entry(key.to_string()).or_default();
                waiting.push(Box::new(done));
            }
        }
    }

    /// Ends all waits, present and future, with this error. The first reason wins.
    pub fn abort(&self, reason: Status) {
        let waiting = {
            let mut table = self.lock();
            table.aborted.get_or_insert_with(|| reason.clone());
            table.values.clear();
            std::mem::take(&mut table.waiting)
        };
        for receiver in waiting.into_values().flatten() {
            receiver(Err(reason.clone()));
        }
    }
}

/// Aborts `table` when `cancel` is cancelled.
pub fn abort_on_cancel(
    table: &Arc<Rendezvous>,
    cancel: &CancelToken,
) -> ferroflow_sync::Registration {
    let (table, token) = (table.clone(), cancel.clone());
    cancel.on_cancel(move || {
        if let Err(reason) = token.check() {
            table.abort(reason);
        }
    })
}
