//! Products that nobody reads though somebody waits for them, as `tf.tuple` does when it gates the
//! gradients of a layer: those by the network's input. What they would be computed from is waited for
//! instead.
//!
//! Only products and convolutions, which are dear and can fail for their shapes alone: of others somebody
//! may wait for the error.

use crate::view::is_switch;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeId};
use ferroflow_opdef::Attrs;
use smallvec::smallvec;

pub(crate) const PASS: Pass = Pass {
    name: "awaited",
    about: "leaves out products that are waited for and not read",
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
    // Only one side of a Switch comes, which a control edge cannot name.
    let beside_switch = |node: &Node| node.inputs.iter().any(|i| is_switch(graph.node(i.node)));
    let candidates = graph.iter().filter(|(id, node)| {
        PRODUCTS.contains(&node.op())
            && consumers.of(*id).iter().all(|(_, slot)| slot.is_none())
            && !graph.targets().contains(id)
            && !beside_switch(node)
    });
    let candidates: Vec<NodeId> = candidates.map(|(id, _)| id).collect();
    for id in candidates {
        let waiting = waiting(graph.node(id), ctx)?;
        graph.replace(id, waiting);
    }
    Ok(())
}

/// A node that waits for what `node` would be computed from, and computes nothing.
pub(super) fn waiting(node: &Node, ctx: &PassCtx) -> Result<Node> {
    let mut waiting = Node {
        name: node.name.clone(),
        def: ctx.def("NoOp")?,
        attrs: Attrs::default(),
        inputs: smallvec![],
        controls: node.controls.clone(),
        device: node.device.clone(),
        outputs: smallvec![],
    };
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
