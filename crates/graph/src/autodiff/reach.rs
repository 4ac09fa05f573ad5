//! The nodes between the values that are differentiated and those they are differentiated by.

use super::is_differentiable;
use crate::{Frames, Graph, Node, NodeId, Output};
use ferroflow_base::{Result, internal, topological_order};
use ferroflow_opdef::NodeClass;
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;

/// Something that is differentiated at once: a node, or a loop with everything in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Node(NodeId),
    Loop(usize),
}

/// The nodes between, and what is to be done in which order.
pub(super) struct Reach {
    between: Vec<bool>,
    /// The next node on a way to a y.
    next: Vec<Option<NodeId>>,
    /// The units of the graph (first) and of each loop, inputs before readers.
    units: Vec<Vec<Unit>>,
    /// Whether gradients go through integers.
    integers: bool,
}

/// The values of a gradient request.
pub(super) struct GradientRequest<'a> {
    pub(super) ys: &'a [Output],
    pub(super) xs: &'a [Output],
    pub(super) stops: &'a FxHashSet<Output>,
    /// Whether gradients go through integers.
    pub(super) integers: bool,
}

/// Whether gradients end at this op.
pub(super) fn stops_at(node: &Node) -> bool {
    node.op() == "StopGradient"
}

impl Reach {
    pub(super) fn new(graph: &Graph, frames: &Frames, ends: &GradientRequest) -> Result<Reach> {
        let n = graph.id_bound();
        let reached = reached_from(graph, ends);
        let (mut between, mut next) = (vec![false; n], vec![None; n]);
        let mut stack: Vec<NodeId> = Vec::new();
        for y in ends.ys {
            if reached[y.node.index()] && !std::mem::replace(&mut between[y.node.index()], true) {
                stack.push(y.node);
            }
        }
        while let Some(id) = stack.pop() {
            let node = graph.node(id);
            for input in &node.inputs {
                let from = input.node.index();
                let flows = graph
                    .dtype(*input)
                    .is_some_and(|t| is_differentiable(t, ends.integers));
                if flows && reached[from] && !between[from] && !ends.stops.contains(input) {
                    between[from] = true;
                    next[from] = Some(id);
                    stack.push(input.node);
                }
            }
        }
        let mut this = Reach {
            between,
            next,
            units: Vec::new(),
            integers: ends.integers,
        };
        this.units = this.order(graph, frames)?;
        Ok(this)
    }

    /// Whether gradients go through values of this dtype.
    pub(super) fn goes_through(&self, dtype: DType) -> bool {
        is_differentiable(dtype, self.integers)
    }

    /// Whether the node is on a path of gradients from a y to an x.
    pub(super) fn is_between(&self, node: NodeId) -> bool {
        self.between.get(node.index()).copied().unwrap_or(false)
    }

    /// The units of a loop, or of the graph itself.
    pub(super) fn units(&self, frame: Option<usize>) -> &[Unit] {
        self.units
            .get(frame.map_or(0, |f| f + 1))
            .map_or(&[], |u| u.as_slice())
    }

    /// The names from a y down to `node`.
    pub(super) fn path(&self, graph: &Graph, node: NodeId) -> String {
        const MOST: usize = 8;
        let mut names = vec![graph.node(node).name.as_str()];
        let (mut at, mut n_left_out) = (node, 0);
        while let Some(next) = self.next.get(at.index()).copied().flatten() {
            match names.len() < MOST {
                true => names.push(&graph.node(next).name),
                false => n_left_out += 1,
            }
            at = next;
        }
        if n_left_out > 0 {
            names.push("…");
        }
        names.reverse();
        names.join(" <- ")
    }

