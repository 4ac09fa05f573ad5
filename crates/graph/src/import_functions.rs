//! `NodeDef` → [`Node`] and `FunctionDef` → [`Function`].

use crate::import::connect;
use crate::import_attrs::AttrScope;
use crate::onednn;
use crate::prune::boundary_attrs;
use crate::{ARG, Function, Graph, Library, MUST_COMPILE, Node, NodeId, Output, RETVAL};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_model::proto::{
    FunctionDef, FunctionDefLibrary, NodeDef, attr_value, op_def::ArgDef,
};
use ferroflow_opdef::{AttrValue, Attrs, FUNCTION_LIBRARY, FuncRef, NodeClass, Registry};
use ferroflow_tensor::{Bytes, DType, MappedFile, PartialShape};
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;

/// Most instances of functions with attrs.
const MAX_INSTANCES: usize = 4096;

/// The functions of a file, by name.
#[derive(Default)]
pub(crate) struct FunctionTable<'a> {
    functions: FxHashMap<&'a str, &'a FunctionDef>,
    /// The functions that are declared as gradients of others.
    gradients: FxHashMap<&'a str, &'a str>,
}

impl<'a> FunctionTable<'a> {
    pub(crate) fn new(library: Option<&'a FunctionDefLibrary>) -> Self {
        let mut table = FunctionTable::default();
        if let Some(library) = library {
            library.function.iter().for_each(|f| table.add(f));
            for g in &library.gradient {
                table.add_gradient(&g.function_name, &g.gradient_func);
            }
        }
        table
    }

    pub(crate) fn add(&mut self, function: &'a FunctionDef) {
        if let Some(signature) = &function.signature {
            self.functions.insert(&signature.name, function);
        }
    }

    /// The functions as a serialized `FunctionDefLibrary`.
    fn encode(&self) -> Bytes {
        let functions = self.functions.values().map(|f| (*f).clone());
        let library = FunctionDefLibrary {
            function: functions.collect(),
            ..Default::default()
        };
        library.encode_to_vec().into()
    }

    /// As [`encode`](Self::encode), of what `roots` need.
    fn encode_reachable(&self, roots: &[&str]) -> Bytes {
        let find = |name: &str| self.functions.get(name).map(|f| FunctionDef::clone(f));
        let library = FunctionDefLibrary {
            function: reachable_functions(roots, find),
            ..Default::default()
        };
        library.encode_to_vec().into()
    }

    pub(crate) fn add_gradient(&mut self, of: &'a str, gradient: &'a str) {
        self.gradients.insert(of, gradient);
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }
}

/// Returns the functions named by `roots` and those that they call, directly or not. `find` looks up a function by its
/// name and returns `None` for ops.
pub fn reachable_functions(
    roots: &[impl AsRef<str>],
    mut find: impl FnMut(&str) -> Option<FunctionDef>,
) -> Vec<FunctionDef> {
    let mut queue: Vec<String> = roots.iter().map(|name| name.as_ref().to_owned()).collect();
    let mut seen = FxHashSet::default();
    let mut functions = Vec::new();
    while let Some(name) = queue.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let Some(found) = find(&name) else { continue };
        for node in &found.node_def {
            queue.push(node.op.clone());
            for value in node.attr.values() {
                match &value.value {
                    Some(attr_value::Value::Func(f)) => queue.push(f.name.clone()),
                    Some(attr_value::Value::List(list)) => {
                        queue.extend(list.func.iter().map(|f| f.name.clone()));
                    }
                    _ => {}
                }
            }
        }
        functions.push(found);
    }
    functions
}

/// A function with the attrs that a node refers to it with.
pub(crate) struct Instance {
    /// The name of the instance in the library.
    key: String,
    name: String,
    attrs: Attrs,
}

/// Imports nodes and the functions that they refer to.
pub(crate) struct Importer<'a> {
    registry: &'a Registry,
    file: Option<&'a Arc<MappedFile>>,
    functions: &'a FunctionTable<'a>,
    /// Functions that nodes refer to and that were not instantiated yet.
    pub(crate) wanted: Vec<Instance>,
    seen: FxHashSet<String>,
    /// The format version of the graph; 0 in graphs older than versions.
    producer: i32,
}

/// The last format version in which a placeholder without a shape looks like a scalar
/// (`core/ops/array_ops.cc`, Placeholder).
const SCALAR_IS_UNKNOWN: i32 = 21;

/// Makes the shape of a placeholder unknown if graphs of `producer` cannot say so.
pub(crate) fn forget_scalar_shape(op: &str, attrs: &mut Attrs, producer: i32) {
    let is_old = producer <= SCALAR_IS_UNKNOWN;
    if op == "Placeholder" && is_old && attrs.shape("shape").is_ok_and(|s| s.rank() == Some(0)) {
        attrs.set("shape", AttrValue::Shape(PartialShape::unknown()));
    }
}

