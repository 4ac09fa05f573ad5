//! Editing a graph: collect changes, apply them in one linear sweep.

use crate::{Graph, Node, NodeId, Output};
use ferroflow_base::Result;
use rustc_hash::{FxHashMap, FxHashSet};

/// A set of changes to one graph. Nothing is visible before [`Patch::apply`], except that added
/// nodes have their ids at once.
#[derive(Default)]
pub struct Patch {
    redirects: FxHashMap<Output, Output>,
    control_redirects: FxHashMap<NodeId, Option<NodeId>>,
    removed: FxHashSet<NodeId>,
}

impl Patch {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node to the graph at once; nobody reads it before a redirect is applied.
    pub fn add(&mut self, graph: &mut Graph, node: Node) -> Result<NodeId> {
        graph.add(node)
    }

    /// Readers of `from` shall read `to`.
    pub fn redirect(&mut self, from: Output, to: Output) {
        if from != to {
            self.redirects.insert(from, to);
        }
    }

    /// Nodes that wait for `from` shall wait for `to`, or for nothing.
    pub fn redirect_control(&mut self, from: NodeId, to: Option<NodeId>) {
        self.control_redirects.insert(from, to);
    }

    /// Removes `node`, whose readers are redirected or removed too.
    pub fn remove(&mut self, node: NodeId) {
        self.removed.insert(node);
    }

    /// Whether the patch changes anything.
    pub fn is_empty(&self) -> bool {
        self.redirects.is_empty() && self.removed.is_empty() && self.control_redirects.is_empty()
    }

    /// Where `output` will be read from, chains of redirects included.
    pub fn resolve(&self, mut output: Output) -> Output {
        // A chain longer than the number of redirects would be a cycle.
        for _ in 0..=self.redirects.len() {
            match self.redirects.get(&output) {
                Some(next) => output = *next,
                None => break,
            }
        }
        output
    }

    fn resolve_control(&self, mut node: NodeId) -> Option<NodeId> {
        for _ in 0..=self.control_redirects.len() {
            match self.control_redirects.get(&node) {
                Some(Some(next)) => node = *next,
                Some(None) => return None,
                None => break,
            }
        }
        Some(node)
    }

    /// Applies everything. Linear in the graph.
    pub fn apply(self, graph: &mut Graph) {
        if self.is_empty() {
            return;
        }
        for i in 0..graph.id_bound() {
            let id = NodeId::new(i);
            if self.removed.contains(&id) {
                graph.remove(id);
                continue;
            }
            let Some(node) = graph.node_mut(id) else {
                continue;
            };
            for input in &mut node.inputs {
                *input = self.resolve(*input);
            }
            if !self.control_redirects.is_empty() && !node.controls.is_empty() {
                let old = std::mem::take(&mut node.controls);
                for control in old {
                    if let Some(c) = self.resolve_control(control)
                        && c != id
                        && !node.controls.contains(&c)
                    {
                        node.controls.push(c);
                    }
                }
            }
        }
    }
}
