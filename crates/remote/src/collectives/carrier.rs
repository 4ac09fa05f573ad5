//! [`Carrier`]: another way for the buffers of collectives than RecvBuf.

use super::CollectiveManager;
use crate::device::TaskName;
use ferroflow_base::Result;
use ferroflow_tensor::Tensor;
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Carries the buffers of collectives between tasks, which would ask each other for them otherwise. All tasks that it
/// reaches use it.
pub trait Carrier: Send + Sync + Debug {
    /// Begins to hand what arrives to `inbox`.
    fn open(&self, inbox: Inbox);

    /// Whether it reaches a task.
    fn reaches(&self, task: &TaskName) -> bool;

    /// Sends a buffer to a task that it reaches. The receiver learns when the tensor is not needed any more.
    fn send(&self, task: &TaskName, buffer: Buffer) -> oneshot::Receiver<Result<()>>;

    /// Says that a buffer is waited for, until the answer is dropped.
    fn expect(&self) -> Expected;
}

/// A buffer on its way.
pub struct Buffer {
    /// The number of the step.
    pub step: i64,
    /// Tells the buffer from others of the step.
    pub key: String,
    /// Its content.
    pub tensor: Tensor,
}

/// Says that a buffer is waited for.
pub type Expected = Box<dyn Send + Sync>;

/// Where a [`Carrier`] leaves what arrives.
pub struct Inbox(Weak<CollectiveManager>);

impl Inbox {
    pub(super) fn new(manager: &Arc<CollectiveManager>) -> Self {
        Inbox(Arc::downgrade(manager))
    }

    /// Hands over the bytes of a buffer; those of a step that has failed are dropped.
    pub fn put(&self, step: i64, key: &str, bytes: Vec<u8>) {
        if let Some(manager) = self.0.upgrade() {
            manager.buffers.step(step).arrive(key, bytes);
        }
    }
}
