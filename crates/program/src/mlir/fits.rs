//! Whether the form of its own that an operation has says all that there is to say of it. Where it
//! does not, the operation is written in the form that all have.

use super::forms::{self, Part};
use super::ir::{Attr, Module, Op, Region, Type, Value};
use std::collections::HashSet;

/// Whether `op` can be written in a form of its own.
pub(super) fn fits(module: &Module, op: &Op) -> bool {
    if !op.successors.is_empty() {
        return false;
    }
    match &*op.name {
        "func" => function(module, op),
        "module" => nested_module(op),
        "std.return" => op.attrs.is_empty() && op.regions.is_empty() && op.results.is_empty(),
        name => {
            let Some(spec) = forms::spec(name).filter(|s| s.n_regions() == op.regions.len()) else {
                return false;
            };
            match &spec.form[..] {
                [Part::Special(form), ..] => special(module, form, op),
                form => sequence(form, op),
            }
        }
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

fn sequence(form: &[Part], op: &Op) -> bool {
    let mut written = Vec::new();
    for part in form {
        let Part::Attr { name, ty } = part else {
            continue;
        };
        written.push(name.as_str());
        let fits = match (op.attr(name), ty) {
            (None, _) => false,
            (Some(Attr::Int(_, found) | Attr::Float(_, found)), Some(ty)) => found == ty,
            (Some(Attr::TypedString(..)), Some(_)) => false,
            _ => true,
        };
        if !fits {
            return false;
        }
    }
    form.contains(&Part::AttrDict) || has_only(op, &written)
}

fn has_only(op: &Op, names: &[&str]) -> bool {
    let mut attrs = op.attrs.iter();
    attrs.all(|(name, _)| names.contains(&name.as_str()))
}

/// Whether the arguments of the regions can have the names of `shadow`.
fn shadows(module: &Module, op: &Op, shadow: &[Value]) -> bool {
    let distinct: HashSet<&Value> = shadow.iter().collect();
    let types = module.types(shadow);
    let fits = |region: &Region| {
        region.n_blocks == 1 && region.others.is_empty() && module.types(&region.args) == types
    };
    distinct.len() == shadow.len() && op.regions.iter().all(fits)
}

fn special(module: &Module, form: &str, op: &Op) -> bool {
    let operands = &op.operands[..];
    let is_symbol = |name: &&str| matches!(op.attr(name), Some(Attr::Symbol(_)));
    let symbols = |names: &[&str]| names.iter().all(is_symbol);
    // The forms of these say so without a word.
    let non_strict = op.attr("bef.nonstrict") == Some(&Attr::Unit);
    match form {
        "return" => op.attrs.is_empty(),
        "typed_operands" => !operands.is_empty(),
        "merge_chains" => true,
        "call" => non_strict && symbols(&["callee"]),
        "if" | "repeat" => match operands {
            [_, rest @ ..] => non_strict && shadows(module, op, rest),
            [] => false,
        },
        "parallel_for" => match operands {
            [start, end, _, rest @ ..] => {
                let shadow = [&[*start, *end], rest].concat();
                op.attrs.is_empty() && shadows(module, op, &shadow)
            }
            _ => false,
        },
        "parallel_call" => operands.len() >= 3 && has_only(op, &["callee"]) && symbols(&["callee"]),
        "do_async" => shadows(module, op, operands),
        "benchmark" => {
            let named = matches!(op.attr("name"), Some(Attr::String(_)));
            named && numbers(op, "name") && shadows(module, op, operands)
        }
        "sync_benchmark" => symbols(&["target_fn"]) && numbers(op, "target_fn"),
        "cond" => symbols(&["a_true_fn", "b_false_fn"]),
        "case" => op.attr("branches").is_some(),
        "while" => {
            let limit = op.attr("parallel_iterations");
            let has_limit = matches!(limit, Some(Attr::Int(_, ty)) if ty.is("i64"));
            has_limit && symbols(&["body_fn"])
        }
        "once" => symbols(&["function"]),
        "corert_cond" => symbols(&["a_true_fn", "b_false_fn"]),
        "corert_while" => symbols(&["a_cond_fn", "b_body_fn"]),
        "executeop" => execute_op(op),
        _ => false,
    }
}

/// Whether the attributes besides `head` are what a benchmark may say.
fn numbers(op: &Op, head: &str) -> bool {
    let is_number = |(name, value): &(String, Attr)| {
        let is_i32 = matches!(value, Attr::Int(_, ty) if *ty == Type::new("i32"));
        name == head || (is_i32 && super::printer::is_bare(name))
    };
    op.attr("num_warmup_runs").is_some() && op.attrs.iter().all(is_number)
}

fn execute_op(op: &Op) -> bool {
    let is_seq = op.name.ends_with(".seq");
    let has_functions = !op.name.starts_with("corert_sync.");
    let is_pairs = |attr: Option<&Attr>| {
        let Some(Attr::Array(items)) = attr else {
            return false;
        };
        let key = |item: &Attr| match item {
            Attr::Array(pair) => match &pair[..] {
                [key, _] => key.as_str().map(str::to_string),
                _ => None,
            },
            _ => None,
        };
        let keys: Option<Vec<String>> = items.iter().map(key).collect();
        // The form has them in order, and none twice.
        let in_order = |keys: Vec<String>| keys.windows(2).all(|w| w.first() < w.last());
        keys.is_some_and(in_order)
    };
    let functions = match has_functions {
        true => is_pairs(op.attr("op_func_attrs")),
        false => op.attr("op_func_attrs").is_none(),
    };
    functions
        && is_pairs(op.attr("op_attrs"))
        && matches!(op.attr("op_name"), Some(Attr::String(_)))
        && has_only(op, &["op_attrs", "op_func_attrs", "op_name"])
        && op.operands.len() > usize::from(is_seq)
        && op.results.len() >= usize::from(is_seq)
}
