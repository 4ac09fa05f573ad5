//! Compiled models in BEF files: functions of kind `dataflow`, in sections that TFRT's reader skips.
//!
//! One section has the bodies of the functions, one what the model is called from outside, one the
//! table of tensors, and one, on cache lines, the tensors' bytes.

use super::format::{FunctionKind, Reader, Section, Writer, corrupt};
use super::read::File;
use crate::dataflow::Body;
use crate::dataflow::codec::{Numbers, References, decode, encode};
use crate::mlir::{Attr, FunctionType, Loc, Module, Op, Region, Type};
use ferroflow_base::{Result, Status, data_loss, internal, invalid_argument, unimplemented_error};
use ferroflow_tensor::{Bytes, DType, LazyTensor, MappedFile, PartialShape, Shape, Tensor};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::sync::Arc;

/// The function that a step of a compiled model calls.
pub const MAIN: &str = "main";

/// The layout of the sections here. Layout 1 had a graph instead of function bodies.
pub(super) const LAYOUT: u32 = 2;

/// How deep functions that kernels call may call each other by kernels.
const MAX_DEPTH: usize = 40;

/// Where a tensor's bytes start.
const ALIGNMENT: usize = 64;
/// Tensors of at most this many bytes are in the table.
const SMALL: usize = 64;

/// How a tensor is kept.
const INLINE: u8 = 0;
const FAR: u8 = 1;
const STRINGS: u8 = 2;

/// A tensor that a model takes or returns.
#[derive(Clone, Debug)]
pub struct Port {
    /// What users call it.
    pub key: String,
    /// Its name in the graph.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, as far as it is known.
    pub shape: PartialShape,
}

/// A compiled model.
pub struct Model {
    /// The function that a step calls.
    pub main: Body,
    /// What it takes, in the order of its arguments.
    pub feeds: Vec<Port>,
    /// What it returns, in the order of its results.
    pub fetches: Vec<Port>,
    /// Nodes that run for their effects.
    pub targets: Vec<String>,
    /// What packed weights were packed for.
    pub packing: String,
}

/// The error of a file whose sections have another layout.
#[cold]
pub(super) fn other_layout(layout: u32) -> Status {
    data_loss!(
        "the compiled model has layout {layout}, and this version of Ferroflow reads layout {LAYOUT}; \
         compile the model again"
    )
}

/// Tensors by number; equal ones have the same.
#[derive(Default)]
struct TensorTable {
    tensors: Vec<LazyTensor>,
    by_content: HashMap<u64, Vec<usize>>,
}

impl TensorTable {
    /// The number of `tensor`.
    fn add(&mut self, tensor: &LazyTensor) -> Result<usize> {
        let dtype = tensor.dtype();
        if dtype != DType::String && !dtype.is_plain() {
            return Err(unimplemented_error!(
                "a compiled model cannot hold a constant of dtype {dtype}"
            ));
        }
        let value = tensor.get()?;
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(value.dtype() as u32);
        value.shape().iter().for_each(|d| hasher.write_usize(*d));
        match value.strings() {
            Ok(strings) => strings.iter().for_each(|s| hasher.write(s)),
            Err(_) => hasher.write(value.bytes()?),
        }
        let numbers = self.by_content.entry(hasher.finish()).or_default();
        for number in numbers.iter() {
            if let Some(other) = self.tensors.get(*number)
                && other.get()?.same_value(&value)
            {
                return Ok(*number);
            }
        }
        numbers.push(self.tensors.len());
        self.tensors.push(tensor.clone());
        Ok(self.tensors.len() - 1)
    }
}

/// The numbers that bodies refer to while a model is written.
struct ModelNumbers<'a> {
    tensors: TensorTable,
    functions: &'a HashMap<*const Body, usize>,
}

impl Numbers for ModelNumbers<'_> {
    fn tensor(&mut self, tensor: &LazyTensor) -> Result<u32> {
        let number = self.tensors.add(tensor)?;
        u32::try_from(number).map_err(|_| invalid_argument!("the model has too many tensors"))
    }

    fn function(&mut self, function: &Arc<Body>) -> Result<u32> {
        let number = self.functions.get(&Arc::as_ptr(function));
        let number = number.ok_or_else(|| internal!("a function has no number"))?;
        Ok(*number as u32)
    }
}

