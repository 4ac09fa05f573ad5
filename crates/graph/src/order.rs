//! Orders and reverse edges.

use crate::{Graph, NodeId, Output};
use ferroflow_base::{Result, invalid_argument};

/// Ids such that every node comes after its inputs and control inputs; back edges that leave a
/// NextIteration do not count.
///
/// Fails on any other cycle and names the nodes on it.
pub fn topological_order(graph: &Graph) -> Result<Vec<NodeId>> {
    let consumers = Consumers::new(graph);
    let mut pending = vec![0u32; graph.id_bound()];
    let mut order: Vec<NodeId> = Vec::with_capacity(graph.len());
    for (id, node) in graph.iter() {
        let counts = |n: NodeId| graph.get(n).is_some_and(|n| !is_back_edge_source(n.op()));
        pending[id.index()] = (node.inputs.iter().filter(|i| counts(i.node)).count()
            + node.controls.iter().filter(|c| counts(**c)).count())
            as u32;
        if pending[id.index()] == 0 {
            order.push(id);
        }
    }
    let mut next = 0;
    while let Some(&id) = order.get(next) {
        next += 1;
        if is_back_edge_source(graph.node(id).op()) {
            continue;
        }
        for &(consumer, _) in consumers.of(id) {
            let left = &mut pending[consumer.index()];
            *left -= 1;
            if *left == 0 {
                order.push(consumer);
            }
        }
    }
    if order.len() == graph.len() {
        return Ok(order);
    }
    Err(cycle_error(graph, &pending))
}

fn is_back_edge_source(op: &str) -> bool {
    op == "NextIteration" || op == "RefNextIteration"
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
        let node = graph.node(id);
        at = node
            .inputs
            .iter()
            .map(|i| i.node)
            .chain(node.controls.iter().copied())
            .find(unfinished);
    }
    let names: Vec<&str> = path
        .iter()
        .rev()
        .take(6)
        .map(|p| graph.node(*p).name.as_str())
        .collect();
    let more = if path.len() > 6 { " -> …" } else { "" };
    invalid_argument!(
        "the graph has a cycle that is no while loop (no NextIteration on it): {}{more} -> {}",
        names.join(" -> "),
        names.first().unwrap_or(&"")
    )
}

/// Who reads each node: (consumer, the output slot read, or `None` for a control edge), one entry
/// per edge, in one flat array.
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

    /// Whether some node waits for `node`.
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
