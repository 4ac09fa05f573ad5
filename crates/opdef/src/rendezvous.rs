//! [`Rendezvous`]: where the tensors that leave a graph meet their receivers.

use ferroflow_base::{Result, Status, hash64, hash64_combine};
use ferroflow_tensor::Tensor;

/// Receives the tensor of a key, `None` if it is dead.
pub type RecvDone = Box<dyn FnOnce(Result<Option<Tensor>>) + Send>;

/// The rendezvous of one step (TensorFlow: `core/framework/rendezvous.h`).
///
/// A key names one tensor: `src_device;incarnation;dst_device;tensor_name;frame_id:iteration`, the
/// incarnation in 16 hexadecimal digits.
pub trait Rendezvous: Send + Sync {
    /// Sends a tensor, `None` if it is dead, to the receiver of `key`, present or future.
    ///
    /// # Errors
    /// The reason of [`Rendezvous::abort`].
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()>;

    /// Calls `done` with the tensor of `key`, at once or when it arrives.
    fn recv(&self, key: &str, done: RecvDone);

    /// Ends all waits, present and future, with this error. The first reason wins.
    fn abort(&self, reason: Status);
}

/// Returns the id of a loop's frame, which all partitions of a graph compute alike: that of the
/// frame and iteration that enters it, combined with its name (TensorFlow:
/// `core/common_runtime/propagator_state.h`).
pub fn child_frame_id(parent: u64, iteration: u64, name: &str) -> u64 {
    hash64_combine(parent, hash64_combine(iteration, hash64(name.as_bytes())))
}
