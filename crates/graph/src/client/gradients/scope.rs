//! Scopes in which the rules add nodes (`tensorflow/cc/framework/scope.cc`, `cc/ops/const_op.cc`).

use crate::client::{ClientGraph, NodeDescription};
use crate::{NodeId, Output};
use ferroflow_base::{Result, Status, internal};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Element, Tensor};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// An argument of a node.
pub(super) enum Arg {
    One(Output),
    List(Vec<Arg>),
    /// A constant in a scope of its own.
    Literal(Tensor),
}

impl From<Output> for Arg {
    fn from(output: Output) -> Self {
        Arg::One(output)
    }
}

impl From<&[Output]> for Arg {
    fn from(list: &[Output]) -> Self {
        Arg::List(list.iter().map(|output| Arg::One(*output)).collect())
    }
}

impl From<Vec<Arg>> for Arg {
    fn from(list: Vec<Arg>) -> Self {
        Arg::List(list)
    }
}

impl From<Tensor> for Arg {
    fn from(value: Tensor) -> Self {
        Arg::Literal(value)
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Arg::Literal(Tensor::scalar(value))
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Arg::Literal(Tensor::scalar(value))
    }
}

impl<const N: usize> From<[i32; N]> for Arg {
    fn from(values: [i32; N]) -> Self {
        Arg::Literal(vector(&values))
    }
}

/// An int32 vector.
pub(super) fn vector(values: &[i32]) -> Tensor {
    // Vectors of rules have a few elements: memory for them is always there.
    Tensor::vector(values).unwrap_or_else(|_| Tensor::scalar(0))
}

/// Adds a node and returns its first output: `op!(scope, Sum, x, axes; keep_dims = true)`.
macro_rules! op {
    ($scope:expr, $op:ident $(, $arg:expr)* $(; $($attr:ident = $value:expr),*)?) => {
        $scope.add(
            stringify!($op),
            vec![$($crate::client::gradients::scope::Arg::from($arg)),*],
            &[$($((stringify!($attr), ferroflow_opdef::AttrValue::from($value))),*)?],
        )
    };
}
pub(super) use op;

/// What the scopes of a request share.
struct Shared<'a> {
    graph: RefCell<&'a mut ClientGraph>,
    error: RefCell<Option<Status>>,
    /// How often each name has been asked for.
    names: RefCell<FxHashMap<String, usize>>,
    path: String,
}

/// A scope of new nodes; errors do not interrupt a rule, the first one is kept.
#[derive(Clone)]
pub(super) struct Scope<'a> {
    shared: Rc<Shared<'a>>,
    controls: Vec<NodeId>,
    device: &'static str,
    colocated: Option<NodeId>,
}

impl<'a> Scope<'a> {
    /// The scope named `path`, which no node is in.
    pub(super) fn new(graph: &'a mut ClientGraph, path: String) -> Self {
        let shared = Shared {
            graph: RefCell::new(graph),
            error: RefCell::default(),
            names: RefCell::default(),
            path,
        };
        Scope {
            shared: Rc::new(shared),
            controls: Vec::new(),
            device: "",
            colocated: None,
        }
    }

    /// This scope, with nodes that wait for `value`.
    pub(super) fn after(&self, value: Output) -> Self {
        let mut scope = self.clone();
        scope.controls.push(value.node);
        scope
    }

    /// This scope, with nodes on `device`.
    pub(super) fn on(&self, device: &'static str) -> Self {
        Scope {
            device,
            ..self.clone()
        }
    }

    /// This scope, with nodes where `value` is.
    pub(super) fn near(&self, value: Output) -> Self {
        Scope {
            colocated: Some(value.node),
            ..self.clone()
        }
    }

    /// Calls `f` with the graph.
    pub(super) fn graph<T>(&self, f: impl FnOnce(&ClientGraph) -> T) -> T {
        f(&self.shared.graph.borrow())
    }

    /// The first error.
    pub(super) fn check(&self) -> Result<()> {
        self.shared.error.borrow_mut().take().map_or(Ok(()), Err)
    }

    pub(super) fn fail(&self, error: Status) {
        self.shared.error.borrow_mut().get_or_insert(error);
    }

    /// The dtype of a value.
    pub(super) fn dtype(&self, value: Output) -> DType {
        let dtype = self.graph(|g| g.dtype(value));
        dtype.unwrap_or(DType::Float)
    }

    /// A constant.
    pub(super) fn constant(&self, value: impl Element) -> Output {
        self.add_constant(Tensor::scalar(value), "")
    }

