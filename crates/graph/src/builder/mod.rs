//! Writing graphs in Rust, as TensorFlow's v1 API writes them: name scopes, control dependencies,
//! devices, colocation, conditionals, loops, functions.

mod cond;
mod context;
mod copy;
mod function;
mod op;
mod while_loop;

pub use op::OpBuilder;
pub(crate) use op::{infer_attrs, split_args};
pub use while_loop::WhileOptions;

use crate::autodiff::GradientFunctions;
use crate::{Graph, Library, Node, NodeId, Output};
use context::Context;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_opdef::{AttrValue, Registry};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

/// The GraphDef version that built graphs carry.
const PRODUCER: i32 = 2400;

/// A graph that is being built.
///
/// Nodes get the current scope's prefix, the current device and the current control dependencies.
/// Inside [`GraphBuilder::cond`] and [`GraphBuilder::while_loop`] outer values are routed in by
/// Switch and Enter nodes as they are used.
pub struct GraphBuilder<'r> {
    pub(crate) graph: Graph,
    pub(crate) registry: &'r Registry,
    pub(crate) library: Library,
    pub(crate) gradient_functions: GradientFunctions,
    /// The calls that gradients being made have changed, as they were.
    pub(crate) changed: Vec<(NodeId, Node)>,
    scope: String,
    controls: Vec<NodeId>,
    pub(crate) device: String,
    colocated: Vec<String>,
    contexts: Vec<Context>,
    pub(crate) current: Option<usize>,
    /// The context that each node's outputs live in.
    context_of: Vec<Option<usize>>,
}

impl<'r> GraphBuilder<'r> {
    /// An empty graph; `registry` has the ops.
    pub fn new(registry: &'r Registry) -> Self {
        let mut graph = Graph::new();
        graph.producer = PRODUCER;
        GraphBuilder {
            graph,
            registry,
            library: Library::default(),
            gradient_functions: GradientFunctions::default(),
            changed: Vec::new(),
            scope: String::new(),
            controls: Vec::new(),
            device: String::new(),
            colocated: Vec::new(),
            contexts: Vec::new(),
            current: None,
            context_of: Vec::new(),
        }
    }

    /// Adds to an existing graph.
    pub fn from_graph(graph: Graph, registry: &'r Registry) -> Self {
        GraphBuilder {
            library: (**graph.library()).clone(),
            context_of: vec![None; graph.id_bound()],
            graph,
            ..GraphBuilder::new(registry)
        }
    }

    /// A node of op `op`: add inputs and attrs, then build it.
    pub fn op<'b>(&'b mut self, op: &str) -> OpBuilder<'b, 'r> {
        OpBuilder::new(self, op)
    }

    /// A Const.
    ///
    /// # Errors
    /// The registry has no such op.
    pub fn constant(&mut self, name: &str, value: Tensor) -> Result<Output> {
        let dtype = AttrValue::Type(value.dtype());
        let value = AttrValue::Tensor(value.into());
        let op = self.op("Const").name(name).attr("dtype", dtype);
        op.attr("value", value).output()
    }

    /// A Placeholder.
    ///
    /// # Errors
    /// The registry has no such op.
    pub fn placeholder(&mut self, name: &str, dtype: DType, shape: PartialShape) -> Result<Output> {
        let op = self.op("Placeholder").name(name);
        op.attr("dtype", AttrValue::Type(dtype))
            .attr("shape", AttrValue::Shape(shape))
            .output()
    }

    /// Runs `f` with `name/` before all names; a scope that exists gets a number.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn scope<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let path = self.unique_scope(name);
        let outer = std::mem::replace(&mut self.scope, path);
        let result = f(self);
        self.scope = outer;
        result
    }

    pub(crate) fn unique_scope(&self, name: &str) -> String {
        let is_free = |path: &String| !self.graph.iter().any(|(_, n)| n.name.starts_with(path));
        let mut numbered = (1..).map(|i| format!("{}{name}_{i}/", self.scope));
        Some(format!("{}{name}/", self.scope))
            .filter(is_free)
            .or_else(|| numbered.find(is_free))
            .unwrap_or_default()
    }

    /// Runs `f`; every node that it makes waits for `nodes`.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_controls<T>(
        &mut self,
        nodes: &[NodeId],
        f: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let n = self.controls.len();
        self.controls.extend_from_slice(nodes);
        let result = f(self);
        self.controls.truncate(n);
        result
    }

    /// Runs `f`; every node that it makes is placed on `device`, e.g. `/cpu:0`.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn on_device<T>(
        &mut self,
        device: &str,
        f: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = self.set_device(device);
        let result = f(self);
        self.device = outer;
        result
    }

    /// Places every node that is made from now on on `device`; returns the device before.
    pub fn set_device(&mut self, device: &str) -> String {
        std::mem::replace(&mut self.device, device.to_string())
    }

    /// Places a node that exists on `device`.
    pub fn place(&mut self, node: NodeId, device: &str) {
        if let Some(node) = self.graph.node_mut(node) {
            device.clone_into(&mut node.device);
        }
    }

    /// Runs `f`; every node that it makes is placed where `node` is.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn colocate_with<T>(
        &mut self,
        node: NodeId,
        f: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let class = format!("loc:@{}", self.graph.node(node).name);
        let outer = std::mem::replace(&mut self.colocated, vec![class]);
        let result = f(self);
        self.colocated = outer;
        result
    }

    /// The dtype of a value of this graph.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is not an output of this graph.
    pub fn dtype(&self, value: Output) -> Result<DType> {
        let dtype = self.graph.dtype(value);
        dtype.ok_or_else(|| invalid_argument!("{value:?} is not an output of this graph"))
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished graph, checked as an imported one is.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the graph is malformed or a call does not match its function.
    pub fn finish(mut self) -> Result<Graph> {
        self.check()?;
        self.graph.set_library(Arc::new(self.library));
        Ok(self.graph)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.graph.verify()?;
        crate::loop_frames(&self.graph)?;
        crate::functions::check_calls(&self.graph, &self.library)
    }

    /// A name under the current scope that no node has.
    fn name(&self, base: &str) -> String {
        self.graph.unique_name(&format!("{}{base}", self.scope))
    }

    /// Adds a node as it is; its outputs live in context `home`.
    pub(crate) fn add_raw(&mut self, node: Node, home: Option<usize>) -> Result<NodeId> {
        let id = self.graph.add(node)?;
        self.context_of.resize(id.index() + 1, None);
        self.context_of[id.index()] = home;
        Ok(id)
    }

    pub(crate) fn def(&self, op: &str) -> Result<Arc<ferroflow_opdef::OpDef>> {
        self.registry
            .def(op)?
            .ok_or_else(|| not_found!("Op type not registered '{op}'"))
    }
}
