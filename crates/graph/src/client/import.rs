//! Adding the nodes of a GraphDef to a graph (`core/common_runtime/graph_constructor.cc`).

use super::ClientGraph;
use crate::import::{check_versions, is_valid_name};
use crate::import_attrs::AttrScope;
use crate::import_functions::forget_scalar_shape;
use crate::{Node, NodeId, Output, parse_tensor_name};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_model::proto::{GraphDef, NodeDef};
use ferroflow_opdef::{AttrValue, NodeClass};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// How the nodes of a GraphDef are added.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// What stands before the names of all nodes; a `/` is added.
    pub prefix: String,
    /// Whether names that are taken get a number.
    pub uniquify_names: bool,
    /// Whether a prefix that is taken gets a number.
    pub uniquify_prefix: bool,
    /// Tensors of the GraphDef (node and slot, or node and `None` for a control input) that nodes of the
    /// graph stand for.
    pub input_map: Vec<(TensorName, Output)>,
    /// Nodes whose control edges start at nodes of the graph instead.
    pub control_map: Vec<(String, NodeId)>,
    /// Nodes of the graph that the added nodes wait for.
    pub control_dependencies: Vec<NodeId>,
    /// Tensors of the GraphDef whose places in the graph are wanted.
    pub return_outputs: Vec<TensorName>,
    /// Nodes of the GraphDef whose places in the graph are wanted.
    pub return_nodes: Vec<String>,
    /// The device of nodes that request none.
    pub default_device: String,
    /// Whether nodes all of whose outputs are mapped are left out.
    pub skip_mapped_nodes: bool,
    /// Whether nodes may only be colocated with nodes of the GraphDef.
    pub checks_colocation: bool,
}

/// A node's name and the number of an output.
pub type TensorName = (String, usize);

/// What an import added.
#[derive(Clone, Debug, Default)]
pub struct ImportResults {
    /// Where the wanted tensors are.
    pub return_outputs: Vec<Output>,
    /// Where the wanted nodes are.
    pub return_nodes: Vec<NodeId>,
    /// Mapped tensors that are not among the nodes' inputs.
    pub missing_unused: Vec<TensorName>,
}

