//! Graphs in BEF files: sections that TFRT's reader skips.
//!
//! One section has the graph in a form that this room does not look into, one what it is called
//! from outside, one the table of tensors, and one, on cache lines, the tensors' bytes.

use super::format::{Reader, Writer, corrupt, each_section};
use crate::mlir::Module;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_tensor::{Bytes, DType, LazyTensor, MappedFile, PartialShape, Shape, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;

/// Numbers of the sections, beyond those of TFRT.
const GRAPH: u8 = 0x40;
const INTERFACE: u8 = 0x41;
const TENSORS: u8 = 0x42;
const WEIGHTS: u8 = 0x43;

/// Where a tensor's bytes start.
const ALIGNMENT: usize = 64;
/// Tensors of at most this many bytes lie in the table.
const SMALL: usize = 64;

/// How a tensor is kept.
const INLINE: u8 = 0;
const FAR: u8 = 1;
const STRINGS: u8 = 2;

/// A tensor that a graph takes or gives.
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

/// A graph in a file.
pub struct GraphProgram {
    /// The functions of the file. A file that is read has them in `bef::File`.
    pub functions: Module,
    /// What it takes, in the order of its arguments.
    pub feeds: Vec<Port>,
    /// What it gives, in the order of its results.
    pub fetches: Vec<Port>,
    /// Nodes that run for their effects.
    pub targets: Vec<String>,
    /// What packed weights were packed for.
    pub packing: String,
    /// The graph.
    pub graph: Vec<u8>,
    /// The tensors that the graph refers to by number.
    pub tensors: Vec<LazyTensor>,
}

/// Tensors by number; equal ones have the same.
#[derive(Default)]
pub struct TensorTable {
    tensors: Vec<LazyTensor>,
    by_content: HashMap<u64, Vec<usize>>,
}

impl TensorTable {
    /// The number of `tensor`.
    pub fn add(&mut self, tensor: &LazyTensor) -> Result<usize> {
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

    /// The tensors in the order of their numbers.
    pub fn finish(self) -> Vec<LazyTensor> {
        self.tensors
    }
}

/// Writes a graph and the functions that run it as a BEF file, piece by piece, to `out`.
pub fn write_graph(program: &GraphProgram, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let functions = super::write(&program.functions, true);
    let mut file = Writer::default();
    file.bytes = functions.map_err(|found| {
        let found: Vec<String> = found.into_iter().map(|d| d.message).collect();
        internal!(
            "the graph's functions cannot be written: {}",
            found.join("; ")
        )
    })?;
    let mut interface = Writer::default();
    ports(&mut interface, &program.feeds);
    ports(&mut interface, &program.fetches);
    interface.int(program.targets.len());
    program.targets.iter().for_each(|t| interface.text(t));
    interface.text(&program.packing);
    file.other_section(INTERFACE, &interface);
    let mut graph = Writer::default();
    graph.bytes.extend(&program.graph);
    file.other_section(GRAPH, &graph);
    let mut table = Writer::default();
    let mut far = Vec::new();
    let mut end = 0usize;
    table.int(program.tensors.len());
    for tensor in &program.tensors {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        table.int(dtype as usize);
        table.int(shape.rank());
        shape.iter().for_each(|d| table.int(*d));
        if dtype == DType::String {
            let value = tensor.get()?;
            table.byte(STRINGS);
            value.strings()?.iter().for_each(|s| table.raw(s));
        } else if !dtype.is_plain() {
            return Err(invalid_argument!(
                "a constant of dtype {dtype} cannot be kept in a file"
            ));
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
    file.other_section(TENSORS, &table);
    file.byte(WEIGHTS);
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

/// Whether a BEF file has a graph.
pub fn has_graph(file: &[u8]) -> bool {
    let mut found = false;
    each_section(file, &mut |id, _| found |= id == GRAPH).is_ok() && found
}

/// The graph of a BEF file; `None` if there is none in it. Large tensors stay in `mapping`, if
/// `file` is what it maps.
pub fn read_graph(file: &[u8], mapping: Option<&Arc<MappedFile>>) -> Result<Option<GraphProgram>> {
    let mut parts: [Option<std::ops::Range<usize>>; 4] = Default::default();
    each_section(file, &mut |id, range| {
        let slot = id
            .checked_sub(GRAPH)
            .and_then(|i| parts.get_mut(usize::from(i)));
        if let Some(slot) = slot {
            *slot = Some(range);
        }
    })?;
    let bytes = |range: &std::ops::Range<usize>| file.get(range.clone()).unwrap_or_default();
    let [Some(graph), Some(interface), Some(tensors), Some(weights)] = &parts else {
        return match parts.iter().any(Option::is_some) {
            true => Err(corrupt("a section of the graph is missing in the BEF file")),
            false => Ok(None),
        };
    };
    let interface = read_interface(Reader::new(bytes(interface), 0));
    let (feeds, fetches, targets, packing) =
        interface.ok_or_else(|| corrupt("invalid section of the graph's interface in BEF file"))?;
    let weights = Weights {
        file,
        mapping,
        range: weights.clone(),
    };
    let tensors = read_tensors(Reader::new(bytes(tensors), 0), &weights)?;
    Ok(Some(GraphProgram {
        functions: Module::default(),
        feeds,
        fetches,
        targets,
        packing,
        graph: bytes(graph).to_vec(),
        tensors: tensors.ok_or_else(|| corrupt("invalid section of tensors in BEF file"))?,
    }))
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
    file: &'a [u8],
    mapping: Option<&'a Arc<MappedFile>>,
    range: std::ops::Range<usize>,
}

impl Weights<'_> {
    fn tensor(&self, dtype: DType, shape: Shape, start: usize, len: usize) -> Option<LazyTensor> {
        let start = self.range.start.checked_add(start)?;
        let end = start.checked_add(len).filter(|e| *e <= self.range.end)?;
        let bytes = self.file.get(start..end)?;
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
