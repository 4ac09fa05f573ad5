//! The binary form of a body: a table of strings, arrays of little-endian words, and the attrs.
//!
//! Each array is a word with the number of its words and the words. Tensors are numbers of a table that
//! the file has beside the bodies; functions that kernels call are numbers of bodies.

use super::attrs::{AttrReader, AttrWriter};
use super::body::{
    Action, Body, Edge, EdgeKind, ForwardSlot, Frame, FrameIdx, FrameKind, KernelEntry, Node,
    NodeIdx,
};
use ferroflow_base::{Result, Status, data_loss};
use ferroflow_opdef::{Cost, NodeInfo, Value};
use ferroflow_tensor::{DType, LazyTensor};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Stands for an empty slot, an argument that is not used, and no forward slot.
const NONE: u32 = u32::MAX;

const NODE_WORDS: usize = 10;
const EDGE_WORDS: usize = 3;
const FRAME_WORDS: usize = 10;
const KERNEL_WORDS: usize = 6;

const COSTS: [Cost; 4] = [Cost::Cheap, Cost::BySize, Cost::Expensive, Cost::Async];
const EDGES: [EdgeKind; 6] = [
    EdgeKind::Data,
    EdgeKind::Control,
    EdgeKind::Result,
    EdgeKind::MergeData,
    EdgeKind::MergeControl,
    EdgeKind::Trigger,
];

/// The tensors and functions that a body refers to, by number.
pub(crate) struct References<'a> {
    pub(crate) tensors: &'a [LazyTensor],
    /// Bodies that may be called: those that come later in the file.
    pub(crate) function: &'a dyn Fn(u32) -> Option<Arc<Body>>,
}

/// Gives numbers to the tensors and functions of a body.
pub(crate) trait Numbers {
    fn tensor(&mut self, tensor: &LazyTensor) -> Result<u32>;
    fn function(&mut self, function: &Arc<Body>) -> Result<u32>;
}

/// Words of the arrays, in the order of the file.
#[derive(Default)]
struct Arrays {
    nodes: Vec<u32>,
    callees: Vec<u32>,
    edges: Vec<u32>,
    frames: Vec<u32>,
    slots: Vec<u32>,
    pending: Vec<u32>,
    roots: Vec<u32>,
    args: Vec<u32>,
    const_results: Vec<u32>,
    consts: Vec<u32>,
    kernels: Vec<u32>,
    dtypes: Vec<u32>,
    functions: Vec<u32>,
}

impl Arrays {
    fn all(&mut self) -> [&mut Vec<u32>; 13] {
        [
            &mut self.nodes,
            &mut self.callees,
            &mut self.edges,
            &mut self.frames,
            &mut self.slots,
            &mut self.pending,
            &mut self.roots,
            &mut self.args,
            &mut self.const_results,
            &mut self.consts,
            &mut self.kernels,
            &mut self.dtypes,
            &mut self.functions,
        ]
    }
}

/// Strings by number.
#[derive(Default)]
pub(super) struct Strings {
    numbers: HashMap<String, u32>,
    list: Vec<String>,
}

impl Strings {
    pub(super) fn add(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.numbers.insert(text.to_string(), number);
        self.list.push(text.to_string());
        number
    }
}

/// The bytes of a body.
pub(crate) fn encode(body: &Body, numbers: &mut dyn Numbers) -> Result<Vec<u8>> {
    let mut strings = Strings::default();
    let mut arrays = Arrays::default();
    let mut attrs = AttrWriter::default();
    for (node, info) in body.nodes.iter().zip(&body.info) {
        encode_node(node, info, &mut strings, &mut arrays);
        if let Action::Kernel(entry) = &node.action {
            for text in [&entry.op, &entry.node, &entry.device] {
                arrays.kernels.push(strings.add(text));
            }
            let counts = [entry.inputs.len(), entry.outputs.len(), entry.attrs.len()];
            arrays.kernels.extend(counts.map(|n| n as u32));
            let dtypes = entry.inputs.iter().chain(&entry.outputs);
            arrays.dtypes.extend(dtypes.map(|t| *t as u32));
            attrs
                .attrs(&entry.attrs, &mut strings, numbers)
                .map_err(|e| e.at_node(&info.name, &info.op))?;
        }
    }
    for edge in &body.edges {
        let kind = EDGES.iter().position(|k| *k == edge.kind).unwrap_or(0) as u32;
        let packed = u32::from(edge.output) | kind << 16 | u32::from(edge.last) << 24;
        arrays
            .edges
            .extend([edge.node.index() as u32, edge.slot, packed]);
    }
    for frame in &body.frames {
        encode_frame(frame, &mut strings, &mut arrays);
    }
    for tensor in &body.consts {
        arrays.consts.push(numbers.tensor(tensor)?);
    }
    for (name, function) in &body.functions {
        let name = strings.add(name);
        arrays.functions.extend([name, numbers.function(function)?]);
    }
    let mut bytes = Vec::new();
    let word = |bytes: &mut Vec<u8>, word: usize| bytes.extend((word as u32).to_le_bytes());
    for array in arrays.all() {
        word(&mut bytes, array.len());
        array.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
    }
    word(&mut bytes, strings.list.len());
    for text in &strings.list {
        word(&mut bytes, text.len());
        bytes.extend(text.as_bytes());
    }
    bytes.extend(attrs.bytes);
    Ok(bytes)
}

