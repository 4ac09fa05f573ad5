//! A read-only view of a graph for passes.

use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, Output, ShapeMap, integers};
use ferroflow_tensor::{DType, LazyTensor, PartialShape};
use std::rc::Rc;

/// Whether values of the graph can be dead.
pub(crate) fn may_be_dead(graph: &Graph) -> bool {
    graph.iter().any(|(_, n)| has_dead_outputs(n))
}

/// Whether the graph has conditionals or loops, where a node may run more than once or not at all.
pub(crate) fn moves_values(graph: &Graph) -> bool {
    graph
        .iter()
        .any(|(_, n)| has_dead_outputs(n) || n.class() == NodeClass::Enter)
}

/// Whether outputs of a node may be dead though its inputs are alive: a Switch, and a `_Recv` of what
/// another graph, not the client, sends.
pub(crate) fn has_dead_outputs(node: &Node) -> bool {
    match node.class() {
        NodeClass::Switch => true,
        NodeClass::Recv => !node.attrs.bool("client_terminated").unwrap_or(false),
        _ => false,
    }
}

/// What a node adds to `term`, if it is a sum of two.
pub(crate) fn added_to(term: Output, node: &Node) -> Option<Output> {
    match (node.op(), &node.inputs[..]) {
        ("Add" | "AddV2", [a, b]) if *a == term && *b != term => Some(*b),
        ("Add" | "AddV2", [a, b]) if *b == term && *a != term => Some(*a),
        _ => None,
    }
}

/// A graph with its reverse edges and shapes.
pub(crate) struct View<'a> {
    pub graph: &'a Graph,
    pub consumers: Consumers,
    pub shapes: Rc<ShapeMap>,
}

impl<'a> View<'a> {
    pub(crate) fn new(graph: &'a Graph, shapes: Rc<ShapeMap>) -> Self {
        View {
            graph,
            consumers: Consumers::new(graph),
            shapes,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &'a Node {
        self.graph.node(id)
    }

    /// The node that makes `output`, when it is of op `op`.
    pub(crate) fn producer(&self, output: Output, op: &str) -> Option<&'a Node> {
        let node = self.graph.node(output.node);
        (node.op() == op && output.slot == 0).then_some(node)
    }

    /// The value of a constant that waits for nothing.
    pub(crate) fn constant(&self, output: Output) -> Option<&'a LazyTensor> {
        let node = self.node(output.node);
        let value = node.attrs.tensor("value").ok();
        value.filter(|_| node.is_free_constant())
    }

    /// The value of a constant float scalar (rank 0).
    pub(crate) fn scalar(&self, output: Output) -> Option<f32> {
        let value = self.constant(output)?;
        if value.dtype() != DType::Float || !value.shape().is_scalar() {
            return None;
        }
        value.get().ok()?.to_scalar().ok()
    }

    /// The value of a constant scalar (rank 0) of type float or double.
    pub(crate) fn number(&self, output: Output) -> Option<f64> {
        let value = self.constant(output)?;
        if value.dtype() != DType::Double || !value.shape().is_scalar() {
            return self.scalar(output).map(f64::from);
        }
        value.get().ok()?.to_scalar().ok()
    }

    /// The values of a small constant vector of integers.
    pub(crate) fn ints(&self, output: Output) -> Option<Vec<i64>> {
        let value = self.constant(output)?;
        if value.shape().num_elements() > 64 {
            return None;
        }
        integers(&value.get().ok()?)
    }

    /// The values of a constant float tensor.
    pub(crate) fn floats(&self, output: Output) -> Option<Vec<f32>> {
        let value = self.constant(output)?;
        let value = (value.dtype() == DType::Float).then_some(value)?;
        Some(value.get().ok()?.slice::<f32>().ok()?.to_vec())
    }

    pub(crate) fn shape(&self, output: Output) -> PartialShape {
        self.shapes.get(output)
    }

    /// The one node that reads `output`, if its producer has no other consumer.
    pub(crate) fn only_reader(&self, output: Output) -> Option<NodeId> {
        self.consumers.only_reader(output)
    }

    /// Whether a node is a plain function of its data inputs.
    pub(crate) fn is_pure(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.controls.is_empty() && !self.graph.is_target(id)
    }
}

/// Whether two shapes can be taken as equal: same rank, same known dimensions, and nothing unknown
/// but the first dimension of both.
pub(crate) fn same_shape(a: &PartialShape, b: &PartialShape) -> bool {
    let (Some(a), Some(b)) = (a.dims(), b.dims()) else {
        return false;
    };
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .enumerate()
            .all(|(i, (x, y))| x == y && (x.is_some() || i == 0))
}
