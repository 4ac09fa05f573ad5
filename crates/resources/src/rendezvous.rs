//! [`LocalRendezvous`]: passes tensors between the `_Send` and `_Recv` nodes of one process
//! (TensorFlow: `core/framework/local_rendezvous.h`).

use ferroflow_base::{Result, Status};
use ferroflow_opdef::{RecvDone, Rendezvous};
use ferroflow_sync::Exchange;
use ferroflow_tensor::Tensor;

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
pub struct LocalRendezvous(Exchange<Option<Tensor>>);

impl LocalRendezvous {
    /// Returns the number of tensors that were sent and not received, and of receivers that wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Rendezvous for LocalRendezvous {
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()> {
        self.0.send(key, tensor)
    }

    fn recv(&self, key: &str, done: RecvDone) {
        self.0.recv(key, done);
    }

    fn abort(&self, reason: Status) {
        self.0.abort(reason);
    }
}
