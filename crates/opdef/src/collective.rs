//! [`Collectives`]: how the members of a group on several tasks exchange tensors.

use crate::{AsyncCall, Resources};
use ferroflow_base::Result;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// Merges the second tensor into the first; both have the same shape and dtype.
pub type MergeFn = Arc<dyn Fn(&mut Tensor, &Tensor) -> Result<()> + Send + Sync>;

/// Changes the merged tensor of a group of this size.
pub type FinishFn = Arc<dyn Fn(&mut Tensor, usize) -> Result<()> + Send + Sync>;

/// The operation of a collective.
#[derive(Clone)]
pub enum CollectiveOp {
    /// All members get the merged parts.
    Reduce {
        /// Each member gets its share along the first dimension only.
        scatter: bool,
        /// Merges two parts.
        merge: MergeFn,
        /// Is applied to the merged parts, if any.
        finish: Option<FinishFn>,
        /// Offsets of the rings (TensorFlow's `subdiv_offsets`); if empty, as many rings as the next
        /// field allows.
        offsets: Vec<i64>,
        /// Most rings per device; 0 stands for TensorFlow's default, -1 for a single ring.
        max_rings: i64,
    },
    /// All members get the parts of all, concatenated along the first dimension.
    Gather,
    /// All members get the tensor of the source.
    Broadcast {
        /// Whether this member has the tensor.
        is_source: bool,
    },
    /// Each member gets one row of every other.
    AllToAll,
    /// Forms the group; each member gets its own tensor.
    Join,
}

/// The part of one member in a collective.
pub struct CollectiveRequest {
    /// The operation.
    pub op: CollectiveOp,
    /// The node's name.
    pub node: String,
    /// The node's device.
    pub device: String,
    /// Identifies the group.
    pub group: i32,
    /// The number of members.
    pub size: usize,
    /// The rank that this member asks for; by default, members have the order of their devices.
    pub rank: Option<usize>,
    /// Identifies the collective in the group.
    pub instance: i32,
    /// The dtype of the tensors.
    pub dtype: DType,
    /// The shape of the result.
    pub shape: Shape,
    /// How long to wait for the other members, if limited.
    pub timeout: Option<Duration>,
}

/// Runs collectives among the tasks of a cluster (TensorFlow: `CollectiveExecutor`). The first input of
/// the call is the member's tensor; one that only receives has none.
pub trait Collectives: Send + Sync {
    /// Finishes `call` with the member's result.
    fn run(&self, request: CollectiveRequest, call: AsyncCall);
}

impl Resources {
    /// Uses `collectives` for this session and those forked from it, unless they are set already.
    pub fn set_collectives(&self, collectives: Arc<dyn Collectives>) {
        // The first one stays.
        let _ = self.collectives_slot().set(collectives);
    }

    /// Returns how collectives of this session reach other tasks, if they may.
    pub fn collectives(&self) -> Option<&Arc<dyn Collectives>> {
        self.collectives_slot().get()
    }
}
