//! The one-line text form of an [`OpDef`].
//!
//! ```text
//! x: T, y: N*T, z: list(Tin), v: Ref(T), i: int32 -> out: T | T: type {float,double} = float; N: int >= 1 | stateful
//! ```
//! Inputs and outputs, attrs, flags; the last two sections are optional. As in TensorFlow's
//! `REGISTER_OP` (`core/framework/op_def_builder.cc`), `T: numbertype` and `T: realnumbertype`
//! stand for their lists of types, also as an element of a list: `T: type {numbertype,variant}`.

use crate::{ArgDef, ArgType, AttrDef, AttrType, AttrValue, Name, NodeClass, OpDef, OpFlags};
use ferroflow_base::{Result, internal};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// The types of `numbertype`, in TensorFlow's order.
const NUMBER_TYPES: &str = "float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,\
    bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64";

/// The types of `realnumbertype`, in TensorFlow's order.
const REAL_NUMBER_TYPES: &str =
    "float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64";

impl OpDef {
    /// Parses a signature.
    ///
    /// ```
    /// use ferroflow_opdef::OpDef;
    /// let def = OpDef::parse("AddN", "inputs: N*T -> sum: T | N: int >= 1; T: type {float,int32} | commutative").unwrap();
    /// assert_eq!(def.attr("N").unwrap().minimum, Some(1));
    /// assert!(def.flags.commutative);
    /// ```
    ///
    /// # Errors
    /// INTERNAL if it is malformed, which is a bug in the op's file.
    pub fn parse(name: &'static str, text: &'static str) -> Result<OpDef> {
        parse(name, text).ok_or_else(|| internal!("malformed signature of op {name}: {text}"))
    }
}

fn parse(name: &'static str, text: &'static str) -> Option<OpDef> {
    // `|` never occurs inside a quoted default of any op, so plain splitting is enough.
    let mut sections = text.split('|').map(str::trim);
    let (inputs, outputs) = sections.next()?.split_once("->")?;
    let attrs = split_top(sections.next().unwrap_or(""), ';')
        .into_iter()
        .map(parse_attr)
        .collect::<Option<_>>()?;
    let mut flags = OpFlags::default();
    for flag in sections.next().unwrap_or("").split_whitespace() {
        match flag {
            "stateful" => flags.stateful = true,
            "commutative" => flags.commutative = true,
            "aggregate" => flags.aggregate = true,
            "uninit" => flags.allows_uninitialized_input = true,
            "distributed" => flags.distributed = true,
            _ => return None,
        }
    }
    if sections.next().is_some() {
        return None;
    }
    let args = |text: &'static str| -> Option<Vec<ArgDef>> {
        split_top(text, ',').into_iter().map(parse_arg).collect()
    };
    Some(OpDef {
        name: Name::Borrowed(name),
        inputs: args(inputs)?,
        outputs: args(outputs)?,
        attrs,
        flags,
        class: NodeClass::of(name),
    })
}

