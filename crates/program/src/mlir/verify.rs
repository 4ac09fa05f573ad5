//! Checks operations beyond their syntax.

use super::blocks::{Dominance, check_blocks};
use super::diagnostic::Diagnostic;
use super::forms;
use super::ir::{Attr, Module, Op, Region, Type};
use std::collections::HashMap;

/// Checks every operation; the first offence of each function, in order.
pub fn verify(module: &Module) -> Vec<Diagnostic> {
    let mut checker = Checker {
        module,
        found: Vec::new(),
    };
    checker.symbols(&module.ops);
    let mut dominance = Dominance::new(module);
    for op in &module.ops {
        if checker.operation(op, None)
            && !super::ir::is_compiled(op)
            && let Err(mut errors) = dominance.check(op)
        {
            checker.found.append(&mut errors);
        }
    }
    checker.found
}

struct Checker<'m> {
    module: &'m Module,
    found: Vec<Diagnostic>,
}

pub(super) fn op_error(op: &Op, message: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::error(&op.loc, format!("'{}' op {message}", op.name))
}

fn has_regions(op: &Op, n: usize) -> Result<(), Box<Diagnostic>> {
    let message = match n {
        _ if op.regions.len() == n => return Ok(()),
        0 => "requires zero regions".to_string(),
        1 => "requires one region".to_string(),
        n => format!("expected {n} regions"),
    };
    Err(Box::new(op_error(op, message)))
}

fn has_no_values(op: &Op) -> Result<(), Box<Diagnostic>> {
    let message = match (op.operands.is_empty(), op.results.is_empty()) {
        (true, true) => return Ok(()),
        (false, _) => "requires zero operands",
        _ => "requires zero results",
    };
    Err(Box::new(op_error(op, message)))
}

fn check_module(op: &Op) -> Result<(), Box<Diagnostic>> {
    let fail = |message: &str| Err(Box::new(op_error(op, message)));
    has_regions(op, 1)?;
    has_no_values(op)?;
    if op.regions.iter().any(|r| !r.others.is_empty()) {
        return fail("expects region #0 to have 0 or 1 blocks");
    }
    if op.regions.iter().any(|r| !r.args.is_empty()) {
        return fail("region should have no arguments");
    }
    if op.attr("sym_name").is_some() && op.symbol().is_none() {
        return fail("attribute 'sym_name' failed to satisfy constraint: string attribute");
    }
    Ok(())
}

fn check_function(module: &Module, op: &Op) -> Result<(), Box<Diagnostic>> {
    let fail = |message: String| Err(Box::new(op_error(op, message)));
    has_regions(op, 1)?;
    has_no_values(op)?;
    if op.symbol().is_none() {
        return fail("requires string attribute 'sym_name'".to_string());
    }
    let visibility = op.attr("sym_visibility").map(Attr::as_str);
    if !matches!(
        visibility,
        None | Some(Some("public" | "private" | "nested"))
    ) {
        let message = "visibility expected to be one of [\"public\", \"private\", \"nested\"]";
        return fail(message.to_string());
    }
    let Some(ty) = op.function_type() else {
        return fail("requires a type attribute 'type'".to_string());
    };
    let Some(body) = op.regions.first().filter(|r| r.n_blocks > 0) else {
        return Ok(());
    };
    let (args, n) = (module.types(&body.args), ty.inputs.len());
    if args.len() != n {
        return fail(format!(
            "entry block must have {n} arguments to match function signature"
        ));
    }
    for (i, (found, wanted)) in args.iter().zip(&ty.inputs).enumerate() {
        if found != wanted {
            return fail(format!(
                "type of entry block argument #{i}('{found}') must match the type of the \
                 corresponding argument in function signature('{wanted}')"
            ));
        }
    }
    Ok(())
}

/// Whether `op` can be printed in its custom form, which cannot express every operation.
pub(super) fn fits(module: &Module, op: &Op) -> bool {
    op.successors.is_empty()
        && match &*op.name {
            "func" => check_function(module, op).is_ok(),
            "module" => check_module(op).is_ok(),
            "std.return" => op.attrs.is_empty() && op.regions.is_empty() && op.results.is_empty(),
            name => forms::spec(name).is_some_and(|s| super::custom_print::fits(module, s, op)),
        }
}

