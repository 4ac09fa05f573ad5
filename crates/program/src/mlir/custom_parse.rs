//! How operations are read that have a form of their own.

use super::forms::{self, Part, Spec};
use super::ir::{Attr, FunctionType, Loc, Op, Region, Type};
use super::lexer::Tok;
use super::names::Operand;
use super::parser::{Parser, Res};

const CHAIN: &str = "!tfrt.chain";
const HANDLE: &str = "!corert.tensorhandle";

/// An operation that begins with its bare name.
pub(super) fn operation(p: &mut Parser, name: &str) -> Res<Op> {
    let loc = p.loc.clone();
    match name {
        "func" | "func.func" | "builtin.func" => {
            p.bump()?;
            return p.function(loc);
        }
        "module" | "builtin.module" => {
            p.bump()?;
            return p.nested_module(loc);
        }
        _ => {}
    }
    let is_return = matches!(name, "return" | "std.return" | "func.return");
    let Some(spec) = forms::spec(if is_return { "tfrt.return" } else { name }) else {
        let message = format!("custom op '{name}' is unknown");
        return p.error_at(&loc, message);
    };
    p.bump()?;
    let mut op = Op::new(if is_return { "std.return" } else { name }, &loc);
    if let [Part::Special(special), ..] = &spec.form[..] {
        parse_special(p, special, &mut op)?;
    } else {
        parse_sequence(p, spec, &mut op)?;
    }
    Ok(op)
}

fn parse_sequence(p: &mut Parser, spec: &Spec, op: &mut Op) -> Res {
    let loc = p.loc.clone();
    let mut operands: Vec<Operand> = Vec::new();
    for part in &spec.form {
        match part {
            Part::Operands => operands = p.operand_list()?,
            Part::Operand(_) => operands.push(p.operand()?),
            Part::Comma => p.expect(",")?,
            Part::AttrDict => attributes(p, op)?,
            Part::Attr { name, ty } => {
                let value = p.attribute(ty.as_ref())?;
                op.set_attr(name, value);
            }
            Part::Special(_) => return p.error("a form cannot be both"),
        }
    }
    let n_fixed = spec.operands.fixed.len();
    let may_repeat = spec.operands.repeats.is_some();
    if operands.len() < n_fixed || (operands.len() > n_fixed && !may_repeat) {
        let message = format!(
            "{} operands present, but expected {n_fixed}",
            operands.len()
        );
        return p.error_at(&loc, message);
    }
    for (i, operand) in operands.iter().enumerate() {
        let value = match spec.operands.at(i) {
            Some(ty) => p.resolve_one(operand, ty)?,
            None => operand.value,
        };
        op.operands.push(value);
    }
    op.results = p.new_results(&spec.results.fixed);
    Ok(())
}

fn function_type(p: &mut Parser) -> Res<FunctionType> {
    p.expect(":")?;
    let loc = p.loc.clone();
    match p.ty()? {
        Type::Function(function) => Ok((*function).clone()),
        Type::Text(_) => p.error_at(&loc, "expected function type"),
    }
}

fn attributes(p: &mut Parser, op: &mut Op) -> Res {
    let loc = p.loc.clone();
    let attrs = p.optional_attr_dict()?;
    let differs = |(name, value): &&(String, Attr)| op.attr(name).is_some_and(|a| a != value);
    if let Some((name, _)) = attrs.iter().find(differs) {
        let message = format!("attribute '{name}' occurs more than once in the attribute list");
        return p.error_at(&loc, message);
    }
    op.set_attrs(attrs);
    Ok(())
}

fn keyword_attributes(p: &mut Parser, op: &mut Op) -> Res {
    if p.eat_word("attributes")? {
        attributes(p, op)?;
    }
    Ok(())
}

fn symbol(p: &mut Parser, op: &mut Op, name: &str) -> Res {
    let loc = p.loc.clone();
    let value = p.attribute(None)?;
    if !matches!(value, Attr::Symbol(_)) {
        return p.error_at(&loc, "invalid kind of attribute specified");
    }
    op.set_attr(name, value);
    Ok(())
}

