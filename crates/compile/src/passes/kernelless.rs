//! Replaces AccumulateNV2 and ParallelConcat by AddN and ConcatV2: TensorFlow's workers have no kernels of them, since
//! its masters replace them too (`core/common_runtime/accumulate_n_optimizer.cc`, `parallel_concat_optimizer.cc`).

use crate::pass::constant_node;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};

pub(crate) const PASS: Pass = Pass {
    name: "kernelless",
    about: "turns AccumulateNV2 into AddN, ParallelConcat into ConcatV2: no worker of TensorFlow has their kernels",
    run: |graph, ctx| crate::expand::rewrite(graph, ctx, |g, ctx, _| replace(g, ctx)).map(drop),
};

fn replace(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let ids: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    let mut patch = Patch::new();
    for id in ids {
        let node = graph.node(id).clone();
        let replaced = match node.op() {
            "AccumulateNV2" => renamed(node, "AddN", ctx)?,
            "ParallelConcat" => {
                let name = graph.unique_name(&format!("{}/_axis", node.name));
                let mut axis = constant_node(ctx, name, Tensor::scalar(0i32))?;
                axis.device.clone_from(&node.device);
                if let Some(group) = node.attrs.get("_class") {
                    axis.attrs.set("_class", group.clone());
                }
                // In the frame of the node.
                axis.controls
                    .extend(node.inputs.first().map(|input| input.node));
                let axis = Output::new(patch.add(graph, axis)?, 0);
                let mut node = renamed(node, "ConcatV2", ctx)?;
                node.inputs.push(axis);
                node.attrs.set("Tidx", AttrValue::Type(DType::Int32));
                node
            }
            _ => continue,
        };
        *patch.edit(graph, id) = replaced;
    }
    patch.apply(graph);
    Ok(())
}

/// `node` as one of an op that has no attr `shape`.
fn renamed(mut node: Node, op: &str, ctx: &PassCtx) -> Result<Node> {
    let attrs = node.attrs.iter().filter(|(name, _)| *name != "shape");
    let attrs: Attrs = attrs.map(|(k, v)| (k.clone(), v.clone())).collect();
    node.attrs = attrs;
    node.def = ctx.def(op)?;
    node.def.complete_attrs(&mut node.attrs)?;
    Ok(node)
}
