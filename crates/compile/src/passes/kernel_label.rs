//! Nodes that ask for the kernels of a label.
//!
//! They become nodes of an op that has those kernels only and that no later pass knows: what replaces or
//! fuses nodes of the op itself would lose the request.

use crate::PassCtx;
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeId, Patch};
use ferroflow_opdef::{AttrValue, KERNEL_LABEL};

pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let asks = |attr: Option<&AttrValue>| match attr {
        Some(AttrValue::Str(label)) => !label.is_empty(),
        _ => false,
    };
    let labelled = graph
        .iter()
        .filter(|(_, n)| asks(n.attrs.get(KERNEL_LABEL)));
    let labelled: Vec<NodeId> = labelled.map(|(id, _)| id).collect();
    let mut patch = Patch::new();
    for id in labelled {
        let mut node = graph.node(id).clone();
        node.def = ctx.registry.labelled(&node.name, node.op(), &node.attrs)?;
        node.attrs.remove(KERNEL_LABEL);
        *patch.edit(graph, id) = node;
    }
    patch.apply(graph);
    Ok(())
}
