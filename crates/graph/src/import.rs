//! `GraphDef` → [`Graph`], checked.

use crate::functions::check_calls;
use crate::inline::{BodyDef, Inliner};
use crate::references::without_references;
use crate::symbolic_gradient::with_gradients;
use crate::{ARG, Function, Graph, Library, Node, NodeId, Output, RETVAL};
use ferroflow_base::{Result, invalid_argument, not_found, unimplemented_error};
use ferroflow_model::proto::{self, attr_value::Value as Proto};
use ferroflow_model::{shape_from_proto, tensor_from_proto};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef, Name, OpDef, PACKED, Registry};
use ferroflow_tensor::{DType, MappedFile};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// Oldest producer version whose graphs mean what they mean today.
const MIN_PRODUCER: i32 = 21;
/// The GraphDef version that this code was written against (TensorFlow 2.21).
const CONSUMER_VERSION: i32 = 2474;

/// Checks that a graph's makers meant it for a reader like this.
pub(crate) fn check_versions(versions: &proto::VersionDef) -> Result<()> {
    let (producer, min_consumer) = (versions.producer, versions.min_consumer);
    if producer != 0 && producer < MIN_PRODUCER {
        return Err(invalid_argument!(
            "GraphDef producer version {producer} is below the oldest supported version \
             {MIN_PRODUCER}; re-export the model with a newer TensorFlow"
        ));
    }
    if min_consumer > CONSUMER_VERSION {
        return Err(invalid_argument!(
            "GraphDef min consumer version {min_consumer} above current version \
             {CONSUMER_VERSION} for Ferroflow. Please upgrade it."
        ));
    }
    if versions.bad_consumers.contains(&CONSUMER_VERSION) {
        return Err(invalid_argument!(
            "GraphDef disallows consumer version {CONSUMER_VERSION}. Please upgrade Ferroflow: this \
             version is likely buggy."
        ));
    }
    Ok(())
}

/// Builds a graph from its file form and verifies it.
///
/// Checked: format versions, unknown ops, duplicate names, missing or ill-typed attrs (defaults
/// are filled in), dangling inputs, arity, dtypes along edges, cycles outside loops. The first
/// offence is reported with the node's name. Calls of library functions are expanded. `file` is the mapping that constants may stay in.
pub fn import_graph(
    def: &proto::GraphDef,
    file: Option<&Arc<MappedFile>>,
    registry: &Registry,
) -> Result<Graph> {
    let def = &*without_references(def)?;
    let mut graph = Graph::new();
    if let Some(versions) = &def.versions {
        graph.producer = versions.producer;
        check_versions(versions)?;
    }
    if def.node.is_empty() {
        return Err(invalid_argument!(
            "the GraphDef has no node; is this a frozen graph?"
        ));
    }
    let inliner = Inliner::new(def, registry);
    import_nodes(&mut graph, &inliner.expand(&def.node)?, file, registry)?;
    let mut library = Library::default();
    let mut differentiated = Vec::new();
    while let Some(wanted) = inliner.next_wanted() {
        let imported = inliner
            .body(&wanted)
            .and_then(|body| import_function(&body, file, registry));
        match imported {
            Ok(function) if wanted.is_gradient() => differentiated.push((wanted.key, function)),
            Ok(function) => library.insert(&wanted.key, function),
            Err(e) => library.insert_bad(&wanted.key, &e),
        }
    }
    let library = with_gradients(library, differentiated, registry);
    check_calls(&graph, &library)?;
    for name in library.names() {
        if let Ok(function) = library.get(name) {
            check_calls(&function.graph, &library)
                .map_err(|e| e.note(format!("in function '{name}'")))?;
        }
    }
    graph.set_library(Arc::new(library));
    Ok(graph)
}

fn import_nodes(
    graph: &mut Graph,
    nodes: &[proto::NodeDef],
    file: Option<&Arc<MappedFile>>,
    registry: &Registry,
) -> Result<()> {
    let mut ids: FxHashMap<&str, NodeId> = FxHashMap::default();
    ids.reserve(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        if !is_valid_name(&node.name) {
            return Err(invalid_argument!(
                "Node '{}': Node name contains invalid characters",
                node.name
            ));
        }
        if ids.insert(&node.name, NodeId::new(i)).is_some() {
            return Err(invalid_argument!("Node '{}' is not unique", node.name));
        }
    }
    for node in nodes {
        let imported =
            import_node(node, &ids, file, registry).map_err(|e| e.at_node(&node.name, &node.op))?;
        graph.add(imported)?;
    }
    graph.verify()?;
    crate::loop_frames(graph).map(|_| ())
}

