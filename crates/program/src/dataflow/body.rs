//! The flat form of a dataflow function: arrays, no pointers between nodes.

use ferroflow_base::define_id;
use ferroflow_opdef::{Attrs, Cost, NodeInfo, Value};
use ferroflow_tensor::{DType, LazyTensor};
use std::collections::BTreeMap;
use std::sync::Arc;

define_id!(/// A node of a dataflow function.
    NodeIdx);
define_id!(/// A frame of a dataflow function: a function body or the inside of a loop.
    FrameIdx);

/// What the engine does with a node; `K` is what a kernel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<K> {
    /// Calls the kernel.
    Kernel(K),
    /// Delivers argument `index` of the call; has no inputs and is never run.
    Arg(u32),
    /// Outputs a constant when its control inputs have arrived.
    Const(u32),
    /// Forwards its inputs.
    Forward,
    /// Forwards input 0 to the output that input 1, a bool scalar, selects.
    Switch,
    /// Forwards input 0 to the output that input 1, an int32 scalar, selects; to the last one when it
    /// is out of range.
    SwitchN,
    /// Forwards the first live input, and its position as output 1.
    Merge,
    /// Forwards its input to iteration 0 of a loop; to every iteration if `is_constant`.
    Enter {
        /// The loop.
        frame: FrameIdx,
        /// Whether every iteration gets the value.
        is_constant: bool,
    },
    /// Forwards its input to the iteration that the loop was entered from.
    Exit,
    /// Forwards its input to the next iteration.
    NextIteration,
    /// Does nothing, and is never dead.
    Trigger,
    /// Calls a function with the inputs.
    Call(FrameIdx),
    /// Calls `then_branch` with the other inputs if input 0 is true, else `else_branch`.
    If {
        /// The function for true.
        then_branch: FrameIdx,
        /// The function for false.
        else_branch: FrameIdx,
    },
    /// Calls the function that input 0, an int32 scalar, selects with the other inputs; the last one
    /// when it is out of range.
    Case(Box<[FrameIdx]>),
    /// Calls `body` with its own results for as long as `cond` of them is true.
    While {
        /// One result, a truth value.
        cond: FrameIdx,
        /// As many results as arguments.
        body: FrameIdx,
    },
}

impl<K> Action<K> {
    /// The same action with another form of kernel.
    pub(super) fn try_map<L, E>(&self, f: impl FnOnce(&K) -> Result<L, E>) -> Result<Action<L>, E> {
        Ok(match self {
            Action::Kernel(kernel) => Action::Kernel(f(kernel)?),
            Action::Arg(index) => Action::Arg(*index),
            Action::Const(index) => Action::Const(*index),
            Action::Forward => Action::Forward,
            Action::Switch => Action::Switch,
            Action::SwitchN => Action::SwitchN,
            Action::Merge => Action::Merge,
            &Action::Enter { frame, is_constant } => Action::Enter { frame, is_constant },
            Action::Exit => Action::Exit,
            Action::NextIteration => Action::NextIteration,
            Action::Trigger => Action::Trigger,
            Action::Call(frame) => Action::Call(*frame),
            &Action::If {
                then_branch,
                else_branch,
            } => Action::If {
                then_branch,
                else_branch,
            },
            Action::Case(branches) => Action::Case(branches.clone()),
            &Action::While { cond, body } => Action::While { cond, body },
        })
    }
}

/// What building the kernel of a node needs.
#[derive(Clone, Debug, Default)]
pub struct KernelEntry {
    /// The op type whose kernel it is.
    pub op: String,
    /// Name of the node, which kernels of stateful ops may go by.
    pub node: String,
    /// The device that the node is placed on; empty if the graph names none.
    pub device: String,
    /// The node's attrs, complete; [`PACKED`](ferroflow_opdef::PACKED) holds prepacked tensors.
    pub attrs: Attrs,
    /// Dtype of each input.
    pub inputs: Vec<DType>,
    /// Dtype of each output.
    pub outputs: Vec<DType>,
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

impl EdgeKind {
    /// Whether the edge carries a value.
    pub(crate) fn is_data(self) -> bool {
        matches!(
            self,
            EdgeKind::Data | EdgeKind::MergeData | EdgeKind::Result
        )
    }
}

/// An edge to one consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The consumer; node 0 for results.
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

/// The slot that a node's only output is written to directly, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardSlot(pub(super) u32);

impl ForwardSlot {
    /// The output goes through the engine's output buffer.
    pub const NONE: ForwardSlot = ForwardSlot(u32::MAX);

