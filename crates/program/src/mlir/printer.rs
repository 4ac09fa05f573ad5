//! Operations to text.

use super::attr_text::{attr_text, named_attr, symbol_text};
use super::forms;
use super::ir::{Attr, Module, Op, Region, Type, Value, list};
use super::location::loc_text;
use super::verify::fits;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Options for printing programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrintOptions {
    /// Every operation in the form that all have.
    pub generic: bool,
    /// Behind each operation, where it stands.
    pub locations: bool,
    /// In the generic form, functions and modules as `builtin.func` and `builtin.module`.
    pub builtin_names: bool,
}

impl PrintOptions {
    /// Every operation in the form that all have.
    pub const GENERIC: PrintOptions = PrintOptions {
        generic: true,
        locations: false,
        builtin_names: false,
    };
}

/// The text of a whole program.
pub fn print(module: &Module, options: PrintOptions) -> String {
    let mut p = Printer::new(module, options);
    if module.attrs.is_empty() && !options.generic {
        p.out.push('\n');
        p.name_block(&[], &module.ops);
        for op in &module.ops {
            p.operation(op);
            p.out.push('\n');
        }
        return p.out;
    }
    let body = Region {
        ops: module.ops.clone(),
        n_blocks: 1,
        ..Region::default()
    };
    let mut op = Op::new("module", &Default::default());
    op.attrs = module.attrs.clone();
    op.regions.push(body);
    p.operation(&op);
    p.out
}

/// The text of one operation of `module`.
pub fn print_operation(module: &Module, op: &Op, options: PrintOptions) -> String {
    let mut p = Printer::new(module, options);
    p.operation(op);
    p.out
}

pub(super) struct Printer<'m> {
    pub(super) module: &'m Module,
    pub(super) out: String,
    names: HashMap<Value, String>,
    n_values: usize,
    n_args: usize,
    /// The number of values by the beginning of their name.
    n_named: HashMap<String, usize>,
    options: PrintOptions,
    indent: usize,
}

impl<'m> Printer<'m> {
    fn new(module: &'m Module, options: PrintOptions) -> Self {
        Printer {
            module,
            out: String::new(),
            names: HashMap::new(),
            n_values: 0,
            n_args: 0,
            n_named: HashMap::new(),
            options,
            indent: 0,
        }
    }
}

