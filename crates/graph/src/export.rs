//! [`Graph`] → `GraphDef`.

use crate::{Function, Graph, Node, Output};
use ferroflow_base::{Result, internal};
use ferroflow_model::proto::{self, attr_value::Value as Proto};
use ferroflow_model::{shape_to_proto, tensor_to_attr_proto};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef, NodeClass};
use std::collections::HashMap;

/// The file form of a graph. Importing it returns the same graph.
///
/// # Errors
/// An attr or a constant has no file form.
pub fn export_graph(graph: &Graph) -> Result<proto::GraphDef> {
    let mut def = proto::GraphDef {
        versions: Some(proto::VersionDef {
            producer: graph.producer,
            ..Default::default()
        }),
        ..Default::default()
    };
    for (_, node) in graph.iter() {
        let inputs = node.inputs.iter().map(|i| graph.output_name(*i));
        def.node.push(export_node(graph, node, inputs.collect())?);
    }
    if !graph.library().is_empty() {
        let mut library = proto::FunctionDefLibrary::default();
        for name in graph.library().names() {
            let function = graph.library().get(name)?;
            library.function.push(export_function(name, function)?);
        }
        def.library = Some(library);
    }
    Ok(def)
}

pub(crate) fn export_node(
    graph: &Graph,
    node: &Node,
    mut input: Vec<String>,
) -> Result<proto::NodeDef> {
    let controls = node.controls.iter();
    input.extend(controls.map(|c| format!("^{}", graph.node(*c).name)));
    Ok(proto::NodeDef {
        name: node.name.clone(),
        op: node.op().to_string(),
        input,
        device: node.device.clone(),
        attr: export_attrs(&node.attrs)?,
        ..Default::default()
    })
}

/// A function in its file form, in which inputs are `ARG`, `NODE:OUTPUT:POSITION` or `^NODE`.
fn export_function(name: &str, function: &Function) -> Result<proto::FunctionDef> {
    let graph = &function.graph;
    let mut signature = proto::OpDef {
        name: name.to_string(),
        is_stateful: graph.iter().any(|(_, n)| n.has_effects()),
        ..Default::default()
    };
    signature.input_arg = vec![Default::default(); function.args.len()];
    signature.output_arg = vec![Default::default(); function.results.len()];
    let mut def = proto::FunctionDef::default();
    for (_, node) in graph.iter() {
        let inputs: Vec<String> = node
            .inputs
            .iter()
            .map(|i| body_input(graph, *i))
            .collect::<Result<_>>()?;
        let (list, is_result) = match node.class() {
            NodeClass::Arg => (&mut signature.input_arg, false),
            NodeClass::Retval => (&mut signature.output_arg, true),
            _ => {
                def.node_def.push(export_node(graph, node, inputs)?);
                continue;
            }
        };
        let arg = usize::try_from(node.attrs.int("index")?).ok();
        let arg = arg.and_then(|i| list.get_mut(i));
        let arg = arg.ok_or_else(|| internal!("'{}' has a wrong index", node.name))?;
        arg.name = node.name.clone();
        arg.r#type = node.attrs.dtype("T")? as i32;
        if is_result {
            let from = inputs.into_iter().next();
            let from = from.ok_or_else(|| internal!("'{}' has no input", node.name))?;
            def.ret.insert(node.name.clone(), from);
        }
    }
    for target in graph.targets() {
        let name = &graph.node(*target).name;
        def.control_ret.insert(name.clone(), name.clone());
        signature.control_output.push(name.clone());
    }
    def.signature = Some(signature);
    Ok(def)
}

fn body_input(graph: &Graph, from: Output) -> Result<String> {
    let node = graph.node(from.node);
    if node.class() == NodeClass::Arg {
        return Ok(node.name.clone());
    }
    let mut left = from.slot as usize;
    for arg in &node.def.outputs {
        let n = arg.dtypes(&node.attrs)?.len();
        if left < n {
            return Ok(format!("{}:{}:{left}", node.name, arg.name()));
        }
        left -= n;
    }
    Err(internal!("'{}' has no output {}", node.name, from.slot))
}

fn export_attrs(attrs: &Attrs) -> Result<HashMap<String, proto::AttrValue>> {
    attrs
        .iter()
        .map(|(k, v)| Ok((k.to_string(), export_attr(v)?)))
        .collect()
}

fn export_func(func: &FuncRef) -> Result<proto::NameAttrList> {
    Ok(proto::NameAttrList {
        name: func.name.clone(),
        attr: export_attrs(&func.attrs)?,
    })
}

/// An attr in its file form.
///
/// # Errors
/// A constant cannot be read, or a list holds a placeholder or another list.
pub fn export_attr(value: &AttrValue) -> Result<proto::AttrValue> {
    let value = match value {
        AttrValue::Str(s) => Proto::S(s.clone()),
        AttrValue::Int(i) => Proto::I(*i),
        AttrValue::Float(f) => Proto::F(*f),
        AttrValue::Bool(b) => Proto::B(*b),
        AttrValue::Type(t) => Proto::Type(*t as i32),
        AttrValue::Shape(s) => Proto::Shape(shape_to_proto(s)),
        AttrValue::Tensor(t) => Proto::Tensor(Box::new(tensor_to_attr_proto(&t.get()?)?)),
        AttrValue::Func(f) => Proto::Func(Box::new(export_func(f)?)),
        AttrValue::Placeholder(p) => Proto::Placeholder(p.clone()),
        AttrValue::List(items) => {
            let mut list = proto::attr_value::ListValue::default();
            for item in items {
                match item {
                    AttrValue::Str(s) => list.s.push(s.clone()),
                    AttrValue::Int(i) => list.i.push(*i),
                    AttrValue::Float(f) => list.f.push(*f),
                    AttrValue::Bool(b) => list.b.push(*b),
                    AttrValue::Type(t) => list.r#type.push(*t as i32),
                    AttrValue::Shape(s) => list.shape.push(shape_to_proto(s)),
                    AttrValue::Tensor(t) => list.tensor.push(tensor_to_attr_proto(&t.get()?)?),
                    AttrValue::Func(f) => list.func.push(export_func(f)?),
                    AttrValue::Placeholder(_) | AttrValue::List(_) => {
                        return Err(ferroflow_base::invalid_argument!(
                            "a list attr holds a placeholder or another list"
                        ));
                    }
                }
            }
            Proto::List(Box::new(list))
        }
    };
    Ok(proto::AttrValue { value: Some(value) })
}
