//! Graphs as few bytes, in the form that they have after the passes. Importing a `GraphDef` expands
//! and completes; this gives back what was written, node for node.
//!
//! Tensors lie elsewhere: a number stands for each.

use crate::functions::check_calls;
use crate::{Function, Graph, Library, Node, NodeId, Output, loop_frames};
use ferroflow_base::{Result, Status, data_loss, not_found};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef, Name, Registry};
use ferroflow_tensor::{Bytes, DType, LazyTensor, PartialShape};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// How deep attrs may lie in functions and lists of attrs.
const MAX_DEPTH: usize = 8;

/// Writes a graph with its functions; `tensor` keeps a tensor and says its number.
pub fn write_compact(
    graph: &Graph,
    tensor: &mut dyn FnMut(&LazyTensor) -> Result<usize>,
) -> Result<Vec<u8>> {
    let mut writer = Writer {
        bytes: Vec::new(),
        strings: FxHashMap::default(),
        list: Vec::new(),
        tensor,
    };
    writer.int(i64::from(graph.producer));
    writer.body(graph)?;
    let names = graph.library().names();
    writer.count(names.len());
    for name in names {
        let function = graph.library().get(name)?;
        writer.text(name);
        writer.dtypes(&function.args);
        writer.dtypes(&function.results);
        writer.body(&function.graph)?;
    }
    let Writer { bytes, list, .. } = writer;
    let mut out = Vec::with_capacity(bytes.len() + 32 * list.len());
    put_count(&mut out, list.len());
    for text in &list {
        put_count(&mut out, text.len());
        out.extend(text.as_bytes());
    }
    out.extend(bytes);
    Ok(out)
}

/// Reads what [`write_compact`] wrote and checks all that importing checks; `tensor` gives the
/// tensor of a number.
pub fn read_compact(
    bytes: &[u8],
    tensor: &dyn Fn(usize) -> Option<LazyTensor>,
    registry: &Registry,
) -> Result<Graph> {
    let mut reader = Reader {
        bytes,
        strings: Vec::new(),
        tensor,
        registry,
    };
    let n = reader.count()?;
    for _ in 0..n {
        let text = reader.text()?;
        reader.strings.push(text);
    }
    let producer = reader.int()?;
    let mut graph = reader.body()?;
    graph.producer = i32::try_from(producer).map_err(|_| corrupt())?;
    let mut library = Library::default();
    for _ in 0..reader.count()? {
        let name = reader.text()?;
        let (args, results) = (reader.dtypes()?, reader.dtypes()?);
        let note = |e: Status| e.note(format!("in function '{name}'"));
        let function = Function::new(reader.body().map_err(note)?).map_err(note)?;
        if function.args != args || function.results != results {
            return Err(note(corrupt()));
        }
        library.insert(&name, function);
    }
    if !reader.bytes.is_empty() {
        return Err(corrupt());
    }
    check_calls(&graph, &library)?;
    for name in library.names() {
        check_calls(&library.get(name)?.graph, &library)
            .map_err(|e| e.note(format!("in function '{name}'")))?;
    }
    graph.set_library(Arc::new(library));
    Ok(graph)
}

#[cold]
fn corrupt() -> Status {
    data_loss!("the graph section of the BEF file is corrupted")
}

/// The kinds of attr values, by number.
const STR: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;
const BOOL: u8 = 3;
const TYPE: u8 = 4;
const SHAPE: u8 = 5;
const TENSOR: u8 = 6;
const FUNC: u8 = 7;
const PLACEHOLDER: u8 = 8;
const LIST: u8 = 9;

fn put_count(out: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

struct Writer<'a> {
    bytes: Vec<u8>,
    /// Texts that occur often, by number.
    strings: FxHashMap<String, usize>,
    list: Vec<String>,
    tensor: &'a mut dyn FnMut(&LazyTensor) -> Result<usize>,
}

