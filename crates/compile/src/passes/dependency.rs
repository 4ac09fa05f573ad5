//! Removes control edges that wait for nothing.
//!
//! Those of nodes that are ready when a step begins: arguments, constants, and NoOp and Identity nodes that wait for
//! nothing else. Those of a NoOp with one consumer, which waits itself instead. And those of nodes without effects
//! to what waits anyway for the effects that they wait for. Functions that are inlined leave such edges around their bodies and
//! behind their stateful nodes, where they keep Identity nodes alive and products from being fused with what follows.
//!
//! (TensorFlow: `core/grappler/optimizers/dependency_optimizer.cc`.)

use super::control_only::is_safe;
use super::elementwise::is_elementwise;
use crate::view::moves_values;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Graph, Node, NodeClass, NodeId, Output, Patch, topological_order,
};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) const PASS: Pass = Pass {
    name: "dependency",
    about: "removes control edges that wait for nothing",
    run,
};

/// Whether the node computes nothing.
fn only_waits(node: &Node) -> bool {
    match node.class() {
        NodeClass::Arg | NodeClass::Const => true,
        _ => node.op() == "NoOp" || node.def.is_identity(),
    }
}

fn run(graph: &mut Graph, _: &PassCtx) -> Result<()> {
    remove_ready(graph)?;
    dissolve_noops(graph)?;
    // What is dead passes on along the edges that would go.
    if !moves_values(graph) {
        remove_implied(graph)?;
    }
    Ok(())
}

/// Removes control edges from nodes that are ready when a step begins.
fn remove_ready(graph: &mut Graph) -> Result<()> {
    let mut is_ready = vec![false; graph.id_bound()];
    let mut patch = Patch::new();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let waits_for = node.controls.iter().filter(|c| !is_ready[c.index()]);
        let n_controls = waits_for.count();
        let has_inputs = node.inputs.iter().all(|i| is_ready[i.node.index()]);
        is_ready[id.index()] = only_waits(node) && has_inputs && n_controls == 0;
        if n_controls < node.controls.len() {
            let controls = &mut patch.edit(graph, id).controls;
            controls.retain(|c| !is_ready[c.index()]);
        }
    }
    patch.apply(graph);
    Ok(())
}

/// Lets the only consumer of a NoOp wait for what the NoOp waits for.
fn dissolve_noops(graph: &mut Graph) -> Result<()> {
    let consumers = Consumers::new(graph);
    let mut patch = Patch::new();
    let mut seen = FxHashSet::default();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let dissolves = |c: &NodeId| {
            let noop = graph.node(*c);
            let is_noop = noop.op() == "NoOp" && noop.device == node.device;
            is_noop && !graph.is_target(*c) && consumers.of(*c).len() == 1
        };
        if !node.controls.iter().any(dissolves) {
            continue;
        }
        let mut controls = node.controls.clone();
        controls.clear();
        seen.clear();
        for &control in &node.controls {
            // A NoOp that has dissolved is gone.
            let waits = match dissolves(&control) {
                true => std::mem::take(&mut patch.edit(graph, control).controls),
                false => [control].into_iter().collect(),
            };
            controls.extend(waits.into_iter().filter(|wait| seen.insert(*wait)));
        }
        patch.edit(graph, id).controls = controls;
    }
    patch.apply(graph);
    Ok(())
}

/// The most bits that [`Effects`] has.
const MAX_BITS: usize = 1 << 28;

/// Ops of whose inputs only the shapes matter: with known shapes other passes make them constants, which wait for nothing.
const OF_SHAPES: &[&str] = &["Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"];

/// For each node, the nodes with effects that it waits for: a bit each.
struct Effects {
    number: FxHashMap<NodeId, usize>,
    words: usize,
    bits: Vec<u64>,
}

impl Effects {
    /// `None` if there are too many nodes.
    fn new(graph: &Graph) -> Option<Effects> {
        let with_effects = graph.iter().filter(|(_, node)| has_effects(graph, node));
        let number: FxHashMap<NodeId, usize> = with_effects.map(|(id, _)| id).zip(0..).collect();
        let words = number.len().div_ceil(64);
        let size = words * graph.id_bound();
        (size <= MAX_BITS / 64).then(|| Effects {
            number,
            words,
            bits: vec![0; size],
        })
    }

    fn of(&self, id: NodeId) -> &[u64] {
        &self.bits[id.index() * self.words..][..self.words]
    }

    /// Adds what waiting for `id` means.
    fn add(&self, to: &mut [u64], id: NodeId) {
        to.iter_mut()
            .zip(self.of(id))
            .for_each(|(to, of)| *to |= of);
        if let Some(number) = self.number.get(&id) {
            to[number / 64] |= 1 << (number % 64);
        }
    }

