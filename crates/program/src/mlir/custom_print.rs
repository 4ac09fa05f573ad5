//! Prints operations in their custom forms. One whose form cannot express all of it is printed in the
//! generic form.

use super::attr_text::{attr_text, is_bare, named_attr};
use super::forms::{Part, Spec};
use super::ir::{Attr, FunctionType, Module, Op, Region, Type, Value};
use super::printer::Printer;
use std::collections::HashSet;
use std::fmt::Write;

fn attr(op: &Op, name: &str) -> String {
    op.attr(name)
        .map(|a| attr_text(a, true))
        .unwrap_or_default()
}

fn rest<'o>(values: &'o [Value], fixed: &[Type]) -> &'o [Value] {
    values.get(fixed.len()..).unwrap_or(&[])
}

fn others<'o>(op: &'o Op, spec: &Spec) -> impl Iterator<Item = &'o (String, Attr)> {
    op.attrs.iter().filter(|(name, _)| !spec.has_attr(name))
}

/// Writes `op` in its form.
pub(super) fn custom(p: &mut Printer, spec: &Spec, op: &Op) {
    if spec.form == [Part::ExecuteOp] {
        return execute_op(p, op);
    }
    p.push(&op.name);
    let mut regions = op.regions.iter();
    let mut n_written = 0;
    for part in &spec.form {
        part_text(p, part, spec, op, &mut n_written, &mut regions);
    }
}

fn part_text<'o>(
    p: &mut Printer,
    part: &Part,
    spec: &Spec,
    op: &'o Op,
    n_written: &mut usize,
    regions: &mut impl Iterator<Item = &'o Region>,
) {
    let left = op.operands.get(*n_written..).unwrap_or(&[]);
    let (operands, fixed) = (
        rest(&op.operands, &spec.operands.fixed),
        &spec.operands.fixed,
    );
    let is_any = |(_, ty): &(&Value, &Type)| ty.is("any");
    let anys = op
        .operands
        .iter()
        .zip(fixed)
        .filter(is_any)
        .map(|(v, _)| *v);
    let written: Vec<Value> = anys.chain(operands.iter().copied()).collect();
    let types = p.types(&written);
    let results = rest(&op.results, &spec.results.fixed);
    let _ = match part {
        Part::Operands | Part::CommaRest if left.is_empty() => Ok(()),
        Part::Operands => write!(p.out, " {}", p.operands(left)),
        Part::CommaRest => write!(p.out, ", {}", p.operands(left)),
        Part::Parenthesized => write!(p.out, "({})", p.operands(left)),
        Part::Operand => {
            *n_written += 1;
            let space = if p.out.ends_with('(') { "" } else { " " };
            write!(p.out, "{space}{}", p.operands(left.get(..1).unwrap_or(&[])))
        }
        Part::TypedOperands => {
            let typed = |v: &Value| format!("{} : {}", p.name(*v), p.module.ty(*v));
            let typed: Vec<String> = left.iter().map(typed).collect();
            write!(p.out, "({})", typed.join(", "))
        }
        Part::Args if left.is_empty() => Ok(()),
        Part::Args => write!(p.out, ", args({}) : ({types})", p.operands(left)),
        Part::Word(name) => match op.attr(name) {
            Some(Attr::String(word)) => write!(p.out, " {}", String::from_utf8_lossy(word)),
            _ => Ok(()),
        },
        Part::AttrDict
        | Part::KeywordAttrDict
        | Part::Numbers
        | Part::Attr { .. }
        | Part::Symbol(_) => {
            let text = attrs_text(part, spec, op);
            let is_first = p.out.ends_with('(');
            write!(
                p.out,
                "{}",
                if is_first { text.trim_start() } else { &text }
            )
        }
        Part::ChainTypes if is_all(p.module, operands, "!tfrt.chain") => Ok(()),
        Part::Types | Part::SameTypes | Part::ChainTypes if written.is_empty() => Ok(()),
        Part::Types | Part::SameTypes | Part::ChainTypes => write!(p.out, " : {types}"),
        Part::Handles if is_all(p.module, operands, "!corert.tensorhandle") => {
            write!(p.out, " : ({})", p.types(results))
        }
        Part::Functional | Part::Handles => {
            write!(p.out, " : ({types}) -> ({})", p.types(results))
        }
        Part::FunctionType => {
            let (inputs, results) = (p.module.types(operands), p.module.types(results));
            // TFRT writes two spaces here.
            write!(p.out, "  : {}", FunctionType { inputs, results })
        }
        Part::Region(_) | Part::Else => {
            p.push(if *part == Part::Else { " else " } else { " " });
            if let Some(region) = regions.next() {
                let shadow = shadow(part, op, fixed);
                p.region(region, Some(&shadow));
            }
            Ok(())
        }
        Part::Literal(text) if matches!(&**text, "(" | ")" | ",") => write!(p.out, "{text}"),
        Part::Literal(word) => write!(p.out, " {word}"),
        Part::NonStrict | Part::ExecuteOp => Ok(()),
    };
}