fn encode_node(
    node: &Node<Box<KernelEntry>>,
    info: &NodeInfo,
    strings: &mut Strings,
    arrays: &mut Arrays,
) {
    let index = |frame: &FrameIdx| frame.index() as u32;
    let (tag, a, b) = match &node.action {
        Action::Kernel(_) => (0, (arrays.kernels.len() / KERNEL_WORDS) as u32, 0),
        Action::Arg(i) => (1, *i, 0),
        Action::Const(c) => (2, *c, 0),
        Action::Forward => (3, 0, 0),
        Action::Switch => (4, 0, 0),
        Action::SwitchN => (5, 0, 0),
        Action::Merge => (6, 0, 0),
        Action::Enter { frame, is_constant } => (7, index(frame), u32::from(*is_constant)),
        Action::Exit => (8, 0, 0),
        Action::NextIteration => (9, 0, 0),
        Action::Trigger => (10, 0, 0),
        Action::Call(f) => (11, index(f), 0),
        Action::If {
            then_branch,
            else_branch,
        } => (12, index(then_branch), index(else_branch)),
        Action::Case(branches) => {
            let first = arrays.callees.len() as u32;
            arrays.callees.extend(branches.iter().map(index));
            (13, first, branches.len() as u32)
        }
        Action::While { cond, body } => (14, index(cond), index(body)),
    };
    let cost = COSTS.iter().position(|c| *c == node.cost).unwrap_or(0) as u32;
    arrays.nodes.extend([
        tag | cost << 8 | u32::from(node.n_outputs) << 16,
        a,
        b,
        node.first_slot,
        node.n_inputs,
        node.first_edge,
        node.n_edges,
        node.forward_slot.0,
        strings.add(&info.name),
        strings.add(&info.op),
    ]);
}

fn encode_frame(frame: &Frame, strings: &mut Strings, arrays: &mut Arrays) {
    let (parent, parallel, n_enters) = match frame.kind {
        FrameKind::Function => (NONE, 0, 0),
        FrameKind::Loop {
            parent,
            parallel_iterations,
            n_enters,
        } => (parent.index() as u32, parallel_iterations, n_enters),
    };
    let counts = [
        frame.pending.len(),
        frame.slots.len(),
        frame.roots.len(),
        frame.args.len(),
        frame.n_results,
        frame.const_results.len(),
    ];
    arrays
        .frames
        .extend([strings.add(&frame.name), parent, parallel, n_enters]);
    arrays.frames.extend(counts.map(|n| n as u32));
    arrays.slots.extend(frame.slots.iter().map(|s| match s {
        Value::Const(c) => *c,
        _ => NONE,
    }));
    arrays.pending.extend(&frame.pending);
    arrays
        .roots
        .extend(frame.roots.iter().map(|n| n.index() as u32));
    let args = frame.args.iter();
    arrays
        .args
        .extend(args.map(|a| a.map_or(NONE, |n| n.index() as u32)));
    let results = frame.const_results.iter();
    arrays
        .const_results
        .extend(results.flat_map(|(r, c)| [*r, *c]));
}

#[cold]
pub(super) fn corrupt() -> Status {
    data_loss!("a function body of the BEF file is corrupted")
}

