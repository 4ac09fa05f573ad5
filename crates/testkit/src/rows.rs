//! Golden rows: a call of an op and TensorFlow's result, as a line of JSON.

use crate::tensors::{Res, base64, number, tensor};
use ferroflow_opdef::{AttrValue, Attrs, Name};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::Path;

/// One call of an op and TensorFlow's result.
pub struct Row {
    /// Op name.
    pub op: String,
    /// Attrs of the node.
    pub attrs: Attrs,
    /// Inputs.
    pub inputs: Vec<Tensor>,
    /// TensorFlow's result.
    pub expect: Expect,
    /// Outputs that TensorFlow leaves unspecified.
    pub unchecked: Vec<usize>,
    /// Largest difference, relative to the largest expected magnitude.
    pub tol: f64,
}

/// Expected result of a row.
pub enum Expect {
    /// All outputs.
    Outputs(Vec<Tensor>),
    /// An error.
    Error {
        /// TensorFlow's code.
        code: i64,
        /// A part of the message.
        contains: String,
    },
}

/// Parses one line.
pub fn parse_row(line: &str) -> Res<Row> {
    let json: Json = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let attrs = json["attrs"].as_object().ok_or("attrs")?;
    let attrs = attrs
        .iter()
        .map(|(k, v)| Ok((Name::Owned(k.clone()), attr(v)?)))
        .collect::<Res<Attrs>>()?;
    let tensors = |key: &str| -> Res<Vec<Tensor>> {
        json[key]
            .as_array()
            .ok_or("no array")?
            .iter()
            .map(tensor)
            .collect()
    };
    let expect = match json.get("error") {
        Some(e) => Expect::Error {
            code: e["code"].as_i64().ok_or("code")?,
            contains: e["contains"].as_str().unwrap_or("").to_string(),
        },
        None => Expect::Outputs(tensors("outputs")?),
    };
    Ok(Row {
        op: json["op"].as_str().ok_or("op")?.to_string(),
        attrs,
        inputs: tensors("inputs")?,
        expect,
        unchecked: match json.get("unchecked") {
            Some(list) => {
                let list = list.as_array().ok_or("unchecked")?.iter();
                list.map(|i| Ok(i.as_u64().ok_or("unchecked")? as usize))
                    .collect::<Res<_>>()?
            }
            None => Vec::new(),
        },
        tol: json["tol"].as_f64().unwrap_or(0.0),
    })
}

fn attr(json: &Json) -> Res<AttrValue> {
    let (kind, v) = json
        .as_object()
        .and_then(|o| o.iter().next())
        .ok_or("attr is not an object")?;
    Ok(match kind.as_str() {
        "i" => AttrValue::Int(v.as_i64().ok_or("i")?),
        "f" => AttrValue::Float(number(v)? as f32),
        "b" => AttrValue::Bool(v.as_bool().ok_or("b")?),
        "s" => AttrValue::str(v.as_str().ok_or("s")?),
        "b64" => AttrValue::Str(base64(v.as_str().ok_or("b64")?)?.into()),
        "type" => AttrValue::Type(DType::from_name(v.as_str().ok_or("type")?).ok_or("type")?),
        "shape" => {
            let dims = v.as_array().map(|d| {
                d.iter()
                    .map(|x| x.as_i64().unwrap_or(-1))
                    .collect::<Vec<_>>()
            });
            AttrValue::Shape(PartialShape::from_tf(dims.as_deref()).map_err(|e| e.to_string())?)
        }
        "tensor" => AttrValue::Tensor(tensor(v)?.into()),
        "list" => AttrValue::List(
            v.as_array()
                .ok_or("list")?
                .iter()
                .map(attr)
                .collect::<Res<_>>()?,
        ),
        other => return Err(format!("attr kind {other}")),
    })
}

/// Returns the ops of the rows of every file of `folder`.
pub fn ops(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("the folder of rows exists");
    let paths = entries.map(|e| e.expect("readable").path());
    let mut found = BTreeSet::new();
    for path in paths.filter(|p| p.extension().is_some_and(|e| e == "jsonl")) {
        let text = std::fs::read_to_string(path).expect("readable rows");
        let ops = text.lines().filter_map(|line| {
            let name = line.strip_prefix("{\"op\":\"")?;
            name.split_once('"').map(|(op, _)| op.to_string())
        });
        found.extend(ops);
    }
    found
}
