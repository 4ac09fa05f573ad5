//! Removal of nodes that no result and no target needs.

use ferroflow_graph::{Graph, NodeClass, NodeId, Patch};

/// Removes what is not reachable backwards from results and targets. Arguments stay, since calls
/// pass them by position.
pub(crate) fn remove_dead(graph: &mut Graph) {
    let mut alive = vec![false; graph.id_bound()];
    let mut stack: Vec<NodeId> = graph
        .iter()
        .filter(|(_, n)| matches!(n.class(), NodeClass::Retval | NodeClass::Arg))
        .map(|(id, _)| id)
        .chain(graph.targets().iter().copied())
        .collect();
    while let Some(id) = stack.pop() {
        let Some(node) = graph.get(id) else { continue };
        if std::mem::replace(&mut alive[id.index()], true) {
            continue;
        }
        stack.extend(node.predecessors());
    }
    let mut patch = Patch::new();
    for (id, _) in graph.iter() {
        if !alive[id.index()] {
            patch.remove(id);
        }
    }
    patch.apply(graph);
}
