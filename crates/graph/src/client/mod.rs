//! The graph of a client that builds it node by node, as behind TensorFlow's `TF_Graph`: each node is
//! checked and its output shapes are inferred when it is added
//! (`tensorflow/c/c_api.cc`, `core/common_runtime/shape_refiner.cc`).

mod deprecation;
mod description;
mod export_op;
mod fingerprint;
mod function;
mod gradients;
mod import;
mod mark;
mod shapes;
#[cfg(test)]
mod tests;
mod while_loop;

pub use description::{NodeDescription, no_output};
pub use export_op::{op_def_of_proto, op_def_to_proto};
pub use function::FunctionRequest;
pub use import::{ImportOptions, ImportResults};
pub use while_loop::WhileLoop;

use crate::execution_state::function_name;
use crate::export::export_node;
use crate::import_attrs::AttrScope;
use crate::shapes::ShapeRefiner;
use crate::{Graph, Node, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument, out_of_range};
use ferroflow_model::proto::{
    self, FunctionDef, FunctionDefLibrary, GradientDef, GraphDef, NodeDef,
};
use ferroflow_opdef::{AttrValue, Attrs, OpDef, Registry};
use ferroflow_tensor::{DType, PartialShape};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The GraphDef version that this code was written against, and of graphs that are built here (TensorFlow 2.21).
pub const PRODUCER: i32 = 2474;

/// A graph that grows node by node; nodes are never removed.
///
/// ```
/// use ferroflow_graph::{ClientGraph, NodeDescription};
/// use ferroflow_opdef::{AttrValue, Op, Registry};
/// use ferroflow_tensor::DType;
/// const OPS: &[Op] = &[Op::new("Placeholder", "-> output: dtype | dtype: type")];
/// let registry = Box::leak(Box::new(Registry::new(&[("test", &[("ops", OPS)])])));
/// let mut graph = ClientGraph::new(registry);
/// let mut x = NodeDescription::new("Placeholder", "x");
/// x.set_attr("dtype", AttrValue::Type(DType::Float));
/// let x = graph.add(x).unwrap();
/// assert_eq!(graph.node(x).unwrap().outputs[0], DType::Float);
/// ```
pub struct ClientGraph {
    graph: Graph,
    registry: &'static Registry,
    refiner: ShapeRefiner,
    /// The inputs that read each node's outputs, in the order in which they were added.
    consumers: Vec<Vec<Consumer>>,
    control_outputs: Vec<Vec<NodeId>>,
    functions: BTreeMap<String, Arc<FunctionDef>>,
    gradients: BTreeMap<String, String>,
    /// The least version of consumers, and those that cannot read the graph.
    min_consumer: i32,
    bad_consumers: Vec<i32>,
    /// Prefixes of names, without the last `/`.
    scopes: FxHashSet<String>,
    /// What was done to nodes after they had been added, for sessions that have run them.
    mutations: Vec<(NodeId, &'static str)>,
    /// Inputs whose sources were replaced; TensorFlow writes their slots even if they are 0.
    updated: FxHashSet<(NodeId, usize)>,
}

/// The first version of consumers that read graphs with functions (`Graph::AddFunctionLibrary`).
const FIRST_WITH_FUNCTIONS: i32 = 12;

/// An input that reads an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// The output's number.
    pub slot: u32,
    /// The node that reads it.
    pub node: NodeId,
    /// The number of the node's input.
    pub input: u32,
}

impl ClientGraph {
    /// An empty graph; `registry` has the ops.
    pub fn new(registry: &'static Registry) -> Self {
        let mut graph = Graph::new();
        graph.producer = PRODUCER;
        ClientGraph {
            graph,
            registry,
            refiner: ShapeRefiner::default(),
            consumers: Vec::new(),
            control_outputs: Vec::new(),
            functions: BTreeMap::new(),
            gradients: BTreeMap::new(),
            min_consumer: 0,
            bad_consumers: Vec::new(),
            scopes: FxHashSet::default(),
            mutations: Vec::new(),
            updated: FxHashSet::default(),
        }
    }