/// Functions that kernels call, callees before callers, each once.
fn callees(body: &Body, seen: &mut HashSet<*const Body>, list: &mut Vec<(String, Arc<Body>)>) {
    for (name, function) in &body.functions {
        if seen.insert(Arc::as_ptr(function)) {
            callees(function, seen, list);
            list.push((name.clone(), function.clone()));
        }
    }
}

/// The index of a model's functions: as a program of functions without bodies.
fn index(bodies: &[(String, &Body)]) -> Module {
    let mut taken = HashSet::new();
    let mut module = Module::default();
    for (name, body) in bodies {
        let tensors = |n| vec![Type::new("!tf.tensor"); n];
        let ty = FunctionType {
            inputs: tensors(body.root().args.len()),
            results: tensors(body.root().n_results),
        };
        let mut op = Op::new("func", &Loc::default());
        op.set_attr("sym_name", Attr::String(symbol(name, &mut taken).into()));
        op.set_attr("type", Attr::Type(Type::Function(ty.into())));
        op.set_attr("sym_visibility", Attr::string("private"));
        op.set_attr("tfrt.dataflow", Attr::Unit);
        op.regions.push(Region::default());
        module.ops.push(op);
    }
    module
}

/// `name` as a symbol that is not taken yet.
pub(super) fn symbol(name: &str, taken: &mut HashSet<String>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
    let plain = |c| if is_plain(c) { c } else { '_' };
    let mut symbol: String = name.chars().map(plain).collect();
    if !symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        symbol.insert(0, '_');
    }
    let mut candidate = symbol.clone();
    let mut n = 2;
    while !taken.insert(candidate.clone()) {
        candidate = format!("{symbol}.{n}");
        n += 1;
    }
    candidate
}

/// Writes a compiled model as a BEF file, piece by piece, to `out`.
///
/// # Errors
/// A constant has a dtype that files cannot hold, or `out` fails.
pub fn write_model(model: &Model, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut called = Vec::new();
    callees(&model.main, &mut HashSet::new(), &mut called);
    // Callers first: a function refers to later ones only.
    called.reverse();
    let mut functions = HashMap::new();
    let mut bodies = vec![(MAIN.to_string(), &model.main)];
    for (i, (name, body)) in called.iter().enumerate() {
        functions.insert(Arc::as_ptr(body), i + 1);
        bodies.push((name.clone(), &**body));
    }
    let mut file = Writer::default();
    file.bytes = super::write::write_index(&index(&bodies))
        .map_err(|_| internal!("the index of the model's functions cannot be written"))?;
    let mut interface = Writer::default();
    ports(&mut interface, &model.feeds);
    ports(&mut interface, &model.fetches);
    interface.int(model.targets.len());
    model.targets.iter().for_each(|t| interface.text(t));
    interface.text(&model.packing);
    file.section(Section::Interface, &interface);
    let mut numbers = ModelNumbers {
        tensors: TensorTable::default(),
        functions: &functions,
    };
    let mut section = Writer::default();
    section.u32(LAYOUT);
    section.u32(bodies.len() as u32);
    for (name, body) in &bodies {
        let bytes = encode(body, &mut numbers)?;
        let n = u32::try_from(bytes.len());
        section.u32(n.map_err(|_| invalid_argument!("function '{name}' is too large"))?);
        section.bytes.extend(bytes);
        section.align(4);
    }
    file.section(Section::Bodies, &section);
    write_tensors(file, &numbers.tensors.tensors, out)
}