/// An array of the file.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// The next `n` words.
    fn take(&mut self, n: usize) -> Result<Words<'a>> {
        let (taken, rest) = n
            .checked_mul(4)
            .and_then(|n| self.0.split_at_checked(n))
            .ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(Words(taken))
    }

    fn next(&mut self) -> Result<u32> {
        let (word, rest) = self.0.split_first_chunk().ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*word))
    }

    /// An array behind its length.
    fn array(&mut self) -> Result<Words<'a>> {
        let n = self.next()?;
        self.take(n as usize)
    }

    /// Records of `N` words.
    fn records<const N: usize>(self) -> Result<impl Iterator<Item = [u32; N]>> {
        match self.0.len() % (4 * N) {
            0 => Ok(self.0.chunks_exact(4 * N).map(|record| {
                let mut words = [0; N];
                for (word, bytes) in words.iter_mut().zip(record.as_chunks().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
                words
            })),
            _ => Err(corrupt()),
        }
    }

    /// The words themselves.
    fn iter(self) -> impl Iterator<Item = u32> {
        let words = self.0.as_chunks().0.iter();
        words.map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// The table of strings; copies are limited, for a damaged file might repeat a long one without end.
pub(super) struct Texts<'a> {
    list: Vec<&'a str>,
    left: Cell<usize>,
}

impl<'a> Texts<'a> {
    fn read(reader: &mut Words<'a>) -> Result<Texts<'a>> {
        let mut texts = Texts {
            list: Vec::new(),
            left: Cell::new(reader.0.len().saturating_mul(64)),
        };
        for _ in 0..reader.next()? {
            let n = reader.next()? as usize;
            let (text, rest) = reader.0.split_at_checked(n).ok_or_else(corrupt)?;
            texts
                .list
                .push(std::str::from_utf8(text).map_err(|_| corrupt())?);
            reader.0 = rest;
        }
        Ok(texts)
    }

    pub(super) fn get(&self, index: usize) -> Result<String> {
        let text = self.list.get(index).ok_or_else(corrupt)?;
        let left = self.left.get().checked_sub(text.len());
        self.left.set(left.ok_or_else(corrupt)?);
        Ok(text.to_string())
    }
}

/// A body from its bytes. It refers to what exists, but [`Body::verify`] is still to be called.
pub(crate) fn decode(bytes: &[u8], references: &References) -> Result<Body> {
    let mut reader = Words(bytes);
    let [nodes, callees, edges, frames, slots, pending, roots] = arrays(&mut reader)?;
    let [args, const_results, consts, kernels, dtypes, functions] = arrays(&mut reader)?;
    let texts = Texts::read(&mut reader)?;
    let mut attrs = AttrReader::new(reader.0, &texts, references.tensors);
    let mut entries = kernel_entries(kernels, dtypes, &texts, &mut attrs)?;
    if !attrs.is_empty() {
        return Err(corrupt());
    }
    let mut body = Body {
        nodes: Vec::new(),
        info: Vec::new(),
        edges: Vec::new(),
        frames: Vec::new(),
        consts: Vec::new(),
        functions: BTreeMap::new(),
        max_outputs: 1,
    };
    let text = |i: u32| texts.get(i as usize);
    for record in nodes.records::<NODE_WORDS>()? {
        let [head, a, b, .., name, op] = record;
        let action = action(head & 0xff, a, b, callees, &mut entries)?;
        body.nodes.push(node(record, action)?);
        body.info.push(NodeInfo {
            name: text(name)?,
            op: text(op)?,
        });
    }
    if entries.iter().any(Option::is_some) {
        return Err(corrupt());
    }
    for [node, slot, packed] in edges.records::<EDGE_WORDS>()? {
        let kind = EDGES.get((packed >> 16 & 0xff) as usize);
        body.edges.push(Edge {
            node: NodeIdx::new(node as usize),
            slot,
            output: packed as u16,
            kind: *kind.ok_or_else(corrupt)?,
            last: packed >> 24 == 1,
        });
    }
    let mut lists = FrameLists {
        slots,
        pending,
        roots,
        args,
        const_results,
    };
    let mut first_node = 0;
    for record in frames.records::<FRAME_WORDS>()? {
        let frame = lists.frame(record, text(record[0])?, first_node)?;
        first_node += frame.pending.len() as u32;
        body.frames.push(frame);
    }
    for number in consts.iter() {
        let tensor = references.tensors.get(number as usize).cloned();
        body.consts.push(tensor.ok_or_else(corrupt)?);
    }
    for [name, number] in functions.records()? {
        let function = (references.function)(number).ok_or_else(corrupt)?;
        body.functions.insert(text(name)?, function);
    }
    let outputs = body.nodes.iter().map(|n| usize::from(n.n_outputs));
    body.max_outputs = outputs.max().unwrap_or(1).max(1);
    Ok(body)
}

fn arrays<'a, const N: usize>(reader: &mut Words<'a>) -> Result<[Words<'a>; N]> {
    let mut arrays = [Words(&[]); N];
    for array in &mut arrays {
        *array = reader.array()?;
    }
    Ok(arrays)
}

fn kernel_entries(
    kernels: Words,
    dtypes: Words,
    texts: &Texts,
    attrs: &mut AttrReader,
) -> Result<Vec<Option<Box<KernelEntry>>>> {
    let mut dtypes = dtypes.iter();
    let mut list = |n: u32| -> Result<Vec<DType>> {
        let dtype = |t: u32| DType::from_number(i32::try_from(t).ok()?);
        let list: Option<Vec<DType>> = dtypes.by_ref().take(n as usize).map(dtype).collect();
        list.filter(|l| l.len() == n as usize).ok_or_else(corrupt)
    };
    let text = |i: u32| texts.get(i as usize);
    let mut entries = Vec::new();
    for [op, node, device, n_inputs, n_outputs, n_attrs] in kernels.records::<KERNEL_WORDS>()? {
        entries.push(Some(Box::new(KernelEntry {
            op: text(op)?,
            node: text(node)?,
            device: text(device)?,
            inputs: list(n_inputs)?,
            outputs: list(n_outputs)?,
            attrs: attrs.attrs(n_attrs as usize, 0)?,
        })));
    }
    match dtypes.next() {
        None => Ok(entries),
        Some(_) => Err(corrupt()),
    }
}

type Entry = Box<KernelEntry>;

fn action(
    tag: u32,
    a: u32,
    b: u32,
    callees: Words,
    entries: &mut [Option<Entry>],
) -> Result<Action<Entry>> {
    let frame = |i: u32| FrameIdx::new(i as usize);
    Ok(match tag {
        0 => {
            // Each entry belongs to one node.
            let entry = entries.get_mut(a as usize).and_then(Option::take);
            Action::Kernel(entry.ok_or_else(corrupt)?)
        }
        1 => Action::Arg(a),
        2 => Action::Const(a),
        3 => Action::Forward,
        4 => Action::Switch,
        5 => Action::SwitchN,
        6 => Action::Merge,
        7 => Action::Enter {
            frame: frame(a),
            is_constant: b != 0,
        },
        8 => Action::Exit,
        9 => Action::NextIteration,
        10 => Action::Trigger,
        11 => Action::Call(frame(a)),
        12 => Action::If {
            then_branch: frame(a),
            else_branch: frame(b),
        },
        13 => {
            let mut callees = callees;
            callees.take(a as usize)?;
            Action::Case(callees.take(b as usize)?.iter().map(frame).collect())
        }
        14 => Action::While {
            cond: frame(a),
            body: frame(b),
        },
        _ => return Err(corrupt()),
    })
}

fn node(record: [u32; NODE_WORDS], action: Action<Entry>) -> Result<Node<Entry>> {
    let [
        head,
        _,
        _,
        first_slot,
        n_inputs,
        first_edge,
        n_edges,
        forward,
        _,
        _,
    ] = record;
    let cost = COSTS.get((head >> 8 & 0xff) as usize);
    Ok(Node {
        action,
        first_slot,
        n_inputs,
        first_edge,
        n_edges,
        forward_slot: ForwardSlot(forward),
        n_outputs: (head >> 16) as u16,
        cost: *cost.ok_or_else(corrupt)?,
    })
}

/// The arrays that frames share, as far as they are not used up.
struct FrameLists<'a> {
    slots: Words<'a>,
    pending: Words<'a>,
    roots: Words<'a>,
    args: Words<'a>,
    const_results: Words<'a>,
}

