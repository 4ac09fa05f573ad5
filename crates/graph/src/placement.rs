//! Placement of nodes on devices.

use crate::device::colocated_with;
use crate::{Consumers, DeviceSet, Graph, Node, NodeId, Output};
use ferroflow_base::Result;
use ferroflow_opdef::NodeClass;
use ferroflow_tensor::DType;

impl DeviceSet {
    /// The device, by position, of each node (indexed by [`NodeId`]).
    ///
    /// A node is on the device it requests; one without a request is with those it is colocated with,
    /// else on the first device, but a constant or a feed is on the device of its only readers and a
    /// fetch on that of its value. Users of a resource are with the resource, whatever they request.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no device matches what a node requests.
    pub fn place_nodes(&self, graph: &Graph) -> Result<Vec<usize>> {
        let mut groups = Groups((0..graph.id_bound()).collect());
        for (id, node) in graph.iter() {
            let resources = node.inputs.iter().filter(|input| {
                graph.dtype(**input) == Some(DType::Resource) && !forwards_several(node)
            });
            for input in resources {
                groups.join(forwarded(graph, *input).node, id);
            }
            for other in colocated_with(node).filter_map(|name| graph.find(name)) {
                groups.join(other, id);
            }
        }
        let mut asked = vec![None; graph.id_bound()];
        for (id, node) in graph.iter().filter(|(_, n)| !n.device.is_empty()) {
            let device = self.place(&node.name, &node.device)?;
            asked[groups.root(id)].get_or_insert(device);
        }
        let mut places: Vec<usize> = (0..graph.id_bound())
            .map(|i| asked[groups.root(NodeId::new(i))].unwrap_or(0))
            .collect();
        let consumers = Consumers::new(graph);
        for (id, node) in graph.iter() {
            if asked[groups.root(id)].is_some() {
                continue;
            }
            if is_generator(node) {
                let mut devices = consumers.of(id).iter().map(|(c, _)| places[c.index()]);
                if let Some(first) = devices.next()
                    && devices.all(|d| d == first)
                {
                    places[id.index()] = first;
                }
            } else if node.class() == NodeClass::Retval
                && let Some(from) = node.inputs.first()
            {
                places[id.index()] = places[from.node.index()];
            }
        }
        Ok(places)
    }
}

/// Whether a node passes several values on, as what is left of a call or a loop does. They may be of
/// different devices.
fn forwards_several(node: &Node) -> bool {
    node.class() == NodeClass::Identity && node.inputs.len() > 1
}

/// The output that nodes which pass several on have a value from.
fn forwarded(graph: &Graph, mut output: Output) -> Output {
    while let Some(node) = graph.get(output.node).filter(|n| forwards_several(n)) {
        match node.inputs.get(output.slot as usize) {
            Some(input) => output = *input,
            None => break,
        }
    }
    output
}

/// Whether a node produces a value that may as well be produced where it is read.
fn is_generator(node: &Node) -> bool {
    node.class() == NodeClass::Arg
        || (node.inputs.is_empty() && node.controls.is_empty() && !node.def.flags.stateful)
}

/// Nodes that are on one device, as a forest.
struct Groups(Vec<usize>);

impl Groups {
    fn root(&mut self, node: NodeId) -> usize {
        let mut at = node.index();
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}