/// The import of one GraphDef.
struct Import<'a> {
    graph: &'a mut ClientGraph,
    options: &'a ImportOptions,
    inputs: FxHashMap<(&'a str, usize), Output>,
    controls: FxHashMap<&'a str, NodeId>,
    used: FxHashSet<(String, usize)>,
    /// The nodes of the GraphDef by name, and their new names.
    names: FxHashMap<&'a str, String>,
    /// What new names begin with.
    prefix: &'a str,
    added: FxHashMap<&'a str, NodeId>,
    /// The functions that nodes call, whose bodies were checked.
    called: FxHashSet<&'a str>,
    /// The format version of the GraphDef.
    producer: i32,
    /// Inputs from nodes that come later: back edges of loops.
    later: Vec<(NodeId, usize, &'a str, usize)>,
}

impl ClientGraph {
    /// Adds the nodes and functions of `def`. All or nothing: an error leaves the graph as it was.
    ///
    /// # Errors
    /// INVALID_ARGUMENT or NOT_FOUND if a version, name, input, attr or dtype is wrong, an op is not
    /// registered, a name is taken, there is a cycle, or a wanted tensor or node does not exist.
    pub fn import(&mut self, def: &GraphDef, options: &ImportOptions) -> Result<ImportResults> {
        def.versions.as_ref().map_or(Ok(()), check_versions)?;
        let before = self.mark();
        let result = self.import_all(def, options);
        if result.is_err() {
            self.reset(before);
        }
        result
    }

    fn import_all(&mut self, def: &GraphDef, options: &ImportOptions) -> Result<ImportResults> {
        if let Some(library) = &def.library {
            self.add_library(library)?;
        }
        if let Some(versions) = def.versions.as_ref().filter(|v| v.producer > 0) {
            let is_empty = self.graph.is_empty();
            let old = self.graph.producer;
            self.graph.producer = match is_empty {
                true => versions.producer,
                false => versions.producer.min(old),
            };
        }
        if let Some(versions) = &def.versions {
            self.min_consumer = self.min_consumer.max(versions.min_consumer);
            self.bad_consumers.extend(&versions.bad_consumers);
            self.bad_consumers.sort_unstable();
            self.bad_consumers.dedup();
        }
        let prefix = self.import_prefix(options)?;
        let names = self.names_of(def, &prefix, options)?;
        let mut import = Import {
            inputs: by_name(&options.input_map),
            controls: options
                .control_map
                .iter()
                .map(|(n, id)| (n.as_str(), *id))
                .collect(),
            used: FxHashSet::default(),
            names,
            prefix: &prefix,
            added: FxHashMap::default(),
            called: FxHashSet::default(),
            producer: def.versions.as_ref().map_or(0, |v| v.producer),
            later: Vec::new(),
            graph: self,
            options,
        };
        import.nodes(def)?;
        import.back_edges()?;
        import.results()
    }

    fn add_library(&mut self, library: &ferroflow_model::proto::FunctionDefLibrary) -> Result<()> {
        let functions: Vec<_> = library
            .function
            .iter()
            .map(|f| Arc::new(f.clone()))
            .collect();
        for function in &functions {
            self.add_function(function, None)?;
        }
        for gradient in &library.gradient {
            let find = |name: &str| self.functions.get(name).cloned();
            let (of, by) = (find(&gradient.function_name), find(&gradient.gradient_func));
            match (of, by) {
                (Some(of), Some(by)) => self.add_function(&of, Some(&by))?,
                _ => {
                    return Err(not_found!(
                        "gradient '{}' of function '{}' is not in the library",
                        gradient.gradient_func,
                        gradient.function_name
                    ));
                }
            }
        }
        Ok(())
    }

    /// The prefix of all names, with a `/` unless it is empty.
    fn import_prefix(&self, options: &ImportOptions) -> Result<String> {
        let prefix = options.prefix.strip_suffix('/').unwrap_or(&options.prefix);
        if prefix.is_empty() {
            return Ok(String::new());
        }
        if !is_valid_name(prefix) || prefix.starts_with('_') {
            return Err(invalid_argument!(
                "Imported node name prefix '{prefix}/' would lead to invalid node names"
            ));
        }
        let is_taken = |name: &str| self.find(name).is_some() || self.scopes.contains(name);
        match options.uniquify_prefix {
            true => Ok(format!("{}/", crate::unique_name(prefix, is_taken))),
            false => Ok(format!("{prefix}/")),
        }
    }

    fn names_of<'a>(
        &self,
        def: &'a GraphDef,
        prefix: &str,
        options: &ImportOptions,
    ) -> Result<FxHashMap<&'a str, String>> {
        let mut names: FxHashMap<&str, String> = FxHashMap::default();
        let mut taken: FxHashSet<String> = FxHashSet::default();
        for node in &def.node {
            // Those with a `_` in front are internal.
            if !is_valid_name(&node.name) || node.name.starts_with('_') {
                return Err(invalid_argument!(
                    "Node '{}': Node name contains invalid characters",
                    node.name
                ));
            }
            if names.contains_key(node.name.as_str()) {
                return Err(invalid_argument!("Node '{}' is not unique", node.name));
            }
            let mut name = format!("{prefix}{}", node.name);
            let is_taken = |n: &str| self.find(n).is_some() || taken.contains(n);
            if options.uniquify_names {
                name = crate::unique_name(&name, |n| is_taken(n) || self.scopes.contains(n));
            } else if prefix.is_empty() && self.find(&name).is_some() || is_taken(&name) {
                return Err(invalid_argument!(
                    "Node name '{name}' already exists in the Graph"
                ));
            } else if self.scopes.contains(&name) {
                return Err(invalid_argument!(
                    "Node name '{name}' is used as a prefix in the Graph"
                ));
            }
            taken.insert(name.clone());
            names.insert(&node.name, name);
        }
        Ok(names)
    }
}

fn by_name(map: &[(TensorName, Output)]) -> FxHashMap<(&str, usize), Output> {
    map.iter()
        .map(|((name, slot), to)| ((name.as_str(), *slot), *to))
        .collect()
}

/// The slot of a control edge in an input map.
const CONTROL: usize = usize::MAX;

