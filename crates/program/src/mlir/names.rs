//! Names of values: what they mean in which region, and uses that come before their definition.

use super::diagnostic::Diagnostic;
use super::ir::{Loc, Type, Value};
use super::lexer::Tok;
use super::parser::{Parser, Res};
use std::collections::HashMap;

/// The type of a value that was used, but neither defined nor asked for its type.
const UNKNOWN: &str = "";

/// An operand as it was written: its value is known, its type was not asked for yet.
#[derive(Clone)]
pub(super) struct Operand {
    pub(super) name: String,
    pub(super) value: Value,
    pub(super) loc: Loc,
}

enum Named {
    All(Vec<Value>),
    Some(HashMap<usize, Value>),
}

#[derive(Default)]
pub(super) struct Scope {
    /// Values by name and number. Where some results of an operation are shadowed, the others are
    /// not there.
    names: HashMap<String, Named>,
    /// Names from outside mean nothing here.
    isolated: bool,
    /// Of an isolated scope: numbers that were used of names that have no definition yet.
    waiting: HashMap<String, Vec<(usize, Operand)>>,
}

/// `name#2` as its parts; a name without a number is the first.
fn split(text: &str) -> (&str, usize) {
    match text.split_once('#') {
        Some((name, digits)) => (name, digits.parse().unwrap_or(usize::MAX)),
        None => (text, 0),
    }
}

