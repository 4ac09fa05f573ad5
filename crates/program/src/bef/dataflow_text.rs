//! Functions of kind `dataflow` as MLIR: for reading. Each function of a body becomes a function.
//!
//! A node is an operation `tf.OP`. Operands are its data inputs and then its control inputs, results its
//! outputs and, if a node waits for it, a `!tf.control`. As in any graph a loop's Merge uses a value
//! that is defined further down. Nodes of loops say which by their attr `frame`; the values of large
//! constants are left out.

use super::model::{MAIN, symbol};
use crate::dataflow::{Action, Body, EdgeKind, FrameIdx, FrameKind, KernelEntry, Node};
use crate::mlir::{Attr, Dense, FunctionType, Loc, Module, Op, Region, Type, Value};
use ferroflow_opdef::{AttrValue, PACKED, Value as Slot};
use ferroflow_tensor::{DType, LazyTensor};
use std::collections::{HashMap, HashSet};

/// Constants of at most this many elements are printed.
const MAX_ELEMENTS: usize = 16;

/// The functions of a model.
pub(super) fn functions(module: &mut Module, main: &Body) -> Vec<Op> {
    let mut taken = HashSet::new();
    let mut ops = Vec::new();
    let mut seen = HashSet::new();
    let mut queue = vec![(MAIN, main)];
    while let Some((name, body)) = queue.pop() {
        if seen.insert(body as *const Body) {
            let mut printer = Printer::new(module, body, name, &mut taken);
            for (f, frame) in body.frames.iter().enumerate() {
                if frame.kind == FrameKind::Function {
                    ops.push(printer.function(f));
                }
            }
            queue.extend(body.functions.iter().map(|(name, f)| (&**name, &**f)));
        }
    }
    ops
}

struct Printer<'a> {
    module: &'a mut Module,
    body: &'a Body,
    /// Symbols of the frames.
    names: Vec<String>,
    /// The frames of each function.
    frames: Vec<Vec<usize>>,
    /// By node and output, and the control result of a node.
    outputs: HashMap<(usize, u16), Value>,
    controls: HashMap<usize, Value>,
    /// Producers of data and control inputs, by node; of slots and results by frame.
    waits: Vec<Vec<usize>>,
    slots: HashMap<(usize, u32), (usize, u16)>,
    results: HashMap<(usize, u32), (usize, u16)>,
}

fn tensor() -> Type {
    Type::new("!tf.tensor")
}

impl<'a> Printer<'a> {
    fn new(
        module: &'a mut Module,
        body: &'a Body,
        name: &str,
        taken: &mut HashSet<String>,
    ) -> Self {
        let frames = body.frames.iter().enumerate();
        let names = frames.map(|(i, f)| symbol(if i == 0 { name } else { &f.name }, taken));
        let mut by_function = vec![Vec::new(); body.frames.len()];
        for (f, function) in body.functions_of_frames().into_iter().enumerate() {
            if let Some(list) = by_function.get_mut(function) {
                list.push(f);
            }
        }
        let mut printer = Printer {
            module,
            body,
            names: names.collect(),
            frames: by_function,
            outputs: HashMap::new(),
            controls: HashMap::new(),
            waits: vec![Vec::new(); body.nodes.len()],
            slots: HashMap::new(),
            results: HashMap::new(),
        };
        for (f, frame) in body.frames.iter().enumerate() {
            for i in frame.nodes() {
                printer.producer(f, i);
            }
        }
        printer
    }

    /// Makes the values of node `i` in frame `f` and takes note of its consumers.
    fn producer(&mut self, f: usize, i: usize) {
        let body = self.body;
        let Some(node) = body.nodes.get(i) else {
            return;
        };
        for output in 0..node.n_outputs {
            let value = self.module.add_value(tensor(), Loc::default());
            self.outputs.insert((i, output), value);
        }
        let arrival = match (&node.action, body.frames.get(f).map(|f| f.kind)) {
            (Action::Enter { frame, .. }, _) => frame.index(),
            (Action::Exit, Some(FrameKind::Loop { parent, .. })) => parent.index(),
            _ => f,
        };
        for edge in body.edges_of(node) {
            let to = edge.node.index();
            match edge.kind {
                EdgeKind::Result => {
                    self.results.insert((arrival, edge.slot), (i, edge.output));
                }
                EdgeKind::Data | EdgeKind::MergeData => {
                    self.slots.insert((arrival, edge.slot), (i, edge.output));
                }
                _ => {
                    if let Some(waits) = self.waits.get_mut(to) {
                        waits.push(i);
                    }
                    if !self.controls.contains_key(&i) {
                        let ty = Type::new("!tf.control");
                        let value = self.module.add_value(ty, Loc::default());
                        self.controls.insert(i, value);
                    }
                }
            }
        }
    }

