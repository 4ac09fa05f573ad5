//! A program to a file.

use super::format::{FunctionKind, INVALID_INDEX, MAGIC, Section, VERSION, Writer};
use super::write_attrs;
use super::write_body::BodyEmitter;
use crate::mlir::{
    Attr, COST, Diagnostic, FunctionType, Loc, Module, Op, Region, Streams, Type, Value,
    has_typed_attributes, is_compiled, says_costs,
};
use indexmap::IndexSet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Writes `module` as a BEF file. Without `optional_sections` the file still runs, but names and
/// types of attributes and registers are lost.
///
/// ```
/// use ferroflow_program::{bef, mlir};
/// let module = mlir::parse("func @f() {\n  tfrt.return\n}", "f.mlir", 0).expect("well formed");
/// let file = bef::write(&module, true).expect("can be written");
/// assert_eq!(file[..2], [0x0b, 0xef]);
/// ```
///
/// # Errors
/// As [`write_with`].
pub fn write(module: &Module, optional_sections: bool) -> Result<Vec<u8>, Vec<Diagnostic>> {
    let options = WriteOptions {
        optional_sections,
        ..WriteOptions::default()
    };
    write_with(module, options)
}

/// Optional parts of a file.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Names and types of attributes and registers.
    pub optional_sections: bool,
    /// The streams of kernels that run on one thread, even if the program declares no costs. Without it
    /// the engine starts a task for each kernel that is ready while another runs.
    pub streams: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions {
            optional_sections: true,
            streams: false,
        }
    }
}

/// Writes `module` as a BEF file.
///
/// # Errors
/// A function is not well formed, or is a dataflow function.
pub fn write_with(module: &Module, options: WriteOptions) -> Result<Vec<u8>, Vec<Diagnostic>> {
    write_program(module, options, false)
}

/// The index of a compiled model's functions, whose bodies are in sections of their own.
pub(super) fn write_index(module: &Module) -> Result<Vec<u8>, Vec<Diagnostic>> {
    write_program(module, WriteOptions::default(), true)
}

fn write_program(
    module: &Module,
    options: WriteOptions,
    is_index: bool,
) -> Result<Vec<u8>, Vec<Diagnostic>> {
    let mut collector = Collector {
        module,
        is_index,
        optional: options.optional_sections,
        entities: Entities::default(),
        errors: Vec::new(),
        references: Vec::new(),
    };
    // Those in the index come before those that are not.
    let (others, ops): (Vec<_>, Vec<_>) = module.ops.iter().partition(|op| is_dataflow(op));
    for op in ops.into_iter().chain(others) {
        collector.operation(op, None);
    }
    if collector.errors.is_empty() {
        for (path, loc) in std::mem::take(&mut collector.references) {
            let root = path.first().map(String::as_str).unwrap_or("");
            if !collector.entities.named_functions.contains_key(root) {
                let name = path.join("::@");
                let message = format!("function @{name} not defined");
                collector.errors.push(Diagnostic::error(&loc, message));
                break;
            }
        }
    }
    if !collector.errors.is_empty() {
        return Err(collector.errors);
    }
    Ok(Emitter::new(module, collector.entities).emit(options))
}

fn is_dataflow(op: &Op) -> bool {
    op.is_func() && op.attr("tfrt.dataflow").is_some() && op.attr("tfrt.native").is_none()
}

struct Function<'m> {
    name: String,
    kind: FunctionKind,
    ty: FunctionType,
    /// `None` for a native function.
    region: Option<&'m Region>,
    /// The operation whose position is the function's.
    op: &'m Op,
}

#[derive(Default)]
pub(super) struct Entities<'m> {
    /// Attributes, and whether they are typed.
    attributes: IndexSet<(Attr, bool)>,
    pub(super) kernels: IndexSet<String>,
    functions: Vec<Function<'m>>,
    pub(super) named_functions: HashMap<String, usize>,
    pub(super) region_functions: HashMap<*const Region, usize>,
    types: IndexSet<Type>,
    pub(super) strings: BTreeMap<String, usize>,
    files: IndexSet<Arc<str>>,
    positions: Vec<&'m Op>,
}

struct Collector<'m> {
    module: &'m Module,
    /// Whether it is the index of a compiled model.
    is_index: bool,
    optional: bool,
    entities: Entities<'m>,
    errors: Vec<Diagnostic>,
    references: Vec<(Vec<String>, Loc)>,
}

/// Attributes that are not among those of a kernel.
pub(super) fn is_hidden(name: &str) -> bool {
    name == "bef.nonstrict" || name == COST
}

