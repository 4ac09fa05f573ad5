//! Replaces variables that a signature only reads by constants, so that they are folded, fused and
//! prepacked.
//!
//! The plan is valid until one of them is written: each step checks [`Frozen::holds`] first.

use ferroflow_base::{Result, internal};
use ferroflow_compile::ExpandedGraph;
use ferroflow_graph::{Consumers, Node, NodeClass, NodeId, Patch, referred_functions};
use ferroflow_opdef::{AttrValue, Attrs, Registry, Resources};
use ferroflow_resources::resource::{Var, container_and_name};
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The variables whose values are part of a plan, with their versions.
#[derive(Default)]
pub(crate) struct Frozen(Vec<(Arc<Var>, u64)>);

impl Frozen {
    /// Returns whether both are the same variables in the same versions.
    pub(crate) fn is(&self, other: &Frozen) -> bool {
        let has = |(var, version): &(Arc<Var>, u64)| {
            let mut others = other.0.iter();
            others.any(|(v, of)| Arc::ptr_eq(v, var) && of == version)
        };
        self.0.len() == other.0.len() && self.0.iter().all(has)
    }

    /// Returns whether all variables still have the same versions.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.0
            .iter()
            .all(|(var, version)| var.version() == *version)
    }
}

/// Replaces the reads of each initialized variable that `graph` does not write by its value.
pub(crate) fn freeze(
    expanded: &mut ExpandedGraph,
    registry: &Registry,
    resources: &Resources,
) -> Result<Frozen> {
    let graph = expanded.graph();
    let mut patch = Patch::new();
    let consumers = Consumers::new(graph);
    let mut reads: FxHashMap<(String, String), Option<Vec<NodeId>>> = FxHashMap::default();
    for (id, node) in graph.iter() {
        if node.op() == "_VarHandlesOp" || may_call(node, registry) {
            return Ok(Frozen::default());
        }
        if node.class() != NodeClass::VarHandle {
            continue;
        }
        let (container, name) = container_and_name(&node.attrs)?;
        let found = reads.entry((resources.container(&container).to_string(), name));
        let readers = found.or_insert_with(|| Some(Vec::new()));
        for &(reader, slot) in consumers.of(id) {
            match graph.node(reader).op() {
                _ if slot.is_none() => {}
                "ReadVariableOp" => {
                    if let Some(readers) = readers {
                        readers.push(reader);
                    }
                }
                "VarIsInitializedOp" | "VariableShape" => {}
                _ => *readers = None,
            }
            if readers.is_none() {
                break;
            }
        }
    }
    let mut frozen = Frozen::default();
    for ((container, name), readers) in reads {
        let Some(readers) = readers.filter(|r| !r.is_empty()) else {
            continue;
        };
        let Ok(var) = resources.lookup::<Var>(&container, &name) else {
            continue;
        };
        let (value, version) = var.get_with_version();
        let Some(value) = value else { continue };
        let value = value.on_host()?;
        let fits = |id: &NodeId| graph.node(*id).outputs.first() == Some(&value.dtype());
        if readers.iter().all(fits) {
            for id in readers {
                let node = graph.node(id).clone();
                *patch.edit(graph, id) = constant(node, &value, registry)?;
            }
            frozen.0.push((var, version));
        }
    }
    expanded.apply(patch);
    Ok(frozen)
}

/// Returns whether a node runs functions, which may write any variable.
fn may_call(node: &Node, registry: &Registry) -> bool {
    registry.op(node.op()).is_none() || referred_functions(node).next().is_some()
}

/// Returns a Const with the name and the controls of a read.
fn constant(mut node: Node, value: &Tensor, registry: &Registry) -> Result<Node> {
    let mut attrs = Attrs::default();
    attrs.set("dtype", AttrValue::Type(value.dtype()));
    attrs.set("value", AttrValue::Tensor(value.clone().into()));
    let def = registry.def("Const")?;
    node.def = def.ok_or_else(|| internal!("the op Const is not registered"))?;
    node.attrs = attrs;
    node.inputs.clear();
    Ok(node)
}
