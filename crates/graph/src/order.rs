//! Orders and reverse edges.

use crate::{Graph, Node, NodeId, Output};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::NodeClass;

/// Sorts the nodes so that each comes after its inputs and control inputs; the back edges of loops,
/// which leave a NextIteration, do not count.
///
/// # Errors
///
/// INVALID_ARGUMENT if there is any other cycle, with the names of the nodes on it.
pub fn topological_order(graph: &Graph) -> Result<Vec<NodeId>> {
    let consumers = Consumers::new(graph);
    let is_back = |id: NodeId| {
        let class = graph.get(id).map(Node::class);
        class.is_none_or(|c| c == NodeClass::NextIteration)
    };
    let mut pending = vec![0u32; graph.id_bound()];
    for (id, node) in graph.iter() {
        pending[id.index()] = node.predecessors().filter(|p| !is_back(*p)).count() as u32;
    }
    let nodes = graph.iter().map(|(id, _)| id.index());
    let order = ferroflow_base::topological_order(nodes, &mut pending, |n| {
        let readers = match is_back(NodeId::new(n)) {
            true => &[],
            false => consumers.of(NodeId::new(n)),
        };
        readers.iter().map(|(reader, _)| reader.index())
    });
    if order.len() == graph.len() {
        return Ok(order.into_iter().map(NodeId::new).collect());
    }
    Err(cycle_error(graph, &pending))
}

/// Walks backwards through unfinished nodes until one repeats.
fn cycle_error(graph: &Graph, pending: &[u32]) -> ferroflow_base::Status {
    let unfinished = |n: &NodeId| pending[n.index()] > 0;
    let mut path: Vec<NodeId> = Vec::new();
    let mut seen = vec![false; graph.id_bound()];
    let mut at = graph.iter().map(|(id, _)| id).find(unfinished);
    while let Some(id) = at {
        if seen[id.index()] {
            path.drain(..path.iter().position(|p| *p == id).unwrap_or(0));
            break;
        }
        seen[id.index()] = true;
        path.push(id);
        at = graph.node(id).predecessors().find(unfinished);
    }
    let names: Vec<&str> = path
        .iter()
        .rev()
        .take(6)
        .map(|p| graph.node(*p).name.as_str())
        .collect();
    let more = if path.len() > 6 { " -> …" } else { "" };
    invalid_argument!(
        "the graph has a cycle that is not a while loop (no NextIteration on it): {}{more} -> {}",
        names.join(" -> "),
        names.first().unwrap_or(&"")
    )
}

/// The nodes that `roots` need: themselves and what they read or wait for; indexed by [`NodeId`]. Stops at
/// nodes that `is_known` accepts, which are not among them.
pub fn needed_by(
    graph: &Graph,
    roots: impl IntoIterator<Item = NodeId>,
    is_known: impl Fn(NodeId) -> bool,
) -> Vec<bool> {
    let mut needed = vec![false; graph.id_bound()];
    let mut stack: Vec<NodeId> = roots.into_iter().collect();
    while let Some(id) = stack.pop() {
        if let Some(node) = graph.get(id)
            && !is_known(id)
            && !std::mem::replace(&mut needed[id.index()], true)
        {
            stack.extend(node.predecessors());
        }
    }
    needed
}

/// The consumers of each node: (consumer, the output slot it reads, or `None` for a control edge), one
/// entry per edge, in one flat array.
pub struct Consumers {
    first: Vec<u32>,
    edges: Vec<(NodeId, Option<u32>)>,
}

impl Consumers {
    /// Reverse edges of the whole graph; linear in its size.
    pub fn new(graph: &Graph) -> Self {
        let n = graph.id_bound();
        let mut first = vec![0u32; n + 1];
        for (_, node) in graph.iter() {
            for input in &node.inputs {
                first[input.node.index() + 1] += 1;
            }
            for control in &node.controls {
                first[control.index() + 1] += 1;
            }
        }
        for i in 0..n {
            first[i + 1] += first[i];
        }
        let mut at = first.clone();
        let mut edges = vec![(NodeId::new(0), None); first[n] as usize];
        let mut put = |from: NodeId, edge| {
            let slot = &mut at[from.index()];
            edges[*slot as usize] = edge;
            *slot += 1;
        };
        for (id, node) in graph.iter() {
            for input in &node.inputs {
                put(input.node, (id, Some(input.slot)));
            }
            for control in &node.controls {
                put(*control, (id, None));
            }
        }
        Consumers { first, edges }
    }

    /// The edges that leave `node`.
    pub fn of(&self, node: NodeId) -> &[(NodeId, Option<u32>)] {
        &self.edges[self.first[node.index()] as usize..self.first[node.index() + 1] as usize]
    }

    /// Whether a control edge leaves `node`.
    pub fn is_awaited(&self, node: NodeId) -> bool {
        self.of(node).iter().any(|(_, slot)| slot.is_none())
    }

    /// The one reader of `output`, if there is exactly one and its node has no other reader.
    pub fn only_reader(&self, output: Output) -> Option<NodeId> {
        match self.of(output.node) {
            [(reader, Some(slot))] if *slot == output.slot => Some(*reader),
            _ => None,
        }
    }
}
