//! The flat, immutable execution plan of a dataflow function.

use ferroflow_base::define_id;
use ferroflow_opdef::{Cost, NodeInfo, OpKernel, Value};
use ferroflow_tensor::Tensor;

define_id!(/// A node of a plan.
    NodeIdx);

/// What the engine does with a node.
pub enum Action {
    /// Calls the kernel.
    Kernel(Box<dyn OpKernel>),
    /// Delivers argument `index` of the call; has no inputs.
    Arg(u32),
    /// Keeps its input as result `index` of the call.
    Retval(u32),
}

/// Where an edge ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// An input slot of the consumer's frame.
    Slot(u32),
    /// Nothing is carried; the consumer only waits.
    Control,
}

/// An edge to one consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The consumer.
    pub node: NodeIdx,
    /// What it receives.
    pub target: Target,
    /// The producer's output slot; 0 for control edges.
    pub output: u16,
    /// Whether no later edge carries the same output, so that the value may be moved.
    pub last: bool,
}

/// The hot part of a node; names are in [`Plan::info`].
pub struct PlanNode {
    /// What to do.
    pub action: Action,
    /// First input slot in the frame; the inputs are consecutive.
    pub first_slot: u32,
    /// Number of inputs.
    pub n_inputs: u32,
    /// First edge in [`Plan::edges`]; a node's edges are consecutive.
    pub first_edge: u32,
    /// Number of edges.
    pub n_edges: u32,
    /// Number of outputs.
    pub n_outputs: u16,
    /// Scheduling cost.
    pub cost: Cost,
}

/// The state that one iteration of a frame starts from. A plan without loops has one frame.
pub struct FramePlan {
    /// Input slots: constants in place, all else empty.
    pub slots: Vec<Value>,
    /// For every node, how many edges must arrive before it runs.
    pub pending: Vec<u32>,
}

/// A compiled function for the dataflow engine: arrays, no pointers between nodes.
///
/// Invariants, made by [`PlanBuilder`](crate::PlanBuilder) and relied on by the engine: slots,
/// edges, constants and nodes that are named by index exist; a slot is written by exactly one
/// edge or holds a constant; `pending` counts the edges that end at each node; outputs named by
/// edges are below `n_outputs`; the plan is acyclic.
pub struct Plan {
    /// Nodes.
    pub nodes: Vec<PlanNode>,
    /// Names and op types, by node.
    pub info: Vec<NodeInfo>,
    /// Edges, grouped by producer.
    pub edges: Vec<Edge>,
    /// Constants that slots refer to.
    pub consts: Vec<Tensor>,
    /// The frame that a call starts in.
    pub root: FramePlan,
    /// Nodes that wait for nothing.
    pub roots: Vec<NodeIdx>,
    /// Number of arguments of a call.
    pub n_args: usize,
    /// Number of results of a call.
    pub n_results: usize,
    /// Results that are constants: (result, constant).
    pub const_results: Vec<(u32, u32)>,
    /// The largest `n_outputs` of any node.
    pub max_outputs: usize,
}

impl Plan {
    /// The edges that leave `node`.
    #[inline]
    pub fn edges_of(&self, node: &PlanNode) -> &[Edge] {
        let first = node.first_edge as usize;
        &self.edges[first..first + node.n_edges as usize]
    }
}
