//! The texts that define ops (`tensorflow/core/framework/op_def_builder.cc`): `T: {float, int32} = DT_FLOAT`,
//! `values: N * T`.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{ArgDef, ArgType, AttrDef, AttrType, AttrValue, Name};
use ferroflow_tensor::{DType, PartialShape};

/// The dtypes of `numbertype`, as in TensorFlow.
const NUMBERS: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Uint8,
    DType::Int16,
    DType::Int8,
    DType::Complex64,
    DType::Int64,
    DType::Qint8,
    DType::Quint8,
    DType::Qint32,
    DType::Bfloat16,
    DType::Qint16,
    DType::Quint16,
    DType::Uint16,
    DType::Complex128,
    DType::Half,
    DType::Uint32,
    DType::Uint64,
];

/// A text that is read from the left.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn quoted(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|c| "'\"".contains(*c))?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| match c {
                    'n' => '\n',
                    't' => '\t',
                    c => c,
                })),
                c if c == quote => {
                    self.rest = &self.rest[i + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }

    fn is_at_end(&self) -> bool {
        self.rest.trim().is_empty()
    }
}

/// A dtype by its name, its name in numpy or its number's name.
fn dtype(word: &str) -> Option<DType> {
    match word {
        "float16" => return Some(DType::Half),
        "float32" => return Some(DType::Float),
        "float64" => return Some(DType::Double),
        _ => {}
    }
    let lower = word.strip_prefix("DT_").map(str::to_ascii_lowercase);
    DType::from_name(lower.as_deref().unwrap_or(word))
}

/// Reads an attr: `name: kind`, a list of allowed values, a minimum, a default.
///
/// # Errors
/// INVALID_ARGUMENT if it is malformed.
pub(crate) fn attr(spec: &str) -> Result<AttrDef> {
    let mut reader = Reader { rest: spec };
    parse_attr(&mut reader)
        .filter(|_| reader.is_at_end())
        .ok_or_else(|| invalid_argument!("Trouble parsing the attr '{spec}' of an op definition"))
}

fn parse_attr(reader: &mut Reader) -> Option<AttrDef> {
    let name = reader.word();
    let starts = name.chars().next()?.is_ascii_alphabetic();
    if !starts || !reader.take(":") {
        return None;
    }
    let is_list = reader.take("list(");
    let (ty, allowed) = kind(reader)?;
    if is_list && !reader.take(")") {
        return None;
    }
    let minimum = match reader.take(">=") {
        true => Some(reader.word().parse().ok()?),
        false => None,
    };
    let default = match reader.take("=") {
        true if is_list => Some(list(reader, ty)?),
        true => Some(value(reader, ty)?),
        false => None,
    };
    Some(AttrDef {
        name: Name::Owned(name.to_string()),
        ty,
        is_list,
        minimum,
        allowed,
        default,
    })
}

/// The kind of an attr, and its allowed values.
fn kind(reader: &mut Reader) -> Option<(AttrType, Vec<AttrValue>)> {
    if reader.take("{") {
        return allowed(reader);
    }
    let types = |list: &[DType]| list.iter().map(|t| AttrValue::Type(*t)).collect();
    Some(match reader.word() {
        "string" => (AttrType::Str, Vec::new()),
        "int" => (AttrType::Int, Vec::new()),
        "float" => (AttrType::Float, Vec::new()),
        "bool" => (AttrType::Bool, Vec::new()),
        "type" => (AttrType::Type, Vec::new()),
        "shape" => (AttrType::Shape, Vec::new()),
        "tensor" => (AttrType::Tensor, Vec::new()),
        "func" => (AttrType::Func, Vec::new()),
        "numbertype" | "numerictype" => (AttrType::Type, types(NUMBERS)),
        "realnumbertype" | "realnumerictype" => {
            let is_real = |t: &DType| !t.is_complex() && !t.name().starts_with('q');
            let real: Vec<DType> = NUMBERS.iter().copied().filter(is_real).collect();
            (AttrType::Type, types(&real))
        }
        "quantizedtype" => {
            let all = NUMBERS.iter().copied();
            let quantized = all.filter(|t| t.name().starts_with('q'));
            (AttrType::Type, types(&quantized.collect::<Vec<_>>()))
        }
        _ => return None,
    })
}