impl Writer<'_> {
    fn count(&mut self, n: usize) {
        put_count(&mut self.bytes, n);
    }

    /// Small numbers of either sign are short.
    fn int(&mut self, value: i64) {
        self.count((value << 1 ^ value >> 63) as u64 as usize);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.raw(text.as_bytes());
    }

    fn common(&mut self, text: &str) {
        let next = self.list.len();
        let n = match self.strings.get(text) {
            Some(n) => *n,
            None => {
                self.strings.insert(text.to_string(), next);
                self.list.push(text.to_string());
                next
            }
        };
        self.count(n);
    }

    fn dtypes(&mut self, dtypes: &[DType]) {
        self.count(dtypes.len());
        dtypes.iter().for_each(|t| self.int(*t as i64));
    }

    fn body(&mut self, graph: &Graph) -> Result<()> {
        let mut numbers = vec![0; graph.id_bound()];
        for (number, (id, _)) in graph.iter().enumerate() {
            if let Some(slot) = numbers.get_mut(id.index()) {
                *slot = number;
            }
        }
        let number = |id: NodeId| numbers.get(id.index()).copied().unwrap_or(0);
        self.count(graph.len());
        for (_, node) in graph.iter() {
            self.text(&node.name);
            self.common(node.op());
            self.common(&node.device);
            self.count(node.inputs.len());
            for input in &node.inputs {
                self.count(number(input.node));
                self.count(input.slot as usize);
            }
            self.count(node.controls.len());
            node.controls.iter().for_each(|c| self.count(number(*c)));
            self.attrs(&node.attrs)
                .map_err(|e| e.at_node(&node.name, node.op()))?;
        }
        self.count(graph.targets().len());
        graph.targets().iter().for_each(|t| self.count(number(*t)));
        Ok(())
    }

    fn attrs(&mut self, attrs: &Attrs) -> Result<()> {
        self.count(attrs.len());
        for (name, value) in attrs.iter() {
            self.common(name);
            self.attr(value)?;
        }
        Ok(())
    }

    fn attr(&mut self, value: &AttrValue) -> Result<()> {
        match value {
            AttrValue::Str(s) => {
                self.bytes.push(STR);
                self.raw(s);
            }
            AttrValue::Int(i) => {
                self.bytes.push(INT);
                self.int(*i);
            }
            AttrValue::Float(f) => {
                self.bytes.push(FLOAT);
                self.bytes.extend(f.to_le_bytes());
            }
            AttrValue::Bool(b) => self.bytes.extend([BOOL, u8::from(*b)]),
            AttrValue::Type(t) => {
                self.bytes.push(TYPE);
                self.int(*t as i64);
            }
            AttrValue::Shape(s) => {
                self.bytes.push(SHAPE);
                match s.dims() {
                    None => self.count(0),
                    Some(dims) => {
                        self.count(dims.len() + 1);
                        dims.iter()
                            .for_each(|d| self.int(d.map_or(-1, |d| d as i64)));
                    }
                }
            }
            AttrValue::Tensor(t) => {
                let number = (self.tensor)(t)?;
                self.bytes.push(TENSOR);
                self.count(number);
            }
            AttrValue::Func(f) => {
                self.bytes.push(FUNC);
                self.text(&f.name);
                self.attrs(&f.attrs)?;
            }
            AttrValue::Placeholder(p) => {
                self.bytes.push(PLACEHOLDER);
                self.text(p);
            }
            AttrValue::List(items) => {
                self.bytes.push(LIST);
                self.count(items.len());
                items.iter().try_for_each(|item| self.attr(item))?;
            }
        }
        Ok(())
    }
}