/// Writes the table of tensors behind the other sections, and then the large ones.
fn write_tensors(
    mut file: Writer,
    tensors: &[LazyTensor],
    out: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut table = Writer::default();
    let mut far = Vec::new();
    let mut end = 0usize;
    table.int(tensors.len());
    for tensor in tensors {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        table.int(dtype as usize);
        table.int(shape.rank());
        shape.iter().for_each(|d| table.int(*d));
        if dtype == DType::String {
            let value = tensor.get()?;
            table.byte(STRINGS);
            value.strings()?.iter().for_each(|s| table.raw(s));
        } else if tensor.byte_len() <= SMALL {
            table.byte(INLINE);
            table.bytes.extend(tensor.get()?.bytes()?);
        } else {
            table.byte(FAR);
            table.int(end);
            end = end
                .checked_add(tensor.byte_len())
                .and_then(|e| e.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(|| invalid_argument!("the weights are too large"))?;
            far.push(tensor);
        }
    }
    file.section(Section::Tensors, &table);
    file.byte(Section::Weights as u8);
    file.int(end << 1 | 1);
    file.byte(ALIGNMENT as u8);
    file.align(ALIGNMENT);
    out(&file.bytes)?;
    for tensor in far {
        let value = tensor.get()?;
        let bytes = value.bytes()?;
        out(bytes)?;
        let gap = bytes.len().next_multiple_of(ALIGNMENT) - bytes.len();
        out([0; ALIGNMENT].get(..gap).unwrap_or_default())?;
        drop(value);
        tensor.release();
    }
    Ok(())
}

fn ports(writer: &mut Writer, ports: &[Port]) {
    writer.int(ports.len());
    for port in ports {
        writer.text(&port.key);
        writer.text(&port.name);
        writer.int(port.dtype as usize);
        match port.shape.dims() {
            None => writer.int(0),
            Some(dims) => {
                writer.int(dims.len() + 1);
                dims.iter()
                    .for_each(|d| writer.int(d.map_or(0, |d| d.saturating_add(1))));
            }
        }
    }
}

impl File {
    /// The compiled model in the file, if there is one. Large tensors stay in `mapping`, if the file is
    /// what it maps. `check` sees the body of each function, and what weights were packed for.
    ///
    /// # Errors
    /// DATA_LOSS if a section is missing or corrupted, and the errors of `check`.
    pub fn model(
        &self,
        mapping: Option<&Arc<MappedFile>>,
        check: &mut dyn FnMut(&mut Body, &str) -> Result<()>,
    ) -> Result<Option<Model>> {
        let is_dataflow = |f: &&super::read::Function| f.kind == FunctionKind::Dataflow;
        let functions: Vec<_> = self.functions().iter().filter(is_dataflow).collect();
        let sections = [
            Section::Interface,
            Section::Bodies,
            Section::Tensors,
            Section::Weights,
        ];
        let n_present = sections.iter().filter(|s| self.is_present(**s)).count();
        if functions.is_empty() && n_present == 0 {
            return Ok(None);
        }
        if n_present < sections.len() {
            return Err(corrupt(
                "a section of the compiled model is missing in the BEF file",
            ));
        }
        let interface = read_interface(Reader::new(self.section(Section::Interface), 0));
        let (feeds, fetches, targets, packing) =
            interface.ok_or_else(|| corrupt("invalid section of the interface in BEF file"))?;
        let weights = Weights {
            bytes: self.section(Section::Weights),
            mapping,
        };
        let tensors = read_tensors(Reader::new(self.section(Section::Tensors), 0), &weights)?;
        let tensors = tensors.ok_or_else(|| corrupt("invalid section of tensors in BEF file"))?;
        let mut check = |body: &mut Body| check(body, &packing);
        let main = self.bodies(functions.len(), &tensors, &mut check)?;
        let root = main.root();
        let names_main = functions.first().is_some_and(|f| f.name == MAIN);
        if !names_main || (root.args.len(), root.n_results) != (feeds.len(), fetches.len()) {
            return Err(corrupt(
                "the compiled model does not match its declared interface",
            ));
        }
        Ok(Some(Model {
            main,
            feeds,
            fetches,
            targets,
            packing,
        }))
    }

    /// Decodes the bodies of `n` functions; returns the first.
    fn bodies(
        &self,
        n: usize,
        tensors: &[LazyTensor],
        check: &mut dyn FnMut(&mut Body) -> Result<()>,
    ) -> Result<Body> {
        let bad = || corrupt("invalid section of function bodies in BEF file");
        let mut words = Reader::new(self.section(Section::Bodies), 0);
        let layout = words.u32().ok_or_else(bad)?;
        if layout != LAYOUT {
            return Err(other_layout(layout));
        }
        let count = words.u32().filter(|count| *count as usize == n);
        let mut bytes = Vec::new();
        for _ in 0..count.ok_or_else(bad)? {
            let n = words.u32().ok_or_else(bad)?;
            bytes.push(words.take(n as usize).ok_or_else(bad)?);
            words.at = words.at.next_multiple_of(4);
        }
        // From the last, since a function calls later ones only.
        let mut later: Vec<Option<(Arc<Body>, usize)>> = vec![None; n];
        for (i, bytes) in bytes.into_iter().enumerate().rev() {
            let find = |number: u32| {
                let entry = later.get(number as usize)?.as_ref();
                entry.map(|(body, _)| body.clone())
            };
            let references = References {
                tensors,
                function: &find,
            };
            let mut body = decode(bytes, &references)?;
            check(&mut body)?;
            body.verify()?;
            if i == 0 {
                return Ok(body);
            }
            let depth_of = |f: &Arc<Body>| {
                let known = later.iter().flatten().find(|(b, _)| Arc::ptr_eq(b, f));
                known.map_or(0, |(_, depth)| *depth)
            };
            let depth = 1 + body.functions.values().map(depth_of).max().unwrap_or(0);
            if depth > MAX_DEPTH {
                return Err(bad());
            }
            if let Some(slot) = later.get_mut(i) {
                *slot = Some((Arc::new(body), depth));
            }
        }
        Err(bad())
    }
}

type Interface = (Vec<Port>, Vec<Port>, Vec<String>, String);

fn read_interface(mut reader: Reader) -> Option<Interface> {
    let feeds = read_ports(&mut reader)?;
    let fetches = read_ports(&mut reader)?;
    let n = reader.count()?;
    let targets = (0..n).map(|_| reader.text()).collect::<Option<_>>()?;
    Some((feeds, fetches, targets, reader.text()?))
}

fn read_ports(reader: &mut Reader) -> Option<Vec<Port>> {
    let n = reader.count()?;
    let mut port = || {
        let (key, name) = (reader.text()?, reader.text()?);
        let dtype = read_dtype(reader)?;
        let shape = match reader.count()? {
            0 => PartialShape::unknown(),
            n => {
                let mut dims = Vec::new();
                for _ in 1..n {
                    dims.push(i64::try_from(reader.int()?).ok()?.checked_sub(1)?);
                }
                PartialShape::from_tf(Some(&dims)).ok()?
            }
        };
        Some(Port {
            key,
            name,
            dtype,
            shape,
        })
    };
    (0..n).map(|_| port()).collect()
}

fn read_dtype(reader: &mut Reader) -> Option<DType> {
    DType::from_number(i32::try_from(reader.int()?).ok()?)
}

struct Weights<'a> {
    bytes: &'a [u8],
    mapping: Option<&'a Arc<MappedFile>>,
}