impl<'a> Importer<'a> {
    pub(crate) fn new(
        registry: &'a Registry,
        file: Option<&'a Arc<MappedFile>>,
        functions: &'a FunctionTable<'a>,
    ) -> Self {
        Importer {
            registry,
            file,
            functions,
            wanted: Vec::new(),
            seen: FxHashSet::default(),
            producer: 0,
        }
    }

    /// Reads the graph as one of this format version.
    pub(crate) fn of_version(mut self, producer: i32) -> Self {
        self.producer = producer;
        self
    }

    /// A node without its edges.
    pub(crate) fn node(&mut self, def: &NodeDef) -> Result<Node> {
        self.node_in(def, None)
    }

    fn node_in(&mut self, node: &NodeDef, instance: Option<&Attrs>) -> Result<Node> {
        let scope = AttrScope {
            file: self.file,
            instance,
        };
        let (def, mut attrs) = match self.functions.functions.get(node.op.as_str()) {
            Some(function) => {
                let attrs = scope.attrs(&node.attr, None)?;
                let mut attrs = call_attrs(attrs, function)?;
                let op = match self.is_stateful(function) {
                    true => {
                        attrs.set(crate::RUNS_EFFECTS, AttrValue::Bool(true));
                        "StatefulPartitionedCall"
                    }
                    false => "PartitionedCall",
                };
                (self.registry.def(op)?, attrs)
            }
            None => {
                let def = onednn::find(&node.op, self.registry)?;
                let mut attrs = scope.attrs(&node.attr, def.as_deref())?;
                onednn::adjust_attrs(&node.op, &mut attrs);
                (def, attrs)
            }
        };
        let def = def.ok_or_else(|| crate::op_not_registered(&node.op))?;
        def.complete_attrs(&mut attrs)?;
        forget_scalar_shape(&def.name, &mut attrs, self.producer);
        if def.class() == NodeClass::Const {
            let (value, dtype) = (attrs.tensor("value")?.dtype(), attrs.dtype("dtype")?);
            if value != dtype {
                return Err(invalid_argument!(
                    "Type mismatch between value ({value}) and dtype ({dtype})"
                ));
            }
        }
        if def.class() == NodeClass::DatasetToGraph && attrs.get(FUNCTION_LIBRARY).is_none() {
            attrs.set(FUNCTION_LIBRARY, AttrValue::Str(self.functions.encode()));
        }
        // A dataset may outlive the functions that it calls, and be written then.
        if def.name.contains("Dataset") && attrs.get(FUNCTION_LIBRARY).is_none() {
            let called = attrs.iter().filter_map(|(_, value)| match value {
                AttrValue::Func(f) => Some(f.name.as_str()),
                _ => None,
            });
            let called: Vec<&str> = called.collect();
            if !called.is_empty() {
                let library = self.functions.encode_reachable(&called);
                attrs.set(FUNCTION_LIBRARY, AttrValue::Str(library));
            }
        }
        let is_instance = |value: &AttrValue| match value {
            AttrValue::Func(_) => true,
            AttrValue::List(list) => matches!(list.first(), Some(AttrValue::Func(_))),
            _ => false,
        };
        if attrs.iter().any(|(_, value)| is_instance(value)) {
            let named = attrs
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()));
            let named = named.map(|(name, value)| (name, self.instances(value)));
            attrs = named.collect();
        }
        Ok(Node {
            name: node.name.clone(),
            outputs: def.output_dtypes(&attrs)?,
            def,
            attrs,
            inputs: SmallVec::new(),
            controls: SmallVec::new(),
            device: node.device.clone(),
        })
    }

    /// Whether the function, or one that it calls by name, has a stateful node.
    fn is_stateful(&self, function: &FunctionDef) -> bool {
        let (mut seen, mut todo) = (FxHashSet::default(), vec![function]);
        while let Some(function) = todo.pop() {
            if function.signature.as_ref().is_some_and(|s| s.is_stateful) {
                return true;
            }
            for op in function.node_def.iter().map(|node| node.op.as_str()) {
                match self.functions.functions.get(op) {
                    Some(called) if seen.insert(op) => todo.push(called),
                    Some(_) => {}
                    None => {
                        let def = self.registry.def(op);
                        if def.is_ok_and(|def| def.is_some_and(|def| def.flags.stateful)) {
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    /// A value whose functions are instances without attrs.
    fn instances(&mut self, value: AttrValue) -> AttrValue {
        match value {
            AttrValue::Func(f) => AttrValue::Func(self.instance(f)),
            AttrValue::List(items) => {
                AttrValue::List(items.into_iter().map(|v| self.instances(v)).collect())
            }
            value => value,
        }
    }

    fn instance(&mut self, f: FuncRef) -> FuncRef {
        let is_known = self.functions.contains(&f.name);
        if !is_known && self.registry.op(&f.name).is_some() {
            // The gradient of an op.
            return f;
        }
        let public = f.attrs.iter().filter(|(k, _)| !k.starts_with('_'));
        let mut parts: Vec<String> = public
            .map(|(k, v)| format!("{k}={}", crate::text::format_attr(v)))
            .collect();
        let mut key = f.name.clone();
        if !parts.is_empty() {
            parts.sort_unstable();
            key = format!("{key}[{}]", parts.join(","));
        }
        let fits = f.attrs.is_empty() || self.seen.len() < MAX_INSTANCES;
        if fits && self.seen.insert(key.clone()) {
            self.wanted.push(Instance {
                key: key.clone(),
                name: f.name,
                attrs: f.attrs,
            });
        }
        FuncRef {
            name: key,
            attrs: Attrs::default(),
        }
    }

    /// Instantiates the functions that nodes refer to, and those that these refer to. What is not in
    /// the table stays wanted.
    pub(crate) fn instantiate(&mut self, library: &mut Library) {
        let mut unknown = Vec::new();
        while let Some(instance) = self.wanted.pop() {
            if library.contains(&instance.key) {
                continue;
            }
            let Some(function) = self.functions.functions.get(instance.name.as_str()) else {
                unknown.push(instance);
                continue;
            };
            match self.function(function, &instance.attrs) {
                Ok(made) => library.insert(&instance.key, made),
                Err(e) => library.insert_bad(&instance.key, e),
            }
            if let Some(gradient) = self.functions.gradients.get(instance.name.as_str()) {
                let gradient = self.instance(FuncRef {
                    name: gradient.to_string(),
                    attrs: instance.attrs,
                });
                library.declare_gradient(&instance.key, gradient.name);
            }
        }
        self.wanted = unknown;
    }

    /// A function as a graph with `_Arg` and `_Retval` nodes.
    fn function(&mut self, function: &FunctionDef, attrs: &Attrs) -> Result<Function> {
        let signature = function.signature.clone().unwrap_or_default();
        let mut body = PartialBody {
            graph: Graph::new(),
            nodes: FxHashMap::default(),
            args: FxHashMap::default(),
        };
        for (index, arg) in signature.input_arg.iter().enumerate() {
            let dtype = arg_dtype(arg, attrs)?;
            let id = self.boundary(&mut body.graph, ARG, &arg.name, index, dtype, None)?;
            body.args.insert(&arg.name, id);
        }
        let first = body.graph.id_bound();
        for (i, def) in function.node_def.iter().enumerate() {
            body.nodes.insert(&def.name, (NodeId::new(first + i), def));
        }
        for def in &function.node_def {
            let at = |e: Status| e.at_node(&def.name, &def.op);
            let node = self.node_in(def, Some(attrs)).map_err(at)?;
            body.graph.add(node)?;
        }
        for (i, def) in function.node_def.iter().enumerate() {
            let at = |e: Status| e.at_node(&def.name, &def.op);
            self.connect(&mut body, NodeId::new(first + i), def)
                .map_err(at)?;
        }
        for (index, result) in signature.output_arg.iter().enumerate() {
            let dtype = arg_dtype(result, attrs)?;
            let from = function.ret.get(&result.name).ok_or_else(|| {
                let name = &result.name;
                invalid_argument!("the function has no entry for result '{name}' in its 'ret'")
            })?;
            let from = self.source(&body, from)?;
            let name = format!("{}/_retval_{index}", result.name);
            self.boundary(&mut body.graph, RETVAL, &name, index, dtype, Some(from))?;
        }
        let control_results = function.control_ret.values().map(|name| {
            let id = body.graph.find(name);
            id.ok_or_else(|| invalid_argument!("unknown control output '{name}'"))
        });
        let control_results: Vec<NodeId> = control_results.collect::<Result<_>>()?;
        let is_set = |name: &str| {
            let value = function.attr.get(name).and_then(|a| a.value.as_ref());
            matches!(value, Some(attr_value::Value::B(true)))
        };
        Ok(Function {
            noinline: is_set("_noinline"),
            must_compile: is_set(MUST_COMPILE),
            ..finish(body.graph, control_results)?
        })
    }

    fn boundary(
        &self,
        graph: &mut Graph,
        op: &str,
        name: &str,
        index: usize,
        dtype: DType,
        from: Option<Output>,
    ) -> Result<NodeId> {
        let (name, attrs) = (name.to_string(), boundary_attrs(dtype, index));
        let node = Node::new(self.registry, name, op, attrs, from.as_slice(), &[])?;
        graph.add(node)
    }

    fn connect(&self, body: &mut PartialBody, id: NodeId, def: &NodeDef) -> Result<()> {
        let find = |name: &str| {
            let node = body.nodes.get(name).map(|(id, _)| *id);
            node.or_else(|| body.args.get(name).copied())
        };
        let mut node = body.graph.node(id).clone();
        connect(&mut node, def, &find, &|input| self.source(body, input))?;
        body.graph.replace(id, node);
        Ok(())
    }

    /// The output that an input inside a body names: `ARG` or `NODE:OUTPUT:POSITION`.
    fn source(&self, body: &PartialBody, input: &str) -> Result<Output> {
        if let Some(arg) = body.args.get(input) {
            return Ok(Output::new(*arg, 0));
        }
        let bad = || invalid_argument!("'{input}' is not a node or argument of the function");
        let mut parts = input.split(':');
        let (id, def) = parts
            .next()
            .and_then(|n| body.nodes.get(n))
            .ok_or_else(bad)?;
        let Some(output) = parts.next() else {
            return Ok(Output::new(*id, 0));
        };
        let position = parts.next().unwrap_or("0").parse().map_err(|_| bad())?;
        let slot = self.flat_slot(body.graph.node(*id), def, output, position)?;
        Ok(Output::new(*id, slot))
    }

    /// The position among all outputs of element `position` of the output argument `output`.
    fn flat_slot(
        &self,
        node: &Node,
        def: &NodeDef,
        output: &str,
        position: usize,
    ) -> Result<usize> {
        if let Some(function) = self.functions.functions.get(def.op.as_str()) {
            let signature = function.signature.as_ref();
            let args = signature.map_or(&[][..], |s| &s.output_arg);
            let first = args.iter().position(|a| a.name == output);
            return first.map(|first| first + position).ok_or_else(|| {
                invalid_argument!("function '{}' has no output '{output}'", def.op)
            });
        }
        if node.class() == NodeClass::Call {
            // Its outputs are one list.
            return Ok(position);
        }
        let mut first = 0;
        for arg in &node.def.outputs {
            if arg.name() == output {
                return Ok(first + position);
            }
            first += arg.dtypes(&node.attrs)?.len();
        }
        Err(invalid_argument!("op {} has no output '{output}'", def.op))
    }
}

/// A function's body while it is imported.
struct PartialBody<'a> {
    graph: Graph,
    nodes: FxHashMap<&'a str, (NodeId, &'a NodeDef)>,
    args: FxHashMap<&'a str, NodeId>,
}

/// A checked function whose stateful nodes run even if no result needs them.
fn finish(mut graph: Graph, control_results: Vec<NodeId>) -> Result<Function> {
    graph.verify()?;
    crate::loop_frames(&graph)?;
    let effects = graph.iter().filter(|(_, n)| n.has_effects());
    let mut targets: Vec<NodeId> = effects.map(|(id, _)| id).collect();
    for id in &control_results {
        if !targets.contains(id) {
            targets.push(*id);
        }
    }
    graph.set_targets(targets);
    let mut function = Function::new(graph)?;
    function.control_results = control_results;
    Ok(function)
}

/// The attrs of a call that is written with the function's name as its op.
fn call_attrs(attrs: Attrs, function: &FunctionDef) -> Result<Attrs> {
    let signature = function.signature.clone().unwrap_or_default();
    let types = |args: &[ArgDef]| -> Result<AttrValue> {
        let types = args
            .iter()
            .map(|a| arg_dtype(a, &attrs).map(AttrValue::Type));
        Ok(AttrValue::List(types.collect::<Result<_>>()?))
    };
    let (tin, tout) = (types(&signature.input_arg)?, types(&signature.output_arg)?);
    let name = signature.name;
    let callee = AttrValue::Func(FuncRef { name, attrs });
    Ok(Attrs::default()
        .with("f", callee)
        .with("Tin", tin)
        .with("Tout", tout))
}

/// The dtype of an argument or result of a function.
fn arg_dtype(arg: &ArgDef, attrs: &Attrs) -> Result<DType> {
    if arg.r#type != 0 {
        return crate::import_attrs::import_dtype(arg.r#type);
    }
    match attrs.get(&arg.type_attr) {
        Some(AttrValue::Type(dtype)) => Ok(*dtype),
        _ => Err(invalid_argument!(
            "argument '{}' of the function has no type",
            arg.name
        )),
    }
}
