//! Removes matrix products and convolutions whose only consumers are control edges, as `tf.tuple` leaves
//! them when it gates the gradients of a layer. Consumers wait for the inputs instead.
//!
//! Limited to products and convolutions, which are expensive and fail only on shape errors; other ops may
//! be awaited for their error.

use crate::view::has_dead_outputs;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeId, Patch};
use ferroflow_opdef::Attrs;

pub(crate) const PASS: Pass = Pass {
    name: "control_only",
    about: "removes products whose only consumers are control edges",
    run,
};

const PRODUCTS: &[&str] = &[
    "MatMul",
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "Conv3DBackpropInputV2",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
];

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let consumers = Consumers::new(graph);
    // A control edge cannot name one side of a Switch.
    let beside_switch = |node: &Node| {
        node.inputs
            .iter()
            .any(|i| has_dead_outputs(graph.node(i.node)))
    };
    let candidates = graph.iter().filter(|(id, node)| {
        PRODUCTS.contains(&node.op())
            && consumers.of(*id).iter().all(|(_, slot)| slot.is_none())
            && !graph.is_target(*id)
            && !beside_switch(node)
    });
    let mut patch = Patch::new();
    for (id, node) in candidates {
        *patch.edit(graph, id) = waiting(node, ctx)?;
    }
    patch.apply(graph);
    Ok(())
}

/// A node that waits for what `node` would be computed from, and computes nothing.
pub(super) fn waiting(node: &Node, ctx: &PassCtx) -> Result<Node> {
    let (name, attrs) = (node.name.clone(), Attrs::default());
    let mut waiting = ctx.node(name, "NoOp", attrs, &[], &node.controls)?;
    waiting.device = node.device.clone();
    wait_for(&mut waiting, node.inputs.iter().map(|i| i.node));
    Ok(waiting)
}

/// Makes `node` wait for `others`.
pub(super) fn wait_for(node: &mut Node, others: impl IntoIterator<Item = NodeId>) {
    for other in others {
        if !node.controls.contains(&other) {
            node.controls.push(other);
        }
    }
}
