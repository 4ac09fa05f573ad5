//! A program to a file.

use super::format::{
    FunctionKind, INVALID_INDEX, MAGIC, NON_STRICT, PSEUDO_CODE, PSEUDO_LOCATION, Section, VERSION,
    Writer,
};
use super::write_attrs;
use crate::mlir::{
    Attr, Diagnostic, FunctionType, Loc, Module, Op, Region, Type, Value, has_typed_attributes,
    is_compiled,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Writes `module` as a BEF file. Without `optional_sections` the file still runs, but names and
/// types of attributes and registers are lost.
///
/// ```
/// use ferroflow_program::{bef, mlir};
/// let module = mlir::parse("func @f() {\n  tfrt.return\n}", "f.mlir", 0).expect("well formed");
/// let file = bef::write(&module, true).expect("can be written");
/// assert_eq!(file[..2], [0x0b, 0xef]);
/// ```
pub fn write(module: &Module, optional_sections: bool) -> Result<Vec<u8>, Vec<Diagnostic>> {
    let mut collector = Collector {
        module,
        optional: optional_sections,
        entities: Entities::default(),
        errors: Vec::new(),
        references: Vec::new(),
    };
    for op in &module.ops {
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
    Ok(Emitter::new(module, collector.entities).emit(optional_sections))
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
struct Entities<'m> {
    attributes: Vec<Attr>,
    typed_attributes: Vec<Attr>,
    attribute_set: HashSet<(Attr, bool)>,
    kernels: Vec<String>,
    kernel_ids: HashMap<String, usize>,
    functions: Vec<Function<'m>>,
    named_functions: HashMap<String, usize>,
    region_functions: HashMap<*const Region, usize>,
    types: Vec<Type>,
    type_ids: HashMap<Type, usize>,
    strings: BTreeMap<String, usize>,
    files: Vec<String>,
    positions: Vec<&'m Op>,
}

struct Collector<'m> {
    module: &'m Module,
    optional: bool,
    entities: Entities<'m>,
    errors: Vec<Diagnostic>,
    references: Vec<(Vec<String>, Loc)>,
}

fn is_return(op: &Op) -> bool {
    &*op.name == "tfrt.return"
}

impl<'m> Entities<'m> {
    fn add_string(&mut self, text: &str) {
        self.strings.insert(text.to_string(), 0);
    }

    fn add_type(&mut self, ty: &Type) {
        if !self.type_ids.contains_key(ty) {
            self.type_ids.insert(ty.clone(), self.types.len());
            self.types.push(ty.clone());
            self.add_string(&ty.to_string());
        }
    }

    /// Every operation has a position of its own, even if nobody knows where that is.
    fn add_location(&mut self, op: &'m Op) {
        if !self.files.iter().any(|f| **f == *op.loc.file) {
            self.files.push(op.loc.file.to_string());
        }
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
    fn operation(&mut self, op: &'m Op, region: Option<&Region>) {
        if is_compiled(op) {
            return;
        }
        for inner in &op.regions {
            for inner_op in &inner.ops {
                self.operation(inner_op, Some(inner));
            }
        }
        if op.is_module() {
            return;
        }
        if is_return(op) {
            let is_last = region
                .and_then(|r| r.ops.last())
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
        if let Some(region) = region
            && !op.operands.iter().all(|o| defines(region, *o))
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
        if op.attr("tfrt.native").is_some() {
            for t in ty.inputs.iter().chain(&ty.results) {
                self.entities.add_type(t);
            }
            return self.add_function(name, FunctionKind::Native, ty, None, op);
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
        if !self.entities.kernel_ids.contains_key(&name) {
            let id = self.entities.kernels.len();
            self.entities.kernel_ids.insert(name.clone(), id);
            self.entities.kernels.push(name.clone());
            self.entities.add_string(&name);
        }
        let typed = has_typed_attributes(&name);
        for (attr_name, attr) in &op.attrs {
            if attr_name == "bef.nonstrict" {
                continue;
            }
            if write_attrs::kind(attr).is_none() {
                let message = format!("BEF files cannot encode the '{attr_name}' attribute");
                return self.op_error(op, &message);
            }
            if let Attr::Symbol(path) = attr
                && !is_in_compiled(self.module, path)
            {
                self.references.push((path.clone(), op.loc.clone()));
                continue;
            }
            if self.optional {
                self.entities.add_string(attr_name);
                self.add_attribute_types(attr);
            }
            if self.entities.attribute_set.insert((attr.clone(), typed)) {
                match typed {
                    true => self.entities.typed_attributes.push(attr.clone()),
                    false => self.entities.attributes.push(attr.clone()),
                }
            }
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

fn defines(region: &Region, value: Value) -> bool {
    region.args.contains(&value) || region.ops.iter().any(|op| op.results.contains(&value))
}

struct Emitter<'m> {
    module: &'m Module,
    entities: Entities<'m>,
    attribute_offsets: HashMap<(Attr, bool), usize>,
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

    fn emit(mut self, optional_sections: bool) -> Vec<u8> {
        let mut out = Writer::default();
        out.bytes.extend(MAGIC);
        let mut version = Writer::default();
        version.byte(VERSION);
        out.section(Section::FormatVersion, &version);
        self.locations(&mut out);
        self.strings(&mut out);
        let attribute_types = self.attributes(&mut out);
        let names = |strings: &BTreeMap<String, usize>, names: &mut dyn Iterator<Item = String>| {
            let offsets: Vec<usize> = names.filter_map(|n| strings.get(&n).copied()).collect();
            let mut table = Writer::default();
            table.int(offsets.len());
            offsets.iter().for_each(|o| table.int(*o));
            table
        };
        let strings = &self.entities.strings;
        let kernels = names(strings, &mut self.entities.kernels.iter().cloned());
        let types = names(
            strings,
            &mut self.entities.types.iter().map(Type::to_string),
        );
        out.section(Section::Kernels, &kernels);
        out.section(Section::Types, &types);
        let (attribute_names, register_types) = self.functions(&mut out);
        if optional_sections {
            out.section(Section::AttributeTypes, &attribute_types);
            out.section(Section::AttributeNames, &attribute_names);
            out.section(Section::RegisterTypes, &register_types);
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
            let file = self.entities.files.iter().position(|f| **f == *op.loc.file);
            positions.int(file.unwrap_or(0));
            positions.int(op.loc.line);
            positions.int(op.loc.column);
        }
        out.section(Section::LocationPositions, &positions);
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

    /// Writes the section of attributes; gives that of their types.
    fn attributes(&mut self, out: &mut Writer) -> Writer {
        let mut section = Writer::default();
        let mut types = Writer::default();
        let untyped = self.entities.attributes.iter().map(|a| (a, false));
        let typed = self.entities.typed_attributes.iter().map(|a| (a, true));
        types.int(self.entities.attribute_set.len());
        for (attr, typed) in untyped.chain(typed) {
            let offset = write_attrs::emit(&mut section, attr, typed, self.module);
            self.attribute_offsets.insert((attr.clone(), typed), offset);
            let kind = write_attrs::kind(attr).map_or(0, |k| k.0);
            types.int(offset);
            types.int(usize::from(kind) << 1 | usize::from(typed));
        }
        out.section(Section::Attributes, &section);
        types
    }

    fn position(&self, op: &Op) -> usize {
        self.position_offsets
            .get(&(op as *const Op))
            .copied()
            .unwrap_or(0)
    }

    fn type_id(&self, ty: &Type) -> usize {
        let id = self.entities.type_ids.get(ty).copied();
        id.unwrap_or(INVALID_INDEX)
    }

    fn functions(&self, out: &mut Writer) -> (Writer, Writer) {
        let mut index = Writer::default();
        let mut bodies = Writer::default();
        let mut names = Writer::default();
        let mut registers = Writer::default();
        let functions = &self.entities.functions;
        index.int(functions.len());
        names.int(functions.len());
        registers.int(functions.len());
        for function in functions {
            index.byte(function.kind.number());
            index.int(bodies.bytes.len());
            let name = self.entities.strings.get(&function.name).copied();
            index.int(name.unwrap_or(0));
            for types in [&function.ty.inputs, &function.ty.results] {
                index.int(types.len());
                types.iter().for_each(|t| index.int(self.type_id(t)));
            }
            if let Some(region) = function.region {
                let body = BodyEmitter {
                    emitter: self,
                    registers: HashMap::new(),
                };
                body.emit(region, function.op, &mut bodies, &mut names, &mut registers);
            }
        }
        out.section(Section::FunctionIndex, &index);
        out.section(Section::Functions, &bodies);
        (names, registers)
    }
}

struct BodyEmitter<'e, 'm> {
    emitter: &'e Emitter<'m>,
    registers: HashMap<Value, usize>,
}

impl BodyEmitter<'_, '_> {
    fn register(&self, value: Value) -> usize {
        self.registers.get(&value).copied().unwrap_or(0)
    }

    fn emit(
        mut self,
        region: &Region,
        op: &Op,
        out: &mut Writer,
        names: &mut Writer,
        types: &mut Writer,
    ) {
        let results = region.ops.iter().flat_map(|op| &op.results);
        let values: Vec<Value> = region.args.iter().chain(results).copied().collect();
        for (i, value) in values.iter().enumerate() {
            self.registers.insert(*value, i);
        }
        // Who reads each register, the latest first, as MLIR lists the uses of a value.
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); values.len()];
        let mut n_uses = vec![0usize; values.len()];
        let mut sources = Vec::new();
        let kernels: Vec<&Op> = region.ops.iter().filter(|op| !is_return(op)).collect();
        for (id, op) in (1u32..).zip(&kernels) {
            for operand in &op.operands {
                if let Some(list) = users.get_mut(self.register(*operand)) {
                    list.push(id);
                }
            }
            if op.operands.is_empty() {
                sources.push(id);
            }
        }
        users.iter_mut().for_each(|list| list.reverse());
        for operand in region.ops.iter().flat_map(|op| &op.operands) {
            if let Some(n) = n_uses.get_mut(self.register(*operand)) {
                *n += 1;
            }
        }
        out.int(self.emitter.position(op));
        out.int(values.len());
        types.int(values.len());
        for (value, n) in values.iter().zip(&n_uses) {
            out.int(*n);
            types.int(self.emitter.type_id(&self.emitter.module.ty(*value)));
        }
        let used_by = |value: &Value| {
            let list = users.get(self.register(*value));
            list.map_or(&[][..], Vec::as_slice)
        };
        out.int(kernels.len() + 1);
        names.int(kernels.len() + 1);
        let mut list = Writer::default();
        // The kernel that defines the arguments, and a value for kernels without any.
        out.int(0);
        out.int(0);
        names.byte(0);
        let n_results = region.args.len() as u32 + 1;
        for word in [PSEUDO_CODE, PSEUDO_LOCATION, 0, 0, 0, n_results, 0] {
            list.u32(word);
        }
        list.u32(sources.len() as u32);
        for arg in &region.args {
            list.u32(used_by(arg).len() as u32);
        }
        list.u32(values.len() as u32);
        for arg in &region.args {
            list.u32(self.register(*arg) as u32);
        }
        sources.iter().for_each(|id| list.u32(*id));
        for id in region.args.iter().flat_map(used_by) {
            list.u32(*id);
        }
        for op in &kernels {
            let non_strict = op.attr("bef.nonstrict").is_some();
            out.int(list.bytes.len());
            out.int(match non_strict {
                true => op.operands.len().min(1),
                false => op.operands.len(),
            });
            names.byte(u8::from(non_strict));
            self.kernel(op, non_strict, &mut list, names, &used_by);
        }
        let last = region.ops.last().filter(|op| is_return(op));
        for operand in last.into_iter().flat_map(|op| &op.operands) {
            out.int(self.register(*operand));
        }
        out.align(4);
        out.append(&list);
    }

    fn kernel<'u>(
        &self,
        op: &Op,
        non_strict: bool,
        list: &mut Writer,
        names: &mut Writer,
        used_by: &dyn Fn(&Value) -> &'u [u32],
    ) {
        let entities = &self.emitter.entities;
        let typed = has_typed_attributes(&op.name);
        let mut attributes = Vec::new();
        let mut functions = Vec::new();
        for (name, attr) in &op.attrs {
            if name == "bef.nonstrict" {
                continue;
            }
            if let Some(function) = attr.as_symbol() {
                functions.push(entities.named_functions.get(function).copied().unwrap_or(0));
                continue;
            }
            let string = entities.strings.get(name).copied();
            names.int(string.unwrap_or(INVALID_INDEX));
            let offset = self.emitter.attribute_offsets.get(&(attr.clone(), typed));
            attributes.push(offset.copied().unwrap_or(0));
        }
        for region in &op.regions {
            let id = entities.region_functions.get(&(region as *const Region));
            functions.push(id.copied().unwrap_or(0));
        }
        let code = entities.kernel_ids.get(&*op.name).copied().unwrap_or(0);
        let counts = [
            code,
            self.emitter.position(op),
            op.operands.len(),
            attributes.len(),
            functions.len(),
            op.results.len(),
        ];
        counts.iter().for_each(|n| list.u32(*n as u32));
        list.u32(if non_strict { NON_STRICT } else { 0 });
        for result in &op.results {
            list.u32(used_by(result).len() as u32);
        }
        let operands = op.operands.iter().map(|v| self.register(*v));
        let results = op.results.iter().map(|v| self.register(*v));
        for entry in operands.chain(attributes).chain(functions).chain(results) {
            list.u32(entry as u32);
        }
        for id in op.results.iter().flat_map(used_by) {
            list.u32(*id);
        }
    }
}
