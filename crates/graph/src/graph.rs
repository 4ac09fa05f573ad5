//! The graph itself.

use crate::Library;
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_opdef::{Attrs, NodeClass, NodeId, OpDef, Output, Registry};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One node: an op applied to outputs of other nodes.
#[derive(Clone, Debug)]
pub struct Node {
    /// Unique name.
    pub name: String,
    /// Schema of its op.
    pub def: Arc<OpDef>,
    /// Complete attrs.
    pub attrs: Attrs,
    /// Data inputs, in order.
    pub inputs: SmallVec<[Output; 4]>,
    /// Nodes that must have run before.
    pub controls: SmallVec<[NodeId; 2]>,
    /// Requested device; empty when anywhere will do.
    pub device: String,
    /// Dtype of every output.
    pub outputs: SmallVec<[DType; 4]>,
}

/// The schema of an op that must be registered.
pub(crate) fn def_of(registry: &Registry, op: &str) -> Result<Arc<OpDef>> {
    let def = registry.def(op)?;
    def.ok_or_else(|| internal!("op {op} is needed and not registered"))
}

impl Node {
    /// A node of an op that must be registered, on no device in particular. Attrs that are not given have
    /// their defaults.
    ///
    /// # Errors
    ///
    /// An attr is missing or has a wrong type.
    pub fn new(
        registry: &Registry,
        name: String,
        op: &str,
        mut attrs: Attrs,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<Node> {
        let def = def_of(registry, op)?;
        def.complete_attrs(&mut attrs)?;
        Ok(Node {
            name,
            outputs: def.output_dtypes(&attrs)?,
            def,
            attrs,
            inputs: inputs.into(),
            controls: controls.into(),
            device: String::new(),
        })
    }

    /// The op type.
    pub fn op(&self) -> &str {
        &self.def.name
    }

    /// The class of the op.
    #[inline]
    pub fn class(&self) -> NodeClass {
        self.def.class()
    }

    /// Whether a function runs the node even if no result needs it.
    pub(crate) fn has_effects(&self) -> bool {
        let is_boundary = matches!(self.class(), NodeClass::Arg | NodeClass::Retval);
        self.def.flags.stateful && !is_boundary
    }

    /// Whether this is a constant that waits for nothing, which may be read in every frame.
    pub fn is_free_constant(&self) -> bool {
        self.class() == NodeClass::Const && self.controls.is_empty()
    }

    /// The nodes that this one reads or waits for.
    pub fn predecessors(&self) -> impl Iterator<Item = NodeId> + '_ {
        let data = self.inputs.iter().map(|i| i.node);
        data.chain(self.controls.iter().copied())
    }
}

/// A dataflow graph as it was imported or built. Removed nodes leave a hole; ids of the others stay
/// valid. Passes edit it through a [`Patch`](crate::Patch).
#[derive(Clone, Default)]
pub struct Graph {
    nodes: Vec<Option<Node>>,
    by_name: FxHashMap<String, NodeId>,
    targets: Vec<NodeId>,
    is_target: FxHashSet<NodeId>,
    library: Arc<Library>,
    /// Nodes that could not be imported, with the error of running them.
    invalid: FxHashMap<NodeId, Status>,
    /// TensorFlow's graph format version of the producer.
    pub producer: i32,
    revision: Revision,
}

/// The number of a graph's contents, if it was asked for; zero until then and after each change.
#[derive(Default)]
struct Revision(AtomicU64);

