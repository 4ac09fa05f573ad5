//! Values of references that change after they were read.
//!
//! In TensorFlow the value of a reference shares the variable's buffer, and ops that write change
//! that buffer. So `Identity(v)` is an alias of `v`: a node that runs after a write sees what was
//! written, even if the `Identity` ran before. Where the graph orders the write before the node but
//! not before the `Identity`, the node has to read the variable itself:
//!
//! ```text
//! r = Identity(v); a = Assign(v, x); n = Neg(r, ^a)     Neg sees x
//! ```
//! So does what is fetched: the value of `v` after all ops of the step that write to its buffer.
//!
//! `Enter` and `Switch` pass an alias on, so this holds for a loop whose body writes a variable that
//! was read in front of the loop.

use super::{Lowering, Reference, Root, refs_written};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, Output};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// The nodes that run after writes.
#[derive(Default)]
pub(super) struct Aliases {
    /// Nodes and data inputs that have to be read again.
    pub(super) late: FxHashSet<(NodeId, usize)>,
    /// The nodes that write a variable and those that run after one of them, by variable.
    pub(super) written: FxHashMap<NodeId, FxHashSet<NodeId>>,
    /// The nodes that change a variable's buffer, by variable; empty if not all of them run in each step.
    pub(super) in_place: FxHashMap<NodeId, Vec<NodeId>>,
}

/// Whether the op's first output is its first input, unchanged.
fn passes_alias(op: &str) -> bool {
    matches!(op, "Identity" | "Enter" | "Switch")
}

/// An alias: its variable, and the node that read it.
#[derive(Clone, Copy)]
struct Alias {
    variable: NodeId,
    origin: NodeId,
}

/// Finds the reads of `graph` that a write comes between.
pub(super) fn aliases(graph: &Graph, roots: &FxHashMap<NodeId, Root>) -> Aliases {
    let consumers = Consumers::new(graph);
    let writes = writes(graph, roots);
    let after_any = reach(graph, &consumers, writes.iter().map(|w| w.0), true);
    let aliases = read_aliases(graph, &consumers, roots);
    // Readers of variables that come after some write.
    let mut readers: FxHashMap<NodeId, Vec<(NodeId, usize, Option<NodeId>)>> = FxHashMap::default();
    for &node in &after_any {
        for (i, input) in graph.node(node).inputs.iter().enumerate() {
            if let Some(root) = roots.get(&input.node) {
                let readers = readers.entry(root.variable).or_default();
                readers.push((node, i, None));
            } else if let Some(alias) = aliases.get(&input.node) {
                let readers = readers.entry(alias.variable).or_default();
                readers.push((node, i, Some(alias.origin)));
            }
        }
    }
    let mut found = Aliases::default();
    let is_conditional = |n: &Node| {
        let class = n.class();
        matches!(
            class,
            NodeClass::Switch | NodeClass::Merge | NodeClass::Enter
        )
    };
    if !graph.iter().any(|(_, n)| is_conditional(n)) {
        // An Assign may put another buffer in the place of the variable's.
        for &(write, variable) in writes.iter().filter(|w| graph.node(w.0).op() != "Assign") {
            found.in_place.entry(variable).or_default().push(write);
        }
    }
    for (variable, readers) in readers {
        let mut written = FxHashSet::default();
        for &(write, _) in writes.iter().filter(|(_, v)| *v == variable) {
            written.insert(write);
            // A loop's back edges order a write before the next iteration only.
            for back_edges in [false, true] {
                let after = reach(graph, &consumers, [write], back_edges);
                for &(node, i, origin) in &readers {
                    let passes_on = matches!(graph.node(node).op(), "Enter" | "Switch");
                    let is_late = origin.is_some_and(|o| !after.contains(&o));
                    if is_late && after.contains(&node) && !passes_on {
                        found.late.insert((node, i));
                    }
                }
                written.extend(after);
            }
        }
        found.written.insert(variable, written);
    }
    found
}

/// The nodes that write, with the variables that they write.
fn writes(graph: &Graph, roots: &FxHashMap<NodeId, Root>) -> Vec<(NodeId, NodeId)> {
    let mut writes = Vec::new();
    for (id, node) in graph.iter() {
        for input in node.inputs.iter().take(refs_written(node.op())) {
            writes.extend(roots.get(&input.node).map(|root| (id, root.variable)));
        }
    }
    writes
}

