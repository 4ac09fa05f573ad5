//! Raises loops of Enter, Merge, Switch, NextIteration and Exit to While nodes (TensorFlow:
//! `compiler/tf2xla/functionalize_while.cc`).
//!
//! A body without Merge, Switch and NextIteration has half the nodes, and all passes over functions apply to it. Only loops
//! whose nodes cost little are raised: iterations of others may overlap, which those of a While do not. Nothing inside may
//! be fetched, sent or received. A loop that is entered in a branch stays, and so do loops inside a loop that stays: some
//! of what enters them may be dead.

mod frame;
mod outline;

use crate::view::has_dead_outputs;
use crate::{Lower, Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Consumers, Frames, Graph, Node, NodeClass, NodeId, loop_frames, needed_by, referred_functions,
    topological_order,
};
use ferroflow_opdef::Cost;
use frame::Loop;
use rustc_hash::FxHashSet;

pub(crate) const PASS: Pass = Pass {
    name: "functionalize",
    about: "turns loops of inexpensive ops into While nodes",
    run,
};

/// Attempts until all loops stay; each excludes those that were left inside a loop that stays.
const MAX_ATTEMPTS: usize = 4;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let has_loop = graph.iter().any(|(_, n)| n.class() == NodeClass::LoopCond);
    if !has_loop || ctx.lower == Lower::Always {
        return Ok(());
    }
    let mut excluded = FxHashSet::default();
    for _ in 0..MAX_ATTEMPTS {
        let mut raised = graph.clone();
        let made = raise_all(&mut raised, ctx, &excluded)?;
        if made.is_empty() {
            return Ok(());
        }
        let frames = loop_frames(&raised)?;
        let is_inside = |node: NodeId| raised.get(node).is_some() && frames.of(node).is_some();
        let stranded = made.iter().filter(|m| is_inside(m.node));
        let stranded: Vec<NodeId> = stranded.map(|m| m.loop_cond).collect();
        if stranded.is_empty() {
            *graph = raised;
            super::dce::remove_dead(graph);
            // As these passes treat every While.
            (super::loop_vars::PASS.run)(graph, ctx)?;
            super::dce::remove_dead(graph);
            return (super::arg_shapes::PASS.run)(graph, ctx);
        }
        excluded.extend(stranded);
    }
    Ok(())
}

/// A While that took the place of a loop.
struct Made {
    node: NodeId,
    loop_cond: NodeId,
}

/// Raises all loops that can be, inner ones first.
fn raise_all(graph: &mut Graph, ctx: &PassCtx, excluded: &FxHashSet<NodeId>) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    loop {
        let frames = loop_frames(graph)?;
        let loops = innermost(graph, &frames, ctx, excluded)?;
        if loops.is_empty() {
            return Ok(made);
        }
        for found in loops {
            let node = outline::raise(graph, ctx, &found)?;
            let loop_cond = found.loop_cond;
            made.push(Made { node, loop_cond });
        }
    }
}

/// The loops without loops inside that can be raised.
fn innermost(
    graph: &Graph,
    frames: &Frames,
    ctx: &PassCtx,
    excluded: &FxHashSet<NodeId>,
) -> Result<Vec<Loop>> {
    let (consumers, order) = (Consumers::new(graph), topological_order(graph)?);
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
    for (f, (members, enters)) in members.into_iter().zip(enters).enumerate() {
        let is_excluded = members.iter().any(|m| excluded.contains(m));
        if is_excluded
            || !cost_little(graph, ctx, &members)
            || may_be_dead(graph, frames, f, &enters)
        {
            continue;
        }
        loops.extend(Loop::of(graph, (&consumers, &order), members, enters));
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

/// Whether some of what enters loop `f` may be dead while other values are not: a conditional decides on it.
fn may_be_dead(graph: &Graph, frames: &Frames, f: usize, enters: &[NodeId]) -> bool {
    let around = frames.loops[f].parent;
    let needed = needed_by(graph, enters.iter().copied(), |_| false);
    let decides = |id: NodeId, node: &Node| {
        let is_loop = || {
            let predicate = node.inputs.get(1);
            predicate.is_some_and(|p| graph.node(p.node).class() == NodeClass::LoopCond)
        };
        frames.of(id) == around && has_dead_outputs(node) && !is_loop()
    };
    let mut nodes = graph.iter();
    nodes.any(|(id, node)| needed[id.index()] && decides(id, node))
}