/// The functions of a list of them.
pub(super) fn function_list(attr: &Attr) -> Option<Vec<&str>> {
    match attr {
        Attr::Array(items) if !items.is_empty() => items.iter().map(Attr::as_symbol).collect(),
        _ => None,
    }
}

pub(super) fn is_return(op: &Op) -> bool {
    &*op.name == "tfrt.return"
}

impl<'m> Entities<'m> {
    fn add_string(&mut self, text: &str) {
        self.strings.insert(text.to_string(), 0);
    }

    fn add_type(&mut self, ty: &Type) {
        if self.types.insert(ty.clone()) {
            self.add_string(&ty.to_string());
        }
    }

    /// Every operation has a position of its own, even an unknown one.
    fn add_location(&mut self, op: &'m Op) {
        self.files.insert(op.loc.file.clone());
        self.positions.push(op);
    }
}

impl<'m> Collector<'m> {
    fn error(&mut self, loc: &Loc, message: impl Into<String>) {
        self.errors.push(Diagnostic::error(loc, message));
    }

    fn op_error(&mut self, op: &Op, message: &str) {
        self.error(&op.loc, format!("'{}' op {message}", op.name));
    }

    /// Inner operations come before the one they stand in.
    fn operation(&mut self, op: &'m Op, region: Option<(&Region, &HashSet<Value>)>) {
        if is_compiled(op) {
            return;
        }
        for inner in &op.regions {
            let results = inner.ops.iter().flat_map(|op| &op.results);
            let defined = inner.args.iter().chain(results).copied().collect();
            for inner_op in &inner.ops {
                self.operation(inner_op, Some((inner, &defined)));
            }
        }
        if op.is_module() {
            return;
        }
        if is_return(op) {
            let is_last = region
                .and_then(|(r, _)| r.ops.last())
                .is_some_and(|last| std::ptr::eq(last, op));
            if !is_last {
                self.op_error(op, "return op must be at the end of its block");
            }
            return;
        }
        self.entities.add_location(op);
        for result in &op.results {
            self.entities.add_type(&self.module.ty(*result));
        }
        if let Some((_, defined)) = region
            && !op.operands.iter().all(|o| defined.contains(o))
        {
            self.op_error(
                op,
                "BEF executor only supports references to kernels within the current region",
            );
            return;
        }
        match op.is_func() {
            true => self.function(op),
            false => self.kernel(op),
        }
    }

    fn function(&mut self, op: &'m Op) {
        let name = op.symbol().unwrap_or("").to_string();
        let ty = op.function_type().cloned().unwrap_or_default();
        let body = op.regions.first().filter(|r| r.n_blocks > 0);
        let bodiless = match op.attr("tfrt.native") {
            Some(_) => Some(FunctionKind::Native),
            None => is_dataflow(op).then_some(FunctionKind::Dataflow),
        };
        if bodiless == Some(FunctionKind::Dataflow) && !self.is_index {
            let message = "dataflow functions are written by `ferroflow compile`: their text does not \
                           have the tensors";
            return self.error(&op.loc, message);
        }
        if let Some(kind) = bodiless {
            for t in ty.inputs.iter().chain(&ty.results) {
                self.entities.add_type(t);
            }
            return self.add_function(name, kind, ty, None, op);
        }
        let Some(body) = body else {
            return self.error(&op.loc, "'func' op external functions are not allowed");
        };
        let Some(last) = body.ops.last().filter(|o| is_return(o)) else {
            let loc = body.ops.last().map_or(&op.loc, |o| &o.loc).clone();
            return self.error(&loc, "all functions need to have a tfrt.return");
        };
        let is_sync = op.attr("tfrt.sync").is_some();
        if is_sync {
            let mut seen = HashSet::new();
            for (i, operand) in last.operands.iter().enumerate() {
                if body.args.contains(operand) {
                    let message = format!("return value {i} is an argument in a sync function");
                    return self.op_error(last, &message);
                }
                if !seen.insert(*operand) {
                    let message = format!("return value {i} is duplicated in a sync function");
                    return self.op_error(last, &message);
                }
            }
        }
        let kind = match is_sync {
            true => FunctionKind::Sync,
            false => FunctionKind::Async,
        };
        self.region(body, name, kind, op);
    }

    fn region(&mut self, region: &'m Region, name: String, kind: FunctionKind, op: &'m Op) {
        let loc = &op.loc;
        if region.n_blocks != 1 {
            let message = "multi-block regions cannot be emitted to BEF files";
            return self.error(loc, message);
        }
        let inputs = self.module.types(&region.args);
        for ty in &inputs {
            self.entities.add_type(ty);
        }
        let Some(last) = region.ops.last().filter(|o| is_return(o)) else {
            return self.error(loc, "all regions need to have a tfrt.return");
        };
        let results = self.module.types(&last.operands);
        for ty in &results {
            self.entities.add_type(ty);
        }
        let ty = FunctionType { inputs, results };
        self.add_function(name, kind, ty, Some(region), op);
    }

