//! Taking back what was added to a graph.

use super::ClientGraph;
use ferroflow_model::proto::FunctionDef;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

impl ClientGraph {
    /// What [`reset`](Self::reset) returns to.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            n_nodes: self.len(),
            functions: self.functions.clone(),
            gradients: self.gradients.clone(),
            scopes: self.scopes.clone(),
            producer: self.graph.producer,
            min_consumer: self.min_consumer,
            bad_consumers: self.bad_consumers.clone(),
        }
    }

    /// Removes the nodes and functions that were added after the mark.
    pub(super) fn reset(&mut self, mark: Mark) {
        while self.len() > mark.n_nodes {
            self.graph.pop();
        }
        let n = mark.n_nodes;
        self.consumers.truncate(n);
        self.control_outputs.truncate(n);
        for list in &mut self.consumers {
            list.retain(|c| c.node.index() < n);
        }
        for list in &mut self.control_outputs {
            list.retain(|id| id.index() < n);
        }
        (self.functions, self.gradients) = (mark.functions, mark.gradients);
        (self.scopes, self.graph.producer) = (mark.scopes, mark.producer);
        (self.min_consumer, self.bad_consumers) = (mark.min_consumer, mark.bad_consumers);
    }
}

/// The size of a graph at some time.
pub(super) struct Mark {
    n_nodes: usize,
    functions: BTreeMap<String, Arc<FunctionDef>>,
    gradients: BTreeMap<String, String>,
    scopes: FxHashSet<String>,
    producer: i32,
    min_consumer: i32,
    bad_consumers: Vec<i32>,
}
