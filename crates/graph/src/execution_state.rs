//! The graph of a session that clients extend.

use crate::graph::{EdgeSource, check_edge};
use crate::import::{Ports, check_node, check_versions, is_valid_name};
use crate::{Graph, Signature, import_graph, parse_tensor_name};
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_model::proto::{
    AttrValue, FunctionDef, FunctionDefLibrary, GradientDef, GraphDef, NodeDef, VersionDef,
    attr_value::Value,
};
use ferroflow_opdef::Registry;
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// An output that stands for another one wherever that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorConnection {
    /// The tensor that is read, e.g. `a:0`.
    pub from: String,
    /// The tensor that would be.
    pub to: String,
}

/// A `GraphDef` that grows, out of which the part that a run needs is imported.
///
/// Importing only that part makes the cost of a run of the size of what it runs, and lets a graph
/// hold ops that nobody runs and that are not supported.
///
/// ```
/// use ferroflow_graph::{GraphExecutionState, Signature};
/// use ferroflow_opdef::Registry;
/// let registry = Registry::new(&[]);
/// let mut state = GraphExecutionState::default();
/// let def = ferroflow_model::graph_from_text("node { name: 'a' op: 'NoOp' }").unwrap();
/// state.extend(def.clone(), &registry).unwrap();
/// assert!(state.extend(def, &registry).is_err(), "'a' is there already");
/// ```
#[derive(Default)]
pub struct GraphExecutionState {
    nodes: Vec<NodeDef>,
    /// What each node gives, where its op is known.
    outputs: Vec<Option<SmallVec<[DType; 4]>>>,
    by_name: FxHashMap<String, usize>,
    functions: FxHashMap<String, FunctionDef>,
    gradients: Vec<GradientDef>,
    versions: Option<VersionDef>,
}

/// Nodes and functions that fit a graph.
pub struct CheckedGraphDef {
    def: GraphDef,
    outputs: Vec<Option<SmallVec<[DType; 4]>>>,
}

impl CheckedGraphDef {
    /// The nodes.
    pub fn nodes(&self) -> &[NodeDef] {
        &self.def.node
    }
}

/// The node and slot that a data input of `node` names.
fn source_of<'a>(node: &NodeDef, input: &'a str) -> Result<(&'a str, usize)> {
    parse_tensor_name(input).map_err(|_| {
        invalid_argument!("Illegal op input name '{input}'").at_node(&node.name, &node.op)
    })
}

/// Whether an output of a node is a reference.
fn gives_reference(node: &NodeDef, slot: usize, registry: &Registry) -> bool {
    let ports = check_node(node, registry).ok().flatten();
    ports.is_some_and(|p| p.references[1].get(slot) == Some(&true))
}

/// [`check_edge`] for an input that must be a reference.
fn check_reference(
    node: &NodeDef,
    i: usize,
    want: DType,
    source: EdgeSource,
    outputs: &[DType],
    is_reference: bool,
) -> Result<()> {
    let EdgeSource { name, slot, .. } = source;
    let Some(&got) = outputs
        .get(slot)
        .filter(|got| **got != want || !is_reference)
    else {
        return check_edge(&node.name, i, want, source, outputs);
    };
    let suffix = if is_reference { "_ref" } else { "" };
    Err(invalid_argument!(
        "Input {i} of node {} was passed {got}{suffix} from {name}:{slot} incompatible with \
         expected {want}_ref.",
        node.name
    ))
}

impl GraphExecutionState {
    /// Adds nodes and functions. All or nothing: an error leaves the graph as it was.
    ///
    /// Checked here: versions, names, inputs, cycles, and the attrs, arity and dtypes of ops that
    /// `registry` knows; the rest when a part is imported. A function may come again if it is the same.
    pub fn extend(&mut self, def: GraphDef, registry: &Registry) -> Result<()> {
        let checked = self.check(def, registry)?;
        self.add(checked);
        Ok(())
    }