    fn function(&mut self, f: usize) -> Op {
        let body = self.body;
        let mut region = Region {
            n_blocks: 1,
            ..Region::default()
        };
        let Some(frame) = body.frames.get(f) else {
            return Op::default();
        };
        for arg in &frame.args {
            let known = arg.and_then(|n| self.outputs.get(&(n.index(), 0)).copied());
            let value = known.unwrap_or_else(|| self.module.add_value(tensor(), Loc::default()));
            region.args.push(value);
        }
        let inner = self.frames.get_mut(f).map(std::mem::take);
        for g in inner.unwrap_or_default() {
            let nodes = body.frames.get(g).map(|frame| frame.nodes());
            for i in nodes.into_iter().flatten() {
                self.node(g, i, &mut region);
            }
        }
        let constants: HashMap<u32, u32> = frame.const_results.iter().copied().collect();
        let mut results = Vec::new();
        for r in 0..frame.n_results as u32 {
            let producer = self.results.get(&(f, r));
            results.push(match (producer, constants.get(&r)) {
                (Some(output), _) => self.outputs.get(output).copied(),
                (None, Some(c)) => Some(self.constant(*c, &mut region)),
                (None, None) => None,
            });
        }
        let results: Vec<Value> = results.into_iter().flatten().collect();
        let ty = FunctionType {
            inputs: self.module.types(&region.args),
            results: self.module.types(&results),
        };
        let mut end = Op::new("tfrt.return", &Loc::default());
        end.operands = results;
        region.ops.push(end);
        let mut op = Op::new("func", &Loc::default());
        let name = self.names.get(f).map_or("", String::as_str);
        op.set_attr("sym_name", Attr::string(name));
        op.set_attr("type", Attr::Type(Type::Function(ty.into())));
        op.set_attr("tfrt.dataflow", Attr::Unit);
        op.regions.push(region);
        op
    }

    fn constant(&mut self, constant: u32, region: &mut Region) -> Value {
        let mut op = Op::new("tf.Const", &Loc::default());
        let value = self.module.add_value(tensor(), Loc::default());
        op.results.push(value);
        if let Some(tensor) = self.body.consts.get(constant as usize) {
            op.set_attr("value", tensor_attr(tensor));
        }
        region.ops.push(op);
        value
    }

    fn node(&mut self, f: usize, i: usize, region: &mut Region) {
        let body = self.body;
        let (Some(node), Some(info), Some(frame)) =
            (body.nodes.get(i), body.info.get(i), body.frames.get(f))
        else {
            return;
        };
        if let Action::Arg(_) = node.action {
            return;
        }
        let mut op = Op::new(&format!("tf.{}", info.op), &Loc::default());
        for slot in node.slots() {
            let producer = self.slots.get(&(f, slot as u32));
            let value = match (producer, frame.slots.get(slot)) {
                (Some(output), _) => self.outputs.get(output).copied(),
                (None, Some(Slot::Const(c))) => Some(self.constant(*c, region)),
                _ => None,
            };
            op.operands.extend(value);
        }
        let waits = self.waits.get(i).into_iter().flatten();
        let controls = waits.filter_map(|from| self.controls.get(from));
        op.operands.extend(controls.copied());
        let outputs = (0..node.n_outputs).filter_map(|o| self.outputs.get(&(i, o)));
        op.results = outputs.chain(self.controls.get(&i)).copied().collect();
        op.set_attr("name", Attr::string(&info.name));
        if frame.kind != FrameKind::Function {
            op.set_attr("frame", Attr::string(&frame.name));
        }
        self.action(node, &mut op);
        region.ops.push(op);
    }

