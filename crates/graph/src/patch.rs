//! Editing a graph: collect changes, apply them in one linear sweep.

use crate::{Function, Graph, Library, Node, NodeId, Output};
use ferroflow_base::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A set of changes to one graph, the only way to change one outside this crate. Nothing is visible
/// before [`Patch::apply`], except that added nodes have their ids at once.
#[derive(Default)]
pub struct Patch {
    edits: FxHashMap<NodeId, Node>,
    redirects: FxHashMap<Output, Output>,
    control_redirects: FxHashMap<NodeId, Option<NodeId>>,
    removed: FxHashSet<NodeId>,
    targets: FxHashMap<NodeId, NodeId>,
    library: Option<Library>,
}

impl Patch {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node to the graph at once; no other reads it before a redirect is applied.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if the name is taken.
    pub fn add(&mut self, graph: &mut Graph, node: Node) -> Result<NodeId> {
        graph.add(node)
    }

    /// Adds `node`, whose outputs take the place of those of `old`.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if the name is taken.
    pub fn substitute(&mut self, graph: &mut Graph, old: NodeId, node: Node) -> Result<()> {
        let n = node.outputs.len();
        let new = self.add(graph, node)?;
        for slot in 0..n {
            self.redirect(Output::new(old, slot), Output::new(new, slot));
        }
        self.redirect_control(old, Some(new));
        Ok(())
    }

    /// The node `id` as it will be, for changing anything but its name.
    pub fn edit(&mut self, graph: &Graph, id: NodeId) -> &mut Node {
        self.edits
            .entry(id)
            .or_insert_with(|| graph.node(id).clone())
    }

    /// Makes readers of `from` read `to`.
    pub fn redirect(&mut self, from: Output, to: Output) {
        if from != to {
            self.redirects.insert(from, to);
        }
    }

    /// Makes nodes that wait for `from` wait for `to`, or for nothing.
    pub fn redirect_control(&mut self, from: NodeId, to: Option<NodeId>) {
        self.control_redirects.insert(from, to);
    }

    /// Makes `to` a target in the place of `from`, if that is one.
    pub fn redirect_target(&mut self, from: NodeId, to: NodeId) {
        self.targets.insert(from, to);
    }

    /// Removes `node`, whose readers are redirected or removed too.
    pub fn remove(&mut self, node: NodeId) {
        self.removed.insert(node);
    }

    /// The functions that nodes may call as they will be.
    pub fn library(&mut self, graph: &Graph) -> &mut Library {
        self.library
            .get_or_insert_with(|| Library::clone(graph.library()))
    }

    /// Replaces the functions that nodes may call.
    pub fn set_library(&mut self, library: Library) {
        self.library = Some(library);
    }

    /// Adds or replaces a function.
    pub fn add_function(&mut self, graph: &Graph, name: &str, function: Function) {
        self.library(graph).insert(name, function);
    }

    /// The output that readers of `output` will read, after all redirects.
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
    pub fn apply(mut self, graph: &mut Graph) {
        if let Some(library) = self.library.take() {
            graph.set_library(Arc::new(library));
        }
        for (id, node) in std::mem::take(&mut self.edits) {
            graph.replace(id, node);
        }
        self.removed.iter().for_each(|id| graph.remove(*id));
        if !self.targets.is_empty() {
            let targets = graph.targets().iter();
            let targets = targets.map(|t| self.targets.get(t).unwrap_or(t));
            graph.set_targets(targets.copied().collect());
        }
        if !self.redirects.is_empty() || !self.control_redirects.is_empty() {
            self.apply_redirects(graph);
        }
    }

    fn apply_redirects(&self, graph: &mut Graph) {
        for i in 0..graph.id_bound() {
            let id = NodeId::new(i);
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

#[cfg(test)]
mod tests {
    use crate::testing::graph;
    use crate::{Graph, NodeId, Output, Patch, to_text};

    /// `x = Placeholder; a = Neg(x); b = Neg(a, ^a)` after an edit.
    fn check(edit: impl Fn(&mut Patch, &mut Graph, [NodeId; 3]), expect: &str) {
        let mut graph = graph("x = Placeholder\na = Neg(x)\nb = Neg(a, ^a)").expect("valid");
        let ids = ["x", "a", "b"].map(|name| graph.find(name).expect(name));
        let mut patch = Patch::new();
        edit(&mut patch, &mut graph, ids);
        patch.apply(&mut graph);
        assert_eq!(to_text(&graph).trim().replace('\n', "; "), expect);
    }

    #[test]
    fn edits() {
        check(
            |_, _, _| {},
            "x = Placeholder(); a = Neg(x); b = Neg(a, ^a)",
        );
        check(
            |patch, _, [x, a, _]| {
                patch.redirect(Output::new(a, 0), Output::new(x, 0));
                patch.redirect_control(a, None);
                patch.remove(a);
            },
            "x = Placeholder(); b = Neg(x)",
        );
        check(
            |patch, graph, [x, _, b]| {
                let node = patch.edit(graph, b);
                node.inputs[0] = Output::new(x, 0);
                node.controls.clear();
                assert_eq!(graph.node(b).controls.len(), 1, "nothing is visible yet");
            },
            "x = Placeholder(); a = Neg(x); b = Neg(x)",
        );
        check(
            |patch, graph, [x, a, b]| {
                let mut new = graph.node(a).clone();
                new.name = "new".to_string();
                let new = patch.add(graph, new).expect("a new name");
                patch.redirect(Output::new(a, 0), Output::new(new, 0));
                patch.redirect_control(a, Some(new));
                patch.edit(graph, b).device = "/cpu:0".to_string();
                assert_eq!(patch.resolve(Output::new(a, 0)), Output::new(new, 0));
                assert_eq!(patch.resolve(Output::new(x, 0)), Output::new(x, 0));
            },
            "x = Placeholder(); a = Neg(x); new = Neg(x); b = Neg(new, ^new)",
        );
    }
}
