//! The description of a model file, for models with unsupported ops.

use crate::out::say;
use ferroflow_base::Result;
use ferroflow_model::proto::{GraphDef, NodeDef, attr_value::Value};
use ferroflow_model::{GraphFile, shape_from_proto};
use ferroflow_runtime::{DType, PartialShape};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Prints inputs, outputs, parameters and ops.
pub fn show(path: &Path) -> Result<()> {
    let file = GraphFile::open(path)?;
    let graph = &file.graph;
    say!("inputs:");
    for node in graph
        .node
        .iter()
        .filter(|n| n.op.starts_with("Placeholder"))
    {
        let dtype = dtype(node).map_or("?", DType::numpy_name);
        say!("  {}:0  {dtype}{}", node.name, shape(node));
    }
    say!("outputs:");
    for node in outputs(graph) {
        say!("  {}  {}", node.name, node.op);
    }
    say!("nodes: {}", graph.node.len());
    let constants = graph.node.iter().filter(|n| n.op == "Const");
    say!("parameters: {}", constants.map(elements).sum::<usize>());
    say!("ops:");
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &graph.node {
        *ops.entry(&node.op).or_default() += 1;
    }
    let mut ops: Vec<_> = ops.into_iter().collect();
    ops.sort_unstable_by_key(|(op, n)| (usize::MAX - n, *op));
    for (op, n) in ops {
        say!("  {op:<32} {n:>6}");
    }
    Ok(())
}

fn dtype(node: &NodeDef) -> Option<DType> {
    match node.attr.get("dtype")?.value.as_ref()? {
        Value::Type(t) => DType::from_number(*t),
        _ => None,
    }
}

fn shape(node: &NodeDef) -> PartialShape {
    match node.attr.get("shape").and_then(|a| a.value.as_ref()) {
        Some(Value::Shape(shape)) => shape_from_proto(shape).unwrap_or_default(),
        _ => PartialShape::unknown(),
    }
}

/// Returns nodes that no other node reads.
fn outputs(graph: &GraphDef) -> impl Iterator<Item = &NodeDef> {
    let node_of = |input: &str| {
        let name = input.trim_start_matches('^');
        name.split(':').next().unwrap_or(name).to_string()
    };
    let inputs = graph.node.iter().flat_map(|n| &n.input);
    let read: HashSet<String> = inputs.map(|i| node_of(i)).collect();
    graph.node.iter().filter(move |n| !read.contains(&n.name))
}

fn elements(node: &NodeDef) -> usize {
    let Some(Value::Tensor(tensor)) = node.attr.get("value").and_then(|a| a.value.as_ref()) else {
        return 0;
    };
    let dims = tensor.tensor_shape.iter().flat_map(|s| &s.dim);
    dims.map(|d| usize::try_from(d.size).unwrap_or(0)).product()
}
