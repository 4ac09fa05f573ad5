//! Feeds and fetches that a step exchanges with its client through its rendezvous.

use crate::graph::def_of;
use crate::prune::{ARG, boundary_attrs};
use crate::recv_scheduling::START;
use crate::{Graph, Node, NodeId, PlacedGraph, PrunedGraph};
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

/// Makes the `_Recv` nodes of a part further arguments, behind its `n_args`; returns their rendezvous keys. A part that
/// sends something, or whose nodes receive in some order, stays as it is: it has to run to receive.
///
/// # Errors
/// INVALID_ARGUMENT if a node lacks an attr.
pub fn recvs_to_args(
    part: &mut PlacedGraph,
    n_args: usize,
    registry: &Registry,
) -> Result<Vec<String>> {
    let graph = &mut part.0;
    let class = |class: NodeClass| move |(_, n): &(NodeId, &Node)| n.class() == class;
    let sends = graph.iter().any(|n| class(NodeClass::Send)(&n));
    let recvs: Vec<NodeId> = graph
        .iter()
        .filter(class(NodeClass::Recv))
        .map(|(id, _)| id)
        .collect();
    let waits = |id: &NodeId| !graph.node(*id).controls.is_empty();
    if sends || recvs.iter().any(waits) {
        return Ok(Vec::new());
    }
    let mut keys = Vec::new();
    for id in recvs {
        let mut node = graph.node(id).clone();
        keys.push(format!("{};0:0", rendezvous_key(&node)));
        let dtype = node.attrs.dtype("tensor_type")?;
        let mut attrs = boundary_attrs(dtype, n_args + keys.len() - 1);
        if let Some(shape) = node.attrs.get("_shape") {
            attrs.set("_shape", shape.clone());
        }
        node.def = def_of(registry, ARG)?;
        node.attrs = attrs;
        graph.replace(id, node);
    }
    Ok(keys)
}

/// The rendezvous key of a `_Send` or `_Recv` without frame and iteration.
pub fn rendezvous_key(node: &Node) -> String {
    let text = |name: &str| node.attrs.str(name).unwrap_or_default();
    let incarnation = node.attrs.int("send_device_incarnation").unwrap_or(0);
    format!(
        "{};{incarnation:016x};{};{}",
        text("send_device"),
        text("recv_device"),
        text("tensor_name")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};

    /// The keys of what a part of these nodes receives, and the ops of its nodes.
    fn check(text: &str, expect: &str) {
        let mut part = PlacedGraph::on_one_device(graph(text).expect("valid"));
        let keys = recvs_to_args(&mut part, 1, registry()).expect("all attrs");
        let nodes = part
            .graph()
            .iter()
            .map(|(_, n)| match n.attrs.int("index") {
                Ok(index) => format!("{}={} {index}", n.name, n.op()),
                Err(_) => format!("{}={}", n.name, n.op()),
            });
        let nodes: Vec<String> = nodes.collect();
        assert_eq!(
            format!("{} [{}]", nodes.join(", "), keys.join(", ")),
            expect
        );
    }

    #[test]
    fn parts_that_send_nothing_receive_first() {
        let recv = "r = _Recv{tensor_type=float, tensor_name=x, send_device=a, recv_device=b, send_device_incarnation=1}";
        let arg = "a = _Arg{T=float, index=0}";
        check(
            &format!("{arg}\n{recv}\ny = Mul(a, r)"),
            "a=_Arg 0, r=_Arg 1, y=Mul [a;0000000000000001;b;x;0:0]",
        );
        check(&format!("{arg}\n{recv}(^a)"), "a=_Arg 0, r=_Recv []");
        let send = "s = _Send{T=float, tensor_name=y, send_device=b, recv_device=a, send_device_incarnation=1}(a)";
        check(
            &format!("{arg}\n{recv}\n{send}"),
            "a=_Arg 0, r=_Recv, s=_Send []",
        );
    }
}
