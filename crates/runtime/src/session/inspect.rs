//! What a session's graphs look like.

use super::compile::Placed;
use super::{Session, registry};
use crate::freeze::Freeze;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_compile::{expand_for_placement, optimize};
use ferroflow_graph::{Graph, ShapeMap, Signature, export_graph, infer_shapes};
use ferroflow_model::proto::GraphDef;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A node and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedNode {
    /// Its name.
    pub name: String,
    /// Its op.
    pub op: String,
    /// The full name of its device.
    pub device: String,
    /// What decided.
    pub reason: String,
}

/// Formats as `NAME: (OP): DEVICE`, as TensorFlow logs it.
impl std::fmt::Display for PlacedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ({}): {}", self.name, self.op, self.device)
    }
}

impl Session {
    /// The state that outlives steps.
    pub(crate) fn resources(&self) -> &ferroflow_opdef::Resources {
        &self.options.resources
    }

    /// The graph as it was imported and extended so far.
    pub fn graph(&self) -> Arc<Graph> {
        self.current().state.graph().clone()
    }

    /// The graph of a signature after pass `after` (or after the last one), with its shapes.
    ///
    /// # Errors
    /// Those of compiling the signature; INVALID_ARGUMENT if no pass `after` ran.
    pub fn graph_after(
        &self,
        signature: &Signature,
        after: Option<&str>,
    ) -> Result<(Graph, ShapeMap)> {
        let mut expanded = self.expanded(signature, &[])?;
        self.freeze(&mut expanded, Freeze::Variables)?;
        let mut seen = None;
        let placed = self.on_one_device(expanded)?;
        let options = &self.options.compile;
        let optimized = optimize(placed, registry(), options, &mut |name, g| {
            if after == Some(name) {
                seen = Some(g.clone());
            }
        })?;
        let graph = match (after, seen) {
            (None, _) => optimized.graph().clone(),
            (Some(_), Some(seen)) => seen,
            (Some(name), None) => {
                let names: Vec<&str> = crate::PIPELINE.iter().map(|p| p.name).collect();
                return Err(invalid_argument!(
                    "no pass '{name}' ran; the passes are: {}",
                    names.join(", ")
                ));
            }
        };
        let shapes = infer_shapes(&graph, registry())?;
        Ok((graph, shapes))
    }

    /// The device of each node of the graph that asks for another one than the first.
    pub fn placement(&self) -> FxHashMap<String, String> {
        let current = self.current();
        let devices = &self.options.devices;
        let mut index = devices.index();
        let nodes = current.state.graph().iter().map(|(_, n)| n);
        let placed = nodes.filter(|n| !n.device.is_empty()).filter_map(|n| {
            let device = index.place(&n.name, &n.device).ok().filter(|d| *d > 0)?;
            Some((n.name.clone(), devices.names.get(device)?.clone()))
        });
        placed.collect()
    }

    /// The device of each node that a signature runs, in the order of the graph, with the reason; of
    /// all nodes without a signature. Empty if the session has no devices.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a node asks for a device that the session does not have; those of compiling the
    /// signature.
    pub fn explain_placement(&self, signature: Option<&Signature>) -> Result<Vec<PlacedNode>> {
        let lower = self.lowered();
        let graph = match signature {
            None => self.graph(),
            Some(signature) => {
                let pruned = self.prune(signature, &[])?;
                Arc::new(expand_for_placement(pruned, lower, registry())?.into_graph())
            }
        };
        let Some(placed) = self.place_nodes(&graph)? else {
            return Ok(Vec::new());
        };
        let devices = &self.options.devices.names;
        let nodes = graph.iter().map(|(id, node)| PlacedNode {
            name: node.name.clone(),
            op: node.op().to_string(),
            device: devices[placed.devices[id.index()]].clone(),
            reason: placed.reasons[id.index()].text(&graph),
        });
        Ok(nodes.collect())
    }

    /// The inputs of each node, separated by commas.
    pub fn inputs(&self) -> FxHashMap<String, String> {
        let graph = self.graph();
        let inputs = graph.iter().map(|(_, node)| {
            let data = node.inputs.iter().map(|i| graph.output_name(*i));
            let controls = node.controls.iter();
            let controls = controls.map(|c| format!("^{}", graph.node(*c).name));
            let all: Vec<String> = data.chain(controls).collect();
            (node.name.clone(), all.join(", "))
        });
        inputs.collect()
    }

    /// The optimized graphs that a signature runs, one for each device, with feeds, fetches and the
    /// tensors that devices exchange as nodes.
    ///
    /// # Errors
    /// Those of compiling the signature.
    pub fn partition_graphs(&self, signature: &Signature) -> Result<Vec<GraphDef>> {
        let parts = match self.place(self.expanded(signature, &[])?)? {
            Placed::One(graph) => vec![(None, graph)],
            Placed::Parts(parts) => {
                let parts = parts.into_iter();
                parts.map(|p| (Some(p.part), p.graph)).collect()
            }
        };
        let (asked, part_options) = (self.placement(), self.part_options());
        let exported = parts.into_iter().map(|(device, placed)| {
            let options = match device {
                None => &self.options.compile,
                Some(_) => &part_options,
            };
            let placed = self.rewrite_part(placed)?;
            let optimized = optimize(placed, registry(), options, &mut |_, _| {})?;
            let mut def = export_graph(optimized.graph())?;
            let names = &self.options.devices.names;
            for node in &mut def.node {
                let own = asked.get(&node.name).filter(|_| device.is_none());
                let name = own.or(names.get(device.unwrap_or(0)));
                node.device = name.cloned().unwrap_or_default();
            }
            Ok(def)
        });
        exported.collect()
    }
}