    /// What [`extend`](Self::extend) checks; the graph stays as it is.
    pub fn check(&self, def: GraphDef, registry: &Registry) -> Result<CheckedGraphDef> {
        def.versions.as_ref().map_or(Ok(()), check_versions)?;
        let functions = def.library.iter().flat_map(|l| &l.function);
        let mut function_names: FxHashMap<&str, &FunctionDef> = FxHashMap::default();
        for function in functions {
            let name = function_name(function);
            if registry.op(name).is_some() {
                return Err(invalid_argument!(
                    "Cannot add function '{name}' because an op with the same name already exists."
                ));
            }
            let here = function_names.insert(name, function);
            if [here, self.functions.get(name)]
                .into_iter()
                .flatten()
                .any(|old| old != function)
            {
                return Err(invalid_argument!(
                    "Cannot add function '{name}' because a different function with the same name \
                     already exists."
                ));
            }
        }
        let mut new: FxHashSet<&str> = FxHashSet::default();
        for node in &def.node {
            if !is_valid_name(&node.name) {
                let illegal = invalid_argument!("Illegal op name '{}'", node.name);
                return Err(illegal.at_node(&node.name, &node.op));
            }
            if self.by_name.contains_key(&node.name) || !new.insert(&node.name) {
                return Err(invalid_argument!(
                    "GraphDef argument to Extend includes node '{}', which was created by a previous \
                     call to Create or Extend in this session.",
                    node.name
                ));
            }
        }
        let mut ports = Vec::with_capacity(def.node.len());
        for node in &def.node {
            for input in &node.input {
                let name = match input.strip_prefix('^') {
                    Some(name) => name,
                    None => source_of(node, input)?.0,
                };
                if !new.contains(name) && !self.by_name.contains_key(name) {
                    return Err(invalid_argument!(
                        "Node '{}': Unknown input node '{input}'",
                        node.name
                    ));
                }
            }
            let is_call = function_names.contains_key(node.op.as_str())
                || self.functions.contains_key(&node.op);
            let checked = match is_call {
                true => Ok(None),
                false => check_node(node, registry),
            };
            ports.push(checked.map_err(|e| e.at_node(&node.name, &node.op))?);
        }
        self.check_edges(&def.node, &ports, registry)?;
        let outputs = ports.into_iter().map(|ports| ports.map(|p| p.outputs));
        let outputs = outputs.collect();
        Ok(CheckedGraphDef { def, outputs })
    }

    /// Adds what was checked against this very graph.
    pub fn add(&mut self, checked: CheckedGraphDef) {
        let CheckedGraphDef { def, outputs } = checked;
        let first = self.nodes.len();
        self.outputs.extend(outputs);
        let names = def.node.iter().map(|n| n.name.clone());
        self.by_name.extend(names.zip(first..));
        self.nodes.extend(def.node);
        if let Some(library) = def.library {
            let named = library.function.into_iter();
            self.functions
                .extend(named.map(|f| (function_name(&f).to_string(), f)));
            self.gradients.extend(library.gradient);
        }
        if def.versions.is_some() {
            self.versions = def.versions;
        }
    }

    /// Checks what new nodes read, and that they do not wait for each other in a circle.
    fn check_edges(
        &self,
        new: &[NodeDef],
        ports: &[Option<Ports>],
        registry: &Registry,
    ) -> Result<()> {
        let names = new.iter().map(|n| n.name.as_str());
        let by_name: FxHashMap<&str, usize> = names.zip(0..).collect();
        let mut waits = vec![0; new.len()];
        let mut readers = vec![Vec::new(); new.len()];
        for (at, node) in new.iter().enumerate() {
            for (i, input) in node.input.iter().enumerate() {
                let (name, slot, is_data) = match input.strip_prefix('^') {
                    Some(name) => (name, 0, false),
                    None => {
                        let (name, slot) = source_of(node, input)?;
                        (name, slot, true)
                    }
                };
                let source = by_name.get(name).copied();
                let (from, outputs) = match source {
                    Some(i) => (Some(&new[i]), ports[i].as_ref().map(|p| &p.outputs)),
                    None => match self.position(name) {
                        Some(i) => (Some(&self.nodes[i]), self.outputs[i].as_ref()),
                        None => (None, None),
                    },
                };
                if is_data
                    && let Some((from, outputs)) = from.zip(outputs)
                    && let Some(ports) = &ports[at]
                {
                    let (op, want) = (from.op.as_str(), ports.inputs[i]);
                    let source = EdgeSource { name, op, slot };
                    let checked = match ports.references[0].get(i) {
                        Some(true) => {
                            let is_reference = gives_reference(from, slot, registry);
                            check_reference(node, i, want, source, outputs, is_reference)
                        }
                        _ => check_edge(&node.name, i, want, source, outputs),
                    };
                    checked.map_err(|e| e.at_node(&node.name, &node.op))?;
                }
                // The next iteration comes back to a Merge, which does not wait for it.
                if let Some(source) = source.filter(|s| !new[*s].op.ends_with("NextIteration")) {
                    waits[at] += 1;
                    readers[source].push(at);
                }
            }
        }
        let mut ready: Vec<usize> = (0..new.len()).filter(|i| waits[*i] == 0).collect();
        let mut n_done = 0;
        while let Some(i) = ready.pop() {
            n_done += 1;
            for reader in &readers[i] {
                waits[*reader] -= 1;
                if waits[*reader] == 0 {
                    ready.push(*reader);
                }
            }
        }
        match new.len() - n_done {
            0 => Ok(()),
            left => Err(invalid_argument!("{left} nodes in a cycle")),
        }
    }

    /// The nodes, in the order in which they came.
    pub fn nodes(&self) -> &[NodeDef] {
        &self.nodes
    }