    fn action(&self, node: &Node<Box<KernelEntry>>, op: &mut Op) {
        let symbol = |f: &FrameIdx| {
            let name = self.names.get(f.index());
            Attr::Symbol(vec![name.cloned().unwrap_or_default()])
        };
        match &node.action {
            Action::Kernel(entry) => {
                for (name, value) in entry.attrs.iter() {
                    match value {
                        AttrValue::List(blocks) if *name == PACKED => {
                            op.set_attr(name, Attr::i32(blocks.len() as i32));
                        }
                        value => op.set_attr(name, attr(value)),
                    }
                }
            }
            Action::Const(c) => {
                if let Some(tensor) = self.body.consts.get(*c as usize) {
                    op.set_attr("value", tensor_attr(tensor));
                }
            }
            Action::Enter { frame, is_constant } => {
                let name = self.body.frames.get(frame.index()).map(|f| &*f.name);
                op.set_attr("frame_name", Attr::string(name.unwrap_or_default()));
                op.set_attr("is_constant", Attr::Bool(*is_constant));
            }
            Action::Call(f) => op.set_attr("callee", symbol(f)),
            Action::If {
                then_branch,
                else_branch,
            } => {
                op.set_attr("then_branch", symbol(then_branch));
                op.set_attr("else_branch", symbol(else_branch));
            }
            Action::Case(branches) => {
                let branches = branches.iter().map(symbol).collect();
                op.set_attr("branches", Attr::Array(branches));
            }
            Action::While { cond, body } => {
                op.set_attr("cond", symbol(cond));
                op.set_attr("body", symbol(body));
            }
            _ => {}
        }
    }
}

fn attr(value: &AttrValue) -> Attr {
    match value {
        AttrValue::Str(s) => Attr::String(s.to_vec()),
        AttrValue::Int(i) => Attr::Int(*i, Type::new("i64")),
        AttrValue::Float(f) => Attr::Float(u64::from(f.to_bits()), Type::new("f32")),
        AttrValue::Bool(b) => Attr::Bool(*b),
        AttrValue::Type(t) => match mlir_type(*t) {
            Some(name) => Attr::Type(Type::new(name)),
            None => Attr::string(&t.to_string()),
        },
        AttrValue::Shape(shape) => Attr::Shape(shape.dims().map(|dims| {
            let dim = |d: &Option<usize>| d.map_or(-1, |d| d as i64);
            dims.iter().map(dim).collect()
        })),
        AttrValue::Tensor(t) => tensor_attr(t),
        AttrValue::Func(f) => Attr::string(&f.name),
        AttrValue::Placeholder(p) => Attr::string(p),
        AttrValue::List(items) => Attr::Array(items.iter().map(attr).collect()),
    }
}

/// The name of a dtype in MLIR.
fn mlir_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Float => "f32",
        DType::Double => "f64",
        DType::Half => "f16",
        DType::Bfloat16 => "bf16",
        DType::Bool => "i1",
        DType::Int8 => "i8",
        DType::Int16 => "i16",
        DType::Int32 => "i32",
        DType::Int64 => "i64",
        DType::Uint8 => "ui8",
        DType::Uint16 => "ui16",
        DType::Uint32 => "ui32",
        DType::Uint64 => "ui64",
        _ => return None,
    })
}

/// The elements of a small tensor; dtype and shape of others.
fn tensor_attr(tensor: &LazyTensor) -> Attr {
    let short = || Attr::string(&format!("{tensor:?}"));
    let n = tensor.shape().num_elements();
    if n > MAX_ELEMENTS {
        return short();
    }
    let (Some(element), Ok(value)) = (mlir_type(tensor.dtype()), tensor.get()) else {
        return short();
    };
    let Ok(bytes) = value.bytes() else {
        return short();
    };
    let dims: String = tensor.shape().iter().map(|d| format!("{d}x")).collect();
    let ty = Type::new(&format!("tensor<{dims}{element}>"));
    Attr::Dense(Dense::new(ty, bytes.to_vec()))
}
