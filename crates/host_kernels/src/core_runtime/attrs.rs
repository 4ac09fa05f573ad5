//! Attributes of an op, by name and of any kind.

use super::super::dense::{TfrtState, dtype_name};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{AttrNumber, HostDType, HostValue, TypedAttr};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// One attribute.
#[derive(Clone, Debug)]
pub(in super::super) enum OpAttr {
    Number {
        dtype: HostDType,
        bytes: Vec<u8>,
    },
    Array {
        dtype: HostDType,
        bytes: Vec<u8>,
    },
    String(String),
    Type(HostDType),
    Dense {
        dtype: HostDType,
        shape: Vec<i64>,
        bytes: Arc<[u8]>,
    },
    Shape(Option<Vec<i64>>),
    Aggregate(Vec<OpAttr>),
}

impl OpAttr {
    /// Converts an attribute with a header.
    pub(in super::super) fn new(attr: &TypedAttr) -> Result<OpAttr> {
        Ok(match attr {
            TypedAttr::Number { dtype, bytes } => OpAttr::Number {
                dtype: *dtype,
                bytes: bytes.to_vec(),
            },
            TypedAttr::Array { dtype, bytes, .. } => OpAttr::Array {
                dtype: *dtype,
                bytes: bytes.to_vec(),
            },
            TypedAttr::String(_) | TypedAttr::Func(_) => OpAttr::String(match attr {
                TypedAttr::Func(name) => name.to_string(),
                other => other.string()?.to_string(),
            }),
            TypedAttr::Type(dtype) => OpAttr::Type(*dtype),
            TypedAttr::Shape(dims) => OpAttr::Shape(dims.clone()),
            TypedAttr::Dense {
                dtype,
                shape,
                bytes,
            } => OpAttr::Dense {
                dtype: *dtype,
                shape: shape.clone(),
                bytes: Arc::from(*bytes),
            },
            TypedAttr::Aggregate(items) => {
                OpAttr::Aggregate(items.iter().map(OpAttr::new).collect::<Result<_>>()?)
            }
        })
    }
}

/// All attributes of an op, by name.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct OpAttrs(pub(in super::super) BTreeMap<String, OpAttr>);

impl HostValue for OpAttrs {}

impl OpAttrs {
    /// Converts a list of pairs.
    pub(super) fn from_pairs(list: &TypedAttr) -> Result<OpAttrs> {
        let mut attrs = BTreeMap::new();
        for pair in list.elements()? {
            match pair.elements()? {
                [name, value] => attrs.insert(name.string()?.to_string(), OpAttr::new(value)?),
                _ => return Err(invalid_argument!("each op_attr should be a key-value pair")),
            };
        }
        Ok(OpAttrs(attrs))
    }

    pub(super) fn get(&self, name: &str) -> Result<&OpAttr> {
        self.0
            .get(name)
            .ok_or_else(|| invalid_argument!("missing '{name}' attribute"))
    }

    pub(super) fn number<T: AttrNumber>(&self, name: &str) -> Result<T> {
        match self.get(name)? {
            OpAttr::Number { dtype, bytes } if *dtype == T::DTYPE => T::from_bytes(bytes),
            _ => None,
        }
        .ok_or_else(|| invalid_argument!("attribute '{name}' has another type"))
    }

    pub(super) fn numbers<T: AttrNumber>(&self, name: &str) -> Result<Vec<T>> {
        match self.get(name)? {
            OpAttr::Array { bytes, .. } if bytes.is_empty() => Ok(Vec::new()),
            OpAttr::Array { dtype, bytes } if *dtype == T::DTYPE => {
                let size = dtype.size().unwrap_or(1);
                Ok(bytes.chunks(size).filter_map(T::from_bytes).collect())
            }
            _ => Err(invalid_argument!("attribute '{name}' has another type")),
        }
    }

    pub(super) fn string(&self, name: &str) -> Result<&str> {
        match self.get(name)? {
            OpAttr::String(text) => Ok(text),
            _ => Err(invalid_argument!("attribute '{name}' is not a string")),
        }
    }
}

/// Returns TFRT's name of an attribute type.
fn type_name(dtype: HostDType) -> String {
    match dtype {
        HostDType::I1 => "BOOL".to_string(),
        HostDType::STRING => "CHAR".to_string(),
        dtype => dtype_name(dtype, TfrtState::Year2021).to_uppercase(),
    }
}

fn number(dtype: HostDType, bytes: &[u8]) -> String {
    super::super::dense::number(dtype, bytes, TfrtState::Year2021)
}

fn dense(dtype: HostDType, shape: &[i64]) -> String {
    let count: i64 = shape.iter().product();
    let (dtype, rank) = (type_name(dtype), shape.len());
    format!("dtype={dtype}, rank={rank}, elt_count={count}")
}

fn show(attr: &OpAttr) -> (String, String) {
    match attr {
        OpAttr::Number { dtype, bytes } => (type_name(*dtype), number(*dtype, bytes)),
        OpAttr::Array { dtype, bytes } => {
            let size = dtype.size().unwrap_or(1);
            let shown = bytes.chunks(size).take(5).map(|b| number(*dtype, b));
            let shown: Vec<String> = shown.collect();
            let more = if bytes.len() / size > 5 { "..." } else { "" };
            (type_name(*dtype), format!("[{}{more}]", shown.join(", ")))
        }
        OpAttr::String(text) => ("CHAR".to_string(), format!("\"{text}\"")),
        OpAttr::Type(dtype) => ("DTYPE".to_string(), type_name(*dtype)),
        OpAttr::Dense { dtype, shape, .. } => ("DENSE".to_string(), dense(*dtype, shape)),
        OpAttr::Shape(None) => ("SHAPE".to_string(), "<*>".to_string()),
        OpAttr::Shape(Some(dims)) => {
            let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
            ("SHAPE".to_string(), format!("<{}>", dims.join("x")))
        }
        OpAttr::Aggregate(items) => {
            let inner = items.iter().map(|item| match item {
                OpAttr::Dense { dtype, shape, .. } => format!("{{{}}}", dense(*dtype, shape)),
                OpAttr::Aggregate(_) => format!("{{{}}}", show(item).1),
                _ => "{unknown}".to_string(),
            });
            let inner: Vec<String> = inner.collect();
            let text = format!("elt_count={} [{}]", items.len(), inner.join(", "));
            ("AGGREGATE".to_string(), text)
        }
    }
}

impl fmt::Display for OpAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("OpAttrs is empty\n");
        }
        writeln!(f, "OpAttrs contains {} entries:", self.0.len())?;
        for (name, attr) in &self.0 {
            let (ty, value) = show(attr);
            writeln!(f, "  '{name}' type={ty} value={value}")?;
        }
        Ok(())
    }
}