    /// The registry of ops.
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// The nodes and edges.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.graph.id_bound()
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.graph.get(id)
    }

    /// The node named `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.graph.find(name)
    }

    /// The dtype of an output.
    ///
    /// # Errors
    /// OUT_OF_RANGE if the node has no such output.
    pub fn dtype(&self, output: Output) -> Result<DType> {
        self.graph.dtype(output).ok_or_else(|| {
            let node = self.graph.get(output.node);
            out_of_range!(
                "Node '{}' (type: '{}', num of outputs: {}) does not have output {}",
                node.map_or("", |n| &n.name),
                node.map_or("", |n| n.op()),
                node.map_or(0, |n| n.outputs.len()),
                output.slot
            )
        })
    }

    /// The inputs that read a node's outputs.
    pub fn consumers(&self, id: NodeId) -> &[Consumer] {
        self.consumers.get(id.index()).map_or(&[], |c| c)
    }

    /// The nodes that wait for a node.
    pub fn control_outputs(&self, id: NodeId) -> &[NodeId] {
        self.control_outputs.get(id.index()).map_or(&[], |c| c)
    }

    /// The schema of an op or of a function of the graph.
    ///
    /// # Errors
    /// NOT_FOUND if there is none; INVALID_ARGUMENT if the function's signature is malformed.
    pub fn op_def(&self, op: &str) -> Result<Arc<OpDef>> {
        if let Some(function) = self.functions.get(op) {
            let signature = function.signature.as_ref();
            return op_def_of_proto(signature.unwrap_or(&Default::default())).map(Arc::new);
        }
        let def = self.registry.def(op)?;
        def.ok_or_else(|| crate::op_not_registered(op))
    }

    /// Adds a node that fits the graph, infers its shapes and takes note of its edges.
    fn insert(&mut self, node: Node) -> Result<NodeId> {
        let name = node.name.clone();
        if self.graph.find(&name).is_some() {
            return Err(invalid_argument!("Duplicate node name in graph: '{name}'"));
        }
        let id = self.graph.add(node)?;
        if let Err(error) = self.refiner.visit(&self.graph, id, self.registry) {
            let node = self.graph.pop();
            let summary = node.map_or_else(String::new, |n| self.summary(&n));
            let text = format!("{} for {summary}.", error.message());
            return Err(Status::new(error.code(), text));
        }
        self.connect(id);
        self.add_scopes(&name);
        Ok(id)
    }

    fn connect(&mut self, id: NodeId) {
        let n = self.graph.id_bound();
        self.consumers.resize_with(n, Vec::new);
        self.control_outputs.resize_with(n, Vec::new);
        let node = self.graph.node(id);
        for (i, input) in (0..).zip(&node.inputs) {
            if let Some(list) = self.consumers.get_mut(input.node.index()) {
                list.push(Consumer {
                    slot: input.slot,
                    node: id,
                    input: i,
                });
            }
        }
        for control in &node.controls {
            if let Some(list) = self.control_outputs.get_mut(control.index()) {
                list.push(id);
            }
        }
    }

    fn add_scopes(&mut self, name: &str) {
        let mut rest = name;
        while let Some((prefix, _)) = rest.rsplit_once('/') {
            if !self.scopes.insert(prefix.to_string()) {
                return;
            }
            rest = prefix;
        }
    }

    /// Replaces the tensor that input `i` of a node reads.
    ///
    /// # Errors
    /// OUT_OF_RANGE or INVALID_ARGUMENT if there is no such input or output, or the dtypes differ.
    pub fn update_edge(&mut self, source: Output, node: NodeId, i: usize) -> Result<()> {
        let is_over = |what: &str, index: usize, n: Option<usize>| {
            out_of_range!(
                "Cannot update edge. {what} index [{index}] is greater than the number of total {}s [{}].",
                what.to_lowercase(),
                n.unwrap_or(0)
            )
        };
        let n_outputs = self.graph.get(source.node).map(|n| n.outputs.len());
        let dtype = self
            .dtype(source)
            .map_err(|_| is_over("Output", source.slot as usize, n_outputs))?;
        let inputs = self.graph.get(node).map(|n| &n.inputs);
        let old = inputs.and_then(|inputs| inputs.get(i)).copied();
        let old = old.ok_or_else(|| is_over("Input", i, inputs.map(|inputs| inputs.len())))?;
        let wanted = self.dtype(old)?;
        if wanted != dtype {
            return Err(invalid_argument!(
                "Input {i} of node {} was passed {dtype} incompatible with expected {wanted}.",
                self.graph.node(node).name
            ));
        }
        self.graph.set_input(node, i, source);
        let input = i as u32;
        if let Some(list) = self.consumers.get_mut(old.node.index()) {
            list.retain(|c| (c.node, c.input) != (node, input));
        }
        if let Some(list) = self.consumers.get_mut(source.node.index()) {
            let slot = source.slot;
            list.push(Consumer { slot, node, input });
        }
        self.mutations.push((node, "updating input tensor"));
        self.updated.insert((node, i));
        Ok(())
    }

    /// Adds an input to a Merge of a loop whose back edge comes later.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such output, or the node is not a Merge.
    pub fn add_while_input(&mut self, source: Output, node: NodeId) -> Result<()> {
        self.dtype(source)?;
        let merge = self.graph.node_mut(node);
        let merge = merge.filter(|n| n.class() == ferroflow_opdef::NodeClass::Merge);
        let merge = merge.ok_or_else(|| invalid_argument!("only a Merge gets more inputs"))?;
        merge.inputs.push(source);
        let input = merge.inputs.len() as u32 - 1;
        let n = AttrValue::Int(merge.inputs.len() as i64);
        merge.attrs.set("N", n);
        if let Some(list) = self.consumers.get_mut(source.node.index()) {
            let slot = source.slot;
            list.push(Consumer { slot, node, input });
        }
        Ok(())
    }

    /// Adds control inputs to a node; ones that it has already are ignored.
    pub fn add_control(&mut self, node: NodeId, control: NodeId) {
        let Some(found) = self.graph.node_mut(node) else {
            return;
        };
        if found.controls.contains(&control) {
            return;
        }
        found.controls.push(control);
        if let Some(list) = self.control_outputs.get_mut(control.index()) {
            list.push(node);
        }
        self.mutations.push((node, "adding control edge"));
    }

    /// Removes the control inputs of a node.
    pub fn clear_controls(&mut self, node: NodeId) {
        let Some(found) = self.graph.node_mut(node) else {
            return;
        };
        for control in std::mem::take(&mut found.controls) {
            if let Some(list) = self.control_outputs.get_mut(control.index()) {
                list.retain(|id| *id != node);
            }
        }
        self.mutations.push((node, "removing control edge"));
    }

    /// Sets an attr of a node.
    pub fn set_attr(&mut self, node: NodeId, name: &str, value: AttrValue) {
        if let Some(found) = self.graph.node_mut(node) {
            found.attrs.set(name.to_string(), value);
            self.mutations.push((node, "setting attribute"));
        }
    }

    /// Removes an attr of a node.
    pub fn clear_attr(&mut self, node: NodeId, name: &str) {
        if let Some(found) = self.graph.node_mut(node) {
            found.attrs.remove(name);
            self.mutations.push((node, "clearing attribute"));
        }
    }

    /// Sets the requested device of a node.
    pub fn set_device(&mut self, node: NodeId, device: &str) {
        if let Some(found) = self.graph.node_mut(node) {
            found.device = device.to_string();
            self.mutations.push((node, "setting device"));
        }
    }

    /// What was done to nodes after they had been added.
    pub fn mutations(&self) -> &[(NodeId, &'static str)] {
        &self.mutations
    }

    /// Adds a function, and the function that is its gradient, if any.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is another function or gradient of that name, or an op.
    pub fn add_function(
        &mut self,
        function: &Arc<FunctionDef>,
        gradient: Option<&Arc<FunctionDef>>,
    ) -> Result<()> {
        let name = function_name(function);
        self.check_function(function)?;
        if let Some(gradient) = gradient {
            self.check_function(gradient)?;
            let gradient = function_name(gradient);
            if let Some(old) = self.gradients.get(name).filter(|old| *old != gradient) {
                return Err(invalid_argument!(
                    "Cannot assign gradient function '{gradient}' to '{name}' because it already has \
                     gradient function '{old}'"
                ));
            }
        }
        self.functions.insert(name.to_string(), function.clone());
        if let Some(gradient) = gradient {
            let gradient_name = function_name(gradient).to_string();
            self.functions
                .insert(gradient_name.clone(), gradient.clone());
            self.gradients.insert(name.to_string(), gradient_name);
        }
        self.min_consumer = self.min_consumer.max(FIRST_WITH_FUNCTIONS);
        Ok(())
    }

    /// Returns the versions of the graph's file form.
    pub fn versions(&self) -> proto::VersionDef {
        proto::VersionDef {
            producer: self.graph.producer,
            min_consumer: self.min_consumer,
            bad_consumers: self.bad_consumers.clone(),
        }
    }

    fn check_function(&self, function: &Arc<FunctionDef>) -> Result<()> {
        let name = function_name(function);
        if let Some(old) = self.functions.get(name) {
            return match Arc::ptr_eq(old, function) || crate::same_function(old, function) {
                true => Ok(()),
                false => Err(invalid_argument!(
                    "Cannot add function '{name}' because a different function with the same name \
                     already exists."
                )),
            };
        }
        match self.registry.op(name) {
            None => Ok(()),
            Some(_) => Err(invalid_argument!(
                "Cannot add function '{name}' because an op with the same name already exists."
            )),
        }
    }

    /// Removes a function.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no function has that name.
    pub fn remove_function(&mut self, name: &str) -> Result<()> {
        if self.functions.remove(name).is_none() {
            return Err(invalid_argument!(
                "Tried to remove non-existent function '{name}'."
            ));
        }
        self.gradients.remove(name);
        Ok(())
    }

    /// The functions, by name.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &Arc<FunctionDef>> {
        self.functions.values()
    }

    /// The functions and their gradients in file form.
    pub fn library(&self) -> FunctionDefLibrary {
        let gradient = |(name, gradient): (&String, &String)| GradientDef {
            function_name: name.clone(),
            gradient_func: gradient.clone(),
        };
        FunctionDefLibrary {
            function: self.functions.values().map(|f| (**f).clone()).collect(),
            gradient: self.gradients.iter().map(gradient).collect(),
            ..Default::default()
        }
    }

    /// The file form of the graph.
    ///
    /// # Errors
    /// An attr has no file form.
    pub fn to_graph_def(&self) -> Result<GraphDef> {
        let mut def = self.graph_def_from(0)?;
        def.library = Some(self.library());
        Ok(def)
    }

    /// The file form of the nodes from number `first` on, without the library.
    ///
    /// # Errors
    /// An attr has no file form.
    pub fn graph_def_from(&self, first: usize) -> Result<GraphDef> {
        let ids = (first..self.len()).map(NodeId::new);
        Ok(GraphDef {
            node: ids
                .map(|id| self.export(id, false))
                .collect::<Result<_>>()?,
            versions: Some(self.versions()),
            ..Default::default()
        })
    }

    /// The file form of a node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such node; an attr has no file form.
    pub fn node_def(&self, id: NodeId) -> Result<NodeDef> {
        self.export(id, true)
    }

    fn export(&self, id: NodeId, with_slots: bool) -> Result<NodeDef> {
        let node = self.graph.get(id);
        let node = node.ok_or_else(|| invalid_argument!("the graph has no such node"))?;
        let inputs = node.inputs.iter().enumerate().map(|(i, input)| {
            let name = self.graph.output_name(*input);
            match with_slots && input.slot == 0 && self.updated.contains(&(id, i)) {
                true => format!("{name}:0"),
                false => name,
            }
        });
        export_node(&self.graph, node, inputs.collect())
    }
}

/// The attr that a value in file form stands for.
///
/// # Errors
/// INVALID_ARGUMENT if it is malformed.
pub fn attr_of_proto(value: &proto::AttrValue) -> Result<AttrValue> {
    AttrScope::default().attr(value)
}

/// The attrs that values in file form stand for.
///
/// # Errors
/// INVALID_ARGUMENT if one is malformed.
pub fn attrs_of_proto<'a>(
    attrs: impl IntoIterator<Item = (&'a String, &'a proto::AttrValue)>,
) -> Result<Attrs> {
    AttrScope::default().attrs(attrs, None)
}

/// Shapes that a client sees.
impl ClientGraph {
    /// The inferred shape of an output.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such output.
    pub fn shape(&self, output: Output) -> Result<PartialShape> {
        self.dtype(output)?;
        Ok(self.refiner.shapes().get(output))
    }
}