    /// An int32 vector.
    pub(super) fn ints(&self, values: &[i32]) -> Output {
        self.add_constant(vector(values), "")
    }

    /// A constant of another dtype.
    pub(super) fn number(&self, value: impl Element, dtype: DType) -> Output {
        self.cast(self.constant(value), dtype)
    }

    /// A value as another dtype; a node even if it has that already.
    pub(super) fn cast(&self, value: Output, dtype: DType) -> Output {
        op!(self, Cast, value; DstT = dtype)
    }

    /// The complex conjugate; the value itself if it is real.
    pub(super) fn conj(&self, value: Output) -> Output {
        match self.dtype(value).is_complex() {
            true => op!(self, Conj, value),
            false => value,
        }
    }

    /// Adds a node and returns its first output.
    pub(super) fn add(&self, op: &str, args: Vec<Arg>, attrs: &[(&str, AttrValue)]) -> Output {
        Output::new(self.add_node(op, args, attrs), 0)
    }

    /// Adds a node and returns its outputs.
    pub(super) fn outputs(
        &self,
        op: &str,
        args: Vec<Arg>,
        attrs: &[(&str, AttrValue)],
    ) -> Vec<Output> {
        let id = self.add_node(op, args, attrs);
        let n = self.graph(|g| g.node(id).map_or(0, |n| n.outputs.len()));
        (0..n).map(|slot| Output::new(id, slot)).collect()
    }

    fn add_node(&self, op: &str, args: Vec<Arg>, attrs: &[(&str, AttrValue)]) -> NodeId {
        let mut node = NodeDescription::new(op, "");
        for arg in args {
            match arg {
                Arg::List(list) => {
                    let list = list.into_iter().map(|arg| self.value(arg)).collect();
                    node.add_inputs(list);
                }
                arg => {
                    let value = self.value(arg);
                    node.add_input(value);
                }
            }
        }
        for (name, value) in attrs {
            node.set_attr(name, value.clone());
        }
        let name = self.name(class_of(op));
        self.finish(node.named(format!("{}/{name}", self.shared.path)))
    }

    /// The tensor that an argument stands for.
    fn value(&self, arg: Arg) -> Output {
        match arg {
            Arg::One(output) => output,
            Arg::Literal(value) => self.add_constant(value, "/Const"),
            Arg::List(_) => {
                self.fail(internal!("a list of lists"));
                nothing()
            }
        }
    }

    fn add_constant(&self, value: Tensor, suffix: &str) -> Output {
        let mut node = NodeDescription::new("Const", "");
        node.set_attr("dtype", AttrValue::Type(value.dtype()));
        node.set_attr("value", AttrValue::Tensor(value.into()));
        let name = format!("{}/{}{suffix}", self.shared.path, self.name("Const"));
        Output::new(self.finish(node.named(name)), 0)
    }

    /// A name that was not asked for before.
    fn name(&self, base: &str) -> String {
        let mut names = self.shared.names.borrow_mut();
        let Some(n) = names.get(base).copied() else {
            names.insert(base.to_string(), 0);
            return base.to_string();
        };
        let free = (n + 1..).find(|n| !names.contains_key(&format!("{base}_{n}")));
        let n = free.unwrap_or(n);
        names.insert(base.to_string(), n);
        names.insert(format!("{base}_{n}"), 0);
        format!("{base}_{n}")
    }

    fn finish(&self, mut node: NodeDescription) -> NodeId {
        if self.shared.error.borrow().is_some() {
            return nothing().node;
        }
        for control in &self.controls {
            node.add_control(*control);
        }
        if !self.device.is_empty() {
            node.set_device(self.device);
        }
        if let Some(id) = self.colocated {
            self.graph(|g| g.node(id).map(|other| node.colocate_like(other)));
        }
        let added = self.shared.graph.borrow_mut().add(node);
        added.unwrap_or_else(|error| {
            self.fail(error);
            nothing().node
        })
    }
}

/// The output of a node that could not be added.
fn nothing() -> Output {
    Output::new(NodeId::new(u32::MAX as usize), 0)
}

/// The class of TensorFlow's C++ API that makes a node, by which it is named.
pub(super) fn class_of(op: &str) -> &str {
    match op {
        "ConcatV2" => "Concat",
        "ListDiff" => "SetDiff1D",
        "Mul" => "Multiply",
        "Neg" => "Negate",
        "Pack" => "Stack",
        "ReverseV2" => "Reverse",
        "Select" => "Where3",
        "Sub" => "Subtract",
        "Unpack" => "Unstack",
        op => op,
    }
}
