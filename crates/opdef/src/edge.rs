//! Where edges of a graph begin.

use ferroflow_base::define_id;

define_id!(/// A node of one graph.
    NodeId);

/// Output `slot` of a node: where a data edge begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Output {
    /// The producing node.
    pub node: NodeId,
    /// Which of its outputs.
    pub slot: u32,
}

impl Output {
    /// Output `slot` of `node`.
    pub fn new(node: NodeId, slot: usize) -> Self {
        Output {
            node,
            slot: slot as u32,
        }
    }
}
