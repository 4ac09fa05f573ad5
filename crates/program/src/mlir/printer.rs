//! Operations to text.

use super::attrs::extend;
use super::fits::{fits, numbered};
use super::forms;
use super::ir::{Attr, Dense, Module, Op, Region, Type, Value, float_value, list};
use super::location::loc_text;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// How programs are written.
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
    /// How many values have a name that begins so.
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

    /// Gives the results of `op` names: `%0`, or `%0#0`, `%0#1` and so on.
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

/// The results of `op` that have one name together, with what that begins with if it is no number.
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

pub(super) fn is_bare(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$'))
}

fn symbol_text(name: &str) -> String {
    match is_bare(name) {
        true => format!("@{name}"),
        false => format!("@{}", string_text(name.as_bytes())),
    }
}

pub(super) fn named_attr(name: &str, value: &Attr) -> String {
    let name = match is_bare(name) {
        true => name.to_string(),
        false => string_text(name.as_bytes()),
    };
    match value {
        Attr::Unit => name,
        value => format!("{name} = {}", attr_text(value, true)),
    }
}

pub(super) fn string_text(bytes: &[u8]) -> String {
    let mut text = "\"".to_string();
    for b in bytes {
        match b {
            b'"' | b'\\' => {
                let _ = write!(text, "\\{:02X}", b);
            }
            b' '..=b'~' => text.push(*b as char),
            _ => {
                let _ = write!(text, "\\{:02X}", b);
            }
        }
    }
    text.push('"');
    text
}

/// An attribute as text; a number with its type if `typed` and it is not the default one.
pub fn attr_text(attr: &Attr, typed: bool) -> String {
    match attr {
        Attr::Unit => "unit".to_string(),
        Attr::Bool(b) => b.to_string(),
        Attr::Int(value, ty) => {
            let text = match ty.as_integer() {
                Some((_, true)) => (*value as u64).to_string(),
                _ => value.to_string(),
            };
            match typed && !ty.is("i64") {
                true => format!("{text} : {ty}"),
                false => text,
            }
        }
        Attr::Float(bits, ty) => {
            let text = float_text(*bits, ty);
            // Bits without a type would be an integer.
            match typed && (!ty.is("f64") || text.starts_with("0x")) {
                true => format!("{text} : {ty}"),
                false => text,
            }
        }
        Attr::String(bytes) => string_text(bytes),
        Attr::TypedString(bytes, ty) => format!("{} : {ty}", string_text(bytes)),
        Attr::Type(ty) => ty.to_string(),
        Attr::Array(items) => {
            let items: Vec<String> = items.iter().map(|a| attr_text(a, true)).collect();
            format!("[{}]", items.join(", "))
        }
        Attr::Dict(items) => {
            let items: Vec<String> = items.iter().map(|(n, a)| named_attr(n, a)).collect();
            format!("{{{}}}", items.join(", "))
        }
        Attr::Symbol(path) => {
            let path: Vec<String> = path.iter().map(|p| symbol_text(p)).collect();
            path.join("::")
        }
        Attr::Dense(dense) => dense_text(dense),
        Attr::Shape(None) => "#corert.shape<*>".to_string(),
        Attr::Shape(Some(dims)) => {
            let dims = dims.iter().map(|d| match d {
                -1 => "?".to_string(),
                d => d.to_string(),
            });
            let dims: Vec<String> = dims.collect();
            format!("#corert.shape<{}>", dims.join("x"))
        }
        Attr::Opaque(text) => text.clone(),
    }
}

/// `1.000000e+00`; more digits if those do not say it all, the bits if no digits do.
fn float_text(bits: u64, ty: &Type) -> String {
    let value = float_value(bits, ty);
    if !value.is_finite() {
        let digits = match ty.text() {
            Some("f64") => 16,
            Some("f32") => 8,
            _ => 4,
        };
        return format!("0x{bits:0digits$X}");
    }
    for precision in [6, 9, 17] {
        let text = scientific(value, precision);
        let back: f64 = text.parse().unwrap_or(f64::NAN);
        if super::ir::float_bits(back, ty) == bits {
            return text;
        }
    }
    scientific(value, 17)
}

fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn dense_text(dense: &Dense) -> String {
    let (shape, element) = dense
        .ty
        .as_ranked_tensor()
        .unwrap_or((Vec::new(), Type::new("i8")));
    let mut items = dense.distinct();
    let body = match items.len() {
        0 => String::new(),
        1 => nested_text(&[], &element, &mut items),
        _ => nested_text(&shape, &element, &mut items),
    };
    format!("dense<{body}> : {}", dense.ty)
}

fn nested_text<'b>(
    shape: &[i64],
    element: &Type,
    items: &mut impl Iterator<Item = &'b [u8]>,
) -> String {
    match shape.split_first() {
        None => items
            .next()
            .map(|i| element_text(i, element))
            .unwrap_or_default(),
        Some((n, inner)) => {
            let parts: Vec<String> = (0..*n)
                .map(|_| nested_text(inner, element, items))
                .collect();
            format!("[{}]", parts.join(", "))
        }
    }
}

fn element_text(bytes: &[u8], ty: &Type) -> String {
    if let Some(inner) = ty.of_complex() {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        let (re, im) = (element_text(re, &inner), element_text(im, &inner));
        return format!("({re},{im})");
    }
    let mut word = [0u8; 16];
    word.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let bits = u128::from_le_bytes(word);
    if ty.is_float() {
        return float_text(bits as u64, ty);
    }
    match ty.as_integer() {
        Some((1, false)) => (bits != 0).to_string(),
        Some((_, true)) => bits.to_string(),
        Some((width, false)) => (extend(bits, width, false) as i128).to_string(),
        None => (bits as i64).to_string(),
    }
}
