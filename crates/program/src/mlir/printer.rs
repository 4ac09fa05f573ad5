//! Operations to text.

use super::forms::{self, Part};
use super::ir::{Attr, Dense, Module, Op, Region, Type, Value, float_value, list};
use super::location::loc_text;
use std::collections::HashMap;
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
            let _ = write!(self.out, " {}", loc_text(&op.loc));
        }
    }

    fn without_location(&mut self, op: &Op) {
        if let Some((first, rest)) = named_results(op) {
            let chain = self.unique(first);
            self.push(&chain);
            self.bind(op.results.get(..1).unwrap_or(&[]), &chain);
            let values = op.results.get(1..).unwrap_or(&[]);
            if !values.is_empty() {
                let name = self.unique(rest);
                let count = match values.len() {
                    1 => String::new(),
                    n => format!(":{n}"),
                };
                let _ = write!(self.out, ", {name}{count}");
                self.bind(values, &name);
            }
            self.push(" = ");
        } else if !op.results.is_empty() {
            let base = format!("%{}", self.n_values);
            self.n_values += 1;
            self.bind(&op.results, &base);
            let _ = match &op.results[..] {
                [_] => write!(self.out, "{base} = "),
                many => write!(self.out, "{base}:{} = ", many.len()),
            };
        }
        if !self.options.generic && op.successors.is_empty() {
            match &*op.name {
                "func" => return self.function(op),
                "module" => return self.nested_module(op),
                "std.return" => {
                    self.push("return");
                    if !op.operands.is_empty() {
                        let _ = write!(
                            self.out,
                            " {} : {}",
                            self.operands(&op.operands),
                            self.types(&op.operands)
                        );
                    }
                    return;
                }
                _ => {}
            }
            if let Some(spec) = forms::spec(&op.name) {
                match &spec.form[..] {
                    [Part::Special(special), ..] => {
                        if super::custom_print::special(self, special, op) {
                            return;
                        }
                    }
                    form => return self.sequence(op, form),
                }
            }
        }
        self.generic_operation(op);
    }

    /// Names values `base`, or `base#0`, `base#1` and so on.
    fn bind(&mut self, values: &[Value], base: &str) {
        for (i, value) in values.iter().enumerate() {
            let name = match values.len() {
                1 => base.to_string(),
                _ => format!("{base}#{i}"),
            };
            self.names.insert(*value, name);
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

    fn sequence(&mut self, op: &Op, form: &[Part]) {
        self.push(&op.name);
        let mut written = Vec::new();
        for part in form {
            match part {
                Part::Operands if op.operands.is_empty() => {}
                Part::Operands => {
                    let text = self.operands(&op.operands);
                    let _ = write!(self.out, " {text}");
                }
                Part::Operand(i) => {
                    let name = op.operands.get(*i).map(|v| self.name(*v));
                    let _ = write!(self.out, " {}", name.unwrap_or_default());
                }
                Part::Comma => self.push(","),
                Part::Attr { name, ty } => {
                    written.push(name.as_str());
                    let text = match op.attr(name) {
                        // A list writes the types of its elements in any case.
                        Some(attr @ (Attr::Int(..) | Attr::Float(..))) => {
                            attr_text(attr, ty.is_none())
                        }
                        Some(attr) => attr_text(attr, true),
                        None => String::new(),
                    };
                    let _ = write!(self.out, " {text}");
                }
                Part::AttrDict => self.attr_dict(op, &written),
                Part::Special(_) => {}
            }
        }
    }

    /// ` {name = value}` without the attributes in `but`; nothing if none is left.
    pub(super) fn attr_dict(&mut self, op: &Op, but: &[&str]) {
        let shown: Vec<String> = op
            .attrs
            .iter()
            .filter(|(name, _)| !but.contains(&name.as_str()))
            .map(named_attr)
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
        self.push("{");
        match shadow {
            Some(values) => {
                for (arg, value) in region.args.iter().zip(values) {
                    let name = self.name(*value);
                    // A name with a number cannot be that of an argument.
                    let name = name.split('#').next().unwrap_or("").to_string();
                    let name = match values
                        .iter()
                        .any(|v| *v != *value && { self.name(*v).split('#').next() == Some(&name) })
                    {
                        true => self.name(*value),
                        false => name,
                    };
                    self.names.insert(*arg, name);
                }
            }
            None if !region.args.is_empty() => {
                self.new_line();
                self.block_name(0, &region.args);
            }
            None => {}
        }
        self.body(region);
        self.push("}");
    }

    /// `^bb1(%arg0: i32):`
    fn block_name(&mut self, place: usize, args: &[Value]) {
        let args: Vec<String> = args.iter().map(|arg| self.argument(*arg)).collect();
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

    fn argument(&mut self, arg: Value) -> String {
        let name = format!("%arg{}", self.n_args);
        self.n_args += 1;
        let mut text = format!("{name}: {}", self.module.ty(arg));
        if self.options.locations
            && let Some(info) = self.module.values.get(arg.index())
        {
            let _ = write!(text, " {}", loc_text(&info.loc));
        }
        self.names.insert(arg, name);
        text
    }

    fn function(&mut self, op: &Op) {
        let (values, args) = (self.n_values, self.n_args);
        (self.n_values, self.n_args) = (0, 0);
        self.push("func ");
        if let Some(visibility) = op.attr("sym_visibility").and_then(Attr::as_str) {
            let _ = write!(self.out, "{visibility} ");
        }
        let name = symbol_text(op.symbol().unwrap_or(""));
        let ty = op.function_type().cloned().unwrap_or_default();
        let body = op.regions.first().filter(|r| r.n_blocks > 0);
        let mut inputs: Vec<String> = match body {
            Some(region) => region.args.iter().map(|arg| self.argument(*arg)).collect(),
            None => ty.inputs.iter().map(Type::to_string).collect(),
        };
        let mut results: Vec<String> = ty.results.iter().map(Type::to_string).collect();
        let mut hidden = vec!["sym_name", "sym_visibility", "type"];
        // What arguments and results are given stands behind their types.
        for (list, kind) in [(&mut inputs, "arg"), (&mut results, "result")] {
            for (name, value) in &op.attrs {
                let number = name
                    .strip_prefix(kind)
                    .and_then(|n| n.parse::<usize>().ok());
                if let (Some(text), Attr::Dict(_)) = (number.and_then(|n| list.get_mut(n)), value) {
                    let _ = write!(text, " {}", attr_text(value, true));
                    hidden.push(name);
                }
            }
        }
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
        if op.attrs.iter().any(|(n, _)| !hidden.contains(&n.as_str())) {
            self.push(" attributes");
            self.attr_dict(op, &hidden);
        }
        if let Some(region) = body {
            self.push(" {");
            self.body(region);
            self.push("}");
        }
        (self.n_values, self.n_args) = (values, args);
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
        self.push("{");
        if let Some(region) = op.regions.first() {
            self.body(region);
        }
        self.push("}");
    }
}

/// Operations that name their results: the first, and the others.
fn named_results(op: &Op) -> Option<(&'static str, &'static str)> {
    if op.results.is_empty() {
        return None;
    }
    match &*op.name {
        "corert.executeop.seq" => Some(("out_op_chain", "results")),
        "corert.cond" | "corert.while" => Some(("out_op_chain", "fn_outputs")),
        _ => None,
    }
}

fn is_bare(name: &str) -> bool {
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

fn named_attr((name, value): &(String, Attr)) -> String {
    let name = match is_bare(name) {
        true => name.clone(),
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
        Attr::Type(ty) => ty.to_string(),
        Attr::Array(items) => {
            let items: Vec<String> = items.iter().map(|a| attr_text(a, true)).collect();
            format!("[{}]", items.join(", "))
        }
        Attr::Dict(items) => {
            let items: Vec<String> = items.iter().map(named_attr).collect();
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
    let size = element_size(&element);
    let items: Vec<&[u8]> = dense.bytes.chunks(size.max(1)).collect();
    let is_splat = items.windows(2).all(|w| matches!(w, [a, b] if a == b));
    let body = if items.is_empty() {
        String::new()
    } else if is_splat {
        items
            .first()
            .map(|i| element_text(i, &element))
            .unwrap_or_default()
    } else {
        let mut items = items.into_iter();
        nested_text(&shape, &element, &mut items)
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

/// Bytes of one element of a dense attribute.
pub fn element_size(ty: &Type) -> usize {
    match ty.text() {
        Some("f64") | Some("complex<f32>") => 8,
        Some("complex<f64>") => 16,
        Some("f32") => 4,
        Some("f16" | "bf16") => 2,
        _ => ty.as_integer().map_or(1, |(w, _)| (w as usize).div_ceil(8)),
    }
}

fn element_text(bytes: &[u8], ty: &Type) -> String {
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    let bits = u64::from_le_bytes(word);
    let complex = ty
        .text()
        .and_then(|t| t.strip_prefix("complex<")?.strip_suffix('>'));
    if let Some(inner) = complex {
        let inner = Type::new(inner);
        let (re, im) = bytes.split_at(bytes.len() / 2);
        return format!(
            "({},{})",
            element_text(re, &inner),
            element_text(im, &inner)
        );
    }
    if ty.is_float() {
        return float_text(bits, ty);
    }
    if ty.is("i1") {
        return (bits != 0).to_string();
    }
    match ty.as_integer() {
        Some((_, true)) => bits.to_string(),
        Some((width, false)) => {
            let shift = 64 - width.clamp(1, 64);
            (((bits << shift) as i64) >> shift).to_string()
        }
        None => bits.to_string(),
    }
}
