//! Whether the form of its own that an operation has says all that there is to say of it. Where it
//! does not, the operation is written in the form that all have.

use super::forms;
use super::ir::{Module, Op};

/// Whether `op` can be written in a form of its own.
pub(super) fn fits(module: &Module, op: &Op) -> bool {
    if !op.successors.is_empty() {
        return false;
    }
    match &*op.name {
        "func" => function(module, op),
        "module" => nested_module(op),
        "std.return" => op.attrs.is_empty() && op.regions.is_empty() && op.results.is_empty(),
        name => forms::spec(name).is_some_and(|spec| super::custom_print::fits(module, spec, op)),
    }
}

/// The number that stands behind `kind` in the name of what an argument or result is given.
pub(super) fn numbered(name: &str, kind: &str) -> Option<usize> {
    let digits = name.strip_prefix(kind)?;
    let number: usize = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

fn function(module: &Module, op: &Op) -> bool {
    let ([region], Some(ty)) = (&op.regions[..], op.function_type()) else {
        return false;
    };
    let visibility = match op.attr("sym_visibility") {
        None => true,
        Some(attr) => matches!(attr.as_str(), Some("private" | "public" | "nested")),
    };
    let is_declared = region.n_blocks == 0;
    visibility
        && op.symbol().is_some()
        && op.operands.is_empty()
        && op.results.is_empty()
        && (is_declared || module.types(&region.args) == ty.inputs)
}

fn nested_module(op: &Op) -> bool {
    let [region] = &op.regions[..] else {
        return false;
    };
    let name = op.attr("sym_name");
    name.is_none_or(|n| n.as_str().is_some())
        && op.operands.is_empty()
        && op.results.is_empty()
        && region.args.is_empty()
        && region.others.is_empty()
}
