//! Nodes that can become one node: no path leads out of them and back.

use super::Candidate;
use crate::deadness::is_next;
use ferroflow_base::topological_order;
use ferroflow_graph::{Graph, NodeId};
use rustc_hash::FxHashMap;

/// Removes candidates that a path leaves and enters again, such as a loop with an Enter behind one of its Exits, and
/// those behind them.
pub(super) fn remove(graph: &Graph, candidates: &mut Vec<Candidate>) {
    let mut vertices: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (k, candidate) in candidates.iter().enumerate() {
        vertices.extend(candidate.members.iter().map(|member| (*member, k)));
    }
    let mut n = candidates.len();
    for (id, _) in graph.iter() {
        vertices.entry(id).or_insert_with(|| {
            n += 1;
            n - 1
        });
    }
    let (mut successors, mut pending) = (vec![Vec::new(); n], vec![0; n]);
    for (id, node) in graph.iter() {
        let to = vertices[&id];
        let sources = node.inputs.iter().map(|input| input.node);
        for source in sources.chain(node.controls.iter().copied()) {
            let from = vertices[&source];
            // Other loops may go on.
            let is_back = is_next(graph.node(source));
            if from != to && !is_back {
                successors[from].push(to);
                pending[to] += 1;
            }
        }
    }
    topological_order(0..n, &mut pending, |v| successors[v].iter().copied());
    let mut k = 0;
    candidates.retain(|_| {
        k += 1;
        pending[k - 1] == 0
    });
}
