//! The graph itself.

use crate::Library;
use ferroflow_base::{Result, define_id, invalid_argument};
use ferroflow_opdef::{Attrs, OpDef};
use ferroflow_tensor::DType;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

define_id!(/// A node of one graph.
    NodeId);

/// Output `slot` of a node: where a data edge begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Output {
    /// The producing node.
    pub node: NodeId,
    /// Which of its outputs.
    pub slot: u32,
}

impl Output {
    /// Output `slot` of `node`.
    pub fn new(node: NodeId, slot: usize) -> Self {
        Output {
            node,
            slot: slot as u32,
        }
    }
}

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

impl Node {
    /// The op type.
    pub fn op(&self) -> &str {
        &self.def.name
    }
}

/// A dataflow graph. Removed nodes leave a hole; ids of the others stay valid.
#[derive(Clone, Default)]
pub struct Graph {
    nodes: Vec<Option<Node>>,
    by_name: FxHashMap<String, NodeId>,
    targets: Vec<NodeId>,
    library: Arc<Library>,
    /// TensorFlow's graph format version of the producer.
    pub producer: i32,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node. Its name must be new, its inputs must exist.
    pub fn add(&mut self, node: Node) -> Result<NodeId> {
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

    /// Removes a node; the caller has redirected its consumers.
    pub(crate) fn remove(&mut self, id: NodeId) {
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

    /// The node `id` for editing in place; edges are edited through [`Patch`](crate::Patch).
    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.index())?.as_mut()
    }

    /// Changes what a node is (op, attrs), not what it is connected to.
    pub fn set_op(&mut self, id: NodeId, def: Arc<OpDef>, attrs: Attrs) {
        if let Some(node) = self.node_mut(id) {
            node.def = def;
            node.attrs = attrs;
        }
    }

    /// Puts another node of the same name in the place of `id`; edges from there stay.
    pub fn replace(&mut self, id: NodeId, node: Node) {
        if let Some(old) = self.node_mut(id).filter(|old| old.name == node.name) {
            *old = node;
        }
    }

    /// Makes input `i` of a node read another output of the same dtype.
    pub fn set_input(&mut self, id: NodeId, i: usize, from: Output) {
        if let Some(input) = self.node_mut(id).and_then(|n| n.inputs.get_mut(i)) {
            *input = from;
        }
    }

    /// The node named `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// A name that no node has: `base` itself if possible, or with a number behind it, which is the
    /// next one where numbers were given without gaps. Takes logarithmic time in how many were.
    ///
    /// ```
    /// assert_eq!(ferroflow_graph::Graph::new().unique_name("Add"), "Add");
    /// ```
    pub fn unique_name(&self, base: &str) -> String {
        if !self.by_name.contains_key(base) {
            return base.to_string();
        }
        let numbered = |n: usize| format!("{base}_{n}");
        let is_taken = |n: usize| self.by_name.contains_key(&numbered(n));
        // The last number is taken (0 is `base`), the first one after it that was tried is not.
        let (mut taken, mut free) = (0, 1);
        while is_taken(free) {
            (taken, free) = (free, 2 * free);
        }
        while free - taken > 1 {
            let middle = taken + (free - taken) / 2;
            match is_taken(middle) {
                true => taken = middle,
                false => free = middle,
            }
        }
        numbered(free)
    }

    /// Nodes that are run for their effects, besides the `_Retval` nodes.
    pub fn targets(&self) -> &[NodeId] {
        &self.targets
    }

    /// The functions that nodes of this graph may call.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Replaces the functions that nodes may call.
    pub fn set_library(&mut self, library: Arc<Library>) {
        self.library = library;
    }

    /// Makes `to` a target in the place of `from`, if that is one.
    pub fn replace_target(&mut self, from: NodeId, to: NodeId) {
        for target in self.targets.iter_mut().filter(|t| **t == from) {
            *target = to;
        }
    }

    pub(crate) fn set_targets(&mut self, targets: Vec<NodeId>) {
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

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True when there is no node.
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

    /// Checks the invariants of the module text; says the first that does not hold.
    pub fn verify(&self) -> Result<()> {
        for (_, node) in self.iter() {
            self.verify_node(node)
                .map_err(|e| e.at_node(&node.name, node.op()))?;
        }
        crate::topological_order(self).map(|_| ())
    }

    fn verify_node(&self, node: &Node) -> Result<()> {
        let expected = node.def.input_dtypes(&node.attrs)?;
        if expected.len() != node.inputs.len() {
            return Err(invalid_argument!(
                "node '{}' has {} inputs, but op {} expects {} with its attrs",
                node.name,
                node.inputs.len(),
                node.op(),
                expected.len()
            ));
        }
        for (i, (input, want)) in node.inputs.iter().zip(expected).enumerate() {
            let Some(source) = self.get(input.node) else {
                return Err(invalid_argument!(
                    "input {i} of node '{}' was removed",
                    node.name
                ));
            };
            let from = EdgeSource {
                name: &source.name,
                op: source.op(),
                slot: input.slot as usize,
            };
            check_edge(&node.name, i, want, from, &source.outputs)?;
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

/// Where an edge begins.
#[derive(Clone, Copy)]
pub(crate) struct EdgeSource<'a> {
    pub(crate) name: &'a str,
    pub(crate) op: &'a str,
    pub(crate) slot: usize,
}

/// Checks that input `i` of `node`, which is to be of dtype `want`, is an output of that dtype.
pub(crate) fn check_edge(
    node: &str,
    i: usize,
    want: DType,
    source: EdgeSource,
    outputs: &[DType],
) -> Result<()> {
    let EdgeSource { name, op, slot } = source;
    // The gradient of one of these adds outputs to it, which a session that has it does not see.
    let advice = match op {
        "If" | "StatelessIf" | "While" | "StatelessWhile" => {
            " Try using tf.compat.v1.experimental.output_all_intermediates(True)."
        }
        _ => "",
    };
    match outputs.get(slot) {
        None => Err(invalid_argument!(
            "Node '{node}': Connecting to invalid output {slot} of source node {name} which has {} \
             outputs.{advice}",
            outputs.len()
        )),
        Some(&got) if got != want => Err(invalid_argument!(
            "Input {i} of node {node} was passed {got} from {name}:{slot} incompatible with expected \
             {want}."
        )),
        Some(_) => Ok(()),
    }
}
