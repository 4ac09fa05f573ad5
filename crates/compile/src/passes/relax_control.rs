//! Relaxes the control dependencies of constants inside branches and loops.
//!
//! In dataflow control flow a constant of a branch waits for the branch's pivot, so that it is dead
//! when the branch is not taken, and a constant of a loop passes through an Enter. A reader that
//! has another input which is dead whenever the constant is can read the plain constant: it is then
//! known when kernels are built, and nothing is passed along at run time.

use crate::deadness::{Condition, Deadness, is_next};
use crate::pass::constant_node;
use crate::view::moves_values;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeClass, NodeId, Output, Patch, topological_order};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "relax_control",
    about: "lets readers inside branches and loops read constants directly",
    run,
};

/// The nodes that cannot run before a node with effects, seen from inside their branch or
/// iteration.
fn behind_effects(graph: &Graph) -> Result<Vec<bool>> {
    let mut behind = vec![false; graph.id_bound()];
    // The same, seen from inside the iteration: what follows a conditional also follows its effects.
    let mut in_iteration = behind.clone();
    for id in topological_order(graph)? {
        let node = graph.node(id);
        let follows = |seen: &[bool]| node.predecessors().any(|b| seen[b.index()]);
        let is_back = |i: &Output| is_next(graph.node(i.node));
        let (branch, iteration) = match node.class() {
            NodeClass::Enter | NodeClass::Arg => (false, false),
            NodeClass::Merge if node.inputs.iter().any(is_back) => (false, false),
            NodeClass::Merge => (follows(&in_iteration), follows(&in_iteration)),
            NodeClass::Switch => (false, follows(&in_iteration)),
            // The iterations may have had effects.
            NodeClass::Exit => (true, true),
            _ if node.def.flags.stateful => (true, true),
            _ => (follows(&behind), follows(&in_iteration)),
        };
        (behind[id.index()], in_iteration[id.index()]) = (branch, iteration);
    }
    Ok(behind)
}

/// The constant that `output` is, if it is one that may be dead: one that waits, or one that enters
/// a loop.
fn pinned(graph: &Graph, behind: &[bool], output: Output) -> Option<NodeId> {
    let node = graph.node(output.node);
    match node.class() {
        // It waits for more than its branch.
        NodeClass::Const if behind[output.node.index()] => None,
        NodeClass::Const if !node.controls.is_empty() => Some(output.node),
        NodeClass::Enter if node.attrs.bool("is_constant").unwrap_or(false) => {
            let input = *node.inputs.first()?;
            match graph.node(input.node).class() {
                NodeClass::Const => Some(input.node),
                NodeClass::Enter => pinned(graph, behind, input),
                _ => None,
            }
        }
        NodeClass::Identity if !behind[output.node.index()] => {
            pinned(graph, behind, node.inputs[output.slot as usize])
        }
        NodeClass::Merge if output.slot == 0 => carried_constant(graph, output.node),
        NodeClass::Switch => carried_constant(graph, node.inputs[0].node),
        _ => None,
    }
}

/// The constant that a loop's Merge always outputs: it begins as a constant, and the body passes it
/// on as it is.
fn carried_constant(graph: &Graph, merge: NodeId) -> Option<NodeId> {
    let node = graph.node(merge);
    let (NodeClass::Merge, [first, back]) = (node.class(), &node.inputs[..]) else {
        return None;
    };
    let next = graph.node(back.node);
    if !is_next(next) {
        return None;
    }
    let mut value = *next.inputs.first()?;
    let switch = loop {
        let source = graph.node(value.node);
        match source.class() {
            NodeClass::Identity if source.controls.is_empty() => {
                value = source.inputs[value.slot as usize];
            }
            NodeClass::Switch if value.slot == 1 => break source,
            _ => return None,
        }
    };
    let enter = graph.node(first.node);
    let is_own = switch.inputs[0] == Output::new(merge, 0) && enter.class() == NodeClass::Enter;
    let begins = graph.node(enter.inputs.first().filter(|_| is_own)?.node);
    begins.is_free_constant().then(|| enter.inputs[0].node)
}

pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    if !moves_values(graph) {
        return Ok(());
    }
    let deadness = Deadness::new(graph)?;
    let behind = behind_effects(graph)?;
    let mut changes: Vec<(NodeId, usize, NodeId)> = Vec::new();
    for (id, node) in graph.iter() {
        let class = node.class();
        if class.is_control_flow() || node.op() == "Identity" || class == NodeClass::Retval {
            continue;
        }
        // A constant that another input stands in for cannot stand in for that one.
        let constants: SmallVec<[Option<NodeId>; 4]> = node
            .inputs
            .iter()
            .map(|i| pinned(graph, &behind, *i))
            .collect();
        if constants.iter().all(Option::is_none) {
            continue;
        }
        let mut others = Condition::always();
        for (input, constant) in node.inputs.iter().zip(&constants) {
            if constant.is_none() {
                others.and(&deadness.output(*input));
            }
        }
        for control in &node.controls {
            others.and(deadness.node(*control));
        }
        for (i, constant) in constants.iter().enumerate() {
            if let Some(constant) = constant {
                let own = deadness.output(node.inputs[i]);
                if own.is_exact() && others.implies(&own) {
                    changes.push((id, i, *constant));
                }
            }
        }
    }
    let mut patch = Patch::new();
    let mut plain: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    for (id, input, constant) in changes {
        let to = match plain.get(&constant) {
            Some(to) => *to,
            None => {
                let source = graph.node(constant);
                let to = if source.controls.is_empty() {
                    constant
                } else {
                    let name = graph.unique_name(&format!("{}/unpinned", source.name));
                    let value = source.attrs.tensor("value")?.clone();
                    patch.add(graph, constant_node(ctx, name, value)?)?
                };
                plain.insert(constant, to);
                to
            }
        };
        patch.edit(graph, id).inputs[input] = Output::new(to, 0);
    }
    patch.apply(graph);
    Ok(())
}
