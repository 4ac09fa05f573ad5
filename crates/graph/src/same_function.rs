//! Whether two functions are the same (TensorFlow: `FunctionDefsEqual` of `core/framework/function.cc`).

use ferroflow_model::proto::{AttrValue, FunctionDef, NodeDef};
use std::collections::HashMap;

/// Returns whether two functions have the same signature, attrs, nodes and results: in any order, and
/// whatever tools noted in attrs that begin with an underscore or in debug information.
pub fn same_function(a: &FunctionDef, b: &FunctionDef) -> bool {
    a.signature == b.signature
        && same_attrs(&a.attr, &b.attr)
        && a.arg_attr == b.arg_attr
        && a.ret == b.ret
        && a.control_ret == b.control_ret
        && same_nodes(&a.node_def, &b.node_def)
}

fn same_nodes(a: &[NodeDef], b: &[NodeDef]) -> bool {
    let by_name: HashMap<&str, &NodeDef> = b.iter().map(|n| (n.name.as_str(), n)).collect();
    let is_there = |n: &NodeDef| {
        by_name
            .get(n.name.as_str())
            .is_some_and(|m| same_node(n, m))
    };
    a.len() == b.len() && by_name.len() == b.len() && a.iter().all(is_there)
}

fn same_node(a: &NodeDef, b: &NodeDef) -> bool {
    let split = |n: &NodeDef| {
        let (mut control, data): (Vec<String>, Vec<String>) =
            n.input.iter().cloned().partition(|i| i.starts_with('^'));
        control.sort();
        (data, control)
    };
    a.op == b.op && a.device == b.device && split(a) == split(b) && same_attrs(&a.attr, &b.attr)
}

fn same_attrs(a: &HashMap<String, AttrValue>, b: &HashMap<String, AttrValue>) -> bool {
    let count = |attrs: &HashMap<String, AttrValue>| {
        attrs.keys().filter(|name| !name.starts_with('_')).count()
    };
    let is_there =
        |(name, value): (&String, &AttrValue)| name.starts_with('_') || b.get(name) == Some(value);
    count(a) == count(b) && a.iter().all(is_there)
}