impl FrameLists<'_> {
    fn frame(
        &mut self,
        record: [u32; FRAME_WORDS],
        name: String,
        first_node: u32,
    ) -> Result<Frame> {
        let [_, parent, parallel, n_enters, counts @ ..] = record;
        let [
            n_nodes,
            n_slots,
            n_roots,
            n_args,
            n_results,
            n_const_results,
        ] = counts.map(|n| n as usize);
        let index = |i: u32| NodeIdx::new(i as usize);
        let slot = |c: u32| match c {
            NONE => Value::Empty,
            c => Value::Const(c),
        };
        let results = self.const_results.take(n_const_results.saturating_mul(2))?;
        let args = self.args.take(n_args)?.iter();
        Ok(Frame {
            name,
            kind: match parent {
                NONE => FrameKind::Function,
                parent => FrameKind::Loop {
                    parent: FrameIdx::new(parent as usize),
                    parallel_iterations: parallel,
                    n_enters,
                },
            },
            first_node,
            slots: self.slots.take(n_slots)?.iter().map(slot).collect(),
            pending: self.pending.take(n_nodes)?.iter().collect(),
            roots: self.roots.take(n_roots)?.iter().map(index).collect(),
            args: args.map(|a| (a != NONE).then(|| index(a))).collect(),
            n_results,
            const_results: results.records()?.map(|[r, c]| (r, c)).collect(),
        })
    }
}
