//! Functions and modules from tokens.

use super::ir::{Attr, FunctionType, Loc, Op, Region, Type, Value};
use super::lexer::Tok;
use super::parser::{Parser, Res};

impl Parser<'_> {
    /// `func private @name(%a: i32) -> i32 attributes {} { ... }`, after the keyword.
    pub(super) fn function(&mut self, loc: Loc) -> Res<Op> {
        let mut op = Op::new("func", &loc);
        for visibility in ["private", "public", "nested"] {
            if self.eat_word(visibility)? {
                op.set_attr("sym_visibility", Attr::string(visibility));
            }
        }
        let Tok::At(name) = self.tok.clone() else {
            return self.error("expected valid '@'-identifier for symbol name");
        };
        self.bump()?;
        op.set_attr("sym_name", Attr::string(&name));
        self.in_scope(true, |p| p.function_rest(&mut op))?;
        Ok(op)
    }

    /// The arguments, results, attributes and body.
    fn function_rest(&mut self, op: &mut Op) -> Res {
        self.expect("(")?;
        let start = self.loc.clone();
        let args = self.signature(op)?;
        if self.eat_word("attributes")? {
            let loc = self.loc.clone();
            let attrs = self.attr_dict()?;
            let is_inferred = |n: &str| matches!(n, "sym_name" | "sym_visibility" | "type");
            if let Some((name, _)) = attrs.iter().find(|(n, _)| is_inferred(n)) {
                let message = format!(
                    "'{name}' is an inferred attribute and should not be specified in the explicit \
                     attribute dictionary"
                );
                return self.error_at(&loc, message);
            }
            op.set_attrs(attrs);
        }
        let body_loc = self.loc.clone();
        let n_types = op.function_type().map_or(0, |ty| ty.inputs.len());
        let body = match self.is("{") {
            true if args.len() < n_types => {
                let message = format!(
                    "entry block must have {n_types} arguments to match function signature"
                );
                return self.error_at(&start, message);
            }
            true => self.region(args)?,
            false => Region::default(),
        };
        if body.n_blocks == 1 && body.ops.is_empty() {
            return self.error_at(&body_loc, "expected non-empty function body");
        }
        op.regions.push(body);
        Ok(())
    }

    /// Arguments and results behind `(`; returns the arguments that have names.
    fn signature(&mut self, op: &mut Op) -> Res<Vec<Value>> {
        let mut args = Vec::new();
        // As MLIR has it, what arguments and results are given are attributes of the function.
        let mut given: Vec<(String, Vec<(String, Attr)>)> = Vec::new();
        let mut n_types = 0;
        let inputs = self.comma_list(")", |p| {
            let is_named = matches!(p.tok, Tok::Percent(_));
            if n_types > 0 && is_named == args.is_empty() {
                return p.error(match is_named {
                    true => "expected type instead of SSA identifier",
                    false => "expected SSA identifier",
                });
            }
            let name = format!("arg{n_types}");
            n_types += 1;
            if is_named {
                let (value, attrs) = p.typed_argument()?;
                args.push(value);
                given.push((name, attrs));
                return Ok(p.module.ty(value));
            }
            let ty = p.ty()?;
            given.push((name, p.optional_attr_dict()?));
            Ok(ty)
        })?;
        let mut results = Vec::new();
        if self.eat("->")? {
            results = if self.eat("(")? {
                let mut n_results = 0;
                self.comma_list(")", |p| {
                    let ty = p.ty()?;
                    let name = format!("result{n_results}");
                    given.push((name, p.optional_attr_dict()?));
                    n_results += 1;
                    Ok(ty)
                })?
            } else {
                vec![self.ty()?]
            };
        }
        let ty = FunctionType { inputs, results };
        op.set_attr("type", Attr::Type(Type::Function(ty.into())));
        let given = given.into_iter().filter(|(_, attrs)| !attrs.is_empty());
        op.set_attrs(given.map(|(name, attrs)| (name, Attr::Dict(attrs))));
        Ok(args)
    }

    /// `module @name attributes {} { ... }`, after the keyword.
    pub(super) fn nested_module(&mut self, loc: Loc) -> Res<Op> {
        let mut op = Op::new("module", &loc);
        if let Tok::At(name) = self.tok.clone() {
            self.bump()?;
            op.set_attr("sym_name", Attr::string(&name));
        }
        if self.eat_word("attributes")? {
            op.set_attrs(self.attr_dict()?);
        }
        let body = self.in_scope(true, |p| p.region(Vec::new()))?;
        op.regions.push(body);
        Ok(op)
    }
}
