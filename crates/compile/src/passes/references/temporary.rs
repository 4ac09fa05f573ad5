//! Temporary variables: a step has each name once.

use super::{Lowering, REFERENCE, Reference};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, loop_frames};
use ferroflow_opdef::{AttrValue, Attrs};
use rustc_hash::{FxHashMap, FxHashSet};

const OP: &str = "TemporaryVariable";

/// The name that a temporary variable is created or destroyed under.
fn var_name(node: &Node) -> &str {
    match node.attrs.str("var_name") {
        Ok(name) if !name.is_empty() => name,
        _ => &node.name,
    }
}

/// The temporary variables of a graph.
#[derive(Default)]
pub(super) struct Temporaries {
    names: FxHashSet<String>,
    /// The name and device that several variables share, by variable.
    shared: FxHashMap<NodeId, (String, String)>,
    /// The node that they share, once it was made.
    nodes: FxHashMap<(String, String), Output>,
}

impl Temporaries {
    pub(super) fn of(graph: &Graph) -> Result<Self> {
        let mut all = Temporaries::default();
        let mut same: FxHashMap<(String, String), Vec<NodeId>> = FxHashMap::default();
        for (id, node) in graph.iter().filter(|(_, n)| n.op() == OP) {
            let key = (var_name(node).to_string(), node.device.clone());
            all.names.insert(key.0.clone());
            same.entry(key).or_default().push(id);
        }
        same.retain(|_, ids| ids.len() > 1);
        if same.is_empty() {
            return Ok(all);
        }
        // An iteration of a loop has names of its own.
        let frames = loop_frames(graph)?;
        for (key, ids) in same {
            let outside = ids.into_iter().filter(|id| frames.of(*id).is_none());
            all.shared.extend(outside.map(|id| (id, key.clone())));
        }
        Ok(all)
    }
}

impl Lowering<'_, '_> {
    /// The attrs of a `_TemporaryVariable` and its input, if it shares its name.
    pub(super) fn temporary(&mut self, id: NodeId, attrs: &mut Attrs) -> Result<Vec<Output>> {
        let node = self.graph.node(id).clone();
        attrs.set("var_name", AttrValue::str(var_name(&node)));
        let inputs = match self.temporaries.shared.get(&id).cloned() {
            None => Vec::new(),
            Some(key) => vec![match self.temporaries.nodes.get(&key) {
                Some(name) => *name,
                None => {
                    let name = self.graph.unique_name(&format!("{}/_name", node.name));
                    let op = "_TemporaryVariableName";
                    let made = self.make(&node, name, op, Attrs::default(), &[], &[])?;
                    let made = Output::new(self.patch.add(self.graph, made)?, 0);
                    self.temporaries.nodes.insert(key, made);
                    made
                }
            }],
        };
        attrs.set("N", AttrValue::Int(inputs.len() as i64));
        Ok(inputs)
    }

    /// Replaces a DestroyTemporaryVariable. It destroys the variable that it reads, unless its name
    /// is that of another variable of the graph.
    pub(super) fn destroy(
        &mut self,
        id: NodeId,
        to: &Reference,
        node: &Node,
        controls: &[NodeId],
    ) -> Result<()> {
        let name = var_name(node);
        let variable = self.graph.node(to.variable);
        let is_own = variable.op() == OP && var_name(variable) == name;
        let mut made = self.read(node.name.clone(), to, node, controls)?;
        if is_own || !self.temporaries.names.contains(name) {
            let mut attrs = made.attrs.clone().with("var_name", AttrValue::str(name));
            attrs.remove(REFERENCE);
            let op = "_DestroyTemporaryVariable";
            made = self.make(node, made.name, op, attrs, &made.inputs, &made.controls)?;
        }
        *self.patch.edit(self.graph, id) = made;
        Ok(())
    }
}
