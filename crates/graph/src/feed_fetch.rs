//! Feeds and fetches that a step exchanges with its client while it runs.

use crate::graph::def_of;
use crate::prune::boundary_attrs;
use crate::{ARG, Graph, Node, NodeId, Output, PrunedGraph, Signature};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use ferroflow_tensor::DType;

/// Makes each `_Arg` node a `_Recv` and each `_Retval` node a `_Send`. Their keys are the names of
/// `signature`; the rendezvous is the only argument that is left.
///
/// # Errors
/// INTERNAL if the graph was not pruned for `signature`.
pub fn args_to_send_recv(
    pruned: PrunedGraph,
    signature: &Signature,
    registry: &Registry,
) -> Result<PrunedGraph> {
    let mut graph = pruned.0;
    let dtype = |t| AttrValue::Type(t);
    let name = graph.unique_name("_rendezvous");
    let rendezvous = add_rendezvous(&mut graph, name, registry)?;
    let ends: Vec<NodeId> = graph
        .iter()
        .filter(|(id, n)| match n.class() {
            NodeClass::Arg => *id != rendezvous,
            class => class == NodeClass::Retval,
        })
        .map(|(id, _)| id)
        .collect();
    let mut targets = graph.targets().to_vec();
    for id in ends {
        let mut node = graph.node(id).clone();
        let is_fetch = node.class() == NodeClass::Retval;
        let index = node.attrs.int("index")? as usize;
        let (names, op, attr) = match is_fetch {
            true => (&signature.fetches, "_Send", "T"),
            false => (&signature.feeds, "_Recv", "tensor_type"),
        };
        let key = names.get(index).cloned();
        let key = key.ok_or_else(|| internal!("the signature has no name number {index}"))?;
        let mut attrs = Attrs::default()
            .with(attr, dtype(node.attrs.dtype("T")?))
            .with("tensor_name", AttrValue::Str(key.into()));
        if let Some(shape) = node.attrs.get("_shape") {
            attrs.set("_shape", shape.clone());
        }
        node.def = def_of(registry, op)?;
        node.attrs = attrs;
        node.inputs.insert(0, Output::new(rendezvous, 0));
        graph.replace(id, node);
        if is_fetch {
            targets.push(id);
        }
    }
    graph.set_targets(targets);
    Ok(PrunedGraph(graph))
}

/// Adds the argument through which a step's rendezvous comes, the first of all.
pub(crate) fn add_rendezvous(
    graph: &mut Graph,
    name: String,
    registry: &Registry,
) -> Result<NodeId> {
    let attrs = boundary_attrs(DType::Resource, 0);
    graph.add(Node::new(registry, name, ARG, attrs, &[], &[])?)
}
