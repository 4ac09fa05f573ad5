//! A file back to a program.

use super::body::{Body, Kernel};
use super::dataflow_text;
use super::format::{FunctionKind, Reader, Section, corrupt};
use super::read::File;
use crate::mlir::{
    Attr, Dense, Diagnostic, Loc, Module, Op, Region, Severity, Type, Value, parse, parse_type,
};
use ferroflow_base::Result;
use ferroflow_host_context::{AttrKind, HostDType, Operand, TypedAttr};

/// Turns a file into a program, with warnings.
///
/// # Errors
/// DATA_LOSS if the file is corrupted.
pub fn to_mlir(file: &File) -> Result<(Module, Vec<Diagnostic>)> {
    let mut warnings = Vec::new();
    let optional = [
        Section::AttributeTypes,
        Section::AttributeNames,
        Section::RegisterTypes,
    ];
    if !optional.iter().all(|s| file.has(*s)) {
        warnings.push(Diagnostic {
            severity: Severity::Warning,
            loc: Loc::default(),
            message: "Missing AttributeTypes, AttributeNames or RegisterTypes sections."
                .to_string(),
        });
    }
    let n_types = Reader::new(file.section(Section::Types), 0).count();
    let types = (0..n_types.unwrap_or(0)).map(|i| parse_type(file.type_name(i)));
    let types: Option<Vec<Type>> = types.collect();
    let mut converter = Converter {
        file,
        module: Module::default(),
        compiled: Vec::new(),
        types: types.ok_or_else(|| corrupt("Invalid Types section."))?,
    };
    converter.convert()?;
    Ok((converter.module, warnings))
}

struct Converter<'f> {
    file: &'f File,
    module: Module,
    compiled: Vec<String>,
    types: Vec<Type>,
}

/// Names and types that stand in the optional sections, function by function.
struct Tables<'f> {
    names: Reader<'f>,
    registers: Reader<'f>,
}

/// A function's region, and for its kernels by number the functions that are their regions.
type OpenRegion = (Region, Vec<(usize, Vec<u32>)>);

