//! What a session needs of the other tasks of its cluster. `remote` implements it over gRPC.

use ferroflow_base::Result;
use ferroflow_executor::TraceSink;
use ferroflow_model::proto::GraphDef;
use ferroflow_opdef::Rendezvous;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// The tasks of a session whose devices are those of several.
pub trait Cluster: Send + Sync {
    /// The number of the task that has a device; devices are numbered as in
    /// [`SessionOptions::devices`](crate::SessionOptions::devices).
    fn task_of(&self, device: usize) -> usize;

    /// The number of the task that runs the session.
    fn own_task(&self) -> usize;

    /// Registers the parts of a graph that tasks run, at the same time, and returns them in this order. Each
    /// node names its device; feeds and fetches are `_Recv` and `_Send` nodes.
    ///
    /// # Errors
    /// UNAVAILABLE if a task does not answer; those of the tasks.
    fn register(&self, parts: Vec<(usize, GraphDef)>) -> Result<Vec<Arc<dyn RegisteredGraph>>>;

    /// Begins a step that the other tasks `tasks` run parts of; their statistics go to `trace`, if any. Its
    /// number is `id`, if given.
    ///
    /// # Errors
    /// INTERNAL if the cluster does not have one of the tasks.
    fn begin_step(
        &self,
        tasks: &[usize],
        id: Option<u64>,
        trace: Option<&Arc<dyn TraceSink>>,
    ) -> Result<Arc<dyn ClusterStep>>;
}

/// A step that runs on several tasks. Dropped, it is cleaned up on all of them.
pub trait ClusterStep: Send + Sync {
    /// Its number, which the tasks share.
    fn id(&self) -> u64;

    /// The rendezvous of this task, which receives from others too.
    fn rendezvous(&self) -> Arc<dyn Rendezvous>;

    /// Where the statistics of other tasks go, if they are asked for.
    fn trace(&self) -> Option<&Arc<dyn TraceSink>>;
}

/// Receives the fetches of a part, in order.
pub type RunDone = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// The part of a graph that was registered with another task. Dropped, it is deregistered.
pub trait RegisteredGraph: Send + Sync {
    /// Runs the part in a step, and calls `done` with the tensors of the keys in `fetches`.
    fn run(
        &self,
        step: &Arc<dyn ClusterStep>,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        cancel: &CancelToken,
        done: RunDone,
    );
}