impl Parser<'_> {
    /// Runs `f` in a scope of its own; what was used in an isolated one must be defined there.
    pub(super) fn in_scope<T>(
        &mut self,
        isolated: bool,
        f: impl FnOnce(&mut Self) -> Res<T>,
    ) -> Res<T> {
        self.scopes.push(Scope {
            isolated,
            ..Scope::default()
        });
        let result = f(self);
        let scope = self.scopes.pop().unwrap_or_default();
        let result = result?;
        let undefined = scope.waiting.values().flatten().map(|(_, o)| &o.loc).min();
        match undefined {
            Some(loc) => self.error_at(loc, "use of undeclared SSA value name"),
            None => Ok(result),
        }
    }

    fn lookup(&self, name: &str) -> Option<&Named> {
        for scope in self.scopes.iter().rev() {
            if let Some(named) = scope.names.get(name) {
                return Some(named);
            }
            if scope.isolated {
                break;
            }
        }
        None
    }

    fn isolated_scope(&mut self) -> Option<&mut Scope> {
        self.scopes.iter_mut().rev().find(|scope| scope.isolated)
    }

    fn note(&mut self, value: Value, message: &str) {
        if let Some(info) = self.module.values.get(value.index()) {
            self.notes.push(Diagnostic::note(&info.loc, message));
        }
    }

    /// Names `values` in the innermost scope. Those that were used before become the values
    /// that the uses have.
    pub(super) fn define(&mut self, name: &str, values: &mut [Value], loc: &Loc) -> Res {
        if let Some(old) = self.lookup(name) {
            let first = match old {
                Named::All(values) => values.first(),
                Named::Some(values) => values.values().min(),
            };
            if let Some(first) = first.copied() {
                self.note(first, "previously defined here");
            }
            return self.error_at(loc, format!("redefinition of SSA value '%{name}'"));
        }
        let waiting = self.isolated_scope().and_then(|s| s.waiting.remove(name));
        for (number, operand) in waiting.into_iter().flatten() {
            let Some(value) = values.get_mut(number) else {
                return self.error_at(&operand.loc, "reference to invalid result number");
            };
            let (found, wanted) = (self.module.ty(*value), self.module.ty(operand.value));
            if wanted.is(UNKNOWN) {
                if let Some(info) = self.module.values.get_mut(operand.value.index()) {
                    info.ty = found;
                }
            } else if found != wanted {
                let note = format!("previously used here with type '{wanted}'");
                self.notes.push(Diagnostic::note(&operand.loc, note));
                let message =
                    format!("definition of SSA value '%{name}#{number}' has type '{found}'");
                return self.error_at(loc, message);
            }
            if let Some(info) = self.module.values.get_mut(operand.value.index()) {
                info.loc = loc.clone();
            }
            *value = operand.value;
        }
        if let Some(scope) = self.scopes.last_mut() {
            let values = Named::All(values.to_vec());
            scope.names.insert(name.to_string(), values);
        }
        Ok(())
    }

    /// Names `args` like `operands` in the innermost scope.
    pub(super) fn shadow(&mut self, operands: &[Operand], args: &[Value]) -> Res {
        for (operand, arg) in operands.iter().zip(args) {
            let (name, number) = split(&operand.name);
            let Some(scope) = self.scopes.last_mut() else {
                continue;
            };
            let named = scope.names.entry(name.to_string());
            let first = match named.or_insert_with(|| Named::Some(HashMap::new())) {
                Named::Some(values) => values.insert(number, *arg),
                Named::All(_) => None,
            };
            if let Some(first) = first {
                self.note(first, "previously referenced here");
                let name = &operand.name;
                let message = format!("region entry argument '%{name}' is already in use");
                return self.error_at(&operand.loc, message);
            }
        }
        Ok(())
    }

    /// `%name` or `%name#2`
    pub(super) fn operand(&mut self) -> Res<Operand> {
        let Tok::Percent(text) = self.tok else {
            return self.error("expected SSA operand");
        };
        let loc = self.loc.clone();
        self.bump()?;
        let (name, number) = split(text);
        let operand = |value| Operand {
            name: text.to_string(),
            value,
            loc: loc.clone(),
        };
        match self.lookup(name) {
            Some(Named::All(values)) => match values.get(number) {
                Some(value) => return Ok(operand(*value)),
                None => return self.error_at(&loc, "reference to invalid result number"),
            },
            Some(Named::Some(values)) => match values.get(&number) {
                Some(value) => return Ok(operand(*value)),
                None => return self.error_at(&loc, "use of undeclared SSA value name"),
            },
            None => {}
        }
        let waiting = self.isolated_scope().and_then(|s| s.waiting.get(name));
        let known = waiting.and_then(|list| list.iter().find(|(n, _)| *n == number));
        if let Some((_, first)) = known {
            return Ok(operand(first.value));
        }
        let value = self.module.add_value(Type::new(UNKNOWN), loc.clone());
        let operand = operand(value);
        if let Some(scope) = self.isolated_scope() {
            let list = scope.waiting.entry(name.to_string()).or_default();
            list.push((number, operand.clone()));
        }
        Ok(operand)
    }

    /// Operands with commas, if any.
    pub(super) fn operand_list(&mut self) -> Res<Vec<Operand>> {
        let mut operands = Vec::new();
        if !matches!(self.tok, Tok::Percent(_)) {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand()?);
            if !self.eat(",")? {
                return Ok(operands);
            }
        }
    }

    /// The values of operands that must be of these types.
    pub(super) fn resolve(
        &mut self,
        operands: &[Operand],
        types: &[Type],
        loc: &Loc,
    ) -> Res<Vec<Value>> {
        if operands.len() != types.len() {
            let message = format!(
                "{} operands present, but expected {}",
                operands.len(),
                types.len()
            );
            return self.error_at(loc, message);
        }
        let pairs = operands.iter().zip(types);
        pairs.map(|(o, t)| self.resolve_one(o, t)).collect()
    }

    pub(super) fn resolve_one(&mut self, operand: &Operand, ty: &Type) -> Res<Value> {
        let found = self.module.ty(operand.value);
        if found.is(UNKNOWN) {
            if let Some(info) = self.module.values.get_mut(operand.value.index()) {
                info.ty = ty.clone();
            }
        } else if found != *ty {
            self.note(operand.value, "prior use here");
            let message = format!(
                "use of value '%{}' expects different type than prior uses: '{ty}' vs '{found}'",
                operand.name
            );
            return self.error_at(&operand.loc, message);
        }
        Ok(operand.value)
    }
}