/// The nodes that run after one of `sources`; with `back_edges` in later iterations, too.
fn reach(
    graph: &Graph,
    consumers: &Consumers,
    sources: impl IntoIterator<Item = NodeId>,
    back_edges: bool,
) -> FxHashSet<NodeId> {
    let mut reached = FxHashSet::default();
    let mut stack: Vec<NodeId> = sources.into_iter().collect();
    while let Some(id) = stack.pop() {
        if back_edges || graph.node(id).class() != NodeClass::NextIteration {
            let readers = consumers.of(id).iter().map(|(reader, _)| *reader);
            stack.extend(readers.filter(|r| reached.insert(*r)));
        }
    }
    reached
}

fn read_aliases(
    graph: &Graph,
    consumers: &Consumers,
    roots: &FxHashMap<NodeId, Root>,
) -> FxHashMap<NodeId, Alias> {
    let mut aliases: FxHashMap<NodeId, Alias> = FxHashMap::default();
    let mut stack = Vec::new();
    for (origin, node) in graph.iter().filter(|(_, n)| passes_alias(n.op())) {
        if let Some(root) = node.inputs.first().and_then(|i| roots.get(&i.node)) {
            let variable = root.variable;
            aliases.insert(origin, Alias { variable, origin });
            stack.push(origin);
        }
    }
    while let Some(id) = stack.pop() {
        let Some(&alias) = aliases.get(&id) else {
            continue;
        };
        for &(reader, _) in consumers.of(id) {
            let node = graph.node(reader);
            let takes = node.inputs.first().is_some_and(|i| i.node == id);
            if takes && passes_alias(node.op()) && !aliases.contains_key(&reader) {
                aliases.insert(reader, alias);
                stack.push(reader);
            }
        }
    }
    aliases
}

impl Lowering<'_, '_> {
    /// The other data inputs of `node` that follow a write to `variable`.
    pub(super) fn written_inputs(&self, node: &Node, i: usize, variable: NodeId) -> Vec<NodeId> {
        // A Merge runs when one of its inputs has arrived.
        let written = match node.class() {
            NodeClass::Merge => None,
            _ => self.aliases.written.get(&variable),
        };
        let Some(written) = written else {
            return Vec::new();
        };
        let others = node.inputs.iter().enumerate().filter(|(k, _)| *k != i);
        others
            .filter(|(_, input)| written.contains(&input.node))
            .map(|(_, input)| *self.handles.get(&input.node).unwrap_or(&input.node))
            .collect()
    }

    /// The variable behind an alias: the handle takes the same path.
    pub(super) fn alias(&mut self, input: Output) -> Result<Option<Reference>> {
        let mut path = Vec::new();
        let mut from = input;
        let mut to = loop {
            if let Some(to) = self.reference(from) {
                break to;
            }
            let node = self.graph.node(from.node);
            match node.inputs.first() {
                Some(&first) if passes_alias(node.op()) && path.len() <= self.graph.id_bound() => {
                    path.push(from);
                    from = first;
                }
                _ => return Ok(None),
            }
        };
        while let Some(output) = path.pop() {
            let node = self.graph.node(output.node);
            if node.op() == "Identity" {
                to.after = Some(output.node);
                continue;
            }
            let twin = match self.twins.get(&output.node) {
                Some(twin) => *twin,
                None => self.twin(output.node, &to)?,
            };
            to.handle = Output {
                node: twin,
                slot: output.slot,
            };
            to.after = None;
        }
        Ok(Some(to))
    }

    /// Adds a node that does with the handle what the node `id` does with the value.
    fn twin(&mut self, id: NodeId, to: &Reference) -> Result<NodeId> {
        // Its inputs may have been replaced already; those that a Switch has besides are values.
        let node = self.graph.node(id).clone();
        let mut inputs = node.inputs.to_vec();
        if let Some(first) = inputs.first_mut() {
            *first = to.handle;
        }
        let mut controls = self.controls(&node);
        controls.extend(to.after);
        let name = self.graph.unique_name(&format!("{}/_handle", node.name));
        let attrs = node.attrs.clone();
        let attrs = attrs.with("T", AttrValue::Type(DType::Resource));
        let twin = self.make(&node, name, node.op(), attrs, &inputs, &controls)?;
        let twin = self.patch.add(self.graph, twin)?;
        self.twins.insert(id, twin);
        Ok(twin)
    }
}