impl Checker<'_> {
    /// Whether the operation and all within it are in order. Stops where one is not: what
    /// follows may only be a consequence.
    fn operation(&mut self, op: &Op, parent: Option<&Op>) -> bool {
        if super::ir::is_compiled(op) {
            return true;
        }
        if let Err(error) = self.check(op, parent).and_then(|()| check_blocks(op)) {
            self.found.push(*error);
            return false;
        }
        let mut inner = op.regions.iter().flat_map(Region::all_ops);
        inner.all(|inner| self.operation(inner, Some(op)))
    }

    /// Reports names that two functions or modules have.
    fn symbols(&mut self, ops: &[Op]) {
        let mut known = HashMap::new();
        for op in ops.iter().filter(|op| !super::ir::is_compiled(op)) {
            let Some(name) = op.symbol() else { continue };
            if let Some(first) = known.insert(name, &op.loc) {
                let message = format!("redefinition of symbol named '{name}'");
                self.found.push(Diagnostic::error(&op.loc, message));
                let note = "see existing symbol definition here";
                self.found.push(Diagnostic::note(first, note));
            }
            if op.is_module() {
                op.regions
                    .iter()
                    .for_each(|region| self.symbols(&region.ops));
            }
        }
    }

    fn check(&self, op: &Op, parent: Option<&Op>) -> Result<(), Box<Diagnostic>> {
        match &*op.name {
            "func" => return check_function(self.module, op),
            "module" => return check_module(op),
            "std.return" if !parent.is_some_and(Op::is_func) => {
                return Err(Box::new(op_error(op, "expects parent op 'func'")));
            }
            _ => {}
        }
        let Some(spec) = forms::spec(&op.name) else {
            return Ok(());
        };
        let fail = |message: String| Err(Box::new(op_error(op, message)));
        has_regions(op, spec.n_regions())?;
        if !op.successors.is_empty() {
            let n = op.successors.len();
            return fail(format!("requires 0 successors but found {n}"));
        }
        for (what, signature, values) in [
            ("operand", &spec.operands, &op.operands),
            ("result", &spec.results, &op.results),
        ] {
            let (n, n_fixed) = (values.len(), signature.fixed.len());
            if n < n_fixed || (n > n_fixed && signature.repeats.is_none()) {
                let s = if n_fixed == 1 { "" } else { "s" };
                let least = if signature.repeats.is_some() {
                    " or more"
                } else {
                    ""
                };
                return fail(format!(
                    "expected {n_fixed}{least} {what}{s}, but found {n}"
                ));
            }
            for (i, value) in values.iter().enumerate() {
                let ty = self.module.ty(*value);
                if let Some(wanted) = signature.at(i)
                    && ty != *wanted
                {
                    return fail(format!("{what} #{i} must be {wanted} type, but got '{ty}'"));
                }
            }
        }
        for part in &spec.form {
            if let forms::Part::Attr { name, .. } = part
                && op.attr(name).is_none()
            {
                return fail(format!("requires attribute '{name}'"));
            }
        }
        self.check_special(op, parent)
    }

    fn check_special(&self, op: &Op, parent: Option<&Op>) -> Result<(), Box<Diagnostic>> {
        let fail = |message: &str| Err(Box::new(op_error(op, message)));
        let operands = self.module.types(&op.operands);
        let results = self.module.types(&op.results);
        if let Some(Attr::Int(..=0, _)) = op.attr(super::streams::COST) {
            return fail("cost value must be larger than 0");
        }
        match &*op.name {
            "tfrt.return" => check_return(op, parent, &operands),
            "tfrt.call" => self.callee(op, "callee", &operands, &results, "callee"),
            "tfrt.cond" | "corert.cond" => {
                let inner = operands.get(1..).unwrap_or(&[]);
                self.callee(op, "a_true_fn", inner, &results, "true function")?;
                self.callee(op, "b_false_fn", inner, &results, "false function")
            }
            "corert.while" => self.callee(op, "b_body_fn", &operands, &results, "body function"),
            "tfrt.if" => {
                let inner = operands.get(1..).unwrap_or(&[]);
                self.body(op, 0, inner, &results, "'then'")?;
                self.body(op, 1, inner, &results, "'else'")
            }
            "tfrt.repeat.i32" => {
                let inner = operands.get(1..).unwrap_or(&[]);
                if inner.len() != results.len() {
                    return fail("incorrect number of operands");
                }
                if inner != results {
                    return fail("operand/result type mismatch");
                }
                self.body(op, 0, inner, &results, "body")
            }
            "tfrt_test.do.async" => self.body(op, 0, &operands, &results, "body"),
            "tfrt.parallel_for.i32" => match last_op(op, 0) {
                None => fail("expected tfrt.return in body"),
                Some(last) if last.operands.is_empty() => Ok(()),
                Some(_) => self.returns(op, 0, &results),
            },
            "tfrt.parallel_call.i32" => self.parallel_callee(op, &operands),
            "tfrt_test.benchmark" => match last_op(op, 0) {
                None => fail("missing return statement"),
                Some(last) if last.operands.len() == 1 => Ok(()),
                Some(_) => fail("incorrect number of return values. One return value is expected"),
            },
            "tfrt_test.sync_benchmark" => self.callee(op, "target_fn", &operands, &[], "callee"),
            "corert.executeop" | "corert.executeop.seq" | "corert_sync.executeop" => {
                let Some(Attr::Array(items)) = op.attr("op_attrs") else {
                    return fail("requires attribute 'op_attrs'");
                };
                let is_pair = |item: &Attr| {
                    matches!(item, Attr::Array(pair)
                        if matches!(&pair[..], [Attr::String(_), _]))
                };
                match items.iter().all(is_pair) {
                    true => Ok(()),
                    false => {
                        fail("each op_attr should be a key-value pair, where the key is a string")
                    }
                }
            }
            _ => Ok(()),
        }
    }

    fn function(&self, op: &Op, attr: &str) -> Result<&super::ir::FunctionType, Box<Diagnostic>> {
        let fail = |message: String| Err(Box::new(op_error(op, message)));
        let Some(name) = op.attr(attr).and_then(Attr::as_symbol) else {
            return fail(format!("requires a '{attr}' symbol reference attribute"));
        };
        match self.module.function(name).and_then(Op::function_type) {
            Some(ty) => Ok(ty),
            None => fail(format!("'{name}' does not reference a valid function")),
        }
    }

    /// Checks that a function takes and returns these types.
    fn callee(
        &self,
        op: &Op,
        attr: &str,
        operands: &[Type],
        results: &[Type],
        what: &str,
    ) -> Result<(), Box<Diagnostic>> {
        let ty = self.function(op, attr)?;
        let fail = |message: String| Err(Box::new(op_error(op, message)));
        let suffix = match what {
            "callee" => String::new(),
            what => format!(" for {what}"),
        };
        if ty.inputs.len() != operands.len() {
            return fail(format!("incorrect number of operands for {what}"));
        }
        if ty.inputs != operands {
            return fail(format!("operand type mismatch{suffix}"));
        }
        if ty.results.len() != results.len() {
            return fail(format!("incorrect number of results for {what}"));
        }
        if ty.results != results {
            return fail(format!("result type mismatch{suffix}"));
        }
        Ok(())
    }

    fn parallel_callee(&self, op: &Op, operands: &[Type]) -> Result<(), Box<Diagnostic>> {
        let ty = self.function(op, "callee")?;
        let fail = |message: &str| Err(Box::new(op_error(op, message)));
        if ty.inputs.len() + 1 != operands.len() {
            return fail("incorrect number of callee operands");
        }
        let (bounds, rest) = ty.inputs.split_at(ty.inputs.len().min(2));
        if bounds.len() != 2 || !bounds.iter().all(|t| t.is("i32")) {
            return fail("callee must take start and end indices first");
        }
        if Some(rest) != operands.get(3..) {
            return fail("operand type mismatch");
        }
        match &ty.results[..] {
            [] => Ok(()),
            [one] if one.is("!tfrt.chain") => Ok(()),
            [_] => fail("async callee must return a chain"),
            _ => fail("invalid callee result type"),
        }
    }

    /// Checks the arguments and the return of region `i`.
    fn body(
        &self,
        op: &Op,
        i: usize,
        operands: &[Type],
        results: &[Type],
        what: &str,
    ) -> Result<(), Box<Diagnostic>> {
        let args = op.regions.get(i).map(|region| &region.args[..]);
        let args = self.module.types(args.unwrap_or(&[]));
        if args.len() != operands.len() {
            let message = format!("incorrect number of arguments to {what} block");
            return Err(Box::new(op_error(op, message)));
        }
        if args != operands {
            return Err(Box::new(op_error(op, "operand/argument type mismatch")));
        }
        self.returns(op, i, results)
    }

    fn returns(&self, op: &Op, i: usize, results: &[Type]) -> Result<(), Box<Diagnostic>> {
        let Some(last) = last_op(op, i) else {
            return Err(Box::new(op_error(op, "expected tfrt.return in body")));
        };
        if self.module.types(&last.operands) != results {
            let message = format!("operand types don't match '{}' result", op.name);
            return Err(Box::new(op_error(last, message)));
        }
        Ok(())
    }
}

/// The `tfrt.return` of region `i`.
fn last_op(op: &Op, i: usize) -> Option<&Op> {
    let last = op.regions.get(i)?.ops.last();
    last.filter(|o| &*o.name == "tfrt.return")
}

fn check_return(op: &Op, parent: Option<&Op>, operands: &[Type]) -> Result<(), Box<Diagnostic>> {
    let Some(parent) = parent.filter(|p| !p.is_module()) else {
        return Err(Box::new(op_error(op, "expects parent op 'func'")));
    };
    if !parent.is_func() {
        return Ok(());
    }
    let results = parent.function_type().map_or(&[][..], |ty| &ty.results);
    if operands.len() != results.len() {
        let (n, wanted) = (operands.len(), results.len());
        let message = format!("has {n} operands, but enclosing function returns {wanted}");
        return Err(Box::new(op_error(op, message)));
    }
    match (0..operands.len()).find(|i| operands[*i] != results[*i]) {
        None => Ok(()),
        Some(i) => {
            let message = format!(
                "type of return operand {i} ('{}') doesn't match function result type ('{}')",
                operands[i], results[i]
            );
            Err(Box::new(Diagnostic::error(&op.loc, message)))
        }
    }
}