impl Clone for Revision {
    fn clone(&self) -> Self {
        Revision(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a number that no graph with other nodes, targets or functions has: what is computed from the graph holds while
    /// it stays.
    pub fn revision(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        match self.revision.0.load(Ordering::Relaxed) {
            0 => {
                let new = NEXT.fetch_add(1, Ordering::Relaxed);
                let asked = &self.revision.0;
                let set = asked.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
                set.map_or_else(|other| other, |_| new)
            }
            known => known,
        }
    }

    fn change(&mut self) {
        *self.revision.0.get_mut() = 0;
    }

    /// Adds a node. Its name must be new, its inputs must exist.
    pub(crate) fn add(&mut self, node: Node) -> Result<NodeId> {
        self.change();
        let id = NodeId::new(self.nodes.len());
        if self.by_name.insert(node.name.clone(), id).is_some() {
            return Err(invalid_argument!(
                "duplicate node name '{}' in the graph",
                node.name
            ));
        }
        self.nodes.push(Some(node));
        Ok(id)
    }

    /// Removes the node that was added last.
    pub(crate) fn pop(&mut self) -> Option<Node> {
        self.change();
        let node = self.nodes.pop()??;
        self.by_name.remove(&node.name);
        Some(node)
    }

    /// Removes a node; the caller has redirected its consumers.
    pub(crate) fn remove(&mut self, id: NodeId) {
        self.change();
        if let Some(node) = self.nodes[id.index()].take() {
            self.by_name.remove(&node.name);
        }
    }

    /// The node `id`, which must exist.
    #[inline]
    pub fn node(&self, id: NodeId) -> &Node {
        self.get(id)
            .expect("node ids come from this graph and its node was not removed")
    }

    /// The node `id`, unless it was removed.
    #[inline]
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())?.as_ref()
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.change();
        self.nodes.get_mut(id.index())?.as_mut()
    }

    /// Puts `node` in the place of `id`, whose name it takes; edges from there stay.
    pub(crate) fn replace(&mut self, id: NodeId, mut node: Node) {
        if let Some(old) = self.node_mut(id) {
            node.name = std::mem::take(&mut old.name);
            *old = node;
        }
    }

    pub(crate) fn set_input(&mut self, id: NodeId, i: usize, from: Output) {
        if let Some(input) = self.node_mut(id).and_then(|n| n.inputs.get_mut(i)) {
            *input = from;
        }
    }

    /// Marks a node that cannot run, with its error.
    pub(crate) fn set_invalid(&mut self, id: NodeId, error: Status) {
        self.change();
        self.invalid.insert(id, error);
    }

    /// The nodes that cannot run, with the reason: their op is unknown or an attr is malformed.
    pub fn invalid(&self) -> &FxHashMap<NodeId, Status> {
        &self.invalid
    }

    /// The node named `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// A name that no node has; see [`unique_name`].
    ///
    /// ```
    /// assert_eq!(ferroflow_graph::Graph::new().unique_name("Add"), "Add");
    /// ```
    pub fn unique_name(&self, base: &str) -> String {
        unique_name(base, |name| self.by_name.contains_key(name))
    }

    /// Nodes that are run for their effects, besides the `_Retval` nodes.
    pub fn targets(&self) -> &[NodeId] {
        &self.targets
    }

    /// Whether a node is one of the [`targets`](Self::targets).
    pub fn is_target(&self, id: NodeId) -> bool {
        self.is_target.contains(&id)
    }

