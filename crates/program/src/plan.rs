//! The flat, immutable execution plan of a dataflow function and of all functions it calls.

use ferroflow_base::define_id;
use ferroflow_opdef::{Cost, NodeInfo, OpKernel, Value};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

define_id!(/// A node of a plan.
    NodeIdx);
define_id!(/// A frame of a plan: a function body or the inside of a loop.
    FrameIdx);

/// What the engine does with a node.
pub enum Action {
    /// Calls the kernel.
    Kernel(Box<dyn OpKernel>),
    /// Delivers argument `index` of the call; has no inputs and is never run.
    Arg(u32),
    /// Outputs a constant of the plan, when its control inputs have arrived.
    Const(u32),
    /// Passes its inputs on.
    Forward,
    /// Passes input 0 on to the output that input 1, a bool scalar, names.
    Switch,
    /// Passes input 0 on to the output that input 1, an int32 scalar, names; the last one when it
    /// is out of range.
    SwitchN,
    /// Passes the first live input on, and its position as output 1.
    Merge,
    /// Passes its input on into iteration 0 of a loop; every iteration if `is_constant`.
    Enter {
        /// The loop.
        frame: FrameIdx,
        /// Whether every iteration gets the value.
        is_constant: bool,
    },
    /// Passes its input on to the iteration that the loop was entered from.
    Exit,
    /// Passes its input on to the next iteration.
    NextIteration,
    /// Does nothing, and is never dead.
    Trigger,
    /// Calls a function with the inputs.
    Call(FrameIdx),
    /// Calls the function that input 0 chooses with the other inputs.
    Branch {
        /// The functions.
        branches: Box<[FrameIdx]>,
        /// Whether input 0 is a truth value (false chooses function 1) or an int32 position.
        by_truth: bool,
    },
    /// Calls `body` with its own results for as long as `cond` of them is true.
    While {
        /// One result, a truth value.
        cond: FrameIdx,
        /// As many results as arguments.
        body: FrameIdx,
    },
}

/// What an edge carries, and what its consumer makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeKind {
    /// A value for input slot `slot` of an ordinary node.
    Data,
    /// Nothing; the consumer only waits.
    Control,
    /// A value for result `slot` of the call; there is no consumer node.
    Result,
    /// A value for input slot `slot` of a Merge.
    MergeData,
    /// Nothing; a Merge waits.
    MergeControl,
    /// Nothing; a node waits that runs even if the producer is dead.
    Trigger,
}

/// An edge to one consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The consumer.
    pub node: NodeIdx,
    /// Input slot in the consumer's frame, or position of the result.
    pub slot: u32,
    /// The producer's output; 0 for edges that carry nothing.
    pub output: u16,
    /// What arrives.
    pub kind: EdgeKind,
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
    /// The input slot of the last reader of the only output, when the output can be written right
    /// there: all edges are `Data` or `Control`. Else [`NOT_DIRECT`].
    pub direct: u32,
    /// Number of outputs.
    pub n_outputs: u16,
    /// Scheduling cost.
    pub cost: Cost,
}

/// What makes iterations of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// A function body: a call makes one.
    Function,
    /// The inside of a loop: Enter nodes make the first, NextIteration nodes further ones.
    Loop {
        /// Most iterations that may be under way at the same time.
        parallel_iterations: u32,
        /// Enter nodes that lead into it.
        n_enters: u32,
    },
}

/// No slot: see [`PlanNode::direct`].
pub const NOT_DIRECT: u32 = u32::MAX;
/// Set in a pending count as soon as a dead input has arrived.
pub const DEAD: u32 = 1 << 31;
/// The state of a Merge: set until a live input arrives.
pub const MERGE_WAITS: u32 = 1;
/// The state of a Merge: one control input that has not arrived.
pub const MERGE_CONTROL: u32 = 1 << 1;
/// The state of a Merge: one dead input that has arrived.
pub const MERGE_DEAD: u32 = 1 << 16;
/// Most inputs, and most control inputs, of a Merge.
pub const MERGE_MAX: usize = 1 << 14;

/// What one iteration of a frame starts from.
pub struct FramePlan {
    /// Name of the function or of the loop's frame.
    pub name: String,
    /// Function or loop.
    pub kind: FrameKind,
    /// Its first node; a frame's nodes are consecutive.
    pub first_node: u32,
    /// Input slots: constants in place, all else empty.
    pub slots: Vec<Value>,
    /// For every node, how many edges must arrive before it runs; for a Merge `MERGE_WAITS` plus
    /// `MERGE_CONTROL` for each control edge.
    pub pending: Vec<u32>,
    /// Nodes that wait for nothing.
    pub roots: Vec<NodeIdx>,
    /// The Arg node of each argument that is used.
    pub args: Vec<Option<NodeIdx>>,
    /// Number of results of a call.
    pub n_results: usize,
    /// Results that are constants: (result, constant).
    pub const_results: Vec<(u32, u32)>,
}

/// A compiled function for the dataflow engine: arrays, no pointers between nodes.
///
/// Invariants, made by [`PlanBuilder`](crate::PlanBuilder) and relied on by the engine: slots,
/// edges, constants, frames and nodes that are named by index exist; a slot is written by exactly
/// one edge or holds a constant; `pending` counts the edges that end at each node; outputs named by
/// edges are below `n_outputs`; an edge stays in its frame, unless it leaves an Enter (into the
/// loop) or an Exit (out of it); a cycle goes through a NextIteration and a Merge.
pub struct Plan {
    /// Nodes, grouped by frame.
    pub nodes: Vec<PlanNode>,
    /// Names and op types, by node.
    pub info: Vec<NodeInfo>,
    /// Edges, grouped by producer.
    pub edges: Vec<Edge>,
    /// Constants that slots refer to.
    pub consts: Vec<Tensor>,
    /// Frames; the first is the function that a step calls.
    pub frames: Vec<FramePlan>,
    /// The largest `n_outputs` of any node.
    pub max_outputs: usize,
    /// Functions that kernels call themselves, by name.
    pub functions: BTreeMap<String, Arc<Plan>>,
}

impl Plan {
    /// The edges that leave `node`.
    #[inline]
    pub fn edges_of(&self, node: &PlanNode) -> &[Edge] {
        let first = node.first_edge as usize;
        &self.edges[first..first + node.n_edges as usize]
    }

    /// The position of a node's frame: the last one that does not begin behind it.
    pub fn frame_of(&self, node: NodeIdx) -> usize {
        let begins_before = |f: &FramePlan| f.first_node as usize <= node.index();
        self.frames.partition_point(begins_before).saturating_sub(1)
    }

    /// The frame that a step starts in.
    #[inline]
    pub fn root(&self) -> &FramePlan {
        &self.frames[0]
    }
}