fn parenthesized_operands(p: &mut Parser) -> Res<Vec<Operand>> {
    p.expect("(")?;
    p.comma_list(")", Parser::operand)
}

fn split_first<'o>(
    p: &Parser,
    operands: &'o [Operand],
    what: &str,
) -> Res<(&'o Operand, &'o [Operand])> {
    match operands.split_first() {
        Some(split) => Ok(split),
        None => p.error(format!("expected {what}")),
    }
}

fn parse_special(p: &mut Parser, special: &str, op: &mut Op) -> Res {
    let i32_type = Type::new("i32");
    let loc = p.loc.clone();
    match special {
        "return" => {
            let operands = p.operand_list()?;
            if !operands.is_empty() {
                p.expect(":")?;
                let types = p.open_type_list()?;
                op.operands = p.resolve(&operands, &types, &loc)?;
            }
        }
        "typed_operands" | "merge_chains" => {
            let operands = p.operand_list()?;
            attributes(p, op)?;
            // Earlier text merges chains only, and does not say so.
            let types = match special == "merge_chains" && !p.is(":") {
                true => vec![Type::new(CHAIN); operands.len()],
                false => {
                    p.expect(":")?;
                    p.open_type_list()?
                }
            };
            op.operands = p.resolve(&operands, &types, &loc)?;
            let result = if special == "merge_chains" {
                CHAIN
            } else {
                "i32"
            };
            op.results = p.new_results(&[Type::new(result)]);
        }
        "call" => {
            op.set_attr("bef.nonstrict", Attr::Unit);
            symbol(p, op, "callee")?;
            let operands = parenthesized_operands(p)?;
            attributes(p, op)?;
            let types = function_type(p)?;
            op.operands = p.resolve(&operands, &types.inputs, &loc)?;
            op.results = p.new_results(&types.results);
        }
        "if" => {
            let operands = p.operand_list()?;
            op.set_attr("bef.nonstrict", Attr::Unit);
            keyword_attributes(p, op)?;
            let types = function_type(p)?;
            let (condition, rest) = split_first(p, &operands, "condition")?;
            op.operands = vec![p.resolve_one(condition, &Type::new("i1"))?];
            op.operands.extend(p.resolve(rest, &types.inputs, &loc)?);
            op.results = p.new_results(&types.results);
            op.regions.push(p.shadowing_region(rest, &types.inputs)?);
            if p.eat_word("else")? {
                op.regions.push(p.shadowing_region(rest, &types.inputs)?);
            } else if !types.results.is_empty() {
                return p.error("expected 'else' in 'tfrt.if' with result values");
            } else {
                let region = empty_region(p, &types.inputs, &op.loc);
                op.regions.push(region);
            }
        }
        "repeat" => {
            let operands = p.operand_list()?;
            op.set_attr("bef.nonstrict", Attr::Unit);
            keyword_attributes(p, op)?;
            let types = match p.eat(":")? {
                true => p.open_type_list()?,
                false => Vec::new(),
            };
            let (count, rest) = split_first(p, &operands, "trip count")?;
            op.operands = vec![p.resolve_one(count, &i32_type)?];
            op.operands.extend(p.resolve(rest, &types, &loc)?);
            op.results = p.new_results(&types);
            op.regions.push(p.shadowing_region(rest, &types)?);
        }
        "parallel_for" | "parallel_call" => parallel(p, special, op)?,
        "do_async" => {
            let operands = p.operand_list()?;
            keyword_attributes(p, op)?;
            let types = function_type(p)?;
            op.operands = p.resolve(&operands, &types.inputs, &loc)?;
            op.results = p.new_results(&types.results);
            op.regions
                .push(p.shadowing_region(&operands, &types.inputs)?);
        }
        "benchmark" | "sync_benchmark" => benchmark(p, special, op)?,
        "cond" | "case" => {
            let selector = p.operand()?;
            let ty = Type::new(if special == "cond" { "i1" } else { "i32" });
            op.operands = vec![p.resolve_one(&selector, &ty)?];
            if special == "cond" {
                symbol(p, op, "a_true_fn")?;
                symbol(p, op, "b_false_fn")?;
            } else {
                let branches = p.attribute(None)?;
                op.set_attr("branches", branches);
            }
            call_with_types(p, op, special == "case")?;
        }
        "while" => {
            let condition = p.operand()?;
            op.operands = vec![p.resolve_one(&condition, &Type::new("i1"))?];
            symbol(p, op, "body_fn")?;
            let operands = parenthesized_operands(p)?;
            attributes(p, op)?;
            p.expect_word("parallel_iterations")?;
            p.expect("(")?;
            let limit = p.attribute(Some(&Type::new("i64")))?;
            if op.attr("parallel_iterations").is_some() {
                let message = "attribute 'parallel_iterations' occurs more than once";
                return p.error_at(&loc, message);
            }
            op.set_attr("parallel_iterations", limit);
            p.expect(")")?;
            types_of_call(p, op, &operands, &[])?;
        }
        "once" => {
            symbol(p, op, "function")?;
            call_with_types(p, op, false)?;
        }
        "corert_cond" | "corert_while" => {
            if special == "corert_cond" {
                let condition = p.operand()?;
                op.operands = vec![p.resolve_one(&condition, &Type::new(HANDLE))?];
                symbol(p, op, "a_true_fn")?;
                symbol(p, op, "b_false_fn")?;
            } else {
                symbol(p, op, "a_cond_fn")?;
                symbol(p, op, "b_body_fn")?;
            }
            let operands = parenthesized_operands(p)?;
            attributes(p, op)?;
            p.expect(":")?;
            p.expect("(")?;
            let mut results = p.comma_list(")", Parser::ty)?;
            let (chain, rest) = split_first(p, &operands, "a chain")?;
            op.operands.push(p.resolve_one(chain, &Type::new(CHAIN))?);
            // Earlier text only has the types of the results: the operands are handles.
            let mut inputs = vec![Type::new(HANDLE); rest.len()];
            if p.eat("->")? {
                p.expect("(")?;
                inputs = std::mem::replace(&mut results, p.comma_list(")", Parser::ty)?);
            }
            op.operands.extend(p.resolve(rest, &inputs, &loc)?);
            let mut types = vec![Type::new(CHAIN)];
            types.extend(results);
            op.results = p.new_results(&types);
        }
        "executeop" => execute_op(p, op)?,
        _ => return p.error("unknown form"),
    }
    Ok(())
}

