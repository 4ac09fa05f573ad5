//! Makes the functions and the While of a loop.

use super::frame::{Loop, Side};
use crate::PassCtx;
use crate::passes::body::NewBody;
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Function, Graph, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;

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
    let mut body = NewBody::new(ctx, graph, types, &side.args)?;
    body.copy(&side.nodes, |_| ())?;
    for result in results {
        let output = match result {
            Ok(output) => body.output(*output),
            Err(arg) => Some(body.arg(*arg)),
        };
        let output = output.ok_or_else(|| internal!("a loop's body lacks a result"))?;
        body.result(output, &[])?;
    }
    body.finish(&side.effects)
}
