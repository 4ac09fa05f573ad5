//! Readers of references that may be dead. The read in front of one would run although its reader does not, and fail if
//! nothing was assigned to the variable yet, so it waits for what makes the reader dead:
//!
//! ```text
//! n = Sub(v, s:1)           n/_alive_1 = Identity(s:1), n/_read_0 = ReadVariableOp(v/_handle, ^n/_alive_1)
//! ```

use super::Lowering;
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId};
use ferroflow_opdef::{AttrValue, Attrs};
use rustc_hash::FxHashSet;

/// Returns the nodes that follow a Switch, directly or not.
pub(super) fn mortal(graph: &Graph) -> FxHashSet<NodeId> {
    let is_switch = |(_, n): &(NodeId, &Node)| n.class() == NodeClass::Switch;
    let mut stack: Vec<NodeId> = graph.iter().filter(is_switch).map(|(id, _)| id).collect();
    let mut found = FxHashSet::default();
    if stack.is_empty() {
        return found;
    }
    let consumers = Consumers::new(graph);
    while let Some(id) = stack.pop() {
        if found.insert(id) {
            stack.extend(consumers.of(id).iter().map(|(reader, _)| *reader));
        }
    }
    found
}

impl Lowering<'_, '_> {
    /// Returns nodes that are dead if data inputs of `node` other than `i` are.
    pub(super) fn dead_with(&mut self, node: &Node, i: usize) -> Result<Vec<NodeId>> {
        // A Merge runs when one of its inputs has arrived.
        if node.class() == NodeClass::Merge {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (j, input) in node.inputs.iter().enumerate() {
            let is_other = j != i && self.mortal.contains(&input.node);
            if !is_other || self.reference(*input).is_some() {
                continue;
            }
            let from = self.graph.node(input.node);
            if from.class() != NodeClass::Switch {
                found.push(input.node);
                continue;
            }
            // A control edge cannot name one side of a Switch.
            let dtype = from.outputs[input.slot as usize];
            let attrs = Attrs::default().with("T", AttrValue::Type(dtype));
            let name = self.graph.unique_name(&format!("{}/_alive_{j}", node.name));
            let alive = self.make(node, name, "Identity", attrs, &[*input], &[])?;
            found.push(self.patch.add(self.graph, alive)?);
        }
        Ok(found)
    }
}
