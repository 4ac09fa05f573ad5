//! Replaces AccumulateNV2 and ParallelConcat by AddN and ConcatV2: TensorFlow's workers have no kernels of them, since
//! its masters replace them too (`core/common_runtime/accumulate_n_optimizer.cc`, `parallel_concat_optimizer.cc`).

use crate::pass::{constant_node, keep_attrs};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch, loop_frames};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};

pub(crate) const PASS: Pass = Pass {
    name: "kernelless",
    about: "turns AccumulateNV2 into AddN, ParallelConcat into ConcatV2: no worker of TensorFlow has their kernels",
    run: |graph, ctx| crate::expand::rewrite(graph, ctx, |g, ctx, _| replace(g, ctx)).map(drop),
};

fn replace(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let ids = graph.iter().map(|(id, _)| id);
    let ids: Vec<NodeId> = ids
        .filter(|id| matches!(graph.node(*id).op(), "AccumulateNV2" | "ParallelConcat"))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let frames = loop_frames(graph)?;
    let mut patch = Patch::new();
    for id in ids {
        let node = graph.node(id).clone();
        let (name, op) = (node.name.clone(), node.op().to_string());
        let replaced = match op.as_str() {
            "AccumulateNV2" => renamed(node, "AddN", ctx),
            _ if node.inputs.len() == 1 => renamed(node, "Identity", ctx),
            _ => concat(graph, &mut patch, node, frames.of(id).is_some(), ctx),
        };
        *patch.edit(graph, id) = replaced.map_err(|e| e.at_node(&name, &op))?;
    }
    patch.apply(graph);
    Ok(())
}

/// A ParallelConcat as ConcatV2.
fn concat(
    graph: &mut Graph,
    patch: &mut Patch,
    node: Node,
    is_in_loop: bool,
    ctx: &PassCtx,
) -> Result<Node> {
    let name = graph.unique_name(&format!("{}/_axis", node.name));
    let mut axis = constant_node(ctx, name, Tensor::scalar(0i32))?;
    axis.device.clone_from(&node.device);
    if let Some(group) = node.attrs.get("_class") {
        axis.attrs.set("_class", group.clone());
    }
    if is_in_loop {
        // TensorFlow's workers want the constant in the loop, too.
        let first = node.inputs.first();
        axis.controls.extend(first.map(|input| input.node));
    }
    let axis = Output::new(patch.add(graph, axis)?, 0);
    let mut node = renamed(node, "ConcatV2", ctx)?;
    node.inputs.push(axis);
    node.attrs.set("Tidx", AttrValue::Type(DType::Int32));
    Ok(node)
}

/// `node` as one of an op that has its `T`, and its `N` if it has several inputs.
fn renamed(mut node: Node, op: &str, ctx: &PassCtx) -> Result<Node> {
    let names: &[&str] = if op == "Identity" {
        &["T"]
    } else {
        &["T", "N"]
    };
    keep_attrs(&mut node.attrs, names);
    ctx.become_op(node, op)
}
