//! How operations are written that have a form of their own.

use super::ir::{Attr, Op, Value};
use super::printer::{Printer, attr_text, named_attr};
use std::fmt::Write;

fn attr(op: &Op, name: &str) -> String {
    op.attr(name)
        .map(|a| attr_text(a, true))
        .unwrap_or_default()
}

fn tail(values: &[Value], n: usize) -> &[Value] {
    values.get(n..).unwrap_or(&[])
}

/// Writes `op`, of which its form says all.
pub(super) fn special(p: &mut Printer, special: &str, op: &Op) {
    let operands = &op.operands[..];
    let all = p.operands(operands);
    let first = p.operands(operands.get(..1).unwrap_or(operands));
    let rest = tail(operands, 1);
    let rest_types = p.types(rest);
    let results = p.types(&op.results);
    let name = op.name.clone();
    match special {
        "return" => {
            p.push(&name);
            if !operands.is_empty() {
                let types = p.types(operands);
                let _ = write!(p.out, " {all} : {types}");
            }
        }
        "typed_operands" | "merge_chains" => {
            let _ = write!(p.out, "{name} {all}");
            p.attr_dict(op, &[]);
            let types = p.module.types(operands);
            if special == "typed_operands" || !types.iter().all(|t| t.is("!tfrt.chain")) {
                let types = p.types(operands);
                let _ = write!(p.out, " : {types}");
            }
        }
        "call" => {
            let _ = write!(p.out, "{name} {}({all})", attr(op, "callee"));
            p.attr_dict(op, &["callee", "bef.nonstrict"]);
            let (inputs, results) = (p.module.types(operands), p.module.types(&op.results));
            let ty = super::ir::FunctionType { inputs, results };
            // TFRT writes two spaces here.
            let _ = write!(p.out, "  : {ty}");
        }
        "if" => {
            let [then, otherwise] = &op.regions[..] else {
                return;
            };
            let _ = write!(p.out, "{name} {all}");
            p.keyword_attr_dict(op, &["bef.nonstrict"]);
            let _ = write!(p.out, " : ({rest_types}) -> ({results}) ");
            p.region(then, Some(rest));
            p.push(" else ");
            p.region(otherwise, Some(rest));
        }
        "repeat" => {
            let [body] = &op.regions[..] else {
                return;
            };
            let _ = write!(p.out, "{name} {all}");
            p.keyword_attr_dict(op, &["bef.nonstrict"]);
            if !rest.is_empty() {
                let _ = write!(p.out, " : {rest_types}");
            }
            p.push(" ");
            p.region(body, Some(rest));
        }
        "parallel_for" | "parallel_call" => {
            let [start, end, size, extra @ ..] = operands else {
                return;
            };
            let [start_name, end_name, size_name] = [start, end, size].map(|v| p.name(*v));
            let _ = write!(p.out, "{name} {start_name} to {end_name} fixed {size_name}");
            let (names, types) = (p.operands(extra), p.types(extra));
            if special == "parallel_call" {
                let _ = write!(p.out, " {}({names})", attr(op, "callee"));
            } else if !extra.is_empty() {
                let _ = write!(p.out, ", {names}");
            }
            if !extra.is_empty() {
                let _ = write!(p.out, " : {types}");
            }
            if let [body] = &op.regions[..] {
                let shadow = [&[*start, *end], extra].concat();
                p.push(" ");
                p.region(body, Some(&shadow));
            }
        }
        "do_async" => {
            let [body] = &op.regions[..] else {
                return;
            };
            let _ = write!(p.out, "{name} {all}");
            p.keyword_attr_dict(op, &[]);
            let _ = write!(p.out, " : ({}) -> ({results}) ", p.types(operands));
            p.region(body, Some(operands));
        }
        "benchmark" | "sync_benchmark" => {
            let head = match special {
                "benchmark" => "name",
                _ => "target_fn",
            };
            let typed: Vec<String> = operands
                .iter()
                .map(|v| format!("{} : {}", p.name(*v), p.module.ty(*v)))
                .collect();
            let numbers: Vec<String> = op
                .attrs
                .iter()
                .filter(|(n, _)| n != head)
                .map(|(n, a)| format!("{n} = {}", attr_text(a, false)))
                .collect();
            let _ = write!(
                p.out,
                "{name} {}({}) {}",
                attr(op, head),
                typed.join(", "),
                numbers.join(", ")
            );
            if let [body] = &op.regions[..] {
                p.push(" ");
                p.region(body, Some(operands));
            }
        }
        "cond" | "case" | "while" | "once" => {
            let functions: &[&str] = match special {
                "cond" => &["a_true_fn", "b_false_fn"],
                "case" => &["branches"],
                "while" => &["body_fn"],
                _ => &["function"],
            };
            p.push(&name);
            let (call, n_chains) = match special {
                "once" => (operands, 0),
                "case" => (rest, 1),
                _ => (rest, 0),
            };
            if special != "once" {
                let _ = write!(p.out, " {first}");
            }
            for function in functions {
                let _ = write!(p.out, " {}", attr(op, function));
            }
            let names = p.operands(call);
            let _ = write!(p.out, "({names})");
            let limit: &[&str] = match special {
                "while" => &["parallel_iterations"],
                _ => &[],
            };
            p.attr_dict(op, &[functions, limit].concat());
            if special == "while" {
                let limit = op.attr("parallel_iterations");
                let limit = limit.map(|a| attr_text(a, false)).unwrap_or_default();
                let _ = write!(p.out, " parallel_iterations({limit})");
            }
            let (inputs, outputs) = (
                p.types(tail(call, n_chains)),
                p.types(tail(&op.results, n_chains)),
            );
            let _ = write!(p.out, " : ({inputs}) -> ({outputs})");
        }
        "corert_cond" | "corert_while" => {
            p.push(&name);
            let (call, functions) = match special {
                "corert_cond" => (rest, ["a_true_fn", "b_false_fn"]),
                _ => (operands, ["a_cond_fn", "b_body_fn"]),
            };
            if special == "corert_cond" {
                let _ = write!(p.out, " {first}");
            }
            for function in functions {
                let _ = write!(p.out, " {}", attr(op, function));
            }
            let names = p.operands(call);
            let _ = write!(p.out, "({names})");
            p.attr_dict(op, &functions);
            let types = p.types(tail(&op.results, 1));
            let inputs = tail(call, 1);
            let is_handle = |v: &Value| p.module.ty(*v).is("!corert.tensorhandle");
            match inputs.iter().all(is_handle) {
                true => drop(write!(p.out, " : ({types})")),
                false => {
                    let inputs = p.types(inputs);
                    let _ = write!(p.out, " : ({inputs}) -> ({types})");
                }
            }
        }
        "executeop" => execute_op(p, op),
        _ => {}
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
