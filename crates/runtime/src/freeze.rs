//! Variables that a signature only reads become constants of its plan, so that they are folded,
//! fused and packed like any others.
//!
//! The plan holds as long as nobody writes to them: [`Frozen::holds`] says so before each step.

use ferroflow_base::{Result, internal};
use ferroflow_compile::ExpandedGraph;
use ferroflow_graph::{Consumers, Node, NodeClass, NodeId, Patch, referred_functions};
use ferroflow_opdef::{AttrValue, Attrs, Registry, Resources};
use ferroflow_resources::resource::{Var, container_and_name};
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The variables that a plan took the values of, with their versions.
#[derive(Default)]
pub(crate) struct Frozen(Vec<(Arc<Var>, u64)>);

impl Frozen {
    /// Whether all variables are as they were.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.0
            .iter()
            .all(|(var, version)| var.version() == *version)
    }
}

/// Puts the value of each variable that has one, and that nothing in `graph` can change, in the
/// place of its reads.
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
        let found = reads.entry(container_and_name(&node.attrs)?);
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

/// Whether a node runs functions, which may do anything.
fn may_call(node: &Node, registry: &Registry) -> bool {
    registry.op(node.op()).is_none() || referred_functions(node).next().is_some()
}

/// A Const in the place of a read: same name, same order.
fn constant(mut node: Node, value: &Tensor, registry: &Registry) -> Result<Node> {
    let mut attrs = Attrs::default();
    attrs.set("dtype", AttrValue::Type(value.dtype()));
    attrs.set("value", AttrValue::Tensor(value.clone().into()));
    let def = registry.def("Const")?;
    node.def = def.ok_or_else(|| internal!("there is no op Const"))?;
    node.attrs = attrs;
    node.inputs.clear();
    Ok(node)
}
