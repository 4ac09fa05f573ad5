//! Parses operations in their custom forms.

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
    let mut form = FormParser {
        spec,
        loc: p.loc.clone(),
        operands: Vec::new(),
        types: None,
    };
    for part in &spec.form {
        form.part(p, part, &mut op)?;
    }
    if form.types.is_none() && spec.form != [Part::ExecuteOp] {
        form.resolve(p, &mut op, &[], &[])?;
    }
    Ok(op)
}

/// The state of reading an operation.
struct FormParser<'s> {
    spec: &'s Spec,
    /// The location of the first operand.
    loc: Loc,
    operands: Vec<Operand>,
    /// The types of the rest of the operands, once they are known.
    types: Option<Vec<Type>>,
}

impl FormParser<'_> {
    fn part(&mut self, p: &mut Parser, part: &Part, op: &mut Op) -> Res {
        match part {
            Part::Operands => self.operands = p.operand_list()?,
            Part::Operand => self.operands.push(p.operand()?),
            Part::Parenthesized => self.operands.extend(parenthesized_operands(p)?),
            Part::CommaRest => {
                if p.eat(",")? {
                    self.operands.extend(p.operand_list()?);
                }
            }
            Part::TypedOperands => {
                p.expect("(")?;
                let typed = p.comma_list(")", |p| {
                    let operand = p.operand()?;
                    p.expect(":")?;
                    Ok((operand, p.ty()?))
                })?;
                let (operands, types): (_, Vec<Type>) = typed.into_iter().unzip();
                self.operands = operands;
                self.resolve(p, op, &types, &[])?;
            }
            Part::AttrDict => attributes(p, op)?,
            Part::KeywordAttrDict => {
                if p.eat_word("attributes")? {
                    attributes(p, op)?;
                }
            }
            Part::Numbers => numbers(p, op)?,
            Part::Attr { name, ty } => attribute(p, op, name, ty.as_ref())?,
            Part::Symbol(name) => symbol(p, op, name)?,
            Part::Word(name) => {
                let Tok::Bare(word) = p.tok else {
                    return p.error("expected valid keyword");
                };
                p.bump()?;
                op.set_attr(name, Attr::string(word));
            }
            Part::Args => {
                let mut types = Vec::new();
                if p.eat(",")? {
                    p.expect_word("args")?;
                    self.operands.extend(parenthesized_operands(p)?);
                    p.expect(":")?;
                    p.expect("(")?;
                    types = p.comma_list(")", Parser::ty)?;
                }
                self.resolve(p, op, &types, &[])?;
            }
            Part::NonStrict => op.set_attr(forms::NON_STRICT, Attr::Unit),
            Part::Types
            | Part::SameTypes
            | Part::ChainTypes
            | Part::Functional
            | Part::FunctionType
            | Part::Handles => self.types(p, part, op)?,
            Part::Region(n) => {
                let region = self.region(p, *n)?;
                op.regions.push(region);
            }
            Part::Else => {
                let region = if p.eat_word("else")? {
                    self.region(p, 0)?
                } else if op.results.is_empty() {
                    empty_region(p, self.types.as_deref().unwrap_or_default(), &op.loc)
                } else {
                    return p.error("expected 'else' in 'tfrt.if' with result values");
                };
                op.regions.push(region);
            }
            Part::ExecuteOp => execute_op(p, op)?,
            Part::Literal(text) if matches!(&**text, "(" | ")" | ",") => p.expect(text)?,
            Part::Literal(word) => p.expect_word(word)?,
        }
        Ok(())
    }

    /// Reads types and sets the operands and results.
    fn types(&mut self, p: &mut Parser, part: &Part, op: &mut Op) -> Res {
        match part {
            Part::Types | Part::SameTypes | Part::ChainTypes => {
                let n_any = self.spec.operands.fixed.iter().filter(|t| t.is("any"));
                let n_rest = self.rest().len() + n_any.count();
                let types = match part {
                    // Earlier text merges chains only and omits their types.
                    Part::ChainTypes if !p.is(":") => vec![Type::new(CHAIN); n_rest],
                    _ if n_rest == 0 => Vec::new(),
                    _ => {
                        p.expect(":")?;
                        p.open_type_list()?
                    }
                };
                let results = if *part == Part::SameTypes {
                    &types[..]
                } else {
                    &[]
                };
                self.resolve(p, op, &types, results)
            }
            Part::Functional | Part::FunctionType => {
                let types = function_type(p)?;
                self.resolve(p, op, &types.inputs, &types.results)
            }
            _ => {
                p.expect(":")?;
                p.expect("(")?;
                let mut results = p.comma_list(")", Parser::ty)?;
                // Earlier text only has the types of the results: the operands are handles.
                let mut inputs = vec![Type::new(HANDLE); self.rest().len()];
                if p.eat("->")? {
                    p.expect("(")?;
                    inputs = std::mem::replace(&mut results, p.comma_list(")", Parser::ty)?);
                }
                self.resolve(p, op, &inputs, &results)
            }
        }
    }

    /// The operands behind those of fixed types.
    fn rest(&self) -> &[Operand] {
        let n_fixed = self.spec.operands.fixed.len();
        self.operands.get(n_fixed..).unwrap_or_default()
    }

    /// Sets the operands and results, given the types of the rest of both.
    fn resolve(&mut self, p: &mut Parser, op: &mut Op, types: &[Type], results: &[Type]) -> Res {
        let fixed = &self.spec.operands.fixed[..];
        let n = self.operands.len();
        if n < fixed.len() || (n > fixed.len() && self.spec.operands.repeats.is_none()) {
            let message = format!("{n} operands present, but expected {}", fixed.len());
            return p.error_at(&self.loc, message);
        }
        let mut types = types;
        for (operand, ty) in self.operands.iter().zip(fixed) {
            let mut ty = ty;
            if ty.is("any")
                && let Some((first, others)) = types.split_first()
            {
                (ty, types) = (first, others);
            }
            op.operands.push(p.resolve_one(operand, ty)?);
        }
        op.operands
            .extend(p.resolve(self.rest(), types, &self.loc)?);
        op.results = p.new_results(&[&self.spec.results.fixed, results].concat());
        self.types = Some(types.to_vec());
        Ok(())
    }

    /// A region whose arguments have the names of the first `n` operands and of the rest.
    fn region(&self, p: &mut Parser, n: usize) -> Res<Region> {
        let first = self.operands.get(..n).unwrap_or_default();
        let fixed = self.spec.operands.fixed.get(..n).unwrap_or_default();
        let operands = [first, self.rest()].concat();
        let types = [fixed, self.types.as_deref().unwrap_or_default()].concat();
        p.shadowing_region(&operands, &types)
    }
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

fn attribute(p: &mut Parser, op: &mut Op, name: &str, ty: Option<&Type>) -> Res {
    let loc = p.loc.clone();
    let value = p.attribute(ty)?;
    if op.attr(name).is_some() {
        let message = format!("attribute '{name}' occurs more than once");
        return p.error_at(&loc, message);
    }
    op.set_attr(name, value);
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

fn parenthesized_operands(p: &mut Parser) -> Res<Vec<Operand>> {
    p.expect("(")?;
    p.comma_list(")", Parser::operand)
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

/// `max_count = 100, duration_secs = 1`
fn numbers(p: &mut Parser, op: &mut Op) -> Res {
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
        list.sort_unstable_by(|a, b| a.0.cmp(&b.0));
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
