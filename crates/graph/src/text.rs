//! A compact text form for golden tests and for `inspect --after`.

use crate::{Graph, NodeId, topological_order};
use ferroflow_opdef::AttrValue;
use std::fmt::Write;

/// One line a node, in topological order: `name = Op{attr=value, …}(input, input:1, ^control)`.
///
/// Attrs that equal their defaults and attrs that are dtypes are left out.
pub fn to_text(graph: &Graph) -> String {
    let order = topological_order(graph)
        .unwrap_or_else(|_| graph.iter().map(|(id, _)| id).collect::<Vec<NodeId>>());
    let mut out = String::new();
    for id in order {
        let node = graph.node(id);
        let attrs: Vec<String> = node
            .attrs
            .iter()
            .filter(|(name, value)| {
                let default = node.def.attr(name).and_then(|a| a.default.as_ref());
                !matches!(value, AttrValue::Type(_))
                    && !default.is_some_and(|d| d.same_value(value))
            })
            .map(|(name, value)| format!("{name}={}", format_attr(value)))
            .collect();
        let _ = write!(out, "{} = {}", node.name, node.op());
        if !attrs.is_empty() {
            let _ = write!(out, "{{{}}}", attrs.join(", "));
        }
        let inputs = node.inputs.iter().map(|i| graph.output_name(*i));
        let controls = node
            .controls
            .iter()
            .map(|c| format!("^{}", graph.node(*c).name));
        let _ = writeln!(
            out,
            "({})",
            inputs.chain(controls).collect::<Vec<_>>().join(", ")
        );
    }
    out
}

pub(crate) fn format_attr(value: &AttrValue) -> String {
    match value {
        AttrValue::Str(s) => format!("{:?}", String::from_utf8_lossy(s)),
        AttrValue::Int(i) => i.to_string(),
        AttrValue::Float(f) => f.to_string(),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::Type(t) => t.to_string(),
        AttrValue::Shape(s) => s.to_string(),
        AttrValue::Tensor(t) if t.shape().num_elements() <= 8 => match t.get() {
            Ok(value) => format!("{}{} {value}", t.dtype(), t.shape()),
            Err(_) => format!("{t:?}"),
        },
        AttrValue::Tensor(t) => format!("{t:?}"),
        AttrValue::Func(f) => f.name.clone(),
        AttrValue::Placeholder(p) => format!("${p}"),
        AttrValue::List(items) => {
            format!(
                "[{}]",
                items.iter().map(format_attr).collect::<Vec<_>>().join(",")
            )
        }
    }
}
