//! Requests: tensors and examples of JSON values.
//!
//! The rules and messages are those of TensorFlow Serving's `json_tensor.cc`.

use super::parse::{Number, Value, parse};
use super::write::shown;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use ferroflow_base::{Result, Status, invalid_argument, ordered_set, unimplemented_error};
use ferroflow_model::encode;
use ferroflow_model::proto::serving::{ExampleList, ExampleListWithContext, Input, input::Kind};
use ferroflow_model::proto::{
    BytesList, Example, Feature, Features, FloatList, Int64List, feature,
};
use ferroflow_runtime::{DType, Shape, SignatureTensor, Tensor};
use std::collections::BTreeSet;

/// How the tensors of a request are arranged, and those of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `instances`: one item for each row.
    Rows,
    /// `inputs`: one item for each input.
    Columns,
}

/// A prediction request.
pub struct Predict {
    /// The signature's name; empty if it is not given.
    pub signature: String,
    /// The arrangement.
    pub format: Format,
    /// The inputs by key.
    pub inputs: Vec<(String, Tensor)>,
}

const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The object of a request.
fn document(body: &[u8]) -> Result<Value<'_>> {
    if body.is_empty() {
        return Err(invalid_argument!("JSON Parse error: The document is empty"));
    }
    let document = parse(body)?;
    match &document {
        Value::Object(_) => Ok(document),
        other => Err(format_error(other, "Is not object")),
    }
}

#[cold]
fn format_error(value: &Value<'_>, what: &str) -> Status {
    invalid_argument!("JSON Value: {} {what}", shown(value))
}

fn signature_of(document: &Value<'_>) -> Result<String> {
    match document.get("signature_name") {
        None => Ok(String::new()),
        Some(Value::String(name)) => Ok(text(name)),
        Some(_) => Err(invalid_argument!(
            "JSON Value: {} not formatted correctly. 'signature_name' key must be a string value.",
            shown(document)
        )),
    }
}

/// Reads a prediction request. `ports` returns the inputs of a signature.
///
/// # Errors
/// INVALID_ARGUMENT if the JSON does not parse or does not fit the inputs; those of `ports`.
pub fn predict_from_json<'p>(
    body: &[u8],
    ports: impl FnOnce(&str) -> Result<&'p [SignatureTensor]>,
) -> Result<Predict> {
    let document = document(body)?;
    let signature = signature_of(&document)?;
    let ports = ports(&signature)?;
    if ports.is_empty() {
        let name = if signature.is_empty() {
            "DEFAULT"
        } else {
            &signature
        };
        return Err(invalid_argument!(
            "Failed to get input map for signature: {name}"
        ));
    }
    let (instances, inputs) = (document.get("instances"), document.get("inputs"));
    let (format, inputs) = match (instances, inputs) {
        (Some(_), Some(_)) => {
            return Err(format_error(
                &document,
                "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ",
            ));
        }
        (Some(Value::Array(instances)), None) => {
            if instances.is_empty() {
                return Err(format_error(&document, "No values in 'instances' array"));
            }
            (Format::Rows, from_rows(instances, ports)?)
        }
        (Some(_), None) => {
            return Err(format_error(
                &document,
                "Expecting 'instances' to be an list/array",
            ));
        }
        (None, Some(inputs)) => (Format::Columns, from_columns(inputs, ports)?),
        (None, None) => return Err(invalid_argument!("Missing 'inputs' or 'instances' key")),
    };
    Ok(Predict {
        signature,
        format,
        inputs,
    })
}

/// Whether a value is `{"b64": "…"}`.
fn is_base64(value: &Value<'_>) -> bool {
    let Value::Object(members) = value else {
        return false;
    };
    matches!(&members[..], [(key, Value::String(_))] if **key == *b"b64")
}

