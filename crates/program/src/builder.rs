//! Builds a [`Plan`] node by node and establishes its invariants.

use crate::plan::{
    Action, Edge, EdgeKind, FrameIdx, FrameKind, FramePlan, MERGE_CONTROL, MERGE_MAX, MERGE_WAITS,
    NOT_DIRECT, NodeIdx, Plan, PlanNode,
};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{Cost, NodeInfo, Value};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where an input of a node comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Output `1` of node `0`, in the order of adding.
    Node(NodeIdx, u16),
    /// A constant of the plan.
    Const(u32),
    /// Nowhere: the kernel absorbed it.
    Nothing,
}

/// A node to be added.
pub struct BuildNode {
    /// Name and op.
    pub info: NodeInfo,
    /// What it does.
    pub action: Action,
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
    parent: Option<FrameIdx>,
    n_args: usize,
    results: Vec<Option<Source>>,
    nodes: Vec<usize>,
}

/// Collects the frames and nodes of a plan, in any order; the first frame is the one that a step
/// calls.
#[derive(Default)]
pub struct PlanBuilder {
    frames: Vec<BuildFrame>,
    nodes: Vec<BuildNode>,
    frame_of: Vec<FrameIdx>,
    consts: Vec<Tensor>,
    functions: BTreeMap<String, Arc<Plan>>,
}

impl PlanBuilder {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a constant that inputs and results can refer to.
    pub fn constant(&mut self, value: Tensor) -> u32 {
        self.consts.push(value);
        (self.consts.len() - 1) as u32
    }

    /// Adds a function that kernels call themselves.
    pub fn called_by_kernels(&mut self, name: &str, function: Arc<Plan>) {
        self.functions.insert(name.to_string(), function);
    }

