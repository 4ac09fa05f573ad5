//! Feeds that come and fetches that go while a step runs.

use crate::{ARG, Graph, Node, NodeId, Output, RETVAL, Signature};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::{AttrValue, Attrs, OpDef, Registry};
use ferroflow_tensor::DType;
use smallvec::smallvec;
use std::sync::Arc;

/// Makes a `_Recv` of each `_Arg` of a pruned graph and a `_Send` of each `_Retval`. Their keys are
/// the names of `signature`; the rendezvous is the only argument that is left.
pub fn through_rendezvous(
    mut graph: Graph,
    signature: &Signature,
    registry: &Registry,
) -> Result<Graph> {
    let dtype = |t| AttrValue::Type(t);
    let name = graph.unique_name("_rendezvous");
    let rendezvous = add_rendezvous(&mut graph, name, registry)?;
    let ends: Vec<NodeId> = graph
        .iter()
        .filter(|(id, n)| (n.op() == ARG && *id != rendezvous) || n.op() == RETVAL)
        .map(|(id, _)| id)
        .collect();
    let mut targets = graph.targets().to_vec();
    for id in ends {
        let mut node = graph.node(id).clone();
        let is_fetch = node.op() == RETVAL;
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
        node.def = internal_op(registry, op)?;
        node.attrs = attrs;
        node.inputs.insert(0, Output::new(rendezvous, 0));
        graph.replace(id, node);
        if is_fetch {
            targets.push(id);
        }
    }
    graph.set_targets(targets);
    Ok(graph)
}

impl Graph {
    /// A feed that a fetch depends on and that `is_there` says no to.
    pub fn missing_feed<'a>(
        &self,
        fetch: &str,
        feeds: &'a [String],
        is_there: impl Fn(&str) -> bool,
    ) -> Result<Option<&'a str>> {
        let mut missing = Vec::new();
        let mut fed = Vec::new();
        for feed in feeds {
            let output = self.find_output(feed, "feed")?;
            fed.push(output);
            if !is_there(feed) {
                missing.push((output, feed.as_str()));
            }
        }
        let mut seen = vec![false; self.id_bound()];
        let mut stack = vec![self.find_output(fetch, "fetch")?];
        while let Some(output) = stack.pop() {
            if let Some((_, feed)) = missing.iter().find(|(m, _)| *m == output) {
                return Ok(Some(feed));
            }
            if fed.contains(&output) || std::mem::replace(&mut seen[output.node.index()], true) {
                continue;
            }
            let node = self.node(output.node);
            stack.extend(node.inputs.iter().copied());
            stack.extend(node.controls.iter().map(|c| Output::new(*c, 0)));
        }
        Ok(None)
    }
}

/// Adds the argument through which a step's rendezvous comes, the first of all.
pub(crate) fn add_rendezvous(
    graph: &mut Graph,
    name: String,
    registry: &Registry,
) -> Result<NodeId> {
    graph.add(Node {
        name,
        def: internal_op(registry, ARG)?,
        attrs: Attrs::default()
            .with("T", AttrValue::Type(DType::Resource))
            .with("index", AttrValue::Int(0)),
        inputs: smallvec![],
        controls: smallvec![],
        device: String::new(),
        outputs: smallvec![DType::Resource],
    })
}

/// The schema of an op that every registry has.
pub(crate) fn internal_op(registry: &Registry, op: &str) -> Result<Arc<OpDef>> {
    registry.def(op)?.ok_or_else(|| internal!("no op {op}"))
}
