//! What a graph without signatures takes and returns.

use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, loop_frames, parse_tensor_name};
use std::collections::HashSet;

/// Returns the outputs of nodes that no other node reads or waits for: the model's results. If all
/// are waited for, those that are not read.
pub fn outputs(graph: &Graph) -> Vec<String> {
    let [mut is_read, mut is_awaited] = [(); 2].map(|()| vec![false; graph.id_bound()]);
    for (_, node) in graph.iter() {
        for input in &node.inputs {
            is_read[input.node.index()] = true;
        }
        for control in &node.controls {
            is_awaited[control.index()] = true;
        }
    }
    // The side of a Switch that tells the branch has no value if the other branch runs.
    let is_pivot = |node: &Node| {
        let source = node.inputs.first().map(|i| graph.node(i.node).class());
        node.op() == "Identity" && source == Some(NodeClass::Switch)
    };
    // Malformed loops are reported when the graph is compiled.
    let loops = loop_frames(graph).unwrap_or_default();
    let unread: Vec<NodeId> = graph
        .iter()
        .filter(|(id, node)| {
            let is_result = !node.outputs.is_empty() && !node.op().starts_with("Placeholder");
            let is_outside = loops.after(graph, *id).is_none() && !is_pivot(node);
            !is_read[id.index()] && is_result && is_outside
        })
        .map(|(id, _)| id)
        .collect();
    let last = unread.iter().copied().filter(|id| !is_awaited[id.index()]);
    let last: Vec<NodeId> = last.collect();
    let results = if last.is_empty() { unread } else { last };
    let names = |id: NodeId| {
        let node = graph.node(id);
        (0..node.outputs.len()).map(move |i| format!("{}:{i}", node.name))
    };
    results.into_iter().flat_map(names).collect()
}

/// Returns the placeholders that must be fed, besides the feeds, to compute the fetches and run the
/// targets.
///
/// # Errors
/// INVALID_ARGUMENT if a name is not that of a tensor.
pub fn placeholders(
    graph: &Graph,
    feeds: &[String],
    fetches: &[String],
    targets: &[String],
) -> Result<Vec<String>> {
    let mut fed = HashSet::new();
    for name in feeds {
        let (node, index) = parse_tensor_name(name)?;
        fed.extend(graph.find(node).map(|id| (id, index)));
    }
    let (mut seen, mut stack) = (HashSet::new(), Vec::new());
    for name in fetches.iter().chain(targets) {
        let (node, index) = parse_tensor_name(name)?;
        let id = graph.find(node).filter(|id| !fed.contains(&(*id, index)));
        stack.extend(id.filter(|id| seen.insert(*id)));
    }
    while let Some(id) = stack.pop() {
        let node = graph.node(id);
        let inputs = node.inputs.iter().map(|i| (i.node, i.slot as usize));
        let controls = node.controls.iter().map(|id| (*id, 0));
        let unfed = inputs.chain(controls).filter(|o| !fed.contains(o));
        stack.extend(unfed.map(|o| o.0).filter(|id| seen.insert(*id)));
    }
    let needed = graph.iter().filter(|(id, _)| seen.contains(id));
    Ok(needed
        .filter(|(_, n)| matches!(n.op(), "Placeholder" | "PlaceholderV2"))
        .map(|(_, n)| format!("{}:0", n.name))
        .collect())
}
