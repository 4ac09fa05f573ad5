//! Removal of nodes that no result and no target needs.

use ferroflow_graph::{Graph, Node, NodeClass, Patch, needed_by};

/// Removes what is not reachable backwards from results and targets. Arguments stay, since calls
/// pass them by position.
pub(crate) fn remove_dead(graph: &mut Graph) {
    let is_boundary = |n: &Node| matches!(n.class(), NodeClass::Retval | NodeClass::Arg);
    let boundary = graph.iter().filter(|(_, n)| is_boundary(n));
    let roots = boundary
        .map(|(id, _)| id)
        .chain(graph.targets().iter().copied());
    let alive = needed_by(graph, roots, |_| false);
    let mut patch = Patch::new();
    for (id, _) in graph.iter() {
        if !alive[id.index()] {
            patch.remove(id);
        }
    }
    patch.apply(graph);
}