/// The body of an `else` that was left out.
fn empty_region(p: &mut Parser, types: &[Type], loc: &Loc) -> Region {
    let args = p.new_results(types);
    Region {
        args,
        ops: vec![Op::new("tfrt.return", loc)],
        n_blocks: 1,
        loc: loc.clone(),
        ..Region::default()
    }
}

/// `(operands) attr-dict : (types) -> (types)`; with `chain`, the first operand and the first
/// result are chains whose types are not written.
fn call_with_types(p: &mut Parser, op: &mut Op, chain: bool) -> Res {
    let operands = parenthesized_operands(p)?;
    attributes(p, op)?;
    let chains = [Type::new(CHAIN)];
    types_of_call(p, op, &operands, if chain { &chains } else { &[] })
}

fn types_of_call(p: &mut Parser, op: &mut Op, operands: &[Operand], chains: &[Type]) -> Res {
    let loc = p.loc.clone();
    let types = function_type(p)?;
    let with_chains = |types: &[Type]| [chains, types].concat();
    let values = p.resolve(operands, &with_chains(&types.inputs), &loc)?;
    op.operands.extend(values);
    op.results = p.new_results(&with_chains(&types.results));
    Ok(())
}

/// `%start to %end fixed %size, %operands : types` and a region or a callee
fn parallel(p: &mut Parser, special: &str, op: &mut Op) -> Res {
    let i32_type = Type::new("i32");
    let start = p.operand()?;
    p.expect_word("to")?;
    let end = p.operand()?;
    p.expect_word("fixed")?;
    let size = p.operand()?;
    let operands = if special == "parallel_call" {
        symbol(p, op, "callee")?;
        parenthesized_operands(p)?
    } else if p.eat(",")? {
        p.operand_list()?
    } else {
        Vec::new()
    };
    let loc = p.loc.clone();
    let types = match p.eat(":")? {
        true => p.open_type_list()?,
        false => Vec::new(),
    };
    for operand in [&start, &end, &size] {
        op.operands.push(p.resolve_one(operand, &i32_type)?);
    }
    op.operands.extend(p.resolve(&operands, &types, &loc)?);
    op.results = p.new_results(&[Type::new(CHAIN)]);
    if special == "parallel_for" {
        let args = [vec![start, end], operands].concat();
        let types = [vec![i32_type.clone(), i32_type], types].concat();
        op.regions.push(p.shadowing_region(&args, &types)?);
    }
    Ok(())
}