fn decode_base64(value: &Value<'_>) -> Result<Bytes> {
    let Some(Value::String(encoded)) = value.get("b64").filter(|_| is_base64(value)) else {
        return Err(format_error(
            value,
            "not formatted correctly for base64 data",
        ));
    };
    let decoded = STANDARD.decode(&**encoded);
    decoded
        .map(Bytes::from)
        .map_err(|_| invalid_argument!("Unable to base64 decode"))
}

/// The elements of a tensor under construction.
enum Elements {
    Float(Vec<f32>),
    Double(Vec<f64>),
    Int32(Vec<i32>),
    Int16(Vec<i16>),
    Int8(Vec<i8>),
    Uint8(Vec<u8>),
    Int64(Vec<i64>),
    Uint32(Vec<u32>),
    Uint64(Vec<u64>),
    Bool(Vec<bool>),
    String(Vec<Bytes>),
    Unsupported(DType),
}

/// Appends a value, if it fits; returns whether it does.
fn put<T>(list: &mut Vec<T>, value: Option<T>) -> bool {
    let fits = value.is_some();
    list.extend(value);
    fits
}

impl Elements {
    fn new(dtype: DType) -> Elements {
        match dtype {
            DType::Float => Elements::Float(Vec::new()),
            DType::Double => Elements::Double(Vec::new()),
            DType::Int32 => Elements::Int32(Vec::new()),
            DType::Int16 => Elements::Int16(Vec::new()),
            DType::Int8 => Elements::Int8(Vec::new()),
            DType::Uint8 => Elements::Uint8(Vec::new()),
            DType::Int64 => Elements::Int64(Vec::new()),
            DType::Uint32 => Elements::Uint32(Vec::new()),
            DType::Uint64 => Elements::Uint64(Vec::new()),
            DType::Bool => Elements::Bool(Vec::new()),
            DType::String => Elements::String(Vec::new()),
            other => Elements::Unsupported(other),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Elements::Float(_) => DType::Float,
            Elements::Double(_) => DType::Double,
            Elements::Int32(_) => DType::Int32,
            Elements::Int16(_) => DType::Int16,
            Elements::Int8(_) => DType::Int8,
            Elements::Uint8(_) => DType::Uint8,
            Elements::Int64(_) => DType::Int64,
            Elements::Uint32(_) => DType::Uint32,
            Elements::Uint64(_) => DType::Uint64,
            Elements::Bool(_) => DType::Bool,
            Elements::String(_) => DType::String,
            Elements::Unsupported(dtype) => *dtype,
        }
    }

    /// Appends a value that is not a list. 32-bit numbers become smaller ones as in TensorFlow: by their low bits.
    fn push(&mut self, value: &Value<'_>) -> Result<()> {
        let int = |v: &Value<'_>| match v {
            Value::Number(Number::Int(v)) => i32::try_from(*v).ok(),
            _ => None,
        };
        let unsigned = |v: &Value<'_>| match v {
            Value::Number(Number::Int(v)) => u64::try_from(*v).ok(),
            Value::Number(Number::Uint(v)) => Some(*v),
            _ => None,
        };
        let fits = match (&mut *self, value) {
            (Elements::String(list), Value::Object(_)) => {
                list.push(decode_base64(value)?);
                return Ok(());
            }
            (Elements::Unsupported(dtype), value) if !matches!(value, Value::Object(_)) => {
                return Err(unimplemented_error!(
                    "Conversion of JSON Value: {} to type: {dtype}",
                    shown(value)
                ));
            }
            (Elements::Float(list), Value::Number(v)) => put(list, Some(v.to_f64() as f32)),
            (Elements::Double(list), Value::Number(v)) => put(list, Some(v.to_f64())),
            (Elements::Int32(list), v) => put(list, int(v)),
            (Elements::Int16(list), v) => put(list, int(v).map(|v| v as i16)),
            (Elements::Int8(list), v) => put(list, int(v).map(|v| v as i8)),
            (Elements::Uint8(list), v) => put(list, int(v).map(|v| v as u8)),
            (Elements::Int64(list), Value::Number(Number::Int(v))) => put(list, Some(*v)),
            (Elements::Uint32(list), v) => {
                put(list, unsigned(v).and_then(|v| u32::try_from(v).ok()))
            }
            (Elements::Uint64(list), v) => put(list, unsigned(v)),
            (Elements::Bool(list), Value::Bool(v)) => put(list, Some(*v)),
            (Elements::String(list), Value::String(v)) => {
                put(list, Some(Bytes::copy_from_slice(v)))
            }
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(type_error(value, self.dtype())),
        }
    }

    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Elements::Float(v) => Tensor::from_slice(shape, &v),
            Elements::Double(v) => Tensor::from_slice(shape, &v),
            Elements::Int32(v) => Tensor::from_slice(shape, &v),
            Elements::Int16(v) => Tensor::from_slice(shape, &v),
            Elements::Int8(v) => Tensor::from_slice(shape, &v),
            Elements::Uint8(v) => Tensor::from_slice(shape, &v),
            Elements::Int64(v) => Tensor::from_slice(shape, &v),
            Elements::Uint32(v) => Tensor::from_slice(shape, &v),
            Elements::Uint64(v) => Tensor::from_slice(shape, &v),
            Elements::Bool(v) => Tensor::from_slice(shape, &v),
            Elements::String(v) => Tensor::from_strings(shape, v),
            Elements::Unsupported(dtype) => Tensor::zeros(dtype, shape),
        }
    }
}

