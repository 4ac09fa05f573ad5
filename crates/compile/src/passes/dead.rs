//! Removal of nodes that no result and no target needs.

use ferroflow_graph::{Graph, NodeId, Patch, RETVAL};

/// Removes what is not reachable backwards from results and targets. Arguments stay, since calls
/// pass them by position.
pub(crate) fn remove_dead(graph: &mut Graph) {
    let mut alive = vec![false; graph.id_bound()];
    let mut stack: Vec<NodeId> = graph
        .iter()
        .filter(|(_, n)| n.op() == RETVAL || n.op() == ferroflow_graph::ARG)
        .map(|(id, _)| id)
        .chain(graph.targets().iter().copied())
        .collect();
    while let Some(id) = stack.pop() {
        let Some(node) = graph.get(id) else { continue };
        if std::mem::replace(&mut alive[id.index()], true) {
            continue;
        }
        stack.extend(node.inputs.iter().map(|i| i.node));
        stack.extend(node.controls.iter().copied());
    }
    let mut patch = Patch::new();
    for (id, _) in graph.iter() {
        if !alive[id.index()] {
            patch.remove(id);
        }
    }
    patch.apply(graph);
}
