//! Feeds and fetches that a step exchanges with its client through its rendezvous.

use crate::graph::def_of;
use crate::recv_scheduling::START;
use crate::{Graph, NodeId, PrunedGraph};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use std::sync::Arc;

/// The device that exchanges feeds and fetches with its client.
#[derive(Clone, Debug, Default)]
pub struct ClientDevice {
    /// Its full name; empty in a step of one process.
    pub name: String,
    /// The incarnation of the device.
    pub incarnation: u64,
}

impl ClientDevice {
    /// The rendezvous key of the feed or fetch `name`.
    ///
    /// ```
    /// let key = ferroflow_graph::ClientDevice::default().key("x:0");
    /// assert_eq!(key, ";0000000000000000;;x:0;0:0");
    /// ```
    pub fn key(&self, name: &str) -> String {
        let (device, incarnation) = (&self.name, self.incarnation);
        format!("{device};{incarnation:016x};{device};{name};0:0")
    }
}

/// Makes each `_Arg` node a `_Recv` and each `_Retval` node a `_Send` on `device`, whose keys have the name
/// at the node's index in `feeds` or `fetches`. Of the library, the functions stay that the nodes refer to.
///
/// # Errors
/// INTERNAL if an index has no name.
pub fn args_to_send_recv(
    pruned: PrunedGraph,
    feeds: &[String],
    fetches: &[String],
    device: &ClientDevice,
    registry: &Registry,
) -> Result<PrunedGraph> {
    let mut graph: Graph = pruned.0;
    let is_end = |class| matches!(class, NodeClass::Arg | NodeClass::Retval);
    let ends = graph.iter().filter(|(_, n)| is_end(n.class()));
    let ends: Vec<NodeId> = ends.map(|(id, _)| id).collect();
    let mut targets = graph.targets().to_vec();
    let text = |text: &str| AttrValue::Str(text.to_string().into());
    for id in ends {
        let mut node = graph.node(id).clone();
        let is_fetch = node.class() == NodeClass::Retval;
        let index = node.attrs.int("index")? as usize;
        let (names, op, attr) = match is_fetch {
            true => (fetches, "_Send", "T"),
            false => (feeds, "_Recv", "tensor_type"),
        };
        let name = names.get(index);
        let name = name.ok_or_else(|| internal!("the signature has no name number {index}"))?;
        let mut attrs = Attrs::default()
            .with(attr, AttrValue::Type(node.attrs.dtype("T")?))
            .with("tensor_name", text(name))
            .with("send_device", text(&device.name))
            .with(
                "send_device_incarnation",
                AttrValue::Int(device.incarnation as i64),
            )
            .with("recv_device", text(&device.name))
            .with("client_terminated", AttrValue::Bool(true));
        for kept in ["_shape", START] {
            if let Some(value) = node.attrs.get(kept) {
                attrs.set(kept, value.clone());
            }
        }
        node.device.clone_from(&device.name);
        node.def = def_of(registry, op)?;
        node.attrs = attrs;
        graph.replace(id, node);
        if is_fetch {
            targets.push(id);
        }
    }
    graph.set_targets(targets);
    let library = graph.library().clone();
    if !library.is_empty() {
        let called = library.reachable(&graph).into_iter().collect();
        graph.set_library(Arc::new(library.subset(&called)));
    }
    Ok(PrunedGraph(graph))
}
