//! Raises loops of Enter, Merge, Switch, NextIteration and Exit to While nodes (TensorFlow:
//! `compiler/tf2xla/functionalize_while.cc`).
//!
//! A body without Merge, Switch and NextIteration has half the nodes, and all passes over functions apply to it. Only loops
//! whose nodes cost little are raised: iterations of others may overlap, which those of a While do not. Nothing inside may
//! be fetched, sent or received. All that enters a loop must be alive if its condition is, and all next values if that is
//! true.

mod frame;
mod outline;

use crate::deadness::Deadness;
use crate::{Lower, Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Graph, Node, NodeClass, NodeId, referred_functions, topological_order,
};
use ferroflow_opdef::Cost;
use frame::{Loop, View};
use rustc_hash::FxHashSet;

pub(crate) const PASS: Pass = Pass {
    name: "functionalize",
    about: "turns loops of inexpensive ops into While nodes",
    run,
};

/// Deepest nesting of loops of which all are raised.
const MAX_DEPTH: usize = 16;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let has_loop = graph.iter().any(|(_, n)| n.class() == NodeClass::LoopCond);
    if !has_loop || ctx.lower == Lower::Always {
        return Ok(());
    }
    let mut is_raised = false;
    // Inner ones first.
    for _ in 0..MAX_DEPTH {
        let loops = innermost(graph, ctx)?;
        if loops.is_empty() {
            break;
        }
        for found in loops {
            outline::raise(graph, ctx, &found)?;
            is_raised = true;
        }
    }
    if is_raised {
        super::dce::remove_dead(graph);
        // As these passes treat every While.
        (super::loop_vars::PASS.run)(graph, ctx)?;
        super::dce::remove_dead(graph);
        (super::arg_shapes::PASS.run)(graph, ctx)?;
    }
    Ok(())
}

/// The loops without loops inside that can be raised.
fn innermost(graph: &Graph, ctx: &PassCtx) -> Result<Vec<Loop>> {
    let (consumers, order) = (Consumers::new(graph), topological_order(graph)?);
    let deadness = Deadness::new(graph)?;
    let frames = deadness.frames();
    let view = View {
        graph,
        consumers: &consumers,
        order: &order,
        deadness: &deadness,
    };
    let mut members = vec![Vec::new(); frames.loops.len()];
    let mut enters = vec![Vec::new(); frames.loops.len()];
    for (id, node) in graph.iter() {
        if let Some(f) = frames.of(id) {
            members[f].push(id);
        }
        if node.class() == NodeClass::Enter
            && let Some(f) = frames.after(graph, id)
        {
            enters[f].push(id);
        }
    }
    let mut loops = Vec::new();
    for (members, enters) in members.into_iter().zip(enters) {
        if cost_little(graph, ctx, &members) {
            loops.extend(Loop::of(&view, members, enters));
        }
    }
    Ok(loops)
}

/// Whether each of these nodes, with the functions that it calls, is run by the thread that its inputs come from.
fn cost_little(graph: &Graph, ctx: &PassCtx, nodes: &[NodeId]) -> bool {
    let costs_little = |node: &Node| {
        let op = ctx.registry.op(node.op());
        op.is_none_or(|op| matches!(op.node_cost(&node.attrs), Cost::Cheap | Cost::BySize))
    };
    let mut seen = FxHashSet::default();
    let mut called: Vec<&str> = Vec::new();
    for &id in nodes {
        let node = graph.node(id);
        if !costs_little(node) {
            return false;
        }
        called.extend(referred_functions(node));
    }
    while let Some(name) = called.pop() {
        if !seen.insert(name) {
            continue;
        }
        let Ok(function) = graph.library().get(name) else {
            return false;
        };
        for (_, node) in function.graph.iter() {
            if !costs_little(node) {
                return false;
            }
            called.extend(referred_functions(node));
        }
    }
    true
}
