//! Programs as text, an op a line.

use crate::{Attr, Block, Function, Module, Op, Type, ValueId};
use ferroflow_tensor::{DType, Tensor};
use std::fmt::{self, Display, Formatter};

/// How many elements of a constant are shown.
const MAX_SHOWN: usize = 8;

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for function in &self.functions {
            writeln!(f, "{function}")?;
        }
        Ok(())
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "func {}(", self.name)?;
        list(f, &self.body.args, value)?;
        f.write_str(") -> (")?;
        list(f, &self.results, |f, ty| write!(f, "{ty}"))?;
        f.write_str(") {\n")?;
        ops(f, &self.body, 1)?;
        f.write_str("}")
    }
}

fn ops(f: &mut Formatter<'_>, block: &Block, depth: usize) -> fmt::Result {
    block.ops.iter().try_for_each(|o| op(f, o, depth))
}

fn op(f: &mut Formatter<'_>, op: &Op, depth: usize) -> fmt::Result {
    indent(f, depth)?;
    if !op.results.is_empty() {
        list(f, &op.results, value)?;
        f.write_str(" = ")?;
    }
    write!(f, "{}(", op.name)?;
    list(f, &op.operands, |f, id| write!(f, "{id}"))?;
    f.write_str(")")?;
    if !op.attrs.is_empty() {
        f.write_str(" ")?;
        dict(f, &op.attrs)?;
    }
    for region in &op.regions {
        f.write_str(" (")?;
        list(f, &region.args, value)?;
        f.write_str(") {\n")?;
        ops(f, region, depth + 1)?;
        indent(f, depth)?;
        f.write_str("}")?;
    }
    f.write_str("\n")
}

fn indent(f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    (0..depth).try_for_each(|_| f.write_str("  "))
}

fn value(f: &mut Formatter<'_>, (id, ty): &(ValueId, Type)) -> fmt::Result {
    write!(f, "{id}: {ty}")
}

fn dict(f: &mut Formatter<'_>, entries: &[(String, Attr)]) -> fmt::Result {
    f.write_str("{")?;
    list(f, entries, |f, (name, attr)| write!(f, "{name} = {attr}"))?;
    f.write_str("}")
}

fn list<T>(
    f: &mut Formatter<'_>,
    all: &[T],
    one: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, x) in all.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        one(f, x)?;
    }
    Ok(())
}

impl Display for ValueId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(ty) => {
                write!(f, "{}[", short(ty.dtype))?;
                dims(f, ty.dims.iter().copied())?;
                f.write_str("]")
            }
            Type::Token => f.write_str("token"),
            Type::Tuple(types) => {
                f.write_str("(")?;
                list(f, types, |f, ty| write!(f, "{ty}"))?;
                f.write_str(")")
            }
            Type::Other(text) => f.write_str(text),
        }
    }
}

impl Display for Attr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Unit => f.write_str("unit"),
            Attr::Bool(x) => write!(f, "{x}"),
            Attr::Int(x) => write!(f, "{x}"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Str(x) => write!(f, "{x:?}"),
            Attr::Array(all) => {
                f.write_str("[")?;
                list(f, all, |f, x| write!(f, "{x}"))?;
                f.write_str("]")
            }
            Attr::Dict(entries) => dict(f, entries),
            Attr::Tensor(t) => tensor(f, t),
            Attr::Type(ty) => write!(f, "{ty}"),
            Attr::Enum(name) => f.write_str(name),
            Attr::Other(text) => f.write_str(text),
        }
    }
}

fn tensor(f: &mut Formatter<'_>, t: &Tensor) -> fmt::Result {
    write!(f, "{}[", short(t.dtype()))?;
    dims(f, t.shape().iter().map(|d| Some(*d)))?;
    f.write_str("]<")?;
    let n = t.num_elements();
    for i in 0..n.min(MAX_SHOWN) {
        let space = if i > 0 { " " } else { "" };
        write!(f, "{space}{}", t.format_element(i))?;
    }
    f.write_str(if n > MAX_SHOWN { " ...>" } else { ">" })
}

fn dims(f: &mut Formatter<'_>, dims: impl Iterator<Item = Option<usize>>) -> fmt::Result {
    let dims: Vec<_> = dims
        .map(|d| d.map_or("?".to_string(), |d| d.to_string()))
        .collect();
    f.write_str(&dims.join(","))
}

/// Returns the name of a dtype in StableHLO, where it is shorter.
fn short(dtype: DType) -> &'static str {
    match dtype {
        DType::Complex64 => "c64",
        DType::Complex128 => "c128",
        other => other.mlir_name().unwrap_or(other.name()),
    }
}