impl Converter<'_> {
    fn ty(&self, index: usize) -> Type {
        let ty = self.types.get(index).cloned();
        ty.unwrap_or_else(|| Type::new("none"))
    }

    fn loc(&self, offset: usize) -> Loc {
        let (file, line, column) = self.file.location(offset).unwrap_or_default();
        Loc {
            file: file.into(),
            line,
            column,
            name: self.file.location_name(offset).map(Into::into),
        }
    }

    /// The functions of a compiled model in the file, if any.
    fn dataflow(&mut self) -> Result<Vec<Op>> {
        match self.file.model(None, &mut |_, _| Ok(()))? {
            Some(model) => Ok(dataflow_text::functions(&mut self.module, &model.main)),
            None => Ok(Vec::new()),
        }
    }

    fn convert(&mut self) -> Result<()> {
        let file = self.file;
        let dataflow = self.dataflow()?;
        let mut tables = Tables {
            names: Reader::new(file.section(Section::AttributeNames), 0),
            registers: Reader::new(file.section(Section::RegisterTypes), 0),
        };
        let _ = (tables.names.int(), tables.registers.int());
        let mut bodies = Vec::new();
        for (i, function) in file.functions().iter().enumerate() {
            bodies.push(match function.kind.has_body() {
                true => Some(self.region(i, &mut tables)?),
                false => None,
            });
        }
        let mut ops = Vec::new();
        for (i, function) in file.functions().iter().enumerate() {
            if function.name.is_empty() || function.kind == FunctionKind::Dataflow {
                continue;
            }
            let types = |indices: &[usize]| indices.iter().map(|t| self.ty(*t)).collect();
            let (inputs, results) = (types(&function.arguments), types(&function.results));
            let mut op = Op::func(&function.name, inputs, results);
            match function.kind {
                FunctionKind::Native => op.set_attr("tfrt.native", Attr::Unit),
                FunctionKind::Sync => op.set_attr("tfrt.sync", Attr::Unit),
                FunctionKind::Async | FunctionKind::Dataflow => {}
            }
            let body = match function.kind.has_body() {
                true => self.resolve(i, &mut bodies, 0)?,
                false => {
                    op.set_attr("sym_visibility", Attr::string("private"));
                    Region::default()
                }
            };
            op.regions.push(body);
            ops.push(op);
        }
        let mut modules = Vec::new();
        for text in std::mem::take(&mut self.compiled) {
            let Ok(mut inner) = parse(&text, "<unknown>", 0) else {
                return Err(corrupt("Failed to parse compilation unit."));
            };
            // The inner program's values move behind ours.
            let base = self.module.values.len();
            self.module.values.append(&mut inner.values);
            for op in &mut inner.ops {
                shift(op, base);
            }
            modules.append(&mut inner.ops);
        }
        self.module.ops = modules;
        self.module.ops.extend(dataflow);
        self.module.ops.append(&mut ops);
        Ok(())
    }

    /// The region of a function with the regions of its kernels, each used once.
    fn resolve(
        &self,
        function: usize,
        bodies: &mut [Option<OpenRegion>],
        depth: usize,
    ) -> Result<Region> {
        let body = bodies.get_mut(function).and_then(Option::take);
        let Some((mut region, nested)) = body.filter(|_| depth < 100) else {
            return Err(corrupt("Failed to resolve functions."));
        };
        for (kernel, functions) in nested {
            for function in functions {
                let inner = self.resolve(function as usize, bodies, depth + 1)?;
                if let Some(op) = region.ops.get_mut(kernel) {
                    op.regions.push(inner);
                }
            }
        }
        Ok(region)
    }

    #[allow(
        clippy::type_complexity,
        reason = "one function makes it, one takes it apart"
    )]
    fn region(
        &mut self,
        index: usize,
        tables: &mut Tables,
    ) -> Result<(Region, Vec<(usize, Vec<u32>)>)> {
        let file = self.file;
        let body = file.body(index)?;
        let n_registers = body.register_uses().len();
        let types = tables.registers.ints().filter(|t| t.len() == n_registers);
        let _ = tables.names.int();
        let _ = tables.names.byte();
        let loc = self.loc(body.location());
        let arguments = &file.functions().get(index).map(|f| f.arguments.clone());
        let arguments = arguments.clone().unwrap_or_default();
        let values: Vec<Value> = (0..n_registers)
            .map(|r| {
                let ty = match (arguments.get(r), &types) {
                    (Some(ty), _) => self.ty(*ty),
                    (None, Some(types)) => self.ty(types.get(r).copied().unwrap_or(usize::MAX)),
                    (None, None) => Type::new("none"),
                };
                self.module.add_value(ty, loc.clone())
            })
            .collect();
        let values_of = |operands: &[Operand]| -> Vec<Value> {
            let value = |o: &Operand| values.get(o.register()).copied();
            operands.iter().filter_map(value).collect()
        };
        let mut region = Region {
            args: values.iter().take(arguments.len()).copied().collect(),
            n_blocks: 1,
            loc: loc.clone(),
            ..Region::default()
        };
        let mut nested = Vec::new();
        for kernel in body.kernels() {
            let mut op = Op {
                name: file.kernel_name(kernel.code).into(),
                operands: values_of(body.args(kernel)),
                results: values_of(body.results(kernel)),
                loc: self.loc(kernel.refers.location),
                ..Op::default()
            };
            self.attributes(body, kernel, &mut op, tables)?;
            let regions = self.functions(body, kernel, &mut op);
            if !regions.is_empty() {
                nested.push((region.ops.len(), regions));
            }
            region.ops.push(op);
        }
        region.ops.push(Op {
            name: "tfrt.return".into(),
            operands: values_of(body.returns()),
            loc,
            ..Op::default()
        });
        Ok((region, nested))
    }

    fn attributes(
        &mut self,
        body: &Body,
        kernel: &Kernel,
        op: &mut Op,
        tables: &mut Tables,
    ) -> Result<()> {
        let has_names = file_has_names(self.file);
        if has_names {
            let _ = tables.names.byte();
        }
        if kernel.non_strict {
            op.set_attr("bef.nonstrict", Attr::Unit);
        }
        for (i, attr) in body.attrs(kernel).iter().enumerate() {
            let name = tables.names.int().filter(|_| has_names);
            let name = name
                .and_then(|at| self.file.string(at))
                .filter(|n| !n.is_empty());
            let name = name.map_or_else(|| format!("attr{i}"), str::to_string);
            let value = match attr.kind {
                Some(kind) => self.attribute(attr.offset, kind, attr.typed)?,
                // What TFRT writes for a value that it cannot know.
                None => Attr::i32(0xdead_beef_u32 as i32),
            };
            op.set_attr(&name, value);
        }
        Ok(())
    }

    /// Sets attributes for the functions that have names; the others are regions.
    fn functions(&self, body: &Body, kernel: &Kernel, op: &mut Op) -> Vec<u32> {
        let names: &[&str] = match &*op.name {
            "tfrt.cond" | "corert.cond" => &["a_true_fn", "b_false_fn"],
            "corert.while" => &["a_cond_fn", "b_body_fn"],
            "tfrt.while" => &["body_fn"],
            "tfrt.once" => &["function"],
            "tfrt_test.sync_benchmark" => &["target_fn"],
            _ => &["callee"],
        };
        let list = match &*op.name {
            "tfrt.case" => Some("branches"),
            "corert.create_composite_op_handler" => Some("ops"),
            _ => None,
        };
        if let Some(list) = list {
            let entries = body.functions(kernel).iter();
            let entries = entries.filter_map(|i| self.file.functions().get(*i as usize));
            let branches = entries.map(|f| Attr::Symbol(vec![f.name.clone()]));
            op.set_attr(list, Attr::Array(branches.collect()));
            return Vec::new();
        }
        let mut regions = Vec::new();
        for (i, index) in body.functions(kernel).iter().enumerate() {
            let function = self.file.functions().get(*index as usize);
            match function.map(|f| f.name.as_str()) {
                Some(name) if !name.is_empty() => {
                    let attr = match names.get(i) {
                        Some(attr) => attr.to_string(),
                        None => format!("callee{i}"),
                    };
                    op.set_attr(&attr, Attr::Symbol(vec![name.to_string()]));
                }
                _ => regions.push(*index),
            }
        }
        regions
    }

    fn attribute(&mut self, offset: usize, kind: AttrKind, typed: bool) -> Result<Attr> {
        let attr = self.file.attribute(offset, None);
        if typed || super::write_attrs::is_always_typed(kind) {
            return from_typed(&attr.typed()?);
        }
        if kind.is_array() {
            let (count, bytes) = attr.array_bytes(kind.dtype())?;
            return array(kind.dtype(), count, bytes);
        }
        if kind == AttrKind::SYMBOL_REF {
            let (path, text) = attr.symbol_ref()?;
            if !self.compiled.iter().any(|t| t == text) {
                self.compiled.push(text.to_string());
            }
            return Ok(Attr::Symbol(path.into_iter().map(str::to_string).collect()));
        }
        if kind == AttrKind::TYPE {
            return type_attr(attr.number::<HostDType>()?);
        }
        if kind == AttrKind::scalar(HostDType::STRING) {
            return Ok(Attr::String(attr.string_bytes()?.to_vec()));
        }
        let size = kind.dtype().size().unwrap_or(0);
        let section = self.file.attributes();
        let bytes = offset
            .checked_add(size)
            .and_then(|end| section.get(offset..end));
        number(kind.dtype(), bytes.unwrap_or(&[]))
    }
}

