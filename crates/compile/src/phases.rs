//! The phases of a graph on its way to a plan, as types: `Graph` as imported or built →
//! [`PrunedGraph`](ferroflow_graph::PrunedGraph) → [`ExpandedGraph`] →
//! [`PlacedGraph`] → [`OptimizedGraph`].

use crate::{Lower, PassCtx, passes};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Patch, PlacedGraph};
use ferroflow_opdef::Registry;

/// A pruned graph without references, ops that stand for several, and calls that can be inlined.
#[derive(Clone)]
pub struct ExpandedGraph(pub(crate) Graph);

impl ExpandedGraph {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0
    }

    /// Turns functional control flow that `lower` selects into Switch, Merge and loops, so that its parts can
    /// be placed on several devices.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a function or a device name is malformed.
    pub fn lower(&mut self, lower: Lower, registry: &Registry) -> Result<()> {
        passes::lower::lower(&mut self.0, &PassCtx::new(registry, lower))
    }

    /// Applies changes that a patch of this graph has collected.
    pub fn apply(&mut self, patch: Patch) {
        patch.apply(&mut self.0);
    }

    /// Changes the graph; its `_Arg` and `_Retval` nodes must stay.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn edit(&mut self, change: impl FnOnce(&mut Graph) -> Result<()>) -> Result<()> {
        change(&mut self.0)
    }

    /// Rewrites the graph; its `_Arg` and `_Retval` nodes must stay.
    ///
    /// # Errors
    /// Those of `rewrite`.
    pub fn try_map(mut self, rewrite: impl FnOnce(&mut Graph) -> Result<()>) -> Result<Self> {
        self.edit(rewrite)?;
        Ok(self)
    }

    /// The graph as one device runs it.
    pub fn on_one_device(self) -> PlacedGraph {
        PlacedGraph::on_one_device(self.0)
    }
}

/// A graph after all passes, ready to be emitted.
#[derive(Clone)]
pub struct OptimizedGraph(pub(crate) Graph);

impl OptimizedGraph {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0
    }
}
