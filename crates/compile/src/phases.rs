//! The phases of a graph on its way to a plan, as types: `Graph` as imported or built →
//! [`PrunedGraph`](ferroflow_graph::PrunedGraph) → [`ExpandedGraph`] →
//! [`PlacedGraph`] → [`OptimizedGraph`].

use ferroflow_graph::{Graph, Patch, PlacedGraph};

/// A pruned graph without references, ops that stand for several, and calls that can be inlined.
#[derive(Clone)]
pub struct ExpandedGraph(pub(crate) Graph);

impl ExpandedGraph {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.0
    }

    /// Applies changes that a patch of this graph has collected.
    pub fn apply(&mut self, patch: Patch) {
        patch.apply(&mut self.0);
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
