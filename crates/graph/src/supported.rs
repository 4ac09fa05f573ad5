//! The part of a `GraphDef` whose ops are all supported.

use crate::parse_tensor_name;
use ferroflow_model::proto::{FunctionDef, GraphDef, NodeDef, attr_value::Value};
use ferroflow_opdef::Registry;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Nodes that were left out of a graph because they need an op that is not supported: name of the
/// node → the op.
pub type LeftOut = BTreeMap<String, String>;

/// Splits off the nodes that cannot run: those whose op, or an op in a function that they call, is
/// not in the registry, and everything that needs them.
///
/// SavedModels also hold graphs for saving and signatures for training; the supported part can still run.
pub fn supported_part(graph: &GraphDef, registry: &Registry) -> (GraphDef, LeftOut) {
    let functions = graph.library.iter().flat_map(|l| &l.function);
    let mut search = Search {
        registry,
        functions: functions
            .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f)))
            .collect(),
        known: FxHashMap::default(),
    };
    let mut left_out = LeftOut::new();
    let mut readers: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
    let mut stack = Vec::new();
    for node in &graph.node {
        if let Some(op) = search.missing(node) {
            left_out.insert(node.name.clone(), op);
            stack.push(node.name.as_str());
        }
        for input in &node.input {
            let name = input.strip_prefix('^').unwrap_or(input);
            let name = parse_tensor_name(name).map_or(name, |(name, _)| name);
            readers.entry(name).or_default().push(&node.name);
        }
    }
    while let Some(name) = stack.pop() {
        let op = left_out.get(name).cloned().unwrap_or_default();
        for reader in readers.remove(name).unwrap_or_default() {
            if !left_out.contains_key(reader) {
                left_out.insert(reader.to_string(), op.clone());
                stack.push(reader);
            }
        }
    }
    let kept = graph
        .node
        .iter()
        .filter(|n| !left_out.contains_key(&n.name));
    let part = GraphDef {
        node: kept.cloned().collect(),
        versions: graph.versions.clone(),
        library: graph.library.clone(),
        ..Default::default()
    };
    (part, left_out)
}

struct Search<'a> {
    registry: &'a Registry,
    functions: FxHashMap<&'a str, &'a FunctionDef>,
    /// The missing op of each function that was searched.
    known: FxHashMap<&'a str, Option<String>>,
}

impl<'a> Search<'a> {
    /// An op that `node` needs and that is not supported.
    fn missing(&mut self, node: &'a NodeDef) -> Option<String> {
        if self.functions.contains_key(node.op.as_str()) {
            return self.missing_in(&node.op);
        }
        if self.registry.op(&node.op).is_none() {
            return Some(node.op.clone());
        }
        let called = node.attr.values().flat_map(|a| match &a.value {
            Some(Value::Func(f)) => std::slice::from_ref(&**f),
            Some(Value::List(list)) => &list.func[..],
            _ => &[],
        });
        called
            .into_iter()
            .find_map(|f| self.missing_in(f.name.as_str()))
    }

    fn missing_in(&mut self, function: &'a str) -> Option<String> {
        if let Some(known) = self.known.get(function) {
            return known.clone();
        }
        let Some(&body) = self.functions.get(function) else {
            // A SymbolicGradient may be that of an op.
            if self.registry.op(function).is_some() {
                return None;
            }
            return Some(format!("function {function}"));
        };
        // A recursive function depends on its other nodes.
        self.known.insert(function, None);
        let missing = body.node_def.iter().find_map(|n| self.missing(n));
        self.known.insert(function, missing.clone());
        missing
    }
}