    /// The slot.
    #[inline]
    pub fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

/// The hot part of a node; names are in [`Dataflow::info`].
pub struct Node<K> {
    /// What to do.
    pub action: Action<K>,
    /// First input slot in the frame; the inputs are consecutive.
    pub first_slot: u32,
    /// Number of inputs.
    pub n_inputs: u32,
    /// First edge in [`Dataflow::edges`]; a node's edges are consecutive.
    pub first_edge: u32,
    /// Number of edges.
    pub n_edges: u32,
    /// The input slot of the last reader of the only output, when the output can be written right
    /// there: all edges are `Data` or `Control`.
    pub forward_slot: ForwardSlot,
    /// Number of outputs.
    pub n_outputs: u16,
    /// Scheduling cost.
    pub cost: Cost,
}

impl<K> Node<K> {
    /// The node's input slots, by position in its frame.
    #[inline]
    pub fn slots(&self) -> std::ops::Range<usize> {
        let first = self.first_slot as usize;
        first..first + self.n_inputs as usize
    }

    /// The same node with another action.
    pub(super) fn with_action<L>(&self, action: Action<L>) -> Node<L> {
        Node {
            action,
            first_slot: self.first_slot,
            n_inputs: self.n_inputs,
            first_edge: self.first_edge,
            n_edges: self.n_edges,
            forward_slot: self.forward_slot,
            n_outputs: self.n_outputs,
            cost: self.cost,
        }
    }
}

/// What makes iterations of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// A function body: a call makes one.
    Function,
    /// The inside of a loop: Enter nodes make the first, NextIteration nodes further ones.
    Loop {
        /// The frame that the loop is entered from.
        parent: FrameIdx,
        /// Most iterations that may be under way at the same time.
        parallel_iterations: u32,
        /// Enter nodes that lead into it.
        n_enters: u32,
    },
}

/// Set in a pending count as soon as a dead input has arrived.
pub const DEAD: u32 = 1 << 31;

/// What one iteration of a frame starts from.
#[derive(Clone)]
pub struct Frame {
    /// Name of the function or of the loop's frame.
    pub name: String,
    /// Function or loop.
    pub kind: FrameKind,
    /// Its first node; a frame's nodes are consecutive.
    pub first_node: u32,
    /// Input slots: constants in place, all else empty.
    pub slots: Vec<Value>,
    /// For every node, how many edges must arrive before it runs; for a Merge the bits of its
    /// initial [`MergeState`](super::MergeState).
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

impl Frame {
    /// The frame's nodes, by position.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        let first = self.first_node as usize;
        first..first + self.pending.len()
    }
}

/// A function for the engine `dataflow` with all functions that it calls: a [`Body`] as it is in a
/// file, a [`Plan`](super::Plan) once it is loaded.
pub struct Dataflow<K, C> {
    /// Nodes, grouped by frame.
    pub nodes: Vec<Node<K>>,
    /// Names and op types for messages, by node.
    pub info: Vec<NodeInfo>,
    /// Edges, grouped by producer.
    pub edges: Vec<Edge>,
    /// Frames; the first is the function that a step calls.
    pub frames: Vec<Frame>,
    /// Constants that slots, nodes and results refer to.
    pub consts: Vec<C>,
    /// Functions that kernels call themselves, by name.
    pub functions: BTreeMap<String, Arc<Dataflow<K, C>>>,
    /// The largest number of outputs of any node, at least 1.
    pub(super) max_outputs: usize,
}

/// A function body: pure data, self-contained but for the table of ops.
pub type Body = Dataflow<Box<KernelEntry>, LazyTensor>;

impl<K, C> Dataflow<K, C> {
    /// The edges that leave `node`.
    #[inline]
    pub fn edges_of(&self, node: &Node<K>) -> &[Edge] {
        let first = node.first_edge as usize;
        &self.edges[first..first + node.n_edges as usize]
    }

    /// The frame that a step starts in.
    #[inline]
    pub fn root(&self) -> &Frame {
        &self.frames[0]
    }

    /// The largest number of outputs of any node, at least 1.
    pub fn max_outputs(&self) -> usize {
        self.max_outputs
    }

    /// The function that each frame belongs to: itself, or the one around a loop.
    pub(crate) fn functions_of_frames(&self) -> Vec<usize> {
        let mut functions: Vec<usize> = Vec::with_capacity(self.frames.len());
        for (f, frame) in self.frames.iter().enumerate() {
            // Parents come first.
            let outer = match frame.kind {
                FrameKind::Loop { parent, .. } => functions.get(parent.index()).copied(),
                FrameKind::Function => None,
            };
            functions.push(outer.unwrap_or(f));
        }
        functions
    }
}

impl Body {
    /// The kernel entries with the numbers of their nodes.
    pub fn kernels(&self) -> impl Iterator<Item = (usize, &KernelEntry)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(i, node)| match &node.action {
            Action::Kernel(entry) => Some((i, &**entry)),
            _ => None,
        })
    }
}
