//! Makes the functions and the While of a loop.

use super::frame::{Loop, Side};
use crate::PassCtx;
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Function, Graph, Node, NodeId, Output, Patch, boundary_attrs};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// Replaces the nodes of a loop by a While.
pub(super) fn raise(graph: &mut Graph, ctx: &PassCtx, found: &Loop) -> Result<()> {
    let enters = found.variables.iter().map(|v| v.enter);
    let enters: Vec<NodeId> = enters.chain(found.invariants.iter().copied()).collect();
    let types: Vec<DType> = enters.iter().map(|e| graph.node(*e).outputs[0]).collect();
    let cond = function(graph, ctx, &found.cond, &types, &[Ok(found.predicate)])?;
    let nexts = found.variables.iter();
    let nexts = nexts.map(|v| Ok(graph.node(v.next).inputs[0]));
    let invariants = found.variables.len()..types.len();
    let results: Vec<Result<Output, usize>> = nexts.chain(invariants.map(Err)).collect();
    let body = function(graph, ctx, &found.body, &types, &results)?;
    let is_stateful = [&cond, &body].iter().any(|f| {
        let mut nodes = f.graph.iter();
        nodes.any(|(_, n)| n.def.flags.stateful && n.attrs.get("index").is_none())
    });

    let mut patch = Patch::new();
    let scope = graph.node(found.loop_cond).name.rsplit_once('/');
    let name = graph.unique_name(scope.map_or("while", |(scope, _)| scope));
    let mut func = |kind: &str, function| {
        let library = patch.library(graph);
        let name = library.unique_name(&format!("{name}/{kind}"));
        library.insert(&name, function);
        AttrValue::Func(FuncRef {
            name,
            ..Default::default()
        })
    };
    let all = types.iter().map(|t| AttrValue::Type(*t)).collect();
    let attrs = Attrs::default()
        .with("T", AttrValue::List(all))
        .with("cond", func("cond", cond))
        .with("body", func("body", body));
    let inputs: Vec<Output> = enters.iter().map(|e| graph.node(*e).inputs[0]).collect();
    let mut seen = FxHashSet::default();
    let controls = enters.iter().flat_map(|e| graph.node(*e).controls.iter());
    let controls: Vec<NodeId> = controls.copied().filter(|c| seen.insert(*c)).collect();
    let op = if is_stateful {
        "While"
    } else {
        "StatelessWhile"
    };
    let mut node = ctx.node(name, op, attrs, &inputs, &controls)?;
    node.device = graph.node(found.loop_cond).device.clone();
    let made = patch.add(graph, node)?;
    for (i, variable) in found.variables.iter().enumerate() {
        for exit in &variable.exits {
            patch.redirect(Output::new(*exit, 0), Output::new(made, i));
            patch.redirect_control(*exit, Some(made));
        }
    }
    for id in &found.nodes {
        patch.redirect_target(*id, made);
        patch.remove(*id);
    }
    patch.apply(graph);
    Ok(())
}

/// The function of a side. A result is an output of a node of the loop or the argument of a number.
fn function(
    graph: &Graph,
    ctx: &PassCtx,
    side: &Side,
    types: &[DType],
    results: &[Result<Output, usize>],
) -> Result<Function> {
    let mut body = Graph::new();
    body.producer = graph.producer;
    let mut patch = Patch::new();
    let mut args = Vec::with_capacity(types.len());
    for (i, dtype) in types.iter().enumerate() {
        let name = graph.unique_name(&format!("_arg_{i}"));
        let node = ctx.node(name, "_Arg", boundary_attrs(*dtype, i), &[], &[])?;
        args.push(Output::new(patch.add(&mut body, node)?, 0));
    }
    let mut ids: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    let inside = |ids: &FxHashMap<NodeId, NodeId>, output: &Output| {
        if let Some(arg) = side.args.get(output) {
            return Ok(args[*arg]);
        }
        let node = ids.get(&output.node);
        let node = *node.ok_or_else(|| internal!("a loop's body lacks an input of a node"))?;
        Ok(Output { node, ..*output })
    };
    for id in &side.nodes {
        let node = graph.node(*id);
        let inputs = node.inputs.iter().map(|i| inside(&ids, i));
        let controls = node.controls.iter().filter_map(|c| ids.get(c).copied());
        let copy = Node {
            inputs: inputs.collect::<Result<_>>()?,
            controls: controls.collect(),
            ..node.clone()
        };
        ids.insert(*id, patch.add(&mut body, copy)?);
    }
    for (i, result) in results.iter().enumerate() {
        let input = match result {
            Ok(output) => inside(&ids, output)?,
            Err(arg) => args[*arg],
        };
        let dtype = body.dtype(input);
        let dtype = dtype.ok_or_else(|| internal!("a loop's body lacks an output of a node"))?;
        let name = graph.unique_name(&format!("_retval_{i}"));
        let node = ctx.node(name, "_Retval", boundary_attrs(dtype, i), &[input], &[])?;
        patch.add(&mut body, node)?;
    }
    patch.apply(&mut body);
    let effects = side.effects.iter().filter_map(|e| ids.get(e).copied());
    Function::with_effects(body, effects.collect())
}
