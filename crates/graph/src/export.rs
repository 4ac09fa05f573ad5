//! [`Graph`] → `GraphDef`.

use crate::Graph;
use ferroflow_base::Result;
use ferroflow_model::proto::{self, attr_value::Value as Proto};
use ferroflow_model::{shape_to_proto, tensor_to_proto};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use std::collections::HashMap;

/// The file form of a graph. Importing it again gives the same graph.
pub fn export_graph(graph: &Graph) -> Result<proto::GraphDef> {
    let mut def = proto::GraphDef {
        versions: Some(proto::VersionDef {
            producer: graph.producer,
            ..Default::default()
        }),
        ..Default::default()
    };
    for (_, node) in graph.iter() {
        let mut input: Vec<String> = node.inputs.iter().map(|i| graph.output_name(*i)).collect();
        input.extend(
            node.controls
                .iter()
                .map(|c| format!("^{}", graph.node(*c).name)),
        );
        def.node.push(proto::NodeDef {
            name: node.name.clone(),
            op: node.op().to_string(),
            input,
            device: node.device.clone(),
            attr: export_attrs(&node.attrs)?,
            ..Default::default()
        });
    }
    Ok(def)
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

fn export_attr(value: &AttrValue) -> Result<proto::AttrValue> {
    let value = match value {
        AttrValue::Str(s) => Proto::S(s.clone()),
        AttrValue::Int(i) => Proto::I(*i),
        AttrValue::Float(f) => Proto::F(*f),
        AttrValue::Bool(b) => Proto::B(*b),
        AttrValue::Type(t) => Proto::Type(*t as i32),
        AttrValue::Shape(s) => Proto::Shape(shape_to_proto(s)),
        AttrValue::Tensor(t) => Proto::Tensor(tensor_to_proto(&t.get()?)?),
        AttrValue::Func(f) => Proto::Func(export_func(f)?),
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
                    AttrValue::Tensor(t) => list.tensor.push(tensor_to_proto(&t.get()?)?),
                    AttrValue::Func(f) => list.func.push(export_func(f)?),
                    AttrValue::Placeholder(_) | AttrValue::List(_) => {
                        return Err(ferroflow_base::invalid_argument!(
                            "a list attr holds a placeholder or another list"
                        ));
                    }
                }
            }
            Proto::List(list)
        }
    };
    Ok(proto::AttrValue { value: Some(value) })
}
