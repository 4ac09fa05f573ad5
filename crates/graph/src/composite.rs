//! Ops that stand for several others.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::attr_value::{ListValue, Value};
use ferroflow_model::proto::{self, DataType, NodeDef};
use std::collections::HashMap;

type Expand = fn(&mut NodeDef) -> Result<Vec<NodeDef>>;

const COMPOSITES: [(&str, Expand); 3] = [
    ("OneShotIterator", factory_call),
    ("FusedPadConv2D", |node| padded_convolution(node, false)),
    ("FusedResizeAndPadConv2D", |node| {
        padded_convolution(node, true)
    }),
];

/// Whether the op stands for several.
pub(crate) fn is_composite(op: &str) -> bool {
    COMPOSITES.iter().any(|(name, _)| *name == op)
}

/// Makes `node` the last of the nodes that its op stands for, and returns those before it, whose
/// names begin with its own; none of another op.
pub(crate) fn parts(node: &mut NodeDef) -> Result<Vec<NodeDef>> {
    match COMPOSITES.iter().find(|(name, _)| *name == node.op) {
        Some((_, expand)) => {
            let (name, op) = (node.name.clone(), node.op.clone());
            expand(node).map_err(|e| e.at_node(&name, &op))
        }
        None => Ok(Vec::new()),
    }
}

/// Makes an iterator take its dataset as an input, and the call that makes the dataset.
fn factory_call(node: &mut NodeDef) -> Result<Vec<NodeDef>> {
    let factory = node.attr.remove("dataset_factory");
    let factory = factory.ok_or_else(|| invalid_argument!("the node has no dataset_factory"))?;
    let types = |types: Vec<i32>| proto::AttrValue {
        value: Some(Value::List(Box::new(ListValue {
            r#type: types,
            ..Default::default()
        }))),
    };
    let call = NodeDef {
        name: format!("{}/_dataset", node.name),
        op: "StatefulPartitionedCall".to_string(),
        input: node.input.clone(),
        device: node.device.clone(),
        attr: HashMap::from([
            ("f".to_string(), factory),
            ("Tin".to_string(), types(Vec::new())),
            (
                "Tout".to_string(),
                types(vec![proto::DataType::DtVariant as i32]),
            ),
        ]),
        ..Default::default()
    };
    node.op = "_OneShotIterator".to_string();
    node.input.insert(0, call.name.clone());
    Ok(vec![call])
}

/// A convolution of a tensor that is resized before, perhaps, and padded with its mirror image.
fn padded_convolution(node: &mut NodeDef, resizes: bool) -> Result<Vec<NodeDef>> {
    let part = |name: &str, op: &str, inputs: &[&str], attrs: &[(&str, Value)]| NodeDef {
        name: format!("{}/_{name}", node.name),
        op: op.to_string(),
        input: inputs.iter().map(|i| i.to_string()).collect(),
        device: node.device.clone(),
        attr: attrs.iter().map(|(k, v)| attr(k, v.clone())).collect(),
        ..Default::default()
    };
    let value = |name: &str| -> Result<Value> {
        let value = node.attr.get(name).and_then(|a| a.value.clone());
        value.ok_or_else(|| invalid_argument!("the node has no attr '{name}'"))
    };
    let (data, controls): (Vec<_>, Vec<_>) = node
        .input
        .iter()
        .cloned()
        .partition(|i| !i.starts_with('^'));
    let dtype = value("T")?;
    let is_float = matches!(&dtype, Value::Type(t) if *t == DataType::DtFloat as i32);
    let mut parts = Vec::new();
    let (mut image, paddings, filter) = match (resizes, &data[..]) {
        (true, [image, size, paddings, filter]) => {
            let align = node.attr.get("resize_align_corners");
            let align = align.and_then(|a| a.value.clone());
            let attrs = [
                ("T", dtype.clone()),
                ("align_corners", align.unwrap_or(Value::B(false))),
                ("half_pixel_centers", Value::B(false)),
            ];
            let resize = part("resize", "ResizeBilinear", &[image, size], &attrs);
            let name = resize.name.clone();
            parts.push(resize);
            (name, paddings, filter)
        }
        (false, [image, paddings, filter]) => (image.clone(), paddings, filter),
        _ => {
            return Err(invalid_argument!(
                "the op takes {} inputs, not {}",
                if resizes { 4 } else { 3 },
                data.len()
            ));
        }
    };
    if resizes && !is_float {
        // What is resized is f32.
        let float = Value::Type(DataType::DtFloat as i32);
        let attrs = [("SrcT", float), ("DstT", dtype.clone())];
        let cast = part("cast", "Cast", &[&image], &attrs);
        image = cast.name.clone();
        parts.push(cast);
    }
    let attrs = [
        ("T", dtype.clone()),
        ("Tpaddings", Value::Type(DataType::DtInt32 as i32)),
        ("mode", value("mode")?),
    ];
    let pad = part("pad", "MirrorPad", &[&image, paddings], &attrs);
    let inputs = [pad.name.clone(), filter.clone()];
    let kept = ["T", "strides", "padding"];
    parts.push(pad);
    node.input = inputs.into_iter().chain(controls).collect();
    node.attr
        .retain(|k, _| kept.contains(&k.as_str()) || k.starts_with('_'));
    node.op = "Conv2D".to_string();
    Ok(parts)
}

fn attr(name: &str, value: Value) -> (String, proto::AttrValue) {
    (name.to_string(), proto::AttrValue { value: Some(value) })
}
