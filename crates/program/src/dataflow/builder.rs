//! Builds a [`Body`] node by node.

use super::body::{
    Action, Body, Edge, EdgeKind, ForwardSlot, Frame, FrameIdx, FrameKind, KernelEntry, Node,
    NodeIdx,
};
use super::derive::Derived;
use super::merge::MergeState;
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{Cost, NodeInfo, Value};
use ferroflow_tensor::LazyTensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The producer of an input or result.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Output `1` of node `0`, in the order of adding.
    Node(NodeIdx, u16),
    /// A constant.
    Const(u32),
}

/// A node to be added.
pub struct BuildNode {
    /// Name and op, for messages.
    pub info: NodeInfo,
    /// What it does.
    pub action: Action<Box<KernelEntry>>,
    /// Inputs in order.
    pub inputs: Vec<Source>,
    /// Nodes to wait for.
    pub controls: Vec<NodeIdx>,
    /// Number of outputs.
    pub n_outputs: usize,
    /// Scheduling cost.
    pub cost: Cost,
}

struct BuildFrame {
    name: String,
    kind: FrameKind,
    n_args: usize,
    results: Vec<Option<Source>>,
    nodes: Vec<usize>,
}

/// Collects the frames and nodes of a function, in any order; the first frame is the one that a step
/// calls.
///
/// ```
/// use ferroflow_opdef::{Cost, NodeInfo};
/// use ferroflow_program::{Action, BodyBuilder, BuildNode, Source};
/// let mut builder = BodyBuilder::new();
/// let main = builder.function("", 1, 1);
/// let x = builder.add(main, BuildNode {
///     info: NodeInfo { name: "x".into(), op: "_Arg".into() },
///     action: Action::Arg(0),
///     inputs: vec![],
///     controls: vec![],
///     n_outputs: 1,
///     cost: Cost::Cheap,
/// });
/// builder.result(main, 0, Source::Node(x, 0))?;
/// assert_eq!(builder.finish()?.root().args, [Some(x)]);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
#[derive(Default)]
pub struct BodyBuilder {
    frames: Vec<BuildFrame>,
    nodes: Vec<BuildNode>,
    frame_of: Vec<FrameIdx>,
    consts: Vec<LazyTensor>,
    functions: BTreeMap<String, Arc<Body>>,
}

impl BodyBuilder {
    /// An empty body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a constant that inputs and results can refer to.
    pub fn constant(&mut self, value: LazyTensor) -> u32 {
        self.consts.push(value);
        (self.consts.len() - 1) as u32
    }

    /// Adds a function that kernels call themselves.
    pub fn called_by_kernels(&mut self, name: &str, function: Arc<Body>) {
        self.functions.insert(name.to_string(), function);
    }

    /// Adds a function of `n_args` arguments and `n_results` results.
    pub fn function(&mut self, name: &str, n_args: usize, n_results: usize) -> FrameIdx {
        self.frames.push(BuildFrame {
            name: name.to_string(),
            kind: FrameKind::Function,
            n_args,
            results: vec![None; n_results],
            nodes: Vec::new(),
        });
        FrameIdx::new(self.frames.len() - 1)
    }

    /// Adds the inside of a loop that is entered from `parent`.
    pub fn loop_frame(
        &mut self,
        name: &str,
        parent: FrameIdx,
        parallel_iterations: u32,
    ) -> FrameIdx {
        self.frames.push(BuildFrame {
            name: name.to_string(),
            kind: FrameKind::Loop {
                parent,
                parallel_iterations: parallel_iterations.max(1),
                n_enters: 0,
            },
            n_args: 0,
            results: Vec::new(),
            nodes: Vec::new(),
        });
        FrameIdx::new(self.frames.len() - 1)
    }

