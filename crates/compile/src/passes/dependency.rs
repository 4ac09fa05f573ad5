//! Removes control edges from nodes that are ready when a step begins: arguments, constants, and NoOp and Identity
//! nodes that wait for nothing else. Functions that are inlined leave such edges around their bodies, where they keep Identity nodes
//! alive and products from being fused with what follows.
//!
//! (TensorFlow: `core/grappler/optimizers/dependency_optimizer.cc`.)

use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, Patch, topological_order};

pub(crate) const PASS: Pass = Pass {
    name: "dependency",
    about: "removes control edges from nodes that are ready when a step begins",
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
