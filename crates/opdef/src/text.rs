//! Schemas and attrs as text, the way TensorFlow's messages show them.

use crate::{ArgDef, ArgType, AttrDef, AttrValue, Attrs, OpDef};
use ferroflow_base::general;
use std::fmt::{Display, Formatter, Result, Write};

/// Number of elements of a list that are shown.
const MAX_SHOWN: usize = 50;

fn list<T: Display>(items: impl IntoIterator<Item = T>, f: &mut Formatter<'_>) -> Result {
    for (i, item) in items.into_iter().enumerate() {
        match i {
            0 => {}
            MAX_SHOWN => return f.write_str(", ..."),
            _ => f.write_str(", ")?,
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

/// Like TensorFlow's `SummarizeAttrValue`, except for the elements of tensors.
///
/// ```
/// use ferroflow_opdef::AttrValue;
/// use ferroflow_tensor::DType;
/// assert_eq!(AttrValue::Type(DType::Qint8).to_string(), "DT_QINT8");
/// assert_eq!(AttrValue::ints(&[1, 2]).to_string(), "[1, 2]");
/// assert_eq!(AttrValue::str("VALID").to_string(), "\"VALID\"");
/// let floats = [0.2, 1e-5, 100.0, 1e6, f32::NAN].map(|x| AttrValue::Float(x).to_string());
/// assert_eq!(floats, ["0.2", "1e-05", "100", "1e+06", "nan"]);
/// ```
impl Display for AttrValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            AttrValue::Str(s) => write!(f, "\"{}\"", s.escape_ascii()),
            AttrValue::Int(i) => write!(f, "{i}"),
            AttrValue::Float(x) => f.write_str(&general(f64::from(*x), 6)),
            AttrValue::Bool(b) => write!(f, "{b}"),
            AttrValue::Type(t) => write!(f, "DT_{}", t.name().to_ascii_uppercase()),
            AttrValue::Shape(s) => write!(f, "{s}"),
            AttrValue::Tensor(t) => {
                write!(f, "Tensor<type: {} shape: {}>", t.dtype(), t.shape())
            }
            AttrValue::Func(call) => write!(f, "{}[{}]", call.name, call.attrs),
            AttrValue::Placeholder(name) => write!(f, "${name}"),
            AttrValue::List(items) => {
                f.write_char('[')?;
                list(items, f)?;
                f.write_char(']')
            }
        }
    }
}

/// Formats as `name=value`, separated by commas.
impl Display for Attrs {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        struct Pair<'a>(&'a str, &'a AttrValue);
        impl Display for Pair<'_> {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                write!(f, "{}={}", self.0, self.1)
            }
        }
        list(self.iter().map(|(name, value)| Pair(name, value)), f)
    }
}

impl Display for ArgType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            ArgType::Fixed(t) => write!(f, "{t}"),
            ArgType::Attr(name) => write!(f, "{name}"),
        }
    }
}

/// Formats as `x:T`, `values:N*T`, `ref:Ref(T)`.
impl Display for ArgDef {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}:", self.name())?;
        if self.is_ref() {
            f.write_str("Ref(")?;
        }
        match self {
            ArgDef::Single { ty, .. } => write!(f, "{ty}")?,
            ArgDef::Repeated { number, ty, .. } => write!(f, "{number}*{ty}")?,
            ArgDef::List { types, .. } => write!(f, "{types}")?,
        }
        if self.is_ref() {
            f.write_char(')')?;
        }
        Ok(())
    }
}

/// Formats as `T:type,default=DT_FLOAT,allowed=[DT_FLOAT, DT_INT32]`.
impl Display for AttrDef {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ty = self.ty.name();
        match self.is_list {
            true => write!(f, "{}:list({ty})", self.name)?,
            false => write!(f, "{}:{ty}", self.name)?,
        }
        if let Some(default) = &self.default {
            write!(f, ",default={default}")?;
        }
        if let Some(minimum) = self.minimum {
            write!(f, ",min={minimum}")?;
        }
        if !self.allowed.is_empty() {
            f.write_str(",allowed=[")?;
            list(&self.allowed, f)?;
            f.write_char(']')?;
        }
        Ok(())
    }
}

/// Like TensorFlow's `SummarizeOpDef`.
///
/// ```
/// use ferroflow_opdef::OpDef;
/// let def = OpDef::parse("Identity", "input: T -> output: T | T: type")?;
/// let text = "Op<name=Identity; signature=input:T -> output:T; attr=T:type>";
/// assert_eq!(def.to_string(), text);
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
impl Display for OpDef {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "Op<name={}; signature=", self.name)?;
        list(&self.inputs, f)?;
        f.write_str(" -> ")?;
        list(&self.outputs, f)?;
        for attr in &self.attrs {
            write!(f, "; attr={attr}")?;
        }
        let flags = [
            (self.flags.commutative, "is_commutative"),
            (self.flags.aggregate, "is_aggregate"),
            (self.flags.stateful, "is_stateful"),
            (
                self.flags.allows_uninitialized_input,
                "allows_uninitialized_input",
            ),
            (self.flags.distributed, "is_distributed_communication"),
        ];
        for (_, name) in flags.into_iter().filter(|(is_set, _)| *is_set) {
            write!(f, "; {name}=true")?;
        }
        f.write_char('>')
    }
}