fn file_has_names(file: &File) -> bool {
    file.has(Section::AttributeNames)
}

fn shift(op: &mut Op, base: usize) {
    let move_all = |values: &mut Vec<Value>| values.iter_mut().for_each(|v| v.shift(base));
    move_all(&mut op.operands);
    move_all(&mut op.results);
    for region in &mut op.regions {
        move_all(&mut region.args);
        region.ops.iter_mut().for_each(|op| shift(op, base));
        for block in &mut region.others {
            move_all(&mut block.args);
            block.ops.iter_mut().for_each(|op| shift(op, base));
        }
    }
}

fn bad() -> ferroflow_base::Status {
    corrupt("Invalid Attributes/AttributeTypes section.")
}

fn type_attr(dtype: HostDType) -> Result<Attr> {
    let name = dtype.name().ok_or_else(bad)?;
    Ok(Attr::Type(Type::new(name)))
}

fn number(dtype: HostDType, bytes: &[u8]) -> Result<Attr> {
    let name = dtype.name().ok_or_else(bad)?;
    if bytes.is_empty() || bytes.len() > 8 {
        return Err(bad());
    }
    let ty = Type::new(name);
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    let bits = u64::from_le_bytes(word);
    if ty.is_float() {
        return Ok(Attr::Float(bits, ty));
    }
    match ty.as_integer() {
        Some((1, _)) => Ok(Attr::Bool(bits != 0)),
        Some((_, true)) => Ok(Attr::Int(bits as i64, ty)),
        Some((width, false)) => {
            let shift = 64 - width;
            Ok(Attr::Int(((bits << shift) as i64) >> shift, ty))
        }
        None => Err(bad()),
    }
}

fn array(dtype: HostDType, count: usize, bytes: &[u8]) -> Result<Attr> {
    if count == 0 {
        return Ok(Attr::Array(Vec::new()));
    }
    let size = (bytes.len() / count).max(1);
    let is_type = u16::from(dtype.0) == AttrKind::TYPE.0;
    let element = |bytes: &[u8]| match (is_type, bytes) {
        (true, [number, ..]) => type_attr(HostDType(*number)),
        _ => number(dtype, bytes),
    };
    Ok(Attr::Array(
        bytes.chunks(size).map(element).collect::<Result<_>>()?,
    ))
}

fn from_typed(attr: &TypedAttr) -> Result<Attr> {
    Ok(match attr {
        TypedAttr::Number { dtype, bytes } => number(*dtype, bytes)?,
        TypedAttr::String(bytes) => Attr::String(bytes.to_vec()),
        TypedAttr::Type(dtype) => type_attr(*dtype)?,
        TypedAttr::Shape(dims) => Attr::Shape(dims.clone()),
        TypedAttr::Array {
            dtype,
            count,
            bytes,
        } => array(*dtype, *count, bytes)?,
        TypedAttr::Dense {
            dtype,
            shape,
            bytes,
        } => {
            let name = dtype.name().ok_or_else(bad)?;
            let dims: String = shape.iter().map(|d| format!("{d}x")).collect();
            let ty = Type::new(&format!("tensor<{dims}{name}>"));
            Attr::Dense(Dense::new(ty, bytes.to_vec()))
        }
        TypedAttr::Aggregate(items) => {
            Attr::Array(items.iter().map(from_typed).collect::<Result<_>>()?)
        }
        TypedAttr::Func(name) => Attr::Symbol(vec![name.to_string()]),
    })
}
