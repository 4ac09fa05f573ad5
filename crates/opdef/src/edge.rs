//! [`Output`]: the source of an edge.

use ferroflow_base::define_id;

define_id!(/// A node of one graph.
    NodeId);

/// Output `slot` of a node: the source of data edges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Output {
    /// The producing node.
    pub node: NodeId,
    /// The index of the output.
    pub slot: u32,
}

impl Output {
    /// Returns output `slot` of `node`.
    pub fn new(node: NodeId, slot: usize) -> Self {
        Output {
            node,
            slot: slot as u32,
        }
    }
}
