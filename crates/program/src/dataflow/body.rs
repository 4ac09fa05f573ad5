//! The executable form of a dataflow function, as compilers make it and files hold it.

use ferroflow_base::{Result, define_id, internal};
use ferroflow_opdef::{Attrs, Cost, NodeInfo};
use ferroflow_tensor::{DType, LazyTensor};
use std::collections::BTreeMap;
use std::sync::Arc;

define_id!(/// A node of a dataflow function.
    NodeIdx);
define_id!(/// A frame of a dataflow function: a function body or the inside of a loop.
    FrameIdx);

/// The action of the engine for a node; `K` is the form of a kernel.
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
    /// Sends its input, or that it is dead, under this key without frame and iteration; see
    /// [`Rendezvous`](ferroflow_opdef::Rendezvous).
    Send(Box<str>),
    /// Receives a tensor, which may be dead, under this key without frame and iteration.
    Recv(Box<str>),
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

/// The action of a node whose kernel is not built yet.
pub type BodyAction = Action<Box<KernelEntry>>;

/// Everything that is needed to build the kernel of a node.
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

/// The producer of an input or result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Output `1` of node `0`.
    Node(NodeIdx, u16),
    /// A constant.
    Const(u32),
}

/// A node of a [`Body`].
#[derive(Clone)]
pub struct BodyNode {
    /// Name and op, for messages.
    pub info: NodeInfo,
    /// Its action.
    pub action: BodyAction,
    /// Inputs in order.
    pub inputs: Vec<Source>,
    /// Nodes to wait for.
    pub controls: Vec<NodeIdx>,
    /// Number of outputs.
    pub n_outputs: usize,
    /// Scheduling cost.
    pub cost: Cost,
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// A function body: a call makes one.
    Function,
    /// The inside of a loop: Enter nodes make the first, NextIteration nodes further ones.
    Loop {
        /// The frame that the loop is entered from.
        parent: FrameIdx,
        /// The maximum number of iterations in progress.
        parallel_iterations: u32,
    },
}

/// A frame of a [`Body`].
#[derive(Clone)]
pub struct BodyFrame {
    /// Name of the function or of the loop's frame.
    pub name: String,
    /// Function or loop.
    pub kind: FrameKind,
    /// Number of arguments.
    pub n_args: usize,
    /// The source of each result; all must be set when the body is loaded.
    pub results: Vec<Option<Source>>,
    /// Its nodes.
    pub nodes: Vec<NodeIdx>,
}

/// A function with all functions that it calls: pure data, self-contained but for the table of ops.
/// Frames and nodes may be added in any order; the first frame is the function that a step calls.
///
/// ```
/// use ferroflow_opdef::{Cost, NodeInfo};
/// use ferroflow_program::{Action, Body, BodyNode, Source};
/// let mut body = Body::default();
/// let main = body.function("", 1, 1);
/// let x = body.add(main, BodyNode {
///     info: NodeInfo { name: "x".into(), op: "_Arg".into() },
///     action: Action::Arg(0),
///     inputs: vec![],
///     controls: vec![],
///     n_outputs: 1,
///     cost: Cost::Cheap,
/// });
/// body.result(main, 0, Source::Node(x, 0))?;
/// body.verify()?;
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
#[derive(Default)]
pub struct Body {
    /// Nodes, in the order of adding.
    pub nodes: Vec<BodyNode>,
    /// Frames.
    pub frames: Vec<BodyFrame>,
    /// Constants that inputs, nodes and results refer to.
    pub consts: Vec<LazyTensor>,
    /// Functions that kernels call themselves, by name.
    pub functions: BTreeMap<String, Arc<Body>>,
}

impl Body {
    /// Adds a constant that inputs and results can refer to.
    pub fn constant(&mut self, value: LazyTensor) -> u32 {
        self.consts.push(value);
        (self.consts.len() - 1) as u32
    }

    /// Adds a function of `n_args` arguments and `n_results` results.
    pub fn function(&mut self, name: &str, n_args: usize, n_results: usize) -> FrameIdx {
        self.frame(name, FrameKind::Function, n_args, n_results)
    }

    /// Adds the inside of a loop that is entered from `parent`.
    pub fn loop_frame(
        &mut self,
        name: &str,
        parent: FrameIdx,
        parallel_iterations: u32,
    ) -> FrameIdx {
        let kind = FrameKind::Loop {
            parent,
            parallel_iterations: parallel_iterations.max(1),
        };
        self.frame(name, kind, 0, 0)
    }

    fn frame(&mut self, name: &str, kind: FrameKind, n_args: usize, n_results: usize) -> FrameIdx {
        self.frames.push(BodyFrame {
            name: name.to_string(),
            kind,
            n_args,
            results: vec![None; n_results],
            nodes: Vec::new(),
        });
        FrameIdx::new(self.frames.len() - 1)
    }

    /// Adds a node to a frame.
    pub fn add(&mut self, frame: FrameIdx, node: BodyNode) -> NodeIdx {
        let index = self.next_node();
        self.nodes.push(node);
        self.frames[frame.index()].nodes.push(index);
        index
    }

    /// The index that the next node will get.
    pub fn next_node(&self) -> NodeIdx {
        NodeIdx::new(self.nodes.len())
    }

    /// Sets the source of result `index` of a function.
    ///
    /// # Errors
    /// The result is out of range or already set.
    pub fn result(&mut self, function: FrameIdx, index: usize, source: Source) -> Result<()> {
        let frame = &mut self.frames[function.index()];
        let slot = frame.results.get_mut(index).filter(|r| r.is_none());
        *slot.ok_or_else(|| {
            let name = &frame.name;
            internal!("result {index} of '{name}' is out of range or already set")
        })? = Some(source);
        Ok(())
    }

    /// The kernel entries with their nodes.
    pub fn kernels(&self) -> impl Iterator<Item = (&BodyNode, &KernelEntry)> {
        self.nodes.iter().filter_map(|node| match &node.action {
            Action::Kernel(entry) => Some((node, &**entry)),
            _ => None,
        })
    }

    /// The numbers of arguments and results of the function that a step calls.
    pub(crate) fn arity(&self) -> (usize, usize) {
        let root = self.frames.first();
        root.map_or((0, 0), |root| (root.n_args, root.results.len()))
    }

    /// The frame that the outputs of node `i`, a node of frame `own`, arrive in.
    pub(crate) fn arrives_in(&self, i: NodeIdx, own: FrameIdx) -> Option<FrameIdx> {
        match self.nodes.get(i.index())?.action {
            Action::Enter { frame, .. } => Some(frame),
            Action::Exit => match self.frames.get(own.index())?.kind {
                FrameKind::Loop { parent, .. } => Some(parent),
                FrameKind::Function => None,
            },
            _ => Some(own),
        }
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