/// Splits at `separator` outside of brackets and quotes; an empty text has no parts.
fn split_top(text: &'static str, separator: char) -> Vec<&'static str> {
    let mut parts = Vec::new();
    let (mut depth, mut quoted, mut start) = (0, false, 0);
    for (i, c) in text.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' | '{' | '[' if !quoted => depth += 1,
            ')' | '}' | ']' if !quoted => depth -= 1,
            c if c == separator && depth == 0 && !quoted => {
                parts.push(text[start..i].trim());
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

fn strip_call(text: &'static str, function: &str) -> Option<&'static str> {
    text.strip_prefix(function)?
        .strip_prefix('(')?
        .strip_suffix(')')
}

fn parse_arg(text: &'static str) -> Option<ArgDef> {
    let (name, ty) = text.split_once(':')?;
    let name = Name::Borrowed(name.trim());
    let ty = ty.trim();
    if let Some(types) = strip_call(ty, "list") {
        return Some(ArgDef::List {
            name,
            types: Name::Borrowed(types),
        });
    }
    let (ty, is_ref) = match strip_call(ty, "Ref") {
        Some(inner) => (inner, true),
        None => (ty, false),
    };
    let arg_type = |t: &'static str| match DType::from_name(t) {
        Some(dtype) => ArgType::Fixed(dtype),
        None => ArgType::Attr(Name::Borrowed(t)),
    };
    Some(match ty.split_once('*') {
        Some((number, ty)) => ArgDef::Repeated {
            name,
            number: Name::Borrowed(number),
            ty: arg_type(ty),
            is_ref,
        },
        None => ArgDef::Single {
            name,
            ty: arg_type(ty),
            is_ref,
        },
    })
}

fn parse_attr(text: &'static str) -> Option<AttrDef> {
    let (name, rest) = text.split_once(':')?;
    let rest = rest.trim();
    let (rest, default) = match split_default(rest) {
        Some((rest, default)) => (rest, Some(default)),
        None => (rest, None),
    };
    // Allowed values come last, or in the brackets of a list.
    let (rest, allowed) = match rest.strip_suffix('}').and_then(|r| r.rsplit_once('{')) {
        Some((rest, allowed)) => (rest.trim(), allowed),
        None => (rest, ""),
    };
    let (rest, minimum) = match rest.split_once(">=") {
        Some((rest, min)) => (rest.trim(), Some(min.trim().parse().ok()?)),
        None => (rest, None),
    };
    let (rest, is_list) = match strip_call(rest, "list") {
        Some(inner) => (inner.trim(), true),
        None => (rest, false),
    };
    let (kind, allowed) = match rest.split_once('{') {
        Some((kind, allowed)) => (kind.trim(), allowed.trim().strip_suffix('}')?),
        None => (rest, allowed),
    };
    let (kind, allowed) = match kind {
        "numbertype" | "realnumbertype" => ("type", kind),
        _ => (kind, allowed),
    };
    let ty = match kind {
        "string" => AttrType::Str,
        "int" => AttrType::Int,
        "float" => AttrType::Float,
        "bool" => AttrType::Bool,
        "type" => AttrType::Type,
        "shape" => AttrType::Shape,
        "tensor" => AttrType::Tensor,
        "func" => AttrType::Func,
        _ => return None,
    };
    let allowed = split_top(allowed, ',')
        .into_iter()
        .flat_map(|v| match v {
            "numbertype" => split_top(NUMBER_TYPES, ','),
            "realnumbertype" => split_top(REAL_NUMBER_TYPES, ','),
            v => vec![v],
        })
        .map(|v| parse_value(ty, v))
        .collect::<Option<Vec<_>>>()?;
    let default = match default {
        None => None,
        Some(text) if is_list => {
            let inner = text.strip_prefix('[')?.strip_suffix(']')?;
            let items = split_top(inner, ',')
                .into_iter()
                .map(|v| parse_value(ty, v));
            Some(AttrValue::List(items.collect::<Option<_>>()?))
        }
        Some(text) => Some(parse_value(ty, text)?),
    };
    Some(AttrDef {
        name: Name::Borrowed(name.trim()),
        ty,
        is_list,
        minimum,
        allowed,
        default,
    })
}

/// Splits at the `=` of a default, which is neither part of `>=` nor quoted.
fn split_default(text: &'static str) -> Option<(&'static str, &'static str)> {
    let mut quoted = false;
    let bytes = text.as_bytes();
    for (i, &b) in bytes.iter().enumerate() {
        match b {
            b'\'' => quoted = !quoted,
            b'=' if !quoted && (i == 0 || bytes[i - 1] != b'>') => {
                return Some((text[..i].trim(), text[i + 1..].trim()));
            }
            _ => {}
        }
    }
    None
}

fn parse_value(ty: AttrType, text: &'static str) -> Option<AttrValue> {
    Some(match ty {
        AttrType::Str => {
            let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
            AttrValue::str(&inner.replace("\\n", "\n").replace("\\t", "\t"))
        }
        AttrType::Int => AttrValue::Int(text.parse().ok()?),
        AttrType::Float => AttrValue::Float(text.parse().ok()?),
        AttrType::Bool => AttrValue::Bool(text.parse().ok()?),
        AttrType::Type => AttrValue::Type(DType::from_name(text)?),
        AttrType::Shape if text == "unknown" => AttrValue::Shape(PartialShape::unknown()),
        AttrType::Shape => {
            let inner = text.strip_prefix('[')?.strip_suffix(']')?;
            let dims = split_top(inner, ',')
                .into_iter()
                .map(|d| {
                    if d == "?" || d == "-1" {
                        Some(None)
                    } else {
                        d.parse().ok().map(Some)
                    }
                })
                .collect::<Option<Vec<Option<usize>>>>()?;
            AttrValue::Shape(PartialShape::of(dims))
        }
        AttrType::Tensor => AttrValue::Tensor(parse_vector(text)?.into()),
        AttrType::Func => return None,
    })
}

/// Parses `tensor(uint8,[2],[255,0])`, a vector of bytes: the only kind that TensorFlow's ops have.
fn parse_vector(text: &'static str) -> Option<Tensor> {
    let parts = split_top(strip_call(text, "tensor")?, ',');
    let ["uint8", shape, values] = parts[..] else {
        return None;
    };
    let numbers =
        |text: &'static str| Some(split_top(text.strip_prefix('[')?.strip_suffix(']')?, ','));
    let values = numbers(values)?.into_iter().map(|v| v.parse().ok());
    let values = values.collect::<Option<Vec<u8>>>()?;
    let [length] = numbers(shape)?[..] else {
        return None;
    };
    Tensor::from_slice([length.parse::<usize>().ok()?], &values).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_attr() {
        let def = OpDef::parse(
            "X",
            "a: Ref(T), b: list(Tin), c: N*int32 -> o: T | T: type {half,float} = float; \
             p: string {'SAME','VALID'} = 'SAME'; l: list(int) >= 2 = [1,2]; s: shape = unknown; \
             n: int >= 1; q: shape = [2,?]; f: float = -0.5; b: bool = false; \
             t: list(type) >= 1 {float,int64}; v: tensor = tensor(uint8,[2],[1,2]) | stateful uninit",
        )
        .expect("well-formed");
        assert!(def.inputs[0].is_ref());
        assert_eq!(def.attrs.len(), 10);
        assert!(matches!(
            def.attr("v").unwrap().default,
            Some(AttrValue::Tensor(_))
        ));
        let t = def.attr("t").unwrap();
        assert_eq!((t.minimum, t.allowed.len(), t.is_list), (Some(1), 2, true));
        assert_eq!(def.attr("T").unwrap().allowed.len(), 2);
        assert_eq!(def.attr("l").unwrap().minimum, Some(2));
        assert!(
            matches!(def.attr("l").unwrap().default, Some(AttrValue::List(ref v)) if v.len() == 2)
        );
        assert!(def.flags.stateful && def.flags.allows_uninitialized_input);
        let classes = "-> | T: numbertype; U: realnumbertype = float; V: type {numbertype,variant}";
        let classes = OpDef::parse("X", classes).expect("well-formed");
        let sizes: Vec<_> = classes.attrs.iter().map(|a| a.allowed.len()).collect();
        assert_eq!(sizes, [19, 12, 20]);
        assert!(OpDef::parse("X", "no arrow").is_err());
        let none = OpDef::parse("NoOp", " -> ").unwrap();
        assert!(none.inputs.is_empty() && none.outputs.is_empty());
    }
}