fn import_function(
    body: &BodyDef,
    file: Option<&Arc<MappedFile>>,
    registry: &Registry,
) -> Result<Function> {
    let mut graph = Graph::new();
    import_nodes(&mut graph, &body.nodes, file, registry)?;
    let is_boundary = |op: &str| op == ARG || op == RETVAL;
    let mut targets: Vec<NodeId> = graph
        .iter()
        .filter(|(_, n)| n.def.flags.stateful && !is_boundary(n.op()))
        .map(|(id, _)| id)
        .collect();
    for name in &body.control_ret {
        let id = graph.find(name);
        let id = id.ok_or_else(|| invalid_argument!("control output '{name}' is no node"))?;
        if !targets.contains(&id) {
            targets.push(id);
        }
    }
    graph.set_targets(targets);
    Function::new(graph)
}

/// TensorFlow's rule for node names in files: letters, digits and `_ . / \ > -`, the first a letter, a digit,
/// `.` or `_`.
pub fn is_valid_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_'))
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_./\\>-".contains(&b))
}

/// Dtypes of what a node takes and gives.
pub(crate) struct Ports {
    pub(crate) inputs: SmallVec<[DType; 4]>,
    pub(crate) outputs: SmallVec<[DType; 4]>,
    /// Which inputs must be references, and which outputs are; empty when none is.
    pub(crate) references: [Vec<bool>; 2],
}

/// Checks the attrs and the number of inputs of a node; what it takes and gives, if its op is known.
pub(crate) fn check_node(node: &proto::NodeDef, registry: &Registry) -> Result<Option<Ports>> {
    let first_control = node.input.iter().position(|i| i.starts_with('^'));
    let after = &node.input[first_control.unwrap_or(node.input.len())..];
    if after.iter().any(|i| !i.starts_with('^')) {
        return Err(invalid_argument!(
            "All control inputs must follow all data inputs"
        ));
    }
    let Some(def) = registry.def(&node.op)? else {
        return Ok(None);
    };
    // The value of a constant is large and is looked at when it is needed.
    let attrs = node.attr.iter();
    let is_value = |name: &str| node.op == "Const" && name == "value";
    let mut attrs = import_attrs(attrs.filter(|(name, _)| !is_value(name)), &def, None)?;
    if node.op == "Const" {
        return Ok(attrs.dtype("dtype").ok().map(|dtype| Ports {
            inputs: SmallVec::new(),
            outputs: smallvec::smallvec![dtype],
            references: Default::default(),
        }));
    }
    def.complete_attrs(&mut attrs)?;
    let inputs = def.input_dtypes(&attrs)?;
    let given = first_control.unwrap_or(node.input.len());
    if inputs.len() != given {
        let expected: Vec<_> = inputs.iter().map(|t| t.name()).collect();
        return Err(invalid_argument!(
            "NodeDef expected inputs '{}' do not match {given} inputs specified; {def}",
            expected.join(", ")
        ));
    }
    Ok(Some(Ports {
        inputs,
        outputs: def.output_dtypes(&attrs)?,
        references: [
            def.input_references(&attrs)?,
            def.output_references(&attrs)?,
        ],
    }))
}

fn import_node(
    node: &proto::NodeDef,
    ids: &FxHashMap<&str, NodeId>,
    file: Option<&Arc<MappedFile>>,
    registry: &Registry,
) -> Result<Node> {
    let def = registry.def(&node.op)?.ok_or_else(|| {
        not_found!(
            "Op type not registered '{}'. `ferroflow inspect` lists everything in a model that is \
             not supported",
            node.op
        )
    })?;
    let mut attrs = import_attrs(&node.attr, &def, file)?;
    def.complete_attrs(&mut attrs)?;
    let outputs = def.output_dtypes(&attrs)?;
    if node.op == "Const" {
        let (value, dtype) = (attrs.tensor("value")?.dtype(), attrs.dtype("dtype")?);
        if value != dtype {
            return Err(invalid_argument!(
                "Type mismatch between value ({value}) and dtype ({dtype})"
            ));
        }
    }
    let mut inputs = SmallVec::new();
    let mut controls = SmallVec::new();
    for input in &node.input {
        if let Some(name) = input.strip_prefix('^') {
            let id = lookup(ids, name, node)?;
            if !controls.contains(&id) {
                controls.push(id);
            }
            continue;
        }
        if !controls.is_empty() {
            return Err(invalid_argument!(
                "All control inputs must follow all data inputs in NodeDef: {{{{node {}}}}}",
                node.name
            ));
        }
        let (name, slot) = crate::parse_tensor_name(input)?;
        inputs.push(Output::new(lookup(ids, name, node)?, slot));
    }
    Ok(Node {
        name: node.name.clone(),
        def,
        attrs,
        inputs,
        controls,
        device: node.device.clone(),
        outputs,
    })
}

