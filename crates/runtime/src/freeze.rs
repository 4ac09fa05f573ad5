//! Replaces variables that a signature only reads by constants, so that they are folded, fused and
//! prepacked.
//!
//! The plan is valid until one of them is written: each step checks [`Frozen::holds`] first.

mod handles;
mod replace;

use ferroflow_base::Result;
use ferroflow_compile::ExpandedGraph;
use ferroflow_graph::NodeId;
use ferroflow_opdef::{Registry, Resources};
use ferroflow_resources::resource::Var;
use ferroflow_tensor::Tensor;
use handles::Handles;
use replace::Replacement;
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

/// Replaces the reads of each initialized variable that neither `graph` nor a function that it can run writes by its
/// value.
pub(crate) fn freeze(
    expanded: &mut ExpandedGraph,
    registry: &Registry,
    resources: &Resources,
) -> Result<Frozen> {
    let graph = expanded.graph();
    let Some(handles) = Handles::of(graph, registry, resources)? else {
        return Ok(Frozen::default());
    };
    let mut frozen = Frozen::default();
    let mut values: FxHashMap<usize, Tensor> = FxHashMap::default();
    for (number, variable) in handles.variables.iter().enumerate() {
        if !variable.is_replaceable() {
            continue;
        }
        let Ok(var) = resources.lookup::<Var>(&variable.container, &variable.name) else {
            continue;
        };
        let (value, version) = var.get_with_version();
        let Some(value) = value else { continue };
        let value = value.on_host()?;
        let output = |(scope, id): &(usize, NodeId)| handles.scopes[*scope].graph.node(*id);
        let mut reads = variable.reads.iter().map(output);
        if reads.all(|read| read.outputs.first() == Some(&value.dtype())) {
            values.insert(number, value);
            frozen.0.push((var, version));
        }
    }
    let patch = Replacement {
        handles: &handles,
        values: &values,
        registry,
    }
    .patch(graph)?;
    expanded.apply(patch);
    Ok(frozen)
}
