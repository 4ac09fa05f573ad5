//! The loaded form of a body: flat arrays, no pointers between nodes.

use super::body::{Action, FrameKind, NodeIdx};
use super::static_schedule::StaticSchedule;
use ferroflow_opdef::{Cost, NodeInfo, OpKernel, Value};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeKind {
    /// A value for input slot `slot` of an ordinary node.
    Data,
    /// Nothing; the consumer only waits.
    Control,
    /// A value for the slot `slot` of a result of the call; there is no consumer node.
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
    #[inline]
    pub fn is_data(self) -> bool {
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
    /// Slot in the consumer's frame: of its input, or of a result.
    pub slot: u32,
    /// The producer's output; 0 for edges that carry nothing.
    pub output: u16,
    /// The kind.
    pub kind: EdgeKind,
    /// Whether no later edge carries the same output, so that the value may be moved.
    pub last: bool,
}

/// The slot that a node's only output is written to directly, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardSlot(u32);

impl ForwardSlot {
    /// The output goes through the engine's output buffer.
    pub const NONE: ForwardSlot = ForwardSlot(u32::MAX);

    /// The slot.
    #[inline]
    pub fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

/// The hot part of a node; names are in [`Plan::info`].
pub struct Node {
    /// The action.
    pub action: Action<Box<dyn OpKernel>>,
    /// First input slot in the frame; the inputs are consecutive.
    pub first_slot: u32,
    /// Number of inputs.
    pub n_inputs: u32,
    /// First edge in [`Plan::edges`]; a node's edges are consecutive.
    pub first_edge: u32,
    /// Number of edges.
    pub n_edges: u32,
    /// The slot that the last edge of the only output leads to, when the output can be written right
    /// there: all edges are `Data`, `Result` or `Control`.
    pub forward_slot: ForwardSlot,
    /// Number of outputs.
    pub n_outputs: u16,
    /// Scheduling cost.
    pub cost: Cost,
}

impl Node {
    /// The node's input slots, by position in its frame.
    #[inline]
    pub fn slots(&self) -> std::ops::Range<usize> {
        let first = self.first_slot as usize;
        first..first + self.n_inputs as usize
    }
}

/// Set in a pending count as soon as a dead input has arrived.
pub const DEAD: u32 = 1 << 31;

/// The template of an iteration of a frame.
pub struct Frame {
    /// Name of the function or of the loop's frame.
    pub name: String,
    /// Function or loop.
    pub kind: FrameKind,
    /// Enter nodes that lead into it.
    pub n_enters: u32,
    /// Its first node; a frame's nodes are consecutive.
    pub first_node: u32,
    /// Slots of the nodes' inputs, constants in place, all else empty; those of the results follow.
    pub slots: Vec<Value>,
    /// For every node, how many edges must arrive before it runs; for a Merge the bits of its
    /// initial [`MergeState`](super::MergeState).
    pub pending: Vec<u32>,
    /// Nodes that wait for nothing.
    pub roots: Vec<NodeIdx>,
    /// The Arg node of each argument that is used.
    pub args: Vec<Option<NodeIdx>>,
    /// The slot of the first result of a call, behind all inputs.
    pub first_result: u32,
    /// Number of results of a call.
    pub n_results: usize,
    /// Results that are constants: (result, constant).
    pub const_results: Vec<(u32, u32)>,
    /// The order in which one thread runs its nodes, if it does not depend on values.
    pub schedule: Option<StaticSchedule>,
}

impl Frame {
    /// The frame's nodes, by position.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        let first = self.first_node as usize;
        first..first + self.pending.len()
    }
}

/// A loaded function: verified, its kernels built, its constants read. Only
/// [`Body::load`](super::Body::load) makes one.
pub struct Plan {
    /// Nodes, grouped by frame.
    pub nodes: Vec<Node>,
    /// Names and op types for messages, by node.
    pub info: Vec<NodeInfo>,
    /// Edges, grouped by producer.
    pub edges: Vec<Edge>,
    /// Frames; the first is the function that a step calls.
    pub frames: Vec<Frame>,
    /// Constants that slots, nodes and results refer to.
    pub consts: Vec<Tensor>,
    /// Functions that kernels call themselves, by name.
    pub functions: BTreeMap<String, Arc<Plan>>,
    /// The largest number of outputs of any node, at least 1.
    pub(super) max_outputs: usize,
}

impl Plan {
    /// The edges that leave `node`.
    #[inline]
    pub fn edges_of(&self, node: &Node) -> &[Edge] {
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

    /// Groups `edges`, in the order of their consumers, by producer, and derives what follows from
    /// them: the last edge of each output, and where outputs can be written directly.
    pub(super) fn set_edges(&mut self, mut edges: Vec<(NodeIdx, Edge)>) {
        edges.sort_by_key(|(producer, _)| *producer);
        self.edges.reserve_exact(edges.len());
        let mut edges = edges.into_iter().peekable();
        let mut seen = Vec::new();
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let first = self.edges.len();
            let own = std::iter::from_fn(|| edges.next_if(|(from, _)| from.index() == i));
            self.edges.extend(own.map(|(_, edge)| edge));
            let own = &mut self.edges[first..];
            (node.first_edge, node.n_edges) = (first as u32, own.len() as u32);
            seen.clear();
            seen.resize(usize::from(node.n_outputs), false);
            for edge in own.iter_mut().rev().filter(|e| e.kind.is_data()) {
                edge.last = !std::mem::replace(&mut seen[usize::from(edge.output)], true);
            }
            node.forward_slot = forward_slot(node, own);
        }
    }

    /// Counts the Enter nodes of each loop.
    pub(super) fn count_enters(&mut self) {
        for node in &self.nodes {
            if let Action::Enter { frame, .. } = node.action {
                self.frames[frame.index()].n_enters += 1;
            }
        }
    }
}

fn forward_slot(node: &Node, edges: &[Edge]) -> ForwardSlot {
    let is_plain = |kind| matches!(kind, EdgeKind::Data | EdgeKind::Result | EdgeKind::Control);
    let can_forward = matches!(
        node.action,
        Action::Kernel(_) | Action::Arg(_) | Action::Const(_) | Action::Forward | Action::Merge
    );
    let reader = edges.iter().rev().find(|e| e.kind.is_data());
    match reader {
        Some(reader)
            if can_forward && node.n_outputs == 1 && edges.iter().all(|e| is_plain(e.kind)) =>
        {
            ForwardSlot(reader.slot)
        }
        _ => ForwardSlot::NONE,
    }
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
            Action::Send(key) => Action::Send(key.clone()),
            Action::Recv(key) => Action::Recv(key.clone()),
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