fn allowed(reader: &mut Reader) -> Option<(AttrType, Vec<AttrValue>)> {
    let mut values = Vec::new();
    let mut ty = AttrType::Type;
    while !reader.take("}") {
        match reader.quoted() {
            Some(text) => {
                ty = AttrType::Str;
                values.push(AttrValue::str(&text));
            }
            None => match reader.word() {
                "numbertype" => values.extend(NUMBERS.iter().map(|t| AttrValue::Type(*t))),
                word => values.push(AttrValue::Type(dtype(word)?)),
            },
        }
        // A comma may follow the last one.
        if !reader.take(",") && !reader.rest.trim_start().starts_with('}') {
            return None;
        }
    }
    Some((ty, values))
}

fn list(reader: &mut Reader, ty: AttrType) -> Option<AttrValue> {
    if !reader.take("[") {
        return None;
    }
    let mut items = Vec::new();
    while !reader.take("]") {
        items.push(value(reader, ty)?);
        if !reader.take(",") && !reader.rest.trim_start().starts_with(']') {
            return None;
        }
    }
    Some(AttrValue::List(items))
}

fn value(reader: &mut Reader, ty: AttrType) -> Option<AttrValue> {
    Some(match ty {
        AttrType::Str => AttrValue::str(&reader.quoted()?),
        AttrType::Int => AttrValue::Int(reader.word().parse().ok()?),
        AttrType::Float => AttrValue::Float(reader.word().parse().ok()?),
        AttrType::Bool => AttrValue::Bool(reader.word().parse().ok()?),
        AttrType::Type => AttrValue::Type(dtype(reader.word())?),
        AttrType::Shape => AttrValue::Shape(shape(reader)?),
        AttrType::Func | AttrType::Tensor => return None,
    })
}

/// A shape, as a text proto or in brackets.
fn shape(reader: &mut Reader) -> Option<PartialShape> {
    let mut dims = Vec::new();
    if reader.take("[") {
        while !reader.take("]") {
            let size: i64 = match reader.take("?") {
                true => -1,
                false => reader.word().parse().ok()?,
            };
            dims.push(usize::try_from(size).ok());
            reader.take(",");
        }
        return Some(PartialShape::of(dims));
    }
    if !reader.take("{") {
        return None;
    }
    let mut is_unknown = false;
    while !reader.take("}") {
        match reader.word() {
            "unknown_rank" => is_unknown = reader.take(":") && reader.word() == "true",
            "dim" => {
                reader.take(":");
                let size: i64 = match reader.take("{") {
                    true if reader.take("}") => 0,
                    true => {
                        let is_size = reader.word() == "size" && reader.take(":");
                        let size = reader.word().parse().ok().filter(|_| is_size)?;
                        reader.take("}").then_some(size)?
                    }
                    false => return None,
                };
                dims.push(usize::try_from(size).ok());
            }
            _ => return None,
        }
    }
    match is_unknown {
        true => Some(PartialShape::unknown()),
        false => Some(PartialShape::of(dims)),
    }
}

/// Reads an input or an output: `name: type`, `name: N * type`, `name: Ref(type)`.
///
/// # Errors
/// INVALID_ARGUMENT if it is malformed, or an attr that it names does not exist.
pub(crate) fn arg(spec: &str, attrs: &[AttrDef]) -> Result<ArgDef> {
    let mut reader = Reader { rest: spec };
    parse_arg(&mut reader, attrs)
        .filter(|_| reader.is_at_end())
        .ok_or_else(|| {
            invalid_argument!("Trouble parsing the argument '{spec}' of an op definition")
        })
}