    /// Whether waiting for `id` is nothing beyond `waits`.
    fn has(&self, waits: &[u64], id: NodeId) -> bool {
        let is_own = |n: &usize| waits[n / 64] & (1 << (n % 64)) != 0;
        let is_in = |(of, waits): (&u64, &u64)| of & !waits == 0;
        self.number.get(&id).is_none_or(is_own) && self.of(id).iter().zip(waits).all(is_in)
    }

    /// What a node waits for by way of some of its inputs.
    fn of_inputs(&self, node: &Node, is_one: impl Fn(NodeId) -> bool) -> Vec<u64> {
        let mut waits = vec![0; self.words];
        if !OF_SHAPES.contains(&node.op()) {
            let inputs = node.inputs.iter().filter(|i| is_one(i.node));
            inputs.for_each(|i| self.add(&mut waits, i.node));
        }
        waits
    }

    fn set(&mut self, id: NodeId, waits: &[u64]) {
        self.bits[id.index() * self.words..][..self.words].copy_from_slice(waits);
    }
}

/// Whether others may wait for the node because of what it does, or for its error.
fn has_effects(graph: &Graph, node: &Node) -> bool {
    match node.class() {
        NodeClass::VarHandle => false,
        _ => !only_waits(node) && !is_safe(graph, node),
    }
}

/// Removes control edges from nodes without effects to nodes that wait for all effects there anyway, as `tf.tuple` leaves
/// them between the gradients of a layer. Data is waited for where other passes cannot remove its way. An elementwise node
/// need not wait itself if the one that its result is for does, as those in gradients of functions.
fn remove_implied(graph: &mut Graph) -> Result<()> {
    let Some((all, by_data)) = effects(graph)? else {
        return Ok(());
    };
    let consumers = Consumers::new(graph);
    let mut patch = Patch::new();
    for (id, node) in graph.iter() {
        if node.controls.is_empty() || only_groups(node) {
            continue;
        }
        let mut waits = by_data.of_inputs(node, |_| true);
        let is_stateful = |c: &NodeId| graph.node(*c).def.flags.stateful;
        let mut removed = FxHashSet::default();
        // Those with effects stay.
        for &control in node.controls.iter().filter(|c| is_stateful(c)) {
            by_data.add(&mut waits, control);
        }
        for &control in node.controls.iter().filter(|c| !is_stateful(c)) {
            if all.has(&waits, control)
                || reader_waits(graph, &consumers, [&all, &by_data], id, control)
            {
                removed.insert(control);
            } else {
                by_data.add(&mut waits, control);
            }
        }
        if !removed.is_empty() {
            patch
                .edit(graph, id)
                .controls
                .retain(|c| !removed.contains(c));
        }
    }
    patch.apply(graph);
    Ok(())
}

/// What each node waits for, and what by way of data alone or directly; `None` if the graph is too large.
fn effects(graph: &Graph) -> Result<Option<(Effects, Effects)>> {
    let (Some(mut all), Some(mut by_data)) = (Effects::new(graph), Effects::new(graph)) else {
        return Ok(None);
    };
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let mut waits = vec![0; all.words];
        node.predecessors().for_each(|p| all.add(&mut waits, p));
        all.set(id, &waits);
        let mut waits = by_data.of_inputs(node, |_| true);
        // These stay.
        let stateful = node.controls.iter();
        let stateful = stateful.filter(|c| graph.node(**c).def.flags.stateful);
        stateful.for_each(|c| by_data.add(&mut waits, *c));
        by_data.set(id, &waits);
    }
    Ok(Some((all, by_data)))
}

/// The most elementwise nodes between one that waits and the one that its result is for.
const MAX_HOPS: usize = 8;

/// Whether the result of the elementwise node `id` is for a node that waits, by way of other data, for all effects that
/// `control` waits for.
fn reader_waits(
    graph: &Graph,
    consumers: &Consumers,
    [all, by_data]: [&Effects; 2],
    id: NodeId,
    control: NodeId,
) -> bool {
    let mut at = id;
    for _ in 0..MAX_HOPS {
        let node = graph.node(at);
        let is_float = node.outputs[..] == [DType::Float];
        if !is_elementwise(node) || !is_float || graph.is_target(at) {
            return false;
        }
        let Some(reader) = consumers.only_reader(Output::new(at, 0)) else {
            return false;
        };
        if all.has(&by_data.of_inputs(graph.node(reader), |i| i != at), control) {
            return true;
        }
        at = reader;
    }
    false
}

/// Whether the node only serves others to wait.
fn only_groups(node: &Node) -> bool {
    node.op() == "NoOp" || node.outputs.is_empty()
}
