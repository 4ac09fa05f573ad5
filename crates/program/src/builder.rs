//! Builds a [`Plan`] node by node and establishes its invariants.

use crate::plan::{Action, Edge, FramePlan, NodeIdx, Plan, PlanNode, Target};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{Cost, NodeInfo, Value};
use ferroflow_tensor::Tensor;

/// Where an input of a node comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Output `1` of node `0`.
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

/// Collects nodes in topological order.
#[derive(Default)]
pub struct PlanBuilder {
    nodes: Vec<BuildNode>,
    consts: Vec<Tensor>,
    const_results: Vec<(u32, u32)>,
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

    /// Makes result `index` of the call a constant.
    pub fn constant_result(&mut self, index: u32, constant: u32) {
        self.const_results.push((index, constant));
    }

    /// Adds a node whose inputs were added before.
    pub fn add(&mut self, node: BuildNode) -> NodeIdx {
        self.nodes.push(node);
        NodeIdx::new(self.nodes.len() - 1)
    }

    /// Lays the plan out. Fails (a bug of the caller) when the nodes break the plan's invariants.
    pub fn finish(self, n_args: usize, n_results: usize) -> Result<Plan> {
        let n = self.nodes.len();
        let mut slots: Vec<Value> = Vec::new();
        let mut pending = vec![0u32; n];
        let mut outgoing: Vec<Vec<Edge>> = vec![Vec::new(); n];
        let mut first_slots = Vec::with_capacity(n);
        for (i, node) in self.nodes.iter().enumerate() {
            let me = NodeIdx::new(i);
            first_slots.push(slots.len() as u32);
            for source in &node.inputs {
                match *source {
                    Source::Const(c) if (c as usize) < self.consts.len() => {
                        slots.push(Value::Const(c))
                    }
                    Source::Const(c) => return Err(internal!("plan has no constant {c}")),
                    Source::Nothing => slots.push(Value::Empty),
                    Source::Node(from, output) => {
                        let producer = self.nodes.get(from.index()).filter(|_| from < me);
                        if producer.is_none_or(|p| output as usize >= p.n_outputs) {
                            return Err(internal!("node {i} reads output {output} of {from:?}"));
                        }
                        let target = Target::Slot(slots.len() as u32);
                        slots.push(Value::Empty);
                        pending[i] += 1;
                        outgoing[from.index()].push(Edge {
                            node: me,
                            target,
                            output,
                            last: true,
                        });
                    }
                }
            }
            for &from in &node.controls {
                if from >= me {
                    return Err(internal!("node {i} waits for {from:?}, which comes later"));
                }
                pending[i] += 1;
                let edge = Edge {
                    node: me,
                    target: Target::Control,
                    output: 0,
                    last: false,
                };
                outgoing[from.index()].push(edge);
            }
        }
        let mut plan = Plan {
            nodes: Vec::with_capacity(n),
            info: Vec::with_capacity(n),
            edges: Vec::with_capacity(outgoing.iter().map(Vec::len).sum()),
            roots: (0..n)
                .filter(|&i| pending[i] == 0)
                .map(NodeIdx::new)
                .collect(),
            root: FramePlan { slots, pending },
            consts: self.consts,
            n_args,
            n_results,
            const_results: self.const_results,
            max_outputs: self.nodes.iter().map(|n| n.n_outputs).max().unwrap_or(0),
        };
        for (i, (node, mut edges)) in self.nodes.into_iter().zip(outgoing).enumerate() {
            let mut seen = vec![false; node.n_outputs];
            for edge in edges
                .iter_mut()
                .rev()
                .filter(|e| e.target != Target::Control)
            {
                edge.last = !std::mem::replace(&mut seen[edge.output as usize], true);
            }
            let bad = match node.action {
                Action::Arg(a) => a as usize >= n_args,
                Action::Retval(r) => r as usize >= n_results || node.inputs.len() != 1,
                Action::Kernel(_) => false,
            };
            if bad {
                return Err(internal!(
                    "argument or result index of '{}' is off",
                    node.info.name
                ));
            }
            plan.nodes.push(PlanNode {
                action: node.action,
                first_slot: first_slots[i],
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
}