    fn add_function(
        &mut self,
        name: String,
        kind: FunctionKind,
        ty: FunctionType,
        region: Option<&'m Region>,
        op: &'m Op,
    ) {
        let id = self.entities.functions.len();
        self.entities.add_string(&name);
        if let Some(region) = region {
            self.entities.region_functions.insert(region, id);
        }
        if !name.is_empty() {
            self.entities.named_functions.insert(name.clone(), id);
        }
        self.entities.functions.push(Function {
            name,
            kind,
            ty,
            region,
            op,
        });
    }

    fn kernel(&mut self, op: &'m Op) {
        let name = op.name.to_string();
        if self.entities.kernels.insert(name.clone()) {
            self.entities.add_string(&name);
        }
        let typed = has_typed_attributes(&name);
        for (attr_name, attr) in &op.attrs {
            if is_hidden(attr_name) {
                continue;
            }
            if let Some(functions) = function_list(attr) {
                let paths = functions.into_iter().map(|f| vec![f.to_string()]);
                let loc = &op.loc;
                self.references
                    .extend(paths.map(|path| (path, loc.clone())));
                continue;
            }
            // What leads into a compiled module has no form with a type.
            let is_compiled =
                matches!(attr, Attr::Symbol(path) if is_in_compiled(self.module, path));
            if write_attrs::kind(attr).is_none() || (is_compiled && typed) {
                let message = format!("BEF files cannot encode the '{attr_name}' attribute");
                return self.op_error(op, &message);
            }
            if let Attr::Symbol(path) = attr
                && !is_compiled
            {
                self.references.push((path.clone(), op.loc.clone()));
                continue;
            }
            if self.optional {
                self.entities.add_string(attr_name);
                self.add_attribute_types(attr);
            }
            self.entities.attributes.insert((attr.clone(), typed));
        }
        for region in &op.regions {
            self.region(region, String::new(), FunctionKind::Async, op);
        }
    }

    fn add_attribute_types(&mut self, attr: &Attr) {
        match attr {
            Attr::Bool(_) => self.entities.add_type(&Type::new("i1")),
            Attr::Int(_, ty) | Attr::Float(_, ty) => self.entities.add_type(ty),
            Attr::Array(items) => items.iter().for_each(|a| self.add_attribute_types(a)),
            _ => {}
        }
    }
}

fn is_in_compiled(module: &Module, path: &[String]) -> bool {
    module.lookup(path).is_some_and(|(_, compiled)| compiled)
}

pub(super) struct Emitter<'m> {
    pub(super) module: &'m Module,
    pub(super) entities: Entities<'m>,
    pub(super) attribute_offsets: HashMap<(Attr, bool), usize>,
    position_offsets: HashMap<*const Op, usize>,
}

impl<'m> Emitter<'m> {
    fn new(module: &'m Module, entities: Entities<'m>) -> Self {
        Emitter {
            module,
            entities,
            attribute_offsets: HashMap::new(),
            position_offsets: HashMap::new(),
        }
    }