#[cold]
fn type_error(value: &Value<'_>, dtype: DType) -> Status {
    invalid_argument!(
        "JSON Value: {} Type: {} is not of expected type: {dtype}",
        shown(value),
        value.type_name()
    )
}

/// The dimensions of nested lists, from the first list of each level.
fn dims_of(mut value: &Value<'_>) -> Vec<usize> {
    let mut dims = Vec::new();
    while let Value::Array(list) = value {
        dims.push(list.len());
        let Some(first) = list.first() else {
            break;
        };
        value = first;
    }
    dims
}

/// Appends the elements of nested lists of these dimensions.
fn fill(value: &Value<'_>, dims: &[usize], level: usize, to: &mut Elements) -> Result<()> {
    let Value::Array(list) = value else {
        if level != dims.len() {
            return Err(invalid_argument!(
                "JSON Value: {} found at incorrect level: {} in the JSON DOM. Expected at level: {}",
                shown(value),
                level + 1,
                dims.len()
            ));
        }
        return to.push(value);
    };
    let Some(&expected) = dims.get(level) else {
        return Err(invalid_argument!(
            "Encountered list at unexpected level: {level} expected < {}",
            dims.len()
        ));
    };
    if list.len() != expected {
        return Err(invalid_argument!(
            "Encountered list at unexpected size: {} at level: {level} expected size: {expected}",
            list.len()
        ));
    }
    list.iter().try_for_each(|v| fill(v, dims, level + 1, to))
}

fn shape(dims: &[usize]) -> Result<Shape> {
    let dims: Vec<i64> = dims
        .iter()
        .map(|&d| i64::try_from(d).unwrap_or(-1))
        .collect();
    Shape::checked(&dims)
}

fn tensor(value: &Value<'_>, dtype: DType) -> Result<Tensor> {
    let dims = dims_of(value);
    let mut elements = Elements::new(dtype);
    fill(value, &dims, 0, &mut elements)?;
    elements.into_tensor(shape(&dims)?)
}

fn from_columns(inputs: &Value<'_>, ports: &[SignatureTensor]) -> Result<Vec<(String, Tensor)>> {
    if !matches!(inputs, Value::Object(_)) || is_base64(inputs) {
        let [port] = ports else {
            return Err(invalid_argument!(
                "inputs is a plain value/list, but expecting an object as multiple input tensors \
                 required as per tensorinfo_map"
            ));
        };
        return Ok(vec![(port.key.clone(), tensor(inputs, port.dtype)?)]);
    }
    let named = ports.iter().map(|port| {
        let value = inputs.get(&port.key).ok_or_else(|| {
            invalid_argument!("Missing named input: {} in 'inputs' object.", port.key)
        })?;
        Ok((port.key.clone(), tensor(value, port.dtype)?))
    });
    named.collect()
}