/// The text of the attributes that a part writes.
fn attrs_text(part: &Part, spec: &Spec, op: &Op) -> String {
    match part {
        Part::Attr { name, ty } => match op.attr(name) {
            // A list writes the types of its elements in any case.
            Some(attr @ (Attr::Int(..) | Attr::Float(..))) => {
                format!(" {}", attr_text(attr, ty.is_none()))
            }
            _ => format!(" {}", attr(op, name)),
        },
        Part::Symbol(name) => format!(" {}", attr(op, name)),
        Part::Numbers => {
            let number = |(n, a): &(String, Attr)| format!("{n} = {}", attr_text(a, false));
            let numbers: Vec<String> = others(op, spec).map(number).collect();
            format!(" {}", numbers.join(", "))
        }
        _ => {
            let others: Vec<String> = others(op, spec).map(|(n, a)| named_attr(n, a)).collect();
            match (others.is_empty(), part) {
                (true, _) => String::new(),
                (false, Part::KeywordAttrDict) => format!(" attributes {{{}}}", others.join(", ")),
                (false, _) => format!(" {{{}}}", others.join(", ")),
            }
        }
    }
}

fn is_all(module: &Module, values: &[Value], ty: &str) -> bool {
    values.iter().all(|v| module.ty(*v).is(ty))
}

/// The operands whose names the arguments of a region have.
fn shadow(part: &Part, op: &Op, fixed: &[Type]) -> Vec<Value> {
    let n = match part {
        Part::Region(n) => *n,
        _ => 0,
    };
    let first = op.operands.get(..n).unwrap_or(&[]);
    [first, rest(&op.operands, fixed)].concat()
}

/// Whether `op` can be written in its form.
pub(super) fn fits(module: &Module, spec: &Spec, op: &Op) -> bool {
    let mut other_attrs = others(op, spec);
    let form = &spec.form;
    op.regions.len() == spec.n_regions()
        && op.operands.len() >= spec.operands.fixed.len()
        && op.results.len() >= spec.results.fixed.len()
        && form.iter().all(|part| part_fits(module, part, spec, op))
        && (form.iter().any(Part::writes_attrs) || other_attrs.next().is_none())
}

impl Part {
    /// Whether attributes are written here that the form does not mention.
    fn writes_attrs(&self) -> bool {
        let dicts = [
            Part::AttrDict,
            Part::KeywordAttrDict,
            Part::Numbers,
            Part::ExecuteOp,
        ];
        dicts.contains(self)
    }
}

fn part_fits(module: &Module, part: &Part, spec: &Spec, op: &Op) -> bool {
    match part {
        Part::Attr { name, ty } => match (op.attr(name), ty) {
            (None, _) => false,
            (Some(Attr::Int(_, found) | Attr::Float(_, found)), Some(ty)) => found == ty,
            (Some(Attr::TypedString(..)), Some(_)) => false,
            (Some(value), Some(ty)) if ty.is("string") => matches!(value, Attr::String(_)),
            _ => true,
        },
        Part::Symbol(name) => matches!(op.attr(name), Some(Attr::Symbol(_))),
        Part::Word(name) => match op.attr(name) {
            Some(Attr::String(word)) => std::str::from_utf8(word).is_ok_and(is_bare),
            _ => false,
        },
        Part::NonStrict => op.attr(super::forms::NON_STRICT) == Some(&Attr::Unit),
        Part::Numbers => {
            let is_number = |(name, value): &(String, Attr)| {
                matches!(value, Attr::Int(_, ty) if ty.is("i32")) && is_bare(name)
            };
            op.attr("num_warmup_runs").is_some() && others(op, spec).all(is_number)
        }
        Part::Region(_) | Part::Else => {
            let shadow = shadow(part, op, &spec.operands.fixed);
            let (distinct, types) = (shadow.iter().collect::<HashSet<_>>(), module.types(&shadow));
            let fits = |region: &Region| {
                region.n_blocks == 1
                    && region.others.is_empty()
                    && module.types(&region.args) == types
            };
            distinct.len() == shadow.len() && op.regions.iter().all(fits)
        }
        Part::ExecuteOp => execute_op_fits(op),
        _ => true,
    }
}

fn execute_op(p: &mut Printer, op: &Op) {
    let n_heads = if op.name.ends_with(".seq") { 2 } else { 1 };
    let (heads, args) = op.operands.split_at(n_heads.min(op.operands.len()));
    let (heads, args) = (p.operands(heads), p.operands(args));
    let _ = write!(
        p.out,
        "{}({heads}) {}({args})",
        op.name,
        attr(op, "op_name")
    );
    let pairs = |name: &str| {
        let Some(Attr::Array(items)) = op.attr(name) else {
            return Vec::new();
        };
        let pair = |item: &Attr| match item {
            Attr::Array(pair) => match &pair[..] {
                [key, value] => Some(named_attr(key.as_str()?, value)),
                _ => None,
            },
            _ => None,
        };
        items.iter().filter_map(pair).collect()
    };
    let (attrs, functions) = (pairs("op_attrs"), pairs("op_func_attrs"));
    // The first braces are those of the attributes.
    if !attrs.is_empty() || !functions.is_empty() {
        let _ = write!(p.out, " {{{}}}", attrs.join(", "));
    }
    if !functions.is_empty() {
        let _ = write!(p.out, " {{{}}}", functions.join(", "));
    }
    let n_results = (op.results.len() + 1).saturating_sub(n_heads);
    if n_results > 0 {
        let _ = write!(p.out, " : {n_results}");
    }
}

fn execute_op_fits(op: &Op) -> bool {
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
        && op
            .attrs
            .iter()
            .all(|(name, _)| matches!(&**name, "op_attrs" | "op_func_attrs" | "op_name"))
        && op.operands.len() > usize::from(is_seq)
        && op.results.len() >= usize::from(is_seq)
}