struct Reader<'a> {
    /// What is left.
    bytes: &'a [u8],
    strings: Vec<String>,
    tensor: &'a dyn Fn(usize) -> Option<LazyTensor>,
    registry: &'a Registry,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.bytes.split_first().ok_or_else(corrupt)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(corrupt())
    }

    /// A number of things that take at least a byte each, or a position.
    fn count(&mut self) -> Result<usize> {
        let n = usize::try_from(self.number()?).map_err(|_| corrupt())?;
        match n <= self.bytes.len() {
            true => Ok(n),
            false => Err(corrupt()),
        }
    }

    fn index(&mut self, end: usize) -> Result<usize> {
        let n = usize::try_from(self.number()?).ok();
        n.filter(|n| *n < end).ok_or_else(corrupt)
    }

    fn int(&mut self) -> Result<i64> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    fn raw(&mut self) -> Result<&'a [u8]> {
        let n = self.count()?;
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or_else(corrupt)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<String> {
        let text = std::str::from_utf8(self.raw()?).map_err(|_| corrupt())?;
        Ok(text.to_string())
    }

    fn common(&mut self) -> Result<&str> {
        let n = self.index(self.strings.len())?;
        self.strings.get(n).map(String::as_str).ok_or_else(corrupt)
    }

    fn dtype(&mut self) -> Result<DType> {
        let number = i32::try_from(self.int()?).ok();
        number.and_then(DType::from_number).ok_or_else(corrupt)
    }

    fn dtypes(&mut self) -> Result<Vec<DType>> {
        (0..self.count()?).map(|_| self.dtype()).collect()
    }

    fn body(&mut self) -> Result<Graph> {
        let mut graph = Graph::new();
        let n = self.count()?;
        for _ in 0..n {
            let name = self.text()?;
            let node = self
                .node(name.clone(), n)
                .map_err(|e| e.at_node(&name, ""))?;
            graph.add(node)?;
        }
        let mut targets = Vec::new();
        for _ in 0..self.count()? {
            targets.push(NodeId::new(self.index(n)?));
        }
        graph.set_targets(targets);
        graph.verify()?;
        loop_frames(&graph)?;
        Ok(graph)
    }

    fn node(&mut self, name: String, n_nodes: usize) -> Result<Node> {
        let registry = self.registry;
        let op = self.common()?;
        let def = registry.def(op)?;
        let def = def.ok_or_else(|| not_found!("Op type not registered '{op}'"))?;
        let device = self.common()?.to_string();
        let mut inputs = smallvec::SmallVec::new();
        for _ in 0..self.count()? {
            let node = NodeId::new(self.index(n_nodes)?);
            inputs.push(Output::new(node, self.index(u32::MAX as usize)?));
        }
        let mut controls = smallvec::SmallVec::new();
        for _ in 0..self.count()? {
            controls.push(NodeId::new(self.index(n_nodes)?));
        }
        let mut attrs = self.attrs(0)?;
        attrs = attrs
            .iter()
            .map(|(name, value)| {
                let known = def.attr(name).map(|a| a.name.clone());
                (known.unwrap_or_else(|| name.clone()), value.clone())
            })
            .collect();
        def.complete_attrs(&mut attrs)?;
        let outputs = def.output_dtypes(&attrs)?;
        Ok(Node {
            name,
            def,
            attrs,
            inputs,
            controls,
            device,
            outputs,
        })
    }

    fn attrs(&mut self, depth: usize) -> Result<Attrs> {
        let n = self.count()?;
        let mut list = Vec::with_capacity(n.min(64));
        for _ in 0..n {
            let name = Name::Owned(self.common()?.to_string());
            list.push((name, self.attr(depth)?));
        }
        Ok(list.into_iter().collect())
    }

    fn attr(&mut self, depth: usize) -> Result<AttrValue> {
        if depth > MAX_DEPTH {
            return Err(corrupt());
        }
        Ok(match self.byte()? {
            STR => AttrValue::Str(Bytes::copy_from_slice(self.raw()?)),
            INT => AttrValue::Int(self.int()?),
            FLOAT => {
                let (bits, rest) = self.bytes.split_first_chunk().ok_or_else(corrupt)?;
                self.bytes = rest;
                AttrValue::Float(f32::from_le_bytes(*bits))
            }
            BOOL => AttrValue::Bool(self.byte()? != 0),
            TYPE => AttrValue::Type(self.dtype()?),
            SHAPE => AttrValue::Shape(match self.count()? {
                0 => PartialShape::unknown(),
                n => {
                    let dims: Vec<i64> = (1..n).map(|_| self.int()).collect::<Result<_>>()?;
                    PartialShape::from_tf(Some(&dims))?
                }
            }),
            TENSOR => {
                let n = self.index(usize::MAX)?;
                AttrValue::Tensor((self.tensor)(n).ok_or_else(corrupt)?)
            }
            FUNC => AttrValue::Func(FuncRef {
                name: self.text()?,
                attrs: self.attrs(depth + 1)?,
            }),
            PLACEHOLDER => AttrValue::Placeholder(self.text()?),
            LIST => {
                let n = self.count()?;
                let items = (0..n).map(|_| self.attr(depth + 1));
                AttrValue::List(items.collect::<Result<_>>()?)
            }
            _ => return Err(corrupt()),
        })
    }
}