    /// The functions that nodes of this graph may call.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(crate) fn library_mut(&mut self) -> &mut Library {
        self.change();
        Arc::make_mut(&mut self.library)
    }

    pub(crate) fn set_library(&mut self, library: Arc<Library>) {
        self.change();
        self.library = library;
    }

    pub(crate) fn set_targets(&mut self, targets: Vec<NodeId>) {
        self.change();
        self.is_target = targets.iter().copied().collect();
        self.targets = targets;
    }

    /// All nodes, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes
            .iter()
            .enumerate()
            .filter_map(|(i, n)| Some((NodeId::new(i), n.as_ref()?)))
    }

    /// One more than the largest id: the length of arrays indexed by [`NodeId`].
    pub fn id_bound(&self) -> usize {
        self.nodes.len()
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The dtype of an output.
    pub fn dtype(&self, output: Output) -> Option<DType> {
        self.get(output.node)?
            .outputs
            .get(output.slot as usize)
            .copied()
    }

    /// `name:slot`, or `name` for slot 0: TensorFlow's notation.
    pub fn output_name(&self, output: Output) -> String {
        let name = self
            .get(output.node)
            .map_or("<removed>", |n| n.name.as_str());
        if output.slot == 0 {
            name.to_string()
        } else {
            format!("{name}:{}", output.slot)
        }
    }

    /// Checks the invariants of the crate.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for the first that does not hold.
    pub fn verify(&self) -> Result<()> {
        self.verify_edges(false)
    }

    /// [`verify`](Self::verify), and that inputs that must be references are.
    pub(crate) fn verify_with_references(&self) -> Result<()> {
        self.verify_edges(true)
    }

    fn verify_edges(&self, with_references: bool) -> Result<()> {
        for (id, node) in self.iter() {
            if !self.invalid.contains_key(&id) {
                self.verify_node(node, with_references)
                    .map_err(|e| e.at_node(&node.name, node.op()))?;
            }
        }
        crate::topological_order(self).map(|_| ())
    }

    fn verify_node(&self, node: &Node, with_references: bool) -> Result<()> {
        let expected = node.def.input_dtypes(&node.attrs)?;
        check_arity(node, &expected)?;
        let references = node.def.input_references(&node.attrs)?;
        for (i, (input, want)) in node.inputs.iter().zip(expected).enumerate() {
            let Some(source) = self.get(input.node) else {
                return Err(invalid_argument!(
                    "input {i} of node '{}' was removed",
                    node.name
                ));
            };
            if self.invalid.contains_key(&input.node) && source.outputs.is_empty() {
                continue;
            }
            let want = Wanted {
                dtype: want,
                is_reference: with_references && references.get(i) == Some(&true),
            };
            check_edge(node, i, want, source, input.slot as usize)?;
        }
        match node.controls.iter().find(|c| self.get(**c).is_none()) {
            Some(_) => Err(invalid_argument!(
                "a control input of '{}' was removed",
                node.name
            )),
            None => Ok(()),
        }
    }
}

/// A name that is not taken: `base` itself if possible, or with a number behind it, which is the next one
/// where numbers were assigned without gaps. Takes logarithmic time in their number.
pub fn unique_name(base: &str, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(base) {
        return base.to_string();
    }
    let numbered = |n: usize| format!("{base}_{n}");
    // The last number is taken (0 is `base`), the first one after it that was tried is not.
    let (mut taken, mut free) = (0, 1);
    while is_taken(&numbered(free)) {
        (taken, free) = (free, 2 * free);
    }
    while free - taken > 1 {
        let middle = taken + (free - taken) / 2;
        match is_taken(&numbered(middle)) {
            true => taken = middle,
            false => free = middle,
        }
    }
    numbered(free)
}

/// Checks the number of data inputs of a node.
pub(crate) fn check_arity(node: &Node, expected: &[DType]) -> Result<()> {
    if expected.len() == node.inputs.len() {
        return Ok(());
    }
    let expected: Vec<_> = expected.iter().map(|t| t.name()).collect();
    Err(invalid_argument!(
        "NodeDef expected inputs '{}' do not match {} inputs specified; {}",
        expected.join(", "),
        node.inputs.len(),
        node.def
    ))
}

/// The requirements of an input.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) dtype: DType,
    pub(crate) is_reference: bool,
}

/// Checks that input `i` of `node` is an output of the dtype it must have, and a reference where that
/// is wanted.
pub(crate) fn check_edge(
    node: &Node,
    i: usize,
    want: Wanted,
    source: &Node,
    slot: usize,
) -> Result<()> {
    let Some(&got) = source.outputs.get(slot) else {
        // The gradient of one of these adds outputs to it, which a session that has it does not see.
        let advice = match source.class() {
            NodeClass::If | NodeClass::While => {
                " Try using tf.compat.v1.experimental.output_all_intermediates(True)."
            }
            _ => "",
        };
        return Err(invalid_argument!(
            "Node '{}': Connecting to invalid output {slot} of source node {} which has {} \
             outputs.{advice}",
            node.name,
            source.name,
            source.outputs.len()
        ));
    };
    let is_reference = want.is_reference
        && (source.def.output_references(&source.attrs)?).get(slot) == Some(&true);
    if got == want.dtype && is_reference == want.is_reference {
        return Ok(());
    }
    let suffix = |is_reference| if is_reference { "_ref" } else { "" };
    Err(invalid_argument!(
        "Input {i} of node {} was passed {got}{} from {}:{slot} incompatible with expected {}{}.",
        node.name,
        suffix(is_reference),
        source.name,
        want.dtype,
        suffix(want.is_reference)
    ))
}
