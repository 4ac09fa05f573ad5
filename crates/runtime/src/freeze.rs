//! Replaces variables that a signature only reads by constants, so that they are folded, fused and
//! prepacked.
//!
//! The plan is valid until one of them is written: each step checks [`Frozen::holds`] first.

mod gathers;
mod handles;
mod replace;

use ferroflow_base::Result;
use ferroflow_compile::ExpandedGraph;
use ferroflow_graph::{Node, NodeId};
use ferroflow_opdef::{Registry, Resources};
use ferroflow_resources::resource::Var;
use ferroflow_resources::table::Table;
use handles::{Handles, Kind, Variable, is_gather};
use replace::{Contents, Replacement};
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

/// What is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freeze {
    /// Variables; the plan must be checked before each step.
    Variables,
    /// Tables as well, whatever becomes of them.
    All,
}

/// Replaces the reads of each initialized variable that neither `graph` nor a function that it can run writes by its
/// value.
pub(crate) fn freeze(
    expanded: &mut ExpandedGraph,
    registry: &Registry,
    resources: &Resources,
    what: Freeze,
) -> Result<Frozen> {
    let Some(handles) = Handles::of(expanded.graph(), registry, resources)? else {
        return Ok(Frozen::default());
    };
    let gathers = gathers::of(&handles, resources);
    if !gathers.is_empty() {
        gathers::split(expanded, registry, &gathers)?;
        return freeze(expanded, registry, resources, what);
    }
    let graph = expanded.graph();
    let mut frozen = Frozen::default();
    let mut contents: FxHashMap<usize, Contents> = FxHashMap::default();
    for (number, variable) in handles.variables.iter().enumerate() {
        if !variable.is_replaceable() {
            continue;
        }
        let found = match variable.kind {
            Kind::Variable => value_of(&handles, variable, resources, &mut frozen)?,
            Kind::Table if what == Freeze::All => entries_of(variable, resources),
            Kind::Table => None,
        };
        contents.extend(found.map(|found| (number, found)));
    }
    let replacement = Replacement {
        handles: &handles,
        contents: &contents,
        registry,
    };
    let patch = replacement.patch(graph)?;
    expanded.apply(patch);
    Ok(frozen)
}

/// Returns the value of a variable that is initialized, and notes its version.
fn value_of(
    handles: &Handles,
    variable: &Variable,
    resources: &Resources,
    frozen: &mut Frozen,
) -> Result<Option<Contents>> {
    let Ok(var) = resources.lookup::<Var>(&variable.container, &variable.name) else {
        return Ok(None);
    };
    let (value, version) = var.get_with_version();
    let Some(value) = value else { return Ok(None) };
    let value = value.on_host()?;
    let node = |(scope, id): &(usize, NodeId)| handles.scopes[*scope].graph.node(*id);
    let mut reads = variable.reads.iter().map(node);
    // It may have got its value after its gathers were split.
    let is_read = |node: &Node| node.outputs.first() == Some(&value.dtype()) && !is_gather(node);
    if !reads.all(is_read) {
        return Ok(None);
    }
    frozen.0.push((var, version));
    Ok(Some(Contents::Value(value)))
}

/// Returns the entries of a table that is initialized.
fn entries_of(variable: &Variable, resources: &Resources) -> Option<Contents> {
    let table = resources.lookup::<Table>(&variable.container, &variable.name);
    let table = table.ok()?;
    let (keys, values) = table.export().ok()?;
    (keys.shape().rank() == 1).then_some(Contents::Entries {
        keys,
        values,
        is_static: table.is_static(),
    })
}
