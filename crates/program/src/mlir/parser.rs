//! Tokens to operations: the generic form and regions.

use super::custom_parse;
use super::diagnostic::Diagnostic;
use super::ir::{Attr, Block, Loc, Module, Op, Region, Type, Value};
use super::lexer::{Lexer, Tok};
use super::location::Place;
use super::names::{Operand, Scope};
use std::collections::{HashMap, HashSet};

pub(super) type Res<T = ()> = Result<T, Box<Diagnostic>>;

/// The maximum number of bytes beyond 64 times its text that a program may have without its aliases.
const MAX_REPLACED: usize = 1 << 22;

/// The maximum nesting of regions, lists and types: programs are untrusted, and the stack is finite.
const MAX_DEPTH: usize = 100;

pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) tok: Tok<'a>,
    /// The location of `tok`.
    pub(super) loc: Loc,
    /// The text position of `tok`.
    pub(super) at: usize,
    pub(super) module: Module,
    /// The meaning of aliases, and its length as text.
    pub(super) attr_aliases: HashMap<String, (Attr, usize)>,
    pub(super) type_aliases: HashMap<String, (Type, usize)>,
    /// Places by alias; they may be used before they are defined.
    pub(super) loc_aliases: HashMap<String, Place>,
    /// The additional length of the text without aliases.
    pub(super) replaced: usize,
    pub(super) scopes: Vec<Scope>,
    /// The blocks of the region that is read.
    blocks: HashMap<String, usize>,
    depth: usize,
    /// Notes that belong to the error to come.
    pub(super) notes: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(lexer: Lexer<'a>) -> Self {
        Parser {
            loc: lexer.loc(),
            at: lexer.at,
            lexer,
            tok: Tok::End,
            module: Module::default(),
            attr_aliases: HashMap::new(),
            type_aliases: HashMap::new(),
            loc_aliases: HashMap::new(),
            replaced: 0,
            scopes: Vec::new(),
            blocks: HashMap::new(),
            depth: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(Box::new(Diagnostic::error(&self.loc, message)))
    }

    pub(super) fn error_at<T>(&self, loc: &Loc, message: impl Into<String>) -> Res<T> {
        Err(Box::new(Diagnostic::error(loc, message)))
    }

    /// Reads the next token.
    pub(super) fn bump(&mut self) -> Res {
        self.loc = self.lexer.loc();
        self.at = self.lexer.at;
        self.tok = self.lexer.next().map_err(Box::new)?;
        Ok(())
    }

    /// Goes back to where `tok` begins, to read it by characters.
    pub(super) fn reread(&mut self, at: usize) -> Res {
        self.lexer.at = at;
        self.lexer.skip_space();
        self.bump()
    }

    pub(super) fn is(&self, punct: &str) -> bool {
        matches!(&self.tok, Tok::Punct(p) if *p == punct)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(&self.tok, Tok::Bare(w) if *w == word)
    }

    pub(super) fn eat(&mut self, punct: &str) -> Res<bool> {
        let found = self.is(punct);
        if found {
            self.bump()?;
        }
        Ok(found)
    }

    pub(super) fn eat_word(&mut self, word: &str) -> Res<bool> {
        let found = self.is_word(word);
        if found {
            self.bump()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, punct: &str) -> Res {
        match self.eat(punct)? {
            true => Ok(()),
            false => self.error(format!("expected '{punct}'")),
        }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Res {
        match self.eat_word(word)? {
            true => Ok(()),
            false => self.error(format!("expected '{word}'")),
        }
    }

    /// Counts nesting for the time of `f`.
    pub(super) fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        if self.depth >= MAX_DEPTH {
            return self.error("the program is nested too deeply");
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// Items with commas between, until `close`, which is consumed.
    pub(super) fn comma_list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Res<T>,
    ) -> Res<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close)? {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.eat(",")? {
                self.expect(close)?;
                return Ok(items);
            }
        }
    }

    /// The whole file.
    pub(super) fn parse_module(mut self) -> Result<Module, Vec<Diagnostic>> {
        let result = self
            .find_loc_aliases()
            .and_then(|()| self.bump())
            .and_then(|()| self.in_scope(true, Self::top_level));
        match result {
            Ok(ops) => {
                self.module.ops = ops;
                // A file that is one module is that module.
                if let [only] = &mut self.module.ops[..]
                    && only.is_module()
                    && only.attr("tfrt.compiled").is_none()
                    && super::verify::fits(&Module::default(), only)
                {
                    self.module.attrs = std::mem::take(&mut only.attrs);
                    let body = only.regions.first_mut().map(|r| std::mem::take(&mut r.ops));
                    self.module.ops = body.unwrap_or_default();
                }
                Ok(self.module)
            }
            Err(error) => {
                let mut all = vec![*error];
                all.append(&mut self.notes);
                Err(all)
            }
        }
    }

    fn top_level(&mut self) -> Res<Vec<Op>> {
        let mut ops = Vec::new();
        let mut known = HashSet::new();
        loop {
            match self.tok {
                Tok::End => break,
                Tok::Hash(name) => {
                    self.alias_name("attribute", name, &mut known)?;
                    if self.is_word("loc") {
                        let place = self.loc_in_parentheses()?;
                        self.loc_aliases.insert(name.to_string(), place);
                        continue;
                    }
                    let alias = self.measured(|p| p.attribute(None))?;
                    self.attr_aliases.insert(name.to_string(), alias);
                }
                Tok::Bang(name) => {
                    self.alias_name("type", name, &mut known)?;
                    self.eat_word("type")?;
                    let alias = self.measured(Self::ty)?;
                    self.type_aliases.insert(name.to_string(), alias);
                }
                _ => ops.push(self.operation()?),
            }
        }
        Ok(ops)
    }

    /// The name of a new alias and the sign behind it.
    fn alias_name(
        &mut self,
        kind: &'static str,
        name: &'a str,
        known: &mut HashSet<(&'static str, &'a str)>,
    ) -> Res {
        if !known.insert((kind, name)) {
            return self.error(format!("redefinition of {kind} alias id '{name}'"));
        }
        if name.contains('.') {
            let message = "names with a '.' are reserved for dialect-defined names";
            return self.error(format!("{kind} {message}"));
        }
        self.bump()?;
        self.expect("=")
    }

    /// The result of `f`, and the length of its text without aliases.
    fn measured<T>(&mut self, f: impl FnOnce(&mut Self) -> Res<T>) -> Res<(T, usize)> {
        let (start, replaced) = (self.at, self.replaced);
        let value = f(self)?;
        Ok((value, self.at - start + self.replaced - replaced))
    }

    /// Counts what an alias stands for: aliases of aliases could make a short text endless.
    pub(super) fn replace_alias(&mut self, length: usize) -> Res {
        self.replaced = self.replaced.saturating_add(length);
        match self.replaced > MAX_REPLACED + 64 * self.lexer.text.len() {
            true => self.error("the program is too large without its aliases"),
            false => Ok(()),
        }
    }

    /// One operation with the names of its results.
    pub(super) fn operation(&mut self) -> Res<Op> {
        self.nested(|p| {
            let start = p.loc.clone();
            let mut names: Vec<(String, usize, Loc)> = Vec::new();
            if matches!(p.tok, Tok::Percent(_)) {
                loop {
                    let Tok::Percent(name) = p.tok else {
                        return p.error("expected valid ssa identifier");
                    };
                    let loc = p.loc.clone();
                    p.bump()?;
                    let mut count = 1;
                    if p.eat(":")? {
                        let Tok::Int(digits) = p.tok else {
                            return p.error("expected integer number of results");
                        };
                        count = digits.parse().unwrap_or(0);
                        if count == 0 || count > 1 << 16 {
                            let message = "expected named operation to have atleast 1 result";
                            return p.error(message);
                        }
                        p.bump()?;
                    }
                    names.push((name.to_string(), count, loc));
                    if !p.eat(",")? {
                        break;
                    }
                }
                p.expect("=")?;
            }
            let op_loc = p.loc.clone();
            let mut op = match p.tok.clone() {
                Tok::String(name) => p.generic_operation(&name)?,
                Tok::Bare(name) => custom_parse::operation(p, name)?,
                _ => return p.error("expected operation name in quotes"),
            };
            if op.loc.line == 0 {
                op.loc = op_loc;
            }
            p.trailing_location(&mut op)?;
            let n_named: usize = names.iter().map(|n| n.1).sum();
            if names.is_empty() {
                return Ok(op);
            }
            if n_named != op.results.len() {
                let message = match op.results.len() {
                    0 => "cannot name an operation with no results".to_string(),
                    n => {
                        format!("operation defines {n} results but was provided {n_named} to bind")
                    }
                };
                return p.error_at(&start, message);
            }
            let mut rest = &mut op.results[..];
            for (name, count, loc) in names {
                let (mine, others) = rest.split_at_mut(count.min(rest.len()));
                rest = others;
                for value in &*mine {
                    if let Some(info) = p.module.values.get_mut(value.index()) {
                        info.loc = loc.clone();
                    }
                }
                p.define(&name, mine, &loc)?;
            }
            Ok(op)
        })
    }

    /// New values for the results of an operation.
    pub(super) fn new_results(&mut self, types: &[Type]) -> Vec<Value> {
        let loc = self.loc.clone();
        let new = |ty: &Type| self.module.add_value(ty.clone(), loc.clone());
        types.iter().map(new).collect()
    }

    /// `"name"(%operands) ({regions}) {attributes} : (types) -> types`
    fn generic_operation(&mut self, name: &[u8]) -> Res<Op> {
        let loc = self.loc.clone();
        let name = String::from_utf8_lossy(name).into_owned();
        if name.is_empty() || name.contains('\0') {
            return self.error("empty operation name is invalid");
        }
        self.bump()?;
        self.expect("(")?;
        let operands = self.comma_list(")", Self::operand)?;
        let successors = match self.eat("[")? {
            true => self.comma_list("]", Self::successor)?,
            false => Vec::new(),
        };
        let mut regions = Vec::new();
        if self.eat("(")? {
            let is_builtin = matches!(canonical(&name), "func" | "module");
            let isolated = is_builtin || super::forms::spec(&name).is_some();
            loop {
                regions.push(self.in_scope(isolated, |p| p.region(Vec::new()))?);
                if !self.eat(",")? {
                    self.expect(")")?;
                    break;
                }
            }
        }
        if canonical(&name) == "func"
            && let [body] = &mut regions[..]
            && body.ops.is_empty()
            && body.args.is_empty()
        {
            // A function that is only declared.
            *body = Region::default();
        }
        let attrs = self.optional_attr_dict()?;
        self.expect(":")?;
        let type_loc = self.loc.clone();
        let Type::Function(types) = self.ty()? else {
            return self.error_at(&type_loc, "expected function type");
        };
        let mut op = Op {
            name: canonical(&name).into(),
            operands: self.resolve(&operands, &types.inputs, &type_loc)?,
            results: self.new_results(&types.results),
            attrs: Vec::new(),
            regions,
            successors,
            loc,
            written_loc: None,
        };
        op.set_attrs(attrs);
        Ok(op)
    }

    pub(super) fn optional_attr_dict(&mut self) -> Res<Vec<(String, Attr)>> {
        match self.is("{") {
            true => self.attr_dict(),
            false => Ok(Vec::new()),
        }
    }

    /// `{ ... }` in a scope that the caller opened; `args` are already defined in it.
    pub(super) fn region(&mut self, args: Vec<Value>) -> Res<Region> {
        let outer = std::mem::take(&mut self.blocks);
        let region = self.region_of_blocks(args);
        self.blocks = outer;
        region
    }

    fn region_of_blocks(&mut self, args: Vec<Value>) -> Res<Region> {
        let mut region = Region {
            args,
            n_blocks: 1,
            loc: self.loc.clone(),
            ..Region::default()
        };
        self.expect("{")?;
        // The first block may have no name, the others by the numbers that they got.
        let mut places = HashMap::new();
        let mut is_first = true;
        loop {
            match self.tok.clone() {
                Tok::Punct("}") => break,
                Tok::End => return self.error("expected '}' to end a region"),
                Tok::Caret(name) => {
                    let number = self.block(name);
                    if places.contains_key(&number) {
                        return self.error(format!("redefinition of block '^{name}'"));
                    }
                    self.bump()?;
                    let mut block_args = Vec::new();
                    if self.eat("(")? {
                        block_args = self.comma_list(")", |p| Ok(p.typed_argument()?.0))?;
                    }
                    self.expect(":")?;
                    if is_first && region.args.is_empty() {
                        region.args = block_args;
                        places.insert(number, 0);
                    } else {
                        places.insert(number, region.n_blocks);
                        region.n_blocks += 1;
                        region.others.push(Block {
                            args: block_args,
                            ops: Vec::new(),
                        });
                    }
                }
                _ => {
                    let op = self.operation()?;
                    let ops = region.others.last_mut().map(|block| &mut block.ops);
                    ops.unwrap_or(&mut region.ops).push(op);
                }
            }
            is_first = false;
        }
        // What follows an operation was numbered as it was met.
        let others = region.others.iter_mut().flat_map(|block| &mut block.ops);
        for op in region.ops.iter_mut().chain(others) {
            for successor in &mut op.successors {
                let Some(place) = places.get(successor) else {
                    let name = self.blocks.iter().find(|(_, n)| **n == *successor);
                    let name = name.map_or("", |(name, _)| name.as_str());
                    let message = format!("reference to an undefined block '^{name}'");
                    return self.error_at(&op.loc, message);
                };
                *successor = *place;
            }
        }
        self.bump()?;
        Ok(region)
    }

    /// The number of a block of the region that is read, by the order in which they are met.
    fn block(&mut self, name: &str) -> usize {
        let next = self.blocks.len();
        *self.blocks.entry(name.to_string()).or_insert(next)
    }

    /// `^name`
    fn successor(&mut self) -> Res<usize> {
        let Tok::Caret(name) = self.tok else {
            return self.error("expected block name");
        };
        self.bump()?;
        Ok(self.block(name))
    }

    /// `%name : type {attributes} loc(...)`
    pub(super) fn typed_argument(&mut self) -> Res<(Value, Vec<(String, Attr)>)> {
        let Tok::Percent(name) = self.tok else {
            return self.error("expected SSA operand");
        };
        let loc = self.loc.clone();
        self.bump()?;
        self.expect(":")?;
        let ty = self.ty()?;
        let attrs = self.optional_attr_dict()?;
        let mut value = [self.module.add_value(ty, loc.clone())];
        self.define(name, &mut value, &loc)?;
        let [value] = value;
        if self.is_word("loc") {
            let place = self.loc_in_parentheses()?;
            if let Some(info) = self.module.values.get_mut(value.index()) {
                info.written_loc = place.written();
                info.loc = place.loc;
            }
        }
        Ok((value, attrs))
    }

    /// A region whose arguments have the names of `operands`.
    pub(super) fn shadowing_region(&mut self, operands: &[Operand], types: &[Type]) -> Res<Region> {
        if operands.len() != types.len() {
            return self.error("region has a different number of arguments than types");
        }
        let pairs = operands.iter().zip(types);
        let args: Vec<Value> = pairs
            .map(|(operand, ty)| self.module.add_value(ty.clone(), operand.loc.clone()))
            .collect();
        self.in_scope(true, |p| {
            p.shadow(operands, &args)?;
            p.region(args)
        })
    }
}

/// The name under which an operation of later or earlier text is known here.
fn canonical(name: &str) -> &str {
    match name {
        "builtin.func" | "func.func" => "func",
        "builtin.module" => "module",
        "func.return" | "return" => "std.return",
        name => name,
    }
}