impl Printer<'_> {
    pub(super) fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(super) fn name(&self, value: Value) -> String {
        match self.names.get(&value) {
            Some(name) => name.clone(),
            None => "%<<unknown>>".to_string(),
        }
    }

    pub(super) fn operands(&self, values: &[Value]) -> String {
        let names: Vec<String> = values.iter().map(|v| self.name(*v)).collect();
        names.join(", ")
    }

    pub(super) fn types(&self, values: &[Value]) -> String {
        list(&self.module.types(values))
    }

    fn new_line(&mut self) {
        self.out.push('\n');
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    fn operation(&mut self, op: &Op) {
        self.without_location(op);
        if self.options.locations {
            let _ = write!(self.out, " {}", loc_text(&op.loc, &op.written_loc));
        }
    }

    fn without_location(&mut self, op: &Op) {
        self.name_results(op);
        if !op.results.is_empty() {
            let groups: Vec<String> = result_groups(op)
                .map(|(_, values)| {
                    let name = values.first().map(|v| self.name(*v)).unwrap_or_default();
                    let base = name.split('#').next().unwrap_or("");
                    match values.len() {
                        1 => base.to_string(),
                        n => format!("{base}:{n}"),
                    }
                })
                .collect();
            let _ = write!(self.out, "{} = ", groups.join(", "));
        }
        if self.options.generic || !fits(self.module, op) {
            return self.generic_operation(op);
        }
        match &*op.name {
            "func" => return self.function(op),
            "module" => return self.nested_module(op),
            "std.return" => {
                self.push("return");
                if !op.operands.is_empty() {
                    let (names, types) = (self.operands(&op.operands), self.types(&op.operands));
                    let _ = write!(self.out, " {names} : {types}");
                }
                return;
            }
            _ => {}
        }
        if let Some(spec) = forms::spec(&op.name) {
            super::custom_print::custom(self, spec, op);
        }
    }

    /// Names all values of a region before anything is written of it: an operation may use what a
    /// later block defines. Regions within come behind.
    fn name_region(&mut self, region: &Region) {
        self.name_block(&region.args, &region.ops);
        for block in &region.others {
            self.name_block(&block.args, &block.ops);
        }
    }

    fn name_block(&mut self, args: &[Value], ops: &[Op]) {
        for arg in args {
            if !self.names.contains_key(arg) {
                self.names.insert(*arg, format!("%arg{}", self.n_args));
                self.n_args += 1;
            }
        }
        ops.iter().for_each(|op| self.name_results(op));
    }

    /// Names the results of `op`: `%0`, or `%0#0`, `%0#1` and so on.
    fn name_results(&mut self, op: &Op) {
        if op
            .results
            .first()
            .is_none_or(|r| self.names.contains_key(r))
        {
            return;
        }
        for (base, values) in result_groups(op) {
            let base = match base {
                Some(base) => self.unique(base),
                None => {
                    self.n_values += 1;
                    format!("%{}", self.n_values - 1)
                }
            };
            for (i, value) in values.iter().enumerate() {
                let name = match values.len() {
                    1 => base.clone(),
                    _ => format!("{base}#{i}"),
                };
                self.names.insert(*value, name);
            }
        }
    }

    /// A name that begins with `base` and is new.
    fn unique(&mut self, base: &str) -> String {
        let n = self.n_named.entry(base.to_string()).or_insert(0);
        *n += 1;
        match *n {
            1 => format!("%{base}"),
            n => format!("%{base}_{}", n - 2),
        }
    }

    /// ` {name = value}` without the attributes in `but`; nothing if none is left.
    pub(super) fn attr_dict(&mut self, op: &Op, but: &[&str]) {
        let shown: Vec<String> = op
            .attrs
            .iter()
            .filter(|(name, _)| !but.contains(&name.as_str()))
            .map(|(name, value)| named_attr(name, value))
            .collect();
        if !shown.is_empty() {
            let _ = write!(self.out, " {{{}}}", shown.join(", "));
        }
    }

    fn generic_operation(&mut self, op: &Op) {
        let operands = self.operands(&op.operands);
        let prefix = match &*op.name {
            "func" | "module" if self.options.builtin_names => "builtin.",
            _ => "",
        };
        let _ = write!(self.out, "\"{prefix}{}\"({operands})", op.name);
        if !op.successors.is_empty() {
            let blocks: Vec<String> = op.successors.iter().map(|b| format!("^bb{b}")).collect();
            let _ = write!(self.out, "[{}]", blocks.join(", "));
        }
        if !op.regions.is_empty() {
            self.push(" (");
            for (i, region) in op.regions.iter().enumerate() {
                if i > 0 {
                    self.push(", ");
                }
                self.region(region, None);
            }
            self.push(")");
        }
        self.attr_dict(op, &[]);
        let results = self.module.types(&op.results);
        let _ = write!(self.out, " : ({}) -> ", self.types(&op.operands));
        match &results[..] {
            [Type::Text(one)] => self.push(&one.clone()),
            many => {
                let text = format!("({})", list(many));
                self.push(&text);
            }
        }
    }

    /// `{ ... }`; arguments that shadow operands have those names and are not written.
    pub(super) fn region(&mut self, region: &Region, shadow: Option<&[Value]>) {
        let counts = (self.n_values, self.n_args);
        self.push("{");
        for (arg, value) in region.args.iter().zip(shadow.unwrap_or_default()) {
            let name = self.name(*value);
            self.names.insert(*arg, name);
        }
        self.name_region(region);
        if shadow.is_none() && !region.args.is_empty() {
            self.new_line();
            self.block_name(0, &region.args);
        }
        self.body(region);
        self.push("}");
        (self.n_values, self.n_args) = counts;
    }

    /// `^bb1(%arg0: i32):`
    fn block_name(&mut self, place: usize, args: &[Value]) {
        let args: Vec<String> = args.iter().map(|arg| self.argument(*arg, "")).collect();
        let _ = match args.is_empty() {
            true => write!(self.out, "^bb{place}:"),
            false => write!(self.out, "^bb{place}({}):", args.join(", ")),
        };
    }

    fn body(&mut self, region: &Region) {
        self.block(&region.ops);
        for (i, block) in region.others.iter().enumerate() {
            self.new_line();
            self.block_name(i + 1, &block.args);
            self.block(&block.ops);
        }
        self.new_line();
    }

    fn block(&mut self, ops: &[Op]) {
        self.indent += 1;
        for op in ops {
            self.new_line();
            self.operation(op);
        }
        self.indent -= 1;
    }

    /// An argument of a block with what it is given, as text.
    fn argument(&self, arg: Value, given: &str) -> String {
        let mut text = format!("{}: {}{given}", self.name(arg), self.module.ty(arg));
        if self.options.locations
            && let Some(info) = self.module.values.get(arg.index())
        {
            let _ = write!(text, " {}", loc_text(&info.loc, &info.written_loc));
        }
        text
    }

    fn function(&mut self, op: &Op) {
        let counts = (self.n_values, self.n_args);
        (self.n_values, self.n_args) = (0, 0);
        self.push("func ");
        if let Some(visibility) = op.attr("sym_visibility").and_then(Attr::as_str) {
            let _ = write!(self.out, "{visibility} ");
        }
        let name = symbol_text(op.symbol().unwrap_or(""));
        let ty = op.function_type().cloned().unwrap_or_default();
        // What arguments and results are given stands behind their types.
        let mut given = [
            vec![String::new(); ty.inputs.len()],
            vec![String::new(); ty.results.len()],
        ];
        let mut hidden = HashSet::from(["sym_name", "sym_visibility", "type"]);
        for (list, kind) in given.iter_mut().zip(["arg", "result"]) {
            for (name, value) in &op.attrs {
                let text = numbered(name, kind).and_then(|n| list.get_mut(n));
                if let (Some(text), Attr::Dict(items)) = (text, value)
                    && !items.is_empty()
                {
                    *text = format!(" {}", attr_text(value, true));
                    hidden.insert(name);
                }
            }
        }
        let [of_inputs, of_results] = given;
        let body = op.regions.first().filter(|r| r.n_blocks > 0);
        let with = |(ty, given): (&Type, &String)| format!("{ty}{given}");
        let inputs: Vec<String> = match body {
            Some(region) => {
                self.name_region(region);
                let args = region.args.iter().zip(&of_inputs);
                args.map(|(arg, given)| self.argument(*arg, given))
                    .collect()
            }
            None => ty.inputs.iter().zip(&of_inputs).map(with).collect(),
        };
        let results: Vec<String> = ty.results.iter().zip(&of_results).map(with).collect();
        let _ = write!(self.out, "{name}({})", inputs.join(", "));
        match (&results[..], &ty.results[..]) {
            ([], _) => {}
            ([one], [Type::Text(plain)]) if **plain == **one => {
                let _ = write!(self.out, " -> {one}");
            }
            (many, _) => {
                let _ = write!(self.out, " -> ({})", many.join(", "));
            }
        }
        let shown = op
            .attrs
            .iter()
            .filter(|(n, _)| !hidden.contains(n.as_str()));
        let shown: Vec<String> = shown.map(|(n, a)| named_attr(n, a)).collect();
        if !shown.is_empty() {
            let _ = write!(self.out, " attributes {{{}}}", shown.join(", "));
        }
        if let Some(region) = body {
            self.push(" {");
            self.body(region);
            self.push("}");
        }
        (self.n_values, self.n_args) = counts;
    }

    fn nested_module(&mut self, op: &Op) {
        self.push("module ");
        if let Some(name) = op.symbol() {
            let _ = write!(self.out, "{} ", symbol_text(name));
        }
        if op.attrs.iter().any(|(n, _)| n != "sym_name") {
            self.push("attributes");
            self.attr_dict(op, &["sym_name"]);
            self.push(" ");
        }
        if let Some(region) = op.regions.first() {
            self.region(region, None);
        }
    }
}

/// The number that stands behind `kind` in the name of what an argument or result is given.
fn numbered(name: &str, kind: &str) -> Option<usize> {
    let digits = name.strip_prefix(kind)?;
    let number: usize = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// The results of `op` that share a name, with its beginning unless it is a number.
fn result_groups(op: &Op) -> impl Iterator<Item = (Option<&'static str>, &[Value])> {
    let names = match &*op.name {
        "corert.executeop.seq" => Some(("out_op_chain", "results")),
        "corert.cond" | "corert.while" => Some(("out_op_chain", "fn_outputs")),
        _ => None,
    };
    let groups = match names {
        Some((first, others)) => {
            let (chain, rest) = op.results.split_at(op.results.len().min(1));
            [(Some(first), chain), (Some(others), rest)]
        }
        None => [(None, &op.results[..]), (None, &[])],
    };
    groups.into_iter().filter(|(_, values)| !values.is_empty())
}