/// `"name"(%a : i32) max_count = 100, duration_secs = 1 { ... }`
fn benchmark(p: &mut Parser, special: &str, op: &mut Op) -> Res {
    if special == "benchmark" {
        let name = p.attribute(Some(&Type::new("string")))?;
        op.set_attr("name", name);
    } else {
        symbol(p, op, "target_fn")?;
    }
    p.expect("(")?;
    let operands = p.comma_list(")", |p| {
        let operand = p.operand()?;
        p.expect(":")?;
        Ok((operand, p.ty()?))
    })?;
    let (operands, types): (Vec<_>, Vec<_>) = operands.into_iter().unzip();
    let loc = p.loc.clone();
    op.operands = p.resolve(&operands, &types, &loc)?;
    loop {
        let Tok::Bare(name) = p.tok else {
            return p.error("expected valid keyword");
        };
        p.bump()?;
        p.expect("=")?;
        let value = p.attribute(Some(&Type::new("i32")))?;
        op.set_attr(name, value);
        if !p.eat(",")? {
            break;
        }
    }
    if op.attr("num_warmup_runs").is_none() {
        op.set_attr("num_warmup_runs", Attr::i32(1));
    }
    if special == "benchmark" {
        op.results = p.new_results(&[Type::new(CHAIN)]);
        op.regions.push(p.shadowing_region(&operands, &types)?);
    }
    Ok(())
}

/// `(%handler, %chain) "op"(%operands) {attributes} {functions} : 2`
fn execute_op(p: &mut Parser, op: &mut Op) -> Res {
    let is_seq = op.name.ends_with(".seq");
    let has_functions = !op.name.starts_with("corert_sync.");
    let heads = parenthesized_operands(p)?;
    let mut head_types = vec![Type::new("!corert.ophandler")];
    let mut result_types = Vec::new();
    if is_seq {
        head_types.push(Type::new(CHAIN));
        result_types.push(Type::new(CHAIN));
    }
    let loc = p.loc.clone();
    let name = p.attribute(Some(&Type::new("string")))?;
    let operands = parenthesized_operands(p)?;
    let attrs = p.optional_attr_dict()?;
    let functions = p.optional_attr_dict()?;
    if p.eat(":")? {
        let Tok::Int(digits) = p.tok else {
            return p.error("expected the number of results");
        };
        let n_results: usize = digits.parse().unwrap_or(usize::MAX);
        if n_results > 1 << 16 {
            return p.error("too many results");
        }
        p.bump()?;
        result_types.resize(result_types.len() + n_results, Type::new(HANDLE));
    }
    op.operands = p.resolve(&heads, &head_types, &loc)?;
    for operand in &operands {
        op.operands
            .push(p.resolve_one(operand, &Type::new(HANDLE))?);
    }
    op.results = p.new_results(&result_types);
    // In the order of their names, as attributes are.
    let pairs = |mut list: Vec<(String, Attr)>| {
        list.sort_by(|a, b| a.0.cmp(&b.0));
        let pair = |(key, value)| Attr::Array(vec![Attr::string(key), value]);
        Attr::Array(
            list.iter()
                .map(|(k, v)| pair((k.as_str(), v.clone())))
                .collect(),
        )
    };
    op.set_attr("op_attrs", pairs(attrs));
    if has_functions {
        op.set_attr("op_func_attrs", pairs(functions));
    }
    op.set_attr("op_name", name);
    Ok(())
}