fn lookup(ids: &FxHashMap<&str, NodeId>, name: &str, node: &proto::NodeDef) -> Result<NodeId> {
    ids.get(name)
        .copied()
        .ok_or_else(|| invalid_argument!("Node '{}': Unknown input node '{name}'", node.name))
}

pub(crate) fn import_attrs<'a>(
    proto: impl IntoIterator<Item = (&'a String, &'a proto::AttrValue)>,
    def: &OpDef,
    file: Option<&Arc<MappedFile>>,
) -> Result<Attrs> {
    proto
        .into_iter()
        // Packed weights are for who has packed them.
        .filter(|(name, _)| *name != PACKED)
        .map(|(name, value)| {
            let static_name = def.attr(name).map(|a| a.name.clone());
            let value =
                import_attr(value, file).map_err(|e| e.note(format!("in attr '{name}'")))?;
            Ok((
                static_name.unwrap_or_else(|| Name::Owned(name.clone())),
                value,
            ))
        })
        .collect()
}

fn import_attr(value: &proto::AttrValue, file: Option<&Arc<MappedFile>>) -> Result<AttrValue> {
    let Some(value) = &value.value else {
        // An AttrValue without any field set is an empty list in files of some producers.
        return Ok(AttrValue::List(Vec::new()));
    };
    Ok(match value {
        Proto::S(s) => AttrValue::Str(s.clone()),
        Proto::I(i) => AttrValue::Int(*i),
        Proto::F(f) => AttrValue::Float(*f),
        Proto::B(b) => AttrValue::Bool(*b),
        Proto::Type(t) => AttrValue::Type(import_dtype(*t)?),
        Proto::Shape(s) => AttrValue::Shape(shape_from_proto(s)?),
        Proto::Tensor(t) => AttrValue::Tensor(tensor_from_proto(t, file)?),
        Proto::Func(f) => AttrValue::Func(import_func(f, file)?),
        Proto::Placeholder(p) => AttrValue::Placeholder(p.clone()),
        Proto::List(l) => AttrValue::List(import_list(l, file)?),
    })
}

fn import_func(func: &proto::NameAttrList, file: Option<&Arc<MappedFile>>) -> Result<FuncRef> {
    let attrs = func
        .attr
        .iter()
        .map(|(k, v)| Ok((Name::Owned(k.clone()), import_attr(v, file)?)))
        .collect::<Result<Attrs>>()?;
    Ok(FuncRef {
        name: func.name.clone(),
        attrs,
    })
}

fn import_list(
    list: &proto::attr_value::ListValue,
    file: Option<&Arc<MappedFile>>,
) -> Result<Vec<AttrValue>> {
    let mut out = Vec::new();
    out.extend(list.s.iter().cloned().map(AttrValue::Str));
    out.extend(list.i.iter().copied().map(AttrValue::Int));
    out.extend(list.f.iter().copied().map(AttrValue::Float));
    out.extend(list.b.iter().copied().map(AttrValue::Bool));
    for t in &list.r#type {
        out.push(AttrValue::Type(import_dtype(*t)?));
    }
    for s in &list.shape {
        out.push(AttrValue::Shape(shape_from_proto(s)?));
    }
    for t in &list.tensor {
        out.push(AttrValue::Tensor(tensor_from_proto(t, file)?));
    }
    for f in &list.func {
        out.push(AttrValue::Func(import_func(f, file)?));
    }
    Ok(out)
}

fn import_dtype(number: i32) -> Result<DType> {
    match DType::from_number(number) {
        Some(dtype) => Ok(dtype),
        None if DType::from_number(number - 100).is_some() => Err(unimplemented_error!(
            "reference dtypes as attr values are not supported"
        )),
        None => Err(invalid_argument!("{number} is no known dtype number")),
    }
}
