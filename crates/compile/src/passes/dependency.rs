//! Removes control edges that wait for nothing.
//!
//! Those of nodes that are ready when a step begins: arguments, constants, and NoOp and Identity nodes that wait for
//! nothing else. Those of a NoOp with one consumer, which waits itself instead. And those of nodes without effects
//! whose outputs the consumer depends on anyway. Functions that are inlined leave such edges around their bodies and
//! behind their stateful nodes, where they keep Identity nodes alive and products from being fused with what follows.
//!
//! (TensorFlow: `core/grappler/optimizers/dependency_optimizer.cc`.)

use crate::passes::relax_control::behind_effects;
use crate::view::moves_values;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, Patch, topological_order};
use rustc_hash::FxHashSet;

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

/// The most nodes that are visited in search of paths.
const MAX_VISITS: usize = 1 << 20;

/// Removes control edges from nodes that a data input depends on, if nothing there has effects: other passes may remove
/// the way of the data, such as the input of a Shape that is known, and with it the last edge to what has.
fn remove_implied(graph: &mut Graph) -> Result<()> {
    let mut patch = Patch::new();
    let behind = behind_effects(graph)?;
    let mut seen_by = vec![None; graph.id_bound()];
    let (mut visits, mut todo) = (0, Vec::new());
    for (id, node) in graph.iter() {
        if node.controls.is_empty() || node.inputs.is_empty() {
            continue;
        }
        todo.extend(node.inputs.iter().map(|i| i.node));
        while let Some(at) = todo.pop() {
            if seen_by[at.index()] != Some(id) {
                seen_by[at.index()] = Some(id);
                visits += 1;
                todo.extend(graph.node(at).predecessors());
            }
        }
        let is_implied = |c: &NodeId| seen_by[c.index()] == Some(id) && !behind[c.index()];
        if node.controls.iter().any(is_implied) {
            patch.edit(graph, id).controls.retain(|c| !is_implied(c));
        }
        if visits > MAX_VISITS {
            break;
        }
    }
    patch.apply(graph);
    Ok(())
}