    /// The units between, by loop, each after those that it reads. A loop counts as one thing
    /// seen from outside.
    fn order(&self, graph: &Graph, frames: &Frames) -> Result<Vec<Vec<Unit>>> {
        let n_nodes = graph.id_bound();
        let n = n_nodes + frames.loops.len();
        let unit_of = |id: NodeId, frame: Option<usize>| -> Option<usize> {
            let mut at = inside(graph, frames, id);
            if at == frame {
                return Some(id.index());
            }
            while let Some(l) = at {
                let parent = frames.loops.get(l)?.parent;
                if parent == frame {
                    return Some(n_nodes + l);
                }
                at = parent;
            }
            None
        };
        let mut edges: Vec<(u32, u32)> = Vec::new();
        let mut pending = vec![0u32; n];
        let mut exists = vec![false; n];
        for (id, node) in graph.iter().filter(|(id, _)| self.is_between(*id)) {
            let own = inside(graph, frames, id);
            exists[id.index()] = true;
            let mut around = own;
            while let Some(l) = around {
                exists[n_nodes + l] = true;
                around = frames.loops[l].parent;
            }
            for input in node.inputs.iter().filter(|i| self.is_between(i.node)) {
                if is_next_iteration(graph.node(input.node)) {
                    continue;
                }
                let frame = common(frames, own, inside(graph, frames, input.node));
                let (from, to) = (unit_of(input.node, frame), unit_of(id, frame));
                let (Some(from), Some(to)) = (from, to) else {
                    return Err(internal!("'{}' is in no frame", node.name));
                };
                if from != to {
                    edges.push((from as u32, to as u32));
                    pending[to] += 1;
                }
            }
        }
        edges.sort_unstable();
        let readers = |u: usize| {
            let first = edges.partition_point(|e| (e.0 as usize) < u);
            let edges = edges[first..].iter().take_while(move |e| e.0 as usize == u);
            edges.map(|e| e.1 as usize)
        };
        let nodes = (0..n).filter(|u| exists[*u]);
        let mut units = vec![Vec::new(); frames.loops.len() + 1];
        for u in topological_order(nodes, &mut pending, readers) {
            let (frame, unit) = match u.checked_sub(n_nodes) {
                Some(l) => (frames.loops[l].parent, Unit::Loop(l)),
                None => (
                    inside(graph, frames, NodeId::new(u)),
                    Unit::Node(NodeId::new(u)),
                ),
            };
            units[frame.map_or(0, |f| f + 1)].push(unit);
        }
        Ok(units)
    }
}

pub(super) fn is_next_iteration(node: &Node) -> bool {
    node.class() == NodeClass::NextIteration
}

/// The loop that a node belongs to; Enter and Exit belong to theirs.
pub(super) fn inside(graph: &Graph, frames: &Frames, id: NodeId) -> Option<usize> {
    match graph.node(id).class() {
        NodeClass::Enter => frames.after(graph, id),
        _ => frames.of(id),
    }
}

/// The innermost loop around both.
fn common(frames: &Frames, a: Option<usize>, b: Option<usize>) -> Option<usize> {
    let depth = |mut at: Option<usize>| {
        let mut n = 0usize;
        while let Some(l) = at {
            n += 1;
            at = frames.loops[l].parent;
        }
        n
    };
    let up = |at: Option<usize>| at.and_then(|l| frames.loops[l].parent);
    let (mut a, mut b) = (a, b);
    let (mut m, mut n) = (depth(a), depth(b));
    while a != b {
        if m >= n {
            a = up(a);
            m = m.saturating_sub(1);
        } else {
            b = up(b);
            n = n.saturating_sub(1);
        }
    }
    a
}

/// The nodes that depend on an x in a way that gradients can go.
fn reached_from(graph: &Graph, ends: &GradientRequest) -> Vec<bool> {
    let consumers = crate::Consumers::new(graph);
    let mut reached = vec![false; graph.id_bound()];
    let mut stack: Vec<NodeId> = Vec::new();
    // From an x only the readers of that output are reached.
    let visit = |from: Output, reached: &mut Vec<bool>, stack: &mut Vec<NodeId>| {
        for &(reader, slot) in consumers.of(from.node) {
            let is_it = slot == Some(from.slot);
            if is_it && !reached[reader.index()] && !stops_at(graph.node(reader)) {
                reached[reader.index()] = true;
                stack.push(reader);
            }
        }
    };
    let flows = |o: &Output| {
        let dtype = graph.dtype(*o);
        dtype.is_some_and(|t| is_differentiable(t, ends.integers))
    };
    for x in ends.xs.iter().filter(|x| flows(x)) {
        reached[x.node.index()] = true;
        visit(*x, &mut reached, &mut stack);
    }
    while let Some(id) = stack.pop() {
        for slot in 0..graph.node(id).outputs.len() {
            let output = Output::new(id, slot);
            if flows(&output) && !ends.stops.contains(&output) {
                visit(output, &mut reached, &mut stack);
            }
        }
    }
    reached
}