    /// Adds a node to a frame.
    pub fn add(&mut self, frame: FrameIdx, node: BuildNode) -> NodeIdx {
        self.nodes.push(node);
        self.frame_of.push(frame);
        self.frames[frame.index()].nodes.push(self.nodes.len() - 1);
        NodeIdx::new(self.nodes.len() - 1)
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

    /// Lays the body out: frame by frame, edges behind their producers.
    ///
    /// # Errors
    /// A source does not exist or does not reach its consumer's frame, or a result is not set.
    /// Loading the body verifies everything else.
    pub fn finish(self) -> Result<Body> {
        let n = self.nodes.len();
        let order: Vec<usize> = self.frames.iter().flat_map(|f| f.nodes.clone()).collect();
        let mut position = vec![0; n];
        for (at, &node) in order.iter().enumerate() {
            position[node] = at;
        }
        let mut layout = Layout {
            position,
            outgoing: vec![Vec::new(); n],
            first_slots: vec![0; n],
            slots: Vec::new(),
        };
        let mut frames = Vec::with_capacity(self.frames.len());
        let mut first_node = 0;
        for (f, frame) in self.frames.iter().enumerate() {
            layout.slots = Vec::new();
            for &i in &frame.nodes {
                self.connect(i, &mut layout)?;
            }
            let const_results = self.results(FrameIdx::new(f), &mut layout)?;
            frames.push(Frame {
                name: frame.name.clone(),
                kind: frame.kind,
                first_node,
                slots: std::mem::take(&mut layout.slots),
                pending: vec![0; frame.nodes.len()],
                roots: Vec::new(),
                args: vec![None; frame.n_args],
                n_results: frame.results.len(),
                const_results,
            });
            first_node += frame.nodes.len() as u32;
        }
        let mut body = Body {
            nodes: Vec::with_capacity(n),
            info: Vec::with_capacity(n),
            edges: Vec::with_capacity(layout.outgoing.iter().map(Vec::len).sum()),
            frames,
            consts: self.consts,
            functions: self.functions,
            max_outputs: 1,
        };
        let mut nodes: Vec<Option<BuildNode>> = self.nodes.into_iter().map(Some).collect();
        for &i in &order {
            let Some(node) = nodes[i].take() else {
                continue;
            };
            let edges = &mut layout.outgoing[i];
            body.nodes.push(Node {
                forward_slot: ForwardSlot::NONE,
                action: node.action,
                first_slot: layout.first_slots[i],
                n_inputs: node.inputs.len() as u32,
                first_edge: body.edges.len() as u32,
                n_edges: edges.len() as u32,
                n_outputs: u16::try_from(node.n_outputs)
                    .map_err(|_| internal!("'{}' has too many outputs", node.info.name))?,
                cost: node.cost,
            });
            body.edges.append(edges);
            body.info.push(node.info);
        }
        Derived::of(&body)?.store(&mut body);
        Ok(body)
    }

    /// Lays out the inputs of node `i`.
    fn connect(&self, i: usize, layout: &mut Layout) -> Result<()> {
        let (node, frame) = (&self.nodes[i], self.frame_of[i]);
        let me = NodeIdx::new(layout.position[i]);
        let is_merge = matches!(node.action, Action::Merge);
        let (data, control) = match node.action {
            Action::Merge => (EdgeKind::MergeData, EdgeKind::MergeControl),
            Action::Trigger => (EdgeKind::Data, EdgeKind::Trigger),
            _ => (EdgeKind::Data, EdgeKind::Control),
        };
        let most = MergeState::MAX_INPUTS;
        if is_merge && (node.inputs.len() >= most || node.controls.len() >= most) {
            return Err(internal!("Merge '{}' has too many inputs", node.info.name));
        }
        layout.first_slots[i] = layout.slots.len() as u32;
        for source in &node.inputs {
            let slot = layout.slots.len() as u32;
            let value = match *source {
                Source::Const(c) => Value::Const(c),
                Source::Node(from, output) => {
                    self.check_source(from, Some(output), frame)?;
                    layout.edge(from, me, slot, output, data);
                    Value::Empty
                }
            };
            layout.slots.push(value);
        }
        for &from in &node.controls {
            self.check_source(from, None, frame)?;
            layout.edge(from, me, 0, 0, control);
        }
        Ok(())
    }

    /// Lays out the results of a frame; returns those that are constants.
    fn results(&self, frame: FrameIdx, layout: &mut Layout) -> Result<Vec<(u32, u32)>> {
        let this = &self.frames[frame.index()];
        let mut constants = Vec::new();
        for (r, source) in (0..).zip(&this.results) {
            match *source {
                Some(Source::Const(c)) => constants.push((r, c)),
                Some(Source::Node(from, output)) => {
                    self.check_source(from, Some(output), frame)?;
                    layout.edge(from, NodeIdx::new(0), r, output, EdgeKind::Result);
                }
                None => return Err(internal!("result {r} of '{}' is not set", this.name)),
            }
        }
        Ok(constants)
    }

    /// Checks that `output` of `from`, if any, exists and that its edges arrive in `frame`.
    fn check_source(&self, from: NodeIdx, output: Option<u16>, frame: FrameIdx) -> Result<()> {
        let Some(producer) = self.nodes.get(from.index()) else {
            return Err(internal!("node {} does not exist", from.index()));
        };
        let own = self.frame_of[from.index()];
        let arrives = match producer.action {
            Action::Enter { frame, .. } => Some(frame),
            Action::Exit => match self.frames[own.index()].kind {
                FrameKind::Loop { parent, .. } => Some(parent),
                FrameKind::Function => None,
            },
            _ => Some(own),
        };
        let exists = output.is_none_or(|o| usize::from(o) < producer.n_outputs);
        match exists && arrives == Some(frame) {
            true => Ok(()),
            false => Err(internal!(
                "output {output:?} of '{}' does not reach frame '{}'",
                producer.info.name,
                self.frames[frame.index()].name
            )),
        }
    }
}

struct Layout {
    /// The final index of each node.
    position: Vec<usize>,
    /// Edges by producer, in the order of adding.
    outgoing: Vec<Vec<Edge>>,
    first_slots: Vec<u32>,
    /// Slots of the frame being laid out.
    slots: Vec<Value>,
}

impl Layout {
    fn edge(&mut self, from: NodeIdx, node: NodeIdx, slot: u32, output: u16, kind: EdgeKind) {
        self.outgoing[from.index()].push(Edge {
            node,
            slot,
            output,
            kind,
            last: false,
        });
    }
}