/// An input whose rows are being read.
struct Column<'p> {
    port: &'p SignatureTensor,
    dims: Option<Vec<usize>>,
    n_elements: usize,
    elements: Elements,
}

impl Column<'_> {
    /// Appends a row, which must have the shape of the first one.
    fn push(&mut self, value: &Value<'_>) -> Result<()> {
        let dims = dims_of(value);
        fill(value, &dims, 0, &mut self.elements)?;
        let n = dims.iter().product();
        match &self.dims {
            None => (self.dims, self.n_elements) = (Some(dims), n),
            Some(_) if self.n_elements != n => {
                return Err(invalid_argument!(
                    "Expecting tensor size: {} but got: {n}",
                    self.n_elements
                ));
            }
            Some(first) if *first != dims => {
                let list = |dims: &[usize]| {
                    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
                    dims.join(",")
                };
                return Err(invalid_argument!(
                    "Expecting shape [{}] but got: [{}]",
                    list(first),
                    list(&dims)
                ));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

fn from_rows(rows: &[Value<'_>], ports: &[SignatureTensor]) -> Result<Vec<(String, Tensor)>> {
    if !matches!(rows.first(), Some(Value::Object(_))) && ports.len() > 1 {
        return Err(invalid_argument!(
            "instances is a plain list, but expecting list of objects as multiple input tensors \
             required as per tensorinfo_map"
        ));
    }
    let is_object = |v: &Value<'_>| matches!(v, Value::Object(_)) && !is_base64(v);
    let are_objects = rows.first().is_some_and(is_object);
    let mut columns: Vec<Column<'_>> = ports
        .iter()
        .map(|port| Column {
            port,
            dims: None,
            n_elements: 0,
            elements: Elements::new(port.dtype),
        })
        .collect();
    for (i, row) in rows.iter().enumerate() {
        if !are_objects {
            if is_object(row) {
                return Err(invalid_argument!(
                    "Expecting value/list but got object at item {i} of input list"
                ));
            }
            let pushed = columns[0].push(row);
            pushed.map_err(|e| {
                invalid_argument!("Failed to process element: {i} of 'instances' list. Error: {e}")
            })?;
            continue;
        }
        let Value::Object(members) = row else {
            return Err(invalid_argument!(
                "Expecting object but got list at item {i} of input list"
            ));
        };
        if !is_object(row) {
            return Err(invalid_argument!(
                "Expecting object but got list at item {i} of input list"
            ));
        }
        named_row(i, row, members, &mut columns)?;
    }
    let tensors = columns.into_iter().map(|column| {
        let mut dims = vec![rows.len()];
        dims.extend(column.dims.unwrap_or_default());
        Ok((
            column.port.key.clone(),
            column.elements.into_tensor(shape(&dims)?)?,
        ))
    });
    tensors.collect()
}

fn named_row(
    i: usize,
    row: &Value<'_>,
    members: &[(std::borrow::Cow<'_, [u8]>, Value<'_>)],
    columns: &mut [Column<'_>],
) -> Result<()> {
    let mut keys = BTreeSet::new();
    for (key, value) in members {
        let name = text(key);
        let column = columns.iter_mut().find(|c| c.port.key == name);
        let pushed = match column {
            Some(column) if keys.insert(name.clone()) => column.push(value),
            // The last of two values of a key would count twice.
            Some(_) => Err(invalid_argument!("the key occurs twice")),
            None => Err(invalid_argument!(
                "JSON object: does not have named input: {name}"
            )),
        };
        pushed.map_err(|e| {
            invalid_argument!(
                "Failed to process element: {i} key: {name} of 'instances' list. Error: {e}"
            )
        })?;
    }
    let expected = ordered_set(columns.iter().map(|c| c.port.key.clone()));
    if keys != expected {
        let expected: Vec<String> = expected.into_iter().collect();
        return Err(invalid_argument!(
            "Failed to process element: {i} of 'instances' list. JSON object: {} keys must be equal \
             to: {}",
            shown(row),
            expected.join(",")
        ));
    }
    Ok(())
}

/// Reads a request of examples; returns the signature's name and the examples.
///
/// # Errors
/// INVALID_ARGUMENT if the JSON does not parse or is not a list of examples.
pub fn examples_from_json(body: &[u8]) -> Result<(String, Input)> {
    let document = document(body)?;
    let signature = signature_of(&document)?;
    let context = document.get("context").map(example).transpose()?;
    let examples = match document.get("examples") {
        None => {
            return Err(format_error(
                &document,
                "When method is classify, key 'examples' is expected and was not found",
            ));
        }
        Some(Value::Array(list)) if list.is_empty() => {
            return Err(format_error(
                &document,
                "'examples' value is an empty array",
            ));
        }
        Some(Value::Array(list)) => list.iter().map(example).collect::<Result<Vec<_>>>()?,
        Some(_) => {
            return Err(format_error(
                &document,
                "Expecting 'examples' value to be an list/array",
            ));
        }
    };
    let kind = match context {
        Some(context) => Kind::ExampleListWithContext(ExampleListWithContext { examples, context }),
        None => Kind::ExampleList(ExampleList { examples }),
    };
    Ok((signature, Input { kind: Some(kind) }))
}

fn example(value: &Value<'_>) -> Result<Bytes> {
    let Value::Object(members) = value else {
        return Err(invalid_argument!(
            "Example must be JSON object but got JSON {}",
            value.type_name()
        ));
    };
    let mut features = Features::default();
    for (key, value) in members {
        let name = text(key);
        let mut feature = Feature::default();
        match value {
            Value::Array(list) => list.iter().try_for_each(|v| add(v, &name, &mut feature))?,
            value => add(value, &name, &mut feature)?,
        }
        features.feature.insert(name, feature);
    }
    Ok(encode(&Example {
        features: Some(features),
    })
    .into())
}

/// Appends a value to a feature.
fn add(value: &Value<'_>, name: &str, to: &mut Feature) -> Result<()> {
    use feature::Kind as List;
    let new = match value {
        Value::Bool(_) | Value::Number(Number::Int(_)) => List::Int64List(Int64List::default()),
        Value::Number(Number::Uint(_)) => List::Int64List(Int64List::default()),
        Value::Number(Number::Double(_)) => List::FloatList(FloatList::default()),
        Value::String(_) => List::BytesList(BytesList::default()),
        Value::Object(_) if is_base64(value) => List::BytesList(BytesList::default()),
        _ => {
            return Err(invalid_argument!(
                "Feature: {name} has element with unexpected JSON type: {}",
                value.type_name()
            ));
        }
    };
    match (to.kind.get_or_insert(new), value) {
        (List::Int64List(list), Value::Bool(v)) => list.value.push(i64::from(*v)),
        (List::Int64List(list), Value::Number(Number::Int(v))) => list.value.push(*v),
        (List::Int64List(_), Value::Number(Number::Uint(_))) => {
            return Err(invalid_argument!(
                "Feature: {name} has uint64_t element. Only int64_t is supported."
            ));
        }
        (List::FloatList(list), Value::Number(Number::Double(v))) => list.value.push(*v as f32),
        (List::BytesList(list), Value::String(v)) => list.value.push(Bytes::copy_from_slice(v)),
        (List::BytesList(list), Value::Object(_)) => list.value.push(decode_base64(value)?),
        (kind, _) => {
            let kind = match kind {
                List::BytesList(_) => "bytes",
                List::FloatList(_) => "float",
                List::Int64List(_) => "int64",
            };
            return Err(invalid_argument!(
                "Unexpected element type in feature: {name} expecting type: {kind}"
            ));
        }
    }
    Ok(())
}