impl<'a> Import<'a> {
    /// Adds the nodes, each after those that it reads; what is left reads in a cycle.
    fn nodes(&mut self, def: &'a GraphDef) -> Result<()> {
        let index: FxHashMap<&str, usize> = (0..)
            .zip(&def.node)
            .map(|(i, n)| (n.name.as_str(), i))
            .collect();
        let mut pending = vec![0; def.node.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); def.node.len()];
        for (i, node) in def.node.iter().enumerate() {
            let is_merge = NodeClass::of(&node.op) == NodeClass::Merge;
            for input in &node.input {
                let (name, slot) = source(input)?;
                if self.mapped(name, slot).is_some() {
                    continue;
                }
                let at = index.get(name).ok_or_else(|| {
                    invalid_argument!("Node '{}': Unknown input node '{input}'", node.name)
                })?;
                let is_back = NodeClass::of(&def.node[*at].op) == NodeClass::NextIteration;
                if !(is_merge && is_back) {
                    pending[i] += 1;
                    readers[*at].push(i);
                }
            }
        }
        // TensorFlow adds the first node of the GraphDef that is ready, which clients see in the numbers of nodes.
        let ready = (0..pending.len()).filter(|i| pending[*i] == 0);
        let mut ready: BinaryHeap<_> = ready.map(Reverse).collect();
        let mut n_left = def.node.len();
        while let Some(Reverse(i)) = ready.pop() {
            n_left -= 1;
            let node = &def.node[i];
            if !(self.options.skip_mapped_nodes && self.is_mapped(node)?) {
                self.node(node)?;
            }
            for reader in &readers[i] {
                pending[*reader] -= 1;
                if pending[*reader] == 0 {
                    ready.push(Reverse(*reader));
                }
            }
        }
        match n_left {
            0 => Ok(()),
            n => Err(invalid_argument!("{n} nodes in a cycle")),
        }
    }

    /// Whether all outputs of a node are mapped.
    fn is_mapped(&self, node: &NodeDef) -> Result<bool> {
        let op = self.graph.op_def(&node.op)?;
        let attrs = AttrScope::default().attrs(&node.attr, Some(&op))?;
        let n = op.output_dtypes(&attrs).map_or(0, |outputs| outputs.len());
        Ok(n > 0 && (0..n).all(|slot| self.mapped(&node.name, slot).is_some()))
    }

    /// The node of the graph that stands for a tensor of the GraphDef, if mapped.
    fn mapped(&self, name: &str, slot: usize) -> Option<Output> {
        match slot {
            CONTROL => {
                let id = self.controls.get(name)?;
                Some(Output::new(*id, 0))
            }
            _ => self.inputs.get(&(name, slot)).copied(),
        }
    }

    fn node(&mut self, def: &'a NodeDef) -> Result<()> {
        if def.op.is_empty() {
            return Err(invalid_argument!(
                "Node '{}' does not specify an operation",
                def.name
            ));
        }
        let op = self.graph.op_def(&def.op)?;
        let at = |e: Status| e.at_node(&def.name, &def.op);
        super::deprecation::check(&def.op, self.producer)?;
        self.check_call(&def.op)?;
        let mut attrs = AttrScope::default()
            .attrs(&def.attr, Some(&op))
            .map_err(at)?;
        op.complete_attrs(&mut attrs).map_err(|e| shown(e, def))?;
        forget_scalar_shape(&op.name, &mut attrs, self.producer);
        self.check_classes(&def.name, &attrs)?;
        self.rename_classes(&mut attrs);
        let declared = attrs.remove("_output_shapes");
        let mut node = Node {
            name: self
                .names
                .get(def.name.as_str())
                .cloned()
                .unwrap_or_default(),
            outputs: op.output_dtypes(&attrs).map_err(at)?,
            def: op,
            attrs,
            inputs: smallvec::SmallVec::new(),
            controls: smallvec::SmallVec::new(),
            device: match def.device.is_empty() {
                true => self.options.default_device.clone(),
                false => def.device.clone(),
            },
        };
        let id = NodeId::new(self.graph.len());
        if !self.connect(def, &mut node, id)? {
            for control in &self.options.control_dependencies {
                if !node.controls.contains(control) {
                    node.controls.push(*control);
                }
            }
        }
        self.check(def, &node).map_err(at)?;
        let id = self.graph.insert(node)?;
        self.added.insert(&def.name, id);
        self.declare_shapes(id, declared)
    }

    /// Adds the inputs and control inputs of `def` to `node`, which gets the number `id`. Returns whether it reads other nodes
    /// of the GraphDef.
    fn connect(&mut self, def: &'a NodeDef, node: &mut Node, id: NodeId) -> Result<bool> {
        let mut reads_def = false;
        let is_control = def.input.iter().map(|input| input.starts_with('^'));
        if !is_control.is_sorted() {
            return Err(invalid_argument!(
                "Node '{}': Control dependencies must come after regular dependencies",
                def.name
            ));
        }
        for (i, input) in def.input.iter().enumerate() {
            let (name, slot) = source(input)?;
            let mapped = self.mapped(name, slot);
            if mapped.is_some() {
                self.used.insert((name.to_string(), slot));
            }
            reads_def |= mapped.is_none();
            let from = mapped.or_else(|| {
                let slot = if slot == CONTROL { 0 } else { slot };
                self.added.get(name).map(|id| Output::new(*id, slot))
            });
            if slot == CONTROL {
                let from = from
                    .map(|o| o.node)
                    .filter(|id| !node.controls.contains(id));
                node.controls.extend(from);
                continue;
            }
            // A back edge reads the first input until its node exists.
            let from = match (from, node.inputs.first()) {
                (Some(from), _) => from,
                (None, Some(first)) => {
                    let name: &'a str = input_name(input);
                    self.later.push((id, i, name, slot));
                    *first
                }
                (None, None) => {
                    let e = invalid_argument!("the first input of a Merge is a back edge");
                    return Err(e.at_node(&def.name, &def.op));
                }
            };
            node.inputs.push(from);
        }
        Ok(reads_def)
    }

    /// Checks the body of a function that is called: TensorFlow infers shapes through it.
    fn check_call(&mut self, name: &'a str) -> Result<()> {
        let Some(function) = self.graph.functions.get(name).cloned() else {
            return Ok(());
        };
        if !self.called.insert(name) {
            return Ok(());
        }
        for node in &function.node_def {
            self.graph.op_def(&node.op)?;
        }
        for output in function.signature.iter().flat_map(|s| &s.output_arg) {
            if !function.ret.contains_key(&output.name) {
                let ty = DType::from_number(output.r#type);
                let ty = ty.map_or(output.type_attr.as_str(), |t| t.name());
                let name = &output.name;
                return Err(invalid_argument!(
                    "Return {name} missing.\n\tIn function output {name}:{ty}"
                ));
            }
        }
        Ok(())
    }

    /// Takes over the shapes that the attr `_output_shapes` of a node declares.
    fn declare_shapes(&mut self, id: NodeId, declared: Option<AttrValue>) -> Result<()> {
        let Some(AttrValue::List(shapes)) = declared else {
            return Ok(());
        };
        let (name, n) = match self.graph.node(id) {
            Some(node) => (node.name.clone(), node.outputs.len()),
            None => return Ok(()),
        };
        if shapes.len() < n {
            return Err(invalid_argument!(
                "Node '{name}' has {n} outputs but the _output_shapes attribute specifies shapes for {} outputs",
                shapes.len()
            ));
        }
        for (i, shape) in shapes.iter().take(n).enumerate() {
            let AttrValue::Shape(shape) = shape else {
                return Ok(());
            };
            let set = self.graph.set_shape(Output::new(id, i), shape);
            set.map_err(|e| {
                invalid_argument!(
                    "Node '{name}' has an _output_shapes attribute inconsistent with the GraphDef for output #{i}: {}",
                    e.message()
                )
            })?;
        }
        Ok(())
    }

    fn check(&self, def: &NodeDef, node: &Node) -> Result<()> {
        let dtypes = node.def.input_dtypes(&node.attrs)?;
        crate::graph::check_arity(node, &dtypes).map_err(|e| shown(e, def))?;
        let references = node.def.input_references(&node.attrs)?;
        for (i, (input, dtype)) in node.inputs.iter().zip(dtypes).enumerate() {
            let wanted = crate::graph::Wanted {
                dtype,
                is_reference: references.get(i) == Some(&true),
            };
            if let Some(from) = self.graph.node(input.node) {
                let slot = input.slot as usize;
                if slot >= from.outputs.len() {
                    // This error has the name of the GraphDef.
                    let mut node = node.clone();
                    node.name.clone_from(&def.name);
                    crate::graph::check_edge(&node, i, wanted, from, slot)?;
                }
                crate::graph::check_edge(node, i, wanted, from, slot)?;
            }
        }
        Ok(())
    }

    /// Fails if a node is to be colocated with one that the GraphDef does not have.
    fn check_classes(&self, node: &str, attrs: &ferroflow_opdef::Attrs) -> Result<()> {
        let Some(AttrValue::List(classes)) = attrs.get("_class") else {
            return Ok(());
        };
        for class in classes.iter().filter(|_| self.options.checks_colocation) {
            let AttrValue::Str(text) = class else {
                continue;
            };
            let text = String::from_utf8_lossy(text);
            let with = text.strip_prefix("loc:@");
            if with.is_some_and(|with| !self.names.contains_key(with)) {
                return Err(invalid_argument!(
                    "Node '{node}' expects to be colocated with unknown node '{}'",
                    with.unwrap_or_default()
                ));
            }
        }
        Ok(())
    }

    /// Renames colocation groups as their nodes are.
    fn rename_classes(&self, attrs: &mut ferroflow_opdef::Attrs) {
        let Some(AttrValue::List(list)) = attrs.get("_class").cloned() else {
            return;
        };
        let renamed = list.into_iter().map(|item| match &item {
            AttrValue::Str(text) => {
                let text = String::from_utf8_lossy(text);
                let Some(name) = text.strip_prefix("loc:@") else {
                    return item;
                };
                // One that is missing is renamed as if it were there.
                let missing = format!("{}{name}", self.prefix);
                let name = self.names.get(name).map_or(&*missing, |name| name);
                AttrValue::str(&format!("loc:@{name}"))
            }
            _ => item,
        });
        attrs.set("_class", AttrValue::List(renamed.collect()));
    }

    /// Connects the back edges of loops.
    fn back_edges(&mut self) -> Result<()> {
        for (node, i, name, slot) in std::mem::take(&mut self.later) {
            let from = self.added.get(name).copied();
            let from = from.ok_or_else(|| invalid_argument!("Unknown input node '{name}'"))?;
            self.graph.update_edge(Output::new(from, slot), node, i)?;
            self.graph.mutations.pop();
            self.graph.updated.remove(&(node, i));
        }
        Ok(())
    }

    fn results(self) -> Result<ImportResults> {
        let mut results = ImportResults::default();
        for (name, slot) in &self.options.return_outputs {
            let mapped = self.inputs.get(&(name.as_str(), *slot)).copied();
            let found = mapped.or_else(|| {
                let id = self.added.get(name.as_str())?;
                let n = self.graph.node(*id)?.outputs.len();
                (*slot < n).then(|| Output::new(*id, *slot))
            });
            results.return_outputs.push(found.ok_or_else(|| {
                let added = self.added.get(name.as_str());
                match added.and_then(|id| self.graph.node(*id)) {
                    Some(node) => invalid_argument!(
                        "Invalid return output {} of node '{name}', which has {} output(s)",
                        *slot as i32,
                        node.outputs.len()
                    ),
                    None => invalid_argument!(
                        "Requested return tensor '{name}:{slot}' not found in graph def"
                    ),
                }
            })?);
        }
        for name in &self.options.return_nodes {
            let found = self.added.get(name.as_str()).copied();
            results.return_nodes.push(found.ok_or_else(|| {
                invalid_argument!("Requested return node '{name}' not found in graph def")
            })?);
        }
        for ((name, slot), _) in &self.options.input_map {
            let n = self
                .added
                .get(name.as_str())
                .and_then(|id| self.graph.node(*id));
            let exists = n.is_some_and(|n| *slot < n.outputs.len());
            if !self.used.contains(&(name.clone(), *slot)) && !exists {
                results.missing_unused.push((name.clone(), *slot));
            }
        }
        Ok(results)
    }
}

/// An error with the node that it is about, as TensorFlow's checks of a NodeDef end (`core/framework/node_def_util.cc`).
fn shown(error: Status, node: &NodeDef) -> Status {
    Status::new(
        error.code(),
        format!("{}; NodeDef: {{{{node {}}}}}", error.message(), node.name),
    )
}

/// An input's node and slot.
fn source(input: &str) -> Result<(&str, usize)> {
    match input.strip_prefix('^') {
        Some(name) => Ok((name, CONTROL)),
        None => parse_tensor_name(input),
    }
}

fn input_name(input: &str) -> &str {
    source(input).map_or(input, |(name, _)| name)
}
