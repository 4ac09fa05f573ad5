//! Functions of kind `dataflow` as MLIR: for reading. Each function of a body becomes a function.
//!
//! A node is an operation `tf.OP`. Operands are its data inputs and then its control inputs, results its
//! outputs and, if a node waits for it, a `!tf.control`. As in any graph a loop's Merge uses a value
//! that is defined further down. Nodes of loops have the attr `frame`; the values of large
//! constants are left out.

use super::model::{MAIN, symbol};
use crate::dataflow::{Action, Body, BodyAction, BodyFrame, FrameIdx, FrameKind, NodeIdx, Source};
use crate::mlir::{Attr, Dense, Loc, Module, Op, Region, Type, Value};
use ferroflow_opdef::{AttrValue, PACKED};
use ferroflow_tensor::LazyTensor;
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
            let function_of = body.functions_of_frames();
            for (f, frame) in body.frames.iter().enumerate() {
                if frame.kind == FrameKind::Function {
                    let inside = (f..).zip(&body.frames[f..]);
                    let inside = inside.filter(|(g, _)| function_of[*g] == f);
                    ops.push(printer.function(f, inside.map(|(_, frame)| frame)));
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
    /// The outputs of each node.
    outputs: Vec<Vec<Value>>,
    /// The control results of nodes that others wait for.
    controls: HashMap<NodeIdx, Value>,
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
        let names = names.collect();
        let mut value = |ty: Type| module.add_value(ty, Loc::default());
        let outputs = body.nodes.iter();
        let outputs = outputs.map(|n| (0..n.n_outputs).map(|_| value(tensor())).collect());
        let outputs = outputs.collect();
        let mut controls = HashMap::new();
        for from in body.nodes.iter().flat_map(|node| &node.controls) {
            let control = || value(Type::new("!tf.control"));
            controls.entry(*from).or_insert_with(control);
        }
        Printer {
            module,
            body,
            names,
            outputs,
            controls,
        }
    }

    /// The function of frame `f`; `frames` are it and the loops inside.
    fn function(&mut self, f: usize, frames: impl Iterator<Item = &'a BodyFrame>) -> Op {
        let frame = &self.body.frames[f];
        let mut region = Region {
            n_blocks: 1,
            ..Region::default()
        };
        let unused = |_| self.module.add_value(tensor(), Loc::default());
        region.args = (0..frame.n_args).map(unused).collect();
        for inner in frames {
            for i in &inner.nodes {
                match self.body.nodes[i.index()].action {
                    Action::Arg(a) => region.args[a as usize] = self.outputs[i.index()][0],
                    _ => self.node(inner, *i, &mut region),
                }
            }
        }
        let mut end = Op::new("tfrt.return", &Loc::default());
        for source in frame.results.iter().flatten() {
            let result = self.source(*source, &mut region);
            end.operands.push(result);
        }
        let inputs = self.module.types(&region.args);
        let mut op = Op::func(&self.names[f], inputs, self.module.types(&end.operands));
        region.ops.push(end);
        op.set_attr("tfrt.dataflow", Attr::Unit);
        op.regions.push(region);
        op
    }

    /// The value of a source; adds a constant to the region.
    fn source(&mut self, source: Source, region: &mut Region) -> Value {
        match source {
            Source::Node(from, output) => self.outputs[from.index()][usize::from(output)],
            Source::Const(c) => {
                let mut op = Op::new("tf.Const", &Loc::default());
                let value = self.module.add_value(tensor(), Loc::default());
                op.results.push(value);
                op.set_attr("value", tensor_attr(&self.body.consts[c as usize]));
                region.ops.push(op);
                value
            }
        }
    }

    fn node(&mut self, frame: &BodyFrame, i: NodeIdx, region: &mut Region) {
        let node = &self.body.nodes[i.index()];
        let mut op = Op::new(&format!("tf.{}", node.info.op), &Loc::default());
        for source in &node.inputs {
            let input = self.source(*source, region);
            op.operands.push(input);
        }
        let controls = node.controls.iter().map(|from| self.controls[from]);
        op.operands.extend(controls);
        op.results.clone_from(&self.outputs[i.index()]);
        op.results.extend(self.controls.get(&i));
        op.set_attr("name", Attr::string(&node.info.name));
        if frame.kind != FrameKind::Function {
            op.set_attr("frame", Attr::string(&frame.name));
        }
        self.action(&node.action, &mut op);
        region.ops.push(op);
    }

    fn action(&self, action: &BodyAction, op: &mut Op) {
        let symbol = |f: &FrameIdx| Attr::Symbol(vec![self.names[f.index()].clone()]);
        match action {
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
            Action::Const(c) => op.set_attr("value", tensor_attr(&self.body.consts[*c as usize])),
            Action::Enter { frame, is_constant } => {
                let name = &self.body.frames[frame.index()].name;
                op.set_attr("frame_name", Attr::string(name));
                op.set_attr("is_constant", Attr::Bool(*is_constant));
            }
            Action::Send(key) | Action::Recv(key) => op.set_attr("key", Attr::string(key)),
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
        AttrValue::Type(t) => match t.mlir_name() {
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

/// The elements of a small tensor; dtype and shape of others.
fn tensor_attr(tensor: &LazyTensor) -> Attr {
    let short = || Attr::string(&format!("{tensor:?}"));
    let n = tensor.shape().num_elements();
    if n > MAX_ELEMENTS {
        return short();
    }
    let (Some(element), Ok(value)) = (tensor.dtype().mlir_name(), tensor.get()) else {
        return short();
    };
    let Ok(bytes) = value.bytes() else {
        return short();
    };
    let dims: String = tensor.shape().iter().map(|d| format!("{d}x")).collect();
    let ty = Type::new(&format!("tensor<{dims}{element}>"));
    Attr::Dense(Dense::new(ty, bytes.to_vec()))
}