    /// The node of a name.
    pub fn node(&self, name: &str) -> Option<&NodeDef> {
        self.nodes.get(self.position(name)?)
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True when there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The graph of everything that `signature` names or depends on, and of the functions that
    /// may be called there. What it cuts off by its feeds is still in it.
    ///
    /// Whoever reads the second tensor of one of the `connections` reads the first instead.
    pub fn build_graph(
        &self,
        signature: &Signature,
        connections: &[TensorConnection],
        registry: &Registry,
    ) -> Result<Graph> {
        let part = self.part(signature, &self.connected(signature, connections)?);
        match part.node.is_empty() {
            // The names are all wrong; pruning says how.
            true => Ok(Graph::new()),
            false => import_graph(&part, None, registry),
        }
    }

    /// What is read instead of a node's output, checked as TensorFlow does.
    fn connected<'a>(
        &self,
        signature: &Signature,
        connections: &'a [TensorConnection],
    ) -> Result<FxHashMap<(&'a str, usize), &'a str>> {
        let mut connected = FxHashMap::default();
        let is_named = |names: &[String], to| {
            let mut names = names.iter();
            names.any(|name| parse_tensor_name(name).is_ok_and(|named| named == to))
        };
        for TensorConnection { from, to } in connections {
            let (from_node, to_node) = (parse_tensor_name(from)?, parse_tensor_name(to)?);
            if self.position(from_node.0).is_none() {
                return Err(invalid_argument!(
                    "Requested tensor connection from unknown node: \"{to}\"."
                ));
            }
            if self.position(to_node.0).is_none() {
                return Err(not_found!("FeedInputs: unable to find feed output {to}"));
            }
            let is_second = connected.insert(to_node, from.as_str()).is_some();
            if is_second || is_named(&signature.feeds, to_node) {
                return Err(invalid_argument!("Endpoint \"{to}\" fed more than once."));
            }
            if is_named(&signature.fetches, to_node) {
                return Err(invalid_argument!("{to} is both fed and fetched."));
            }
        }
        Ok(connected)
    }

    fn part(&self, signature: &Signature, connected: &FxHashMap<(&str, usize), &str>) -> GraphDef {
        let source = |input: &str| {
            if connected.is_empty() || input.starts_with('^') {
                return None;
            }
            connected.get(&parse_tensor_name(input).ok()?).copied()
        };
        let named = [&signature.fetches, &signature.targets, &signature.feeds];
        let roots = named.into_iter().flatten();
        let mut stack: Vec<usize> = roots
            .filter_map(|name| {
                let name = name.strip_prefix('^').unwrap_or(name);
                self.position(parse_tensor_name(name).ok()?.0)
            })
            .collect();
        let mut needed = vec![false; self.nodes.len()];
        let mut functions = Reached {
            state: self,
            names: FxHashSet::default(),
            stack: Vec::new(),
        };
        while let Some(i) = stack.pop() {
            if std::mem::replace(&mut needed[i], true) {
                continue;
            }
            let node = &self.nodes[i];
            functions.node(node);
            stack.extend(node.input.iter().filter_map(|input| {
                let input = source(input).unwrap_or(input);
                let name = input.strip_prefix('^').unwrap_or(input);
                self.position(parse_tensor_name(name).ok()?.0)
            }));
        }
        let rewired = |node: &NodeDef| {
            let mut node = node.clone();
            for input in &mut node.input {
                if let Some(from) = source(input) {
                    *input = from.to_string();
                }
            }
            node
        };
        let kept = self.nodes.iter().zip(&needed).filter(|(_, n)| **n);
        GraphDef {
            node: kept.map(|(node, _)| rewired(node)).collect(),
            library: Some(FunctionDefLibrary {
                function: functions.all(),
                gradient: self.gradients.clone(),
                ..Default::default()
            }),
            versions: self.versions.clone(),
            ..Default::default()
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

fn function_name(function: &FunctionDef) -> &str {
    function.signature.as_ref().map_or("", |s| &s.name)
}

/// The functions that nodes name, and those that these name.
struct Reached<'a> {
    state: &'a GraphExecutionState,
    names: FxHashSet<&'a str>,
    stack: Vec<&'a FunctionDef>,
}

impl<'a> Reached<'a> {
    fn name(&mut self, name: &str) {
        if let Some((name, function)) = self.state.functions.get_key_value(name)
            && self.names.insert(name)
        {
            self.stack.push(function);
            let mut gradients = self.state.gradients.iter();
            if let Some(g) = gradients.find(|g| g.function_name == *name) {
                self.name(&g.gradient_func);
            }
        }
    }

    fn node(&mut self, node: &NodeDef) {
        self.name(&node.op);
        self.attrs(node.attr.values());
    }

    fn attrs<'b>(&mut self, attrs: impl Iterator<Item = &'b AttrValue>) {
        for attr in attrs {
            match &attr.value {
                Some(Value::Func(f)) => {
                    self.name(&f.name);
                    self.attrs(f.attr.values());
                }
                Some(Value::List(list)) => {
                    for f in &list.func {
                        self.name(&f.name);
                        self.attrs(f.attr.values());
                    }
                }
                _ => {}
            }
        }
    }

    fn all(mut self) -> Vec<FunctionDef> {
        let mut all = Vec::new();
        while let Some(function) = self.stack.pop() {
            function.node_def.iter().for_each(|n| self.node(n));
            all.push(function.clone());
        }
        all
    }
}