fn parse_arg(reader: &mut Reader, attrs: &[AttrDef]) -> Option<ArgDef> {
    let attr = |name: &str| attrs.iter().find(|a| a.name == name);
    let owned = |text: &str| Name::Owned(text.to_string());
    let name = owned(reader.word());
    if name.is_empty() || !reader.take(":") {
        return None;
    }
    let is_ref = reader.take("Ref(");
    let mut word = reader.word();
    let number = match reader.take("*") {
        true => {
            let number = attr(word).filter(|a| a.ty == AttrType::Int)?;
            word = reader.word();
            Some(owned(&number.name))
        }
        false => None,
    };
    if is_ref && !reader.take(")") {
        return None;
    }
    let ty = match dtype(word) {
        Some(dtype) => ArgType::Fixed(dtype),
        None => {
            let declared = attr(word).filter(|a| a.ty == AttrType::Type)?;
            if declared.is_list {
                let types = owned(word);
                return (number.is_none() && !is_ref).then_some(ArgDef::List { name, types });
            }
            ArgType::Attr(owned(word))
        }
    };
    Some(match number {
        None => ArgDef::Single { name, ty, is_ref },
        Some(number) => ArgDef::Repeated {
            name,
            number,
            ty,
            is_ref,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attrs() {
        let read = |spec: &str| attr(spec).expect(spec);
        let t = read("T: {float, int32} = DT_INT32");
        assert_eq!(
            (t.ty, t.allowed.len(), t.is_list),
            (AttrType::Type, 2, false)
        );
        assert!(matches!(t.default, Some(AttrValue::Type(DType::Int32))));
        let n = read("N : int >= 2=3");
        assert_eq!(n.minimum, Some(2));
        assert!(matches!(n.default, Some(AttrValue::Int(3))));
        let s = read("s: {'a', \"b\"} = 'a'");
        assert_eq!((s.ty, s.allowed.len()), (AttrType::Str, 2));
        let l = read("l: list({float, double}) >= 1 = [DT_FLOAT]");
        assert_eq!((l.is_list, l.minimum, l.allowed.len()), (true, Some(1), 2));
        assert!(read("q: list(string) = ['x', 'y']").default.is_some());
        assert!(read("f: float = -1.5e3").default.is_some());
        let shape = read("h: shape = { dim { size: 2 } dim { size: -1 } }").default;
        assert!(matches!(shape, Some(AttrValue::Shape(s)) if s.rank() == Some(2)));
        let unknown = read("u: shape = { unknown_rank: true }").default;
        assert!(matches!(unknown, Some(AttrValue::Shape(s)) if s.rank().is_none()));
        assert_eq!(read("R: realnumbertype").allowed.len(), 12);
        for bad in [
            "",
            "T",
            "T:",
            "T: kind",
            "N: int >=",
            "s: {'a'",
            "T: type = 7x",
        ] {
            assert!(attr(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments() {
        let attrs = ["T: type", "N: int", "L: list(type)"];
        let attrs: Vec<AttrDef> = attrs.iter().map(|a| attr(a).expect("valid")).collect();
        let read = |spec: &str| arg(spec, &attrs).expect(spec);
        assert!(matches!(read("x: T"), ArgDef::Single { is_ref: false, .. }));
        assert!(matches!(
            read("x: Ref(float)"),
            ArgDef::Single { is_ref: true, .. }
        ));
        let float = ArgType::Fixed(DType::Float);
        assert!(matches!(read("x: float32"), ArgDef::Single { ty, .. } if ty == float));
        assert!(matches!(read("x: N * T"), ArgDef::Repeated { .. }));
        assert!(matches!(read("x: N*int32"), ArgDef::Repeated { .. }));
        assert!(matches!(read("x: L"), ArgDef::List { .. }));
        for bad in ["", "x", "x: U", "x: T*T", "x: Ref(T", "x: T y"] {
            assert!(arg(bad, &attrs).is_err(), "{bad}");
        }
    }
}