    fn emit(mut self, options: WriteOptions) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes.extend(MAGIC);
        let mut version = Writer::default();
        version.byte(VERSION);
        out.section(Section::FormatVersion, &version);
        self.locations(&mut out);
        self.strings(&mut out);
        let attribute_types = self.attributes(&mut out);
        let names = |names: Vec<String>| {
            let mut table = Writer::default();
            table.int(names.len());
            let offsets = names.iter().map(|name| self.entities.strings.get(name));
            offsets.for_each(|offset| table.int(offset.copied().unwrap_or(0)));
            table
        };
        let kernels = self.entities.kernels.iter().cloned();
        out.section(Section::Kernels, &names(kernels.collect()));
        let types = self.entities.types.iter().map(Type::to_string);
        out.section(Section::Types, &names(types.collect()));
        let (attribute_names, register_types) = self.functions(&mut out);
        if options.optional_sections {
            out.section(Section::AttributeTypes, &attribute_types);
            out.section(Section::AttributeNames, &attribute_names);
            out.section(Section::RegisterTypes, &register_types);
        }
        if options.streams || says_costs(self.module) {
            out.section(Section::Streams, &self.streams());
        }
        out.bytes
    }

    fn locations(&mut self, out: &mut Writer) {
        let mut files = Writer::default();
        for file in &self.entities.files {
            files.bytes.extend(file.as_bytes());
            files.byte(0);
        }
        out.section(Section::LocationFilenames, &files);
        let mut positions = Writer::default();
        for op in &self.entities.positions {
            self.position_offsets
                .insert(*op as *const Op, positions.bytes.len());
            let file = self.entities.files.get_index_of(&op.loc.file);
            positions.int(file.unwrap_or(0));
            positions.int(op.loc.line);
            positions.int(op.loc.column);
        }
        out.section(Section::LocationPositions, &positions);
        let named = self.entities.positions.iter();
        let named: Vec<(usize, &str)> = named
            .filter_map(|op| Some((self.position(op), op.loc.name.as_deref()?)))
            .collect();
        if !named.is_empty() {
            let mut names = Writer::default();
            names.int(named.len());
            for (offset, name) in named {
                names.int(offset);
                names.text(name);
            }
            out.section(Section::LocationNames, &names);
        }
    }

    /// Streams of all functions that have any.
    fn streams(&self) -> Writer {
        let mut section = Writer::default();
        section.int(self.entities.functions.len());
        for function in &self.entities.functions {
            let region = function
                .region
                .filter(|_| function.kind == FunctionKind::Async);
            let Some(region) = region else {
                section.int(0);
                continue;
            };
            let streams = Streams::of_region(self.module, region, function.op);
            let kernels = region
                .ops
                .iter()
                .enumerate()
                .filter(|(_, op)| !is_return(op));
            let ids: Vec<usize> = std::iter::once(streams.root().id)
                .chain(kernels.map(|(i, _)| streams.of_op(i).id))
                .collect();
            section.int(ids.len());
            ids.iter().for_each(|id| section.int(*id));
        }
        section
    }

    fn strings(&mut self, out: &mut Writer) {
        let mut strings = Writer::default();
        for (text, offset) in &mut self.entities.strings {
            *offset = strings.bytes.len();
            // A string with a zero byte would be cut; names never have one.
            strings.bytes.extend(text.bytes().filter(|b| *b != 0));
            strings.byte(0);
        }
        out.section(Section::Strings, &strings);
    }

    /// Writes the section of attributes; returns that of their types.
    fn attributes(&mut self, out: &mut Writer) -> Writer {
        let mut section = Writer::default();
        let mut types = Writer::default();
        self.entities.attributes.sort_by_key(|(_, typed)| *typed);
        types.int(self.entities.attributes.len());
        for entry @ (attr, typed) in &self.entities.attributes {
            let offset = write_attrs::emit(&mut section, attr, *typed, self.module);
            self.attribute_offsets.insert(entry.clone(), offset);
            let kind = write_attrs::kind(attr).map_or(0, |k| k.0);
            types.int(offset);
            types.int(usize::from(kind) << 1 | usize::from(*typed));
        }
        out.section(Section::Attributes, &section);
        types
    }

    pub(super) fn position(&self, op: &Op) -> usize {
        self.position_offsets
            .get(&(op as *const Op))
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn type_id(&self, ty: &Type) -> usize {
        let id = self.entities.types.get_index_of(ty);
        id.unwrap_or(INVALID_INDEX)
    }

    fn functions(&self, out: &mut Writer) -> (Writer, Writer) {
        let mut index = Writer::default();
        let mut bodies = Writer::default();
        let mut names = Writer::default();
        let mut registers = Writer::default();
        let functions = &self.entities.functions;
        let mut others = Writer::default();
        let is_other = |f: &&Function| f.kind == FunctionKind::Dataflow;
        let n_others = functions.iter().filter(is_other).count();
        index.int(functions.len() - n_others);
        others.int(n_others);
        names.int(functions.len());
        registers.int(functions.len());
        for function in functions {
            let list = match is_other(&function) {
                true => &mut others,
                false => &mut index,
            };
            list.byte(function.kind.number());
            list.int(bodies.bytes.len());
            let name = self.entities.strings.get(&function.name).copied();
            list.int(name.unwrap_or(0));
            for types in [&function.ty.inputs, &function.ty.results] {
                list.int(types.len());
                types.iter().for_each(|t| list.int(self.type_id(t)));
            }
            if let Some(region) = function.region {
                BodyEmitter::new(self).emit(
                    region,
                    function.op,
                    &mut bodies,
                    &mut names,
                    &mut registers,
                );
            }
        }
        out.section(Section::FunctionIndex, &index);
        out.section(Section::Functions, &bodies);
        if n_others > 0 {
            out.section(Section::OtherFunctions, &others);
        }
        (names, registers)
    }
}