impl Weights<'_> {
    fn tensor(&self, dtype: DType, shape: Shape, start: usize, len: usize) -> Option<LazyTensor> {
        let bytes = self.bytes.get(start..start.checked_add(len)?)?;
        if let Some(mapping) = self.mapping
            && dtype != DType::Bool
        {
            let range = mapping.locate(bytes)?;
            return LazyTensor::mapped(dtype, shape, mapping.clone(), range);
        }
        Tensor::from_bytes(dtype, shape, bytes).ok().map(Into::into)
    }
}

fn read_tensors(mut reader: Reader, weights: &Weights) -> Result<Option<Vec<LazyTensor>>> {
    let Some(n) = reader.count() else {
        return Ok(None);
    };
    let mut tensors = Vec::with_capacity(n);
    for _ in 0..n {
        let header = (|| {
            let dtype = read_dtype(&mut reader)?;
            let rank = reader.count()?;
            let mut dims = Vec::new();
            for _ in 0..rank {
                dims.push(i64::try_from(reader.int()?).ok()?);
            }
            Some((dtype, dims, reader.byte()?))
        })();
        let Some((dtype, dims, how)) = header else {
            return Ok(None);
        };
        let shape = Shape::checked(&dims)?;
        let len = shape.num_elements().checked_mul(dtype.size());
        let tensor = (|| match how {
            STRINGS if dtype == DType::String => {
                let n = shape.num_elements();
                // A text takes at least a byte.
                if n > reader.left() {
                    return None;
                }
                let strings = (0..n).map(|_| reader.raw().map(Bytes::copy_from_slice));
                let strings = strings.collect::<Option<Vec<_>>>()?;
                Tensor::from_strings(shape, strings).ok().map(Into::into)
            }
            INLINE if dtype.is_plain() => {
                let bytes = reader.take(len?)?;
                Tensor::from_bytes(dtype, shape, bytes).ok().map(Into::into)
            }
            FAR if dtype.is_plain() => {
                let start = reader.int()?;
                weights.tensor(dtype, shape, start, len?)
            }
            _ => None,
        })();
        match tensor {
            Some(tensor) => tensors.push(tensor),
            None => return Ok(None),
        }
    }
    Ok(Some(tensors))
}