    /// Adds a function of `n_args` arguments and `n_results` results.
    pub fn function(&mut self, name: &str, n_args: usize, n_results: usize) -> FrameIdx {
        self.frames.push(BuildFrame {
            name: name.to_string(),
            kind: FrameKind::Function,
            parent: None,
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
                parallel_iterations: parallel_iterations.max(1),
                n_enters: 0,
            },
            parent: Some(parent),
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

    /// Says where result `index` of a function comes from.
    pub fn result(&mut self, function: FrameIdx, index: usize, source: Source) -> Result<()> {
        let frame = &mut self.frames[function.index()];
        let slot = frame.results.get_mut(index).filter(|r| r.is_none());
        *slot.ok_or_else(|| internal!("result {index} of '{}' is off", frame.name))? = Some(source);
        Ok(())
    }

    /// Lays the plan out. Fails (a bug of the caller) when the nodes break the plan's invariants.
    pub fn finish(mut self) -> Result<Plan> {
        let n = self.nodes.len();
        let mut order = Vec::with_capacity(n);
        let mut first_nodes = Vec::with_capacity(self.frames.len());
        for frame in &self.frames {
            first_nodes.push(order.len() as u32);
            order.extend(frame.nodes.iter().copied());
        }
        // Final index of each node.
        let mut place = vec![0usize; n];
        for (at, &node) in order.iter().enumerate() {
            place[node] = at;
        }
        let mut n_enters = vec![0u32; self.frames.len()];
        for node in &self.nodes {
            if let Action::Enter { frame, .. } = node.action {
                n_enters[frame.index()] += 1;
            }
        }
        let mut layout = Layout {
            outgoing: vec![Vec::new(); n],
            first_slots: vec![0; n],
            slots: Vec::new(),
            pending: Vec::new(),
        };
        let mut frames = Vec::with_capacity(self.frames.len());
        for (f, frame) in self.frames.iter().enumerate() {
            layout.slots = Vec::new();
            layout.pending = Vec::new();
            for &i in &frame.nodes {
                self.connect(i, NodeIdx::new(place[i]), &mut layout)?;
            }
            let mut const_results = Vec::new();
            for (r, source) in frame.results.iter().enumerate() {
                match *source {
                    Some(Source::Const(c)) => const_results.push((r as u32, c)),
                    Some(Source::Node(from, output)) => {
                        self.check_source(from, output, FrameIdx::new(f))?;
                        layout.outgoing[from.index()].push(Edge {
                            node: NodeIdx::new(0),
                            slot: r as u32,
                            output,
                            kind: EdgeKind::Result,
                            last: true,
                        });
                    }
                    _ => return Err(internal!("result {r} of '{}' is not set", frame.name)),
                }
            }
            let mut args = vec![None; frame.n_args];
            let mut roots = Vec::new();
            for (local, &i) in frame.nodes.iter().enumerate() {
                match self.nodes[i].action {
                    Action::Arg(a) => match args.get_mut(a as usize) {
                        Some(arg @ None) => *arg = Some(NodeIdx::new(place[i])),
                        _ => return Err(internal!("argument {a} of '{}' is off", frame.name)),
                    },
                    _ if layout.pending[local] == 0 => roots.push(NodeIdx::new(place[i])),
                    _ => {}
                }
            }
            frames.push(FramePlan {
                name: frame.name.clone(),
                kind: match frame.kind {
                    FrameKind::Loop {
                        parallel_iterations,
                        ..
                    } => FrameKind::Loop {
                        parallel_iterations,
                        n_enters: n_enters[f],
                    },
                    FrameKind::Function => FrameKind::Function,
                },
                first_node: first_nodes[f],
                slots: std::mem::take(&mut layout.slots),
                pending: std::mem::take(&mut layout.pending),
                roots,
                args,
                n_results: frame.results.len(),
                const_results,
            });
        }
        let max_outputs = self.nodes.iter().map(|n| n.n_outputs).max().unwrap_or(0);
        let mut plan = Plan {
            nodes: Vec::with_capacity(n),
            info: Vec::with_capacity(n),
            edges: Vec::with_capacity(layout.outgoing.iter().map(Vec::len).sum()),
            frames,
            consts: std::mem::take(&mut self.consts),
            max_outputs: max_outputs.max(1),
            functions: std::mem::take(&mut self.functions),
        };
        let mut nodes: Vec<Option<BuildNode>> = self.nodes.into_iter().map(Some).collect();
        for &i in &order {
            let Some(node) = nodes[i].take() else {
                continue;
            };
            let mut edges = std::mem::take(&mut layout.outgoing[i]);
            let mut seen = vec![false; node.n_outputs];
            for edge in edges.iter_mut().rev().filter(|e| carries(e.kind)) {
                edge.last = !std::mem::replace(&mut seen[edge.output as usize], true);
            }
            let plain = |e: &Edge| matches!(e.kind, EdgeKind::Data | EdgeKind::Control);
            let last = edges.iter().rev().find(|e| e.kind == EdgeKind::Data);
            let direct = match (&node.action, last) {
                (
                    Action::Kernel(_)
                    | Action::Arg(_)
                    | Action::Const(_)
                    | Action::Forward
                    | Action::Merge,
                    Some(last),
                ) if node.n_outputs == 1 && edges.iter().all(plain) => last.slot,
                _ => NOT_DIRECT,
            };
            plan.nodes.push(PlanNode {
                direct,
                action: node.action,
                first_slot: layout.first_slots[i],
                n_inputs: node.inputs.len() as u32,
                first_edge: plan.edges.len() as u32,
                n_edges: edges.len() as u32,
                n_outputs: u16::try_from(node.n_outputs)
                    .map_err(|_| internal!("'{}' has too many outputs", node.info.name))?,
                cost: node.cost,
            });
            plan.edges.append(&mut edges);
            plan.info.push(node.info);
        }
        Ok(plan)
    }

    /// Lays out the inputs of node `i`, whose final index is `me`.
    fn connect(&self, i: usize, me: NodeIdx, layout: &mut Layout) -> Result<()> {
        let (node, frame) = (&self.nodes[i], self.frame_of[i]);
        let is_merge = matches!(node.action, Action::Merge);
        let (data, control) = match node.action {
            Action::Merge => (EdgeKind::MergeData, EdgeKind::MergeControl),
            Action::Trigger => (EdgeKind::Data, EdgeKind::Trigger),
            _ => (EdgeKind::Data, EdgeKind::Control),
        };
        if is_merge && (node.inputs.len() >= MERGE_MAX || node.controls.len() >= MERGE_MAX) {
            return Err(internal!("Merge '{}' has too many inputs", node.info.name));
        }
        layout.first_slots[i] = layout.slots.len() as u32;
        let mut pending = if is_merge { MERGE_WAITS } else { 0 };
        for source in &node.inputs {
            let slot = layout.slots.len() as u32;
            layout.slots.push(match *source {
                Source::Const(c) if (c as usize) < self.consts.len() && !is_merge => {
                    Value::Const(c)
                }
                Source::Const(c) => return Err(internal!("constant {c} cannot be an input here")),
                Source::Nothing => Value::Empty,
                Source::Node(from, output) => {
                    self.check_source(from, output, frame)?;
                    pending += if is_merge { 0 } else { 1 };
                    layout.outgoing[from.index()].push(Edge {
                        node: me,
                        slot,
                        output,
                        kind: data,
                        last: true,
                    });
                    Value::Empty
                }
            });
        }
        for &from in &node.controls {
            self.check_source(from, 0, frame)?;
            pending += if is_merge { MERGE_CONTROL } else { 1 };
            layout.outgoing[from.index()].push(Edge {
                node: me,
                slot: 0,
                output: 0,
                kind: control,
                last: false,
            });
        }
        layout.pending.push(pending);
        Ok(())
    }

    /// Checks that `output` of `from` exists (0 always does, for control edges) and arrives in
    /// `frame`.
    fn check_source(&self, from: NodeIdx, output: u16, frame: FrameIdx) -> Result<()> {
        let Some(producer) = self.nodes.get(from.index()) else {
            return Err(internal!("there is no node {from:?}"));
        };
        let own = self.frame_of[from.index()];
        let arrives = match producer.action {
            Action::Enter { frame, .. } => Some(frame),
            Action::Exit => self.frames[own.index()].parent,
            _ => Some(own),
        };
        if output as usize >= producer.n_outputs.max(1) || arrives != Some(frame) {
            return Err(internal!(
                "output {output} of '{}' does not reach frame '{}'",
                producer.info.name,
                self.frames[frame.index()].name
            ));
        }
        Ok(())
    }
}

struct Layout {
    outgoing: Vec<Vec<Edge>>,
    first_slots: Vec<u32>,
    slots: Vec<Value>,
    pending: Vec<u32>,
}

fn carries(kind: EdgeKind) -> bool {
    matches!(
        kind,
        EdgeKind::Data | EdgeKind::MergeData | EdgeKind::Result
    )
}
