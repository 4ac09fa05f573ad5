//! [`Scope`]: a function while it is made of a block.

use super::{Translator, unknown};
use crate::pass::constant_node;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_graph::{ARG, Function, Graph, NodeId, Output, Patch, RETVAL, boundary_attrs};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Op, TensorType, Type, ValueId};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// The shape of a broadcast.
#[derive(Clone)]
pub(super) enum Target {
    Known(Vec<usize>),
    Computed(Output),
}

/// What a value is a broadcast of.
#[derive(Clone)]
pub(super) struct Small {
    pub(super) output: Output,
    pub(super) target: Target,
    pub(super) is_scalar: bool,
}

/// A value of a block.
#[derive(Clone)]
pub(super) struct Value {
    pub(super) ty: TensorType,
    full: Option<Output>,
    /// Elementwise ops read this, and broadcast it.
    small: Option<Small>,
}

/// The operands of an elementwise op, and the shape of its result if that is a broadcast: of a scalar if `true`.
pub(super) struct Inputs {
    pub(super) outputs: Vec<Output>,
    pub(super) broadcast: Option<(Target, bool)>,
}

/// The type of a tensor.
///
/// # Errors
/// UNIMPLEMENTED for other types.
pub(super) fn tensor_type(t: &Type) -> Result<&TensorType> {
    match t {
        Type::Tensor(tensor) => Ok(tensor),
        other => Err(unimplemented_error!(
            "values of type {other:?} are not implemented"
        )),
    }
}

pub(super) struct Scope<'s, 't> {
    pub(super) translator: &'s mut Translator<'t>,
    pub(super) values: FxHashMap<ValueId, Value>,
    graph: Graph,
    patch: Patch,
    n_args: usize,
    n_results: usize,
    n_nodes: usize,
    /// Nodes that run whether a result needs them or not.
    effects: Vec<NodeId>,
    /// The constants of this block and of those around it, which regions may read.
    pub(super) constants: FxHashMap<ValueId, Op>,
    /// The values that count along a dimension.
    pub(super) iotas: FxHashMap<ValueId, usize>,
}

pub(super) fn typed(dtype: DType) -> Attrs {
    Attrs::default().with("T", AttrValue::Type(dtype))
}

impl<'s, 't> Scope<'s, 't> {
    pub(super) fn new(translator: &'s mut Translator<'t>) -> Scope<'s, 't> {
        Scope {
            translator,
            values: FxHashMap::default(),
            graph: Graph::new(),
            patch: Patch::new(),
            n_args: 0,
            n_results: 0,
            n_nodes: 0,
            effects: Vec::new(),
            constants: FxHashMap::default(),
            iotas: FxHashMap::default(),
        }
    }

    /// Adds an argument.
    pub(super) fn arg(&mut self, id: ValueId, ty: TensorType) -> Result<()> {
        let attrs = boundary_attrs(ty.dtype, self.n_args);
        self.n_args += 1;
        let output = self.node(ARG, attrs, &[])?;
        self.define(id, ty, output);
        Ok(())
    }

    /// Adds the results.
    pub(super) fn results(&mut self, ids: &[ValueId]) -> Result<()> {
        for id in ids {
            let (value, dtype) = (self.full(*id)?, self.ty(*id)?.dtype);
            let attrs = boundary_attrs(dtype, self.n_results);
            self.n_results += 1;
            self.node(RETVAL, attrs, &[value])?;
        }
        Ok(())
    }

    /// Lets a node run even if no result needs it.
    pub(super) fn run_always(&mut self, node: NodeId) {
        self.effects.push(node);
    }

    pub(super) fn finish(mut self) -> Result<Function> {
        self.patch.apply(&mut self.graph);
        Function::with_effects(self.graph, self.effects)
    }

    /// Adds a node; returns its first output, whether it has one or not.
    pub(super) fn node(&mut self, op: &str, attrs: Attrs, inputs: &[Output]) -> Result<Output> {
        self.n_nodes += 1;
        let name = format!("{}_{}", op.trim_start_matches('_'), self.n_nodes);
        let node = self.translator.ctx.node(name, op, attrs, inputs, &[])?;
        Ok(Output::new(self.patch.add(&mut self.graph, node)?, 0))
    }

    pub(super) fn constant(&mut self, value: Tensor) -> Result<Output> {
        self.n_nodes += 1;
        let name = format!("Const_{}", self.n_nodes);
        let node = constant_node(self.translator.ctx, name, value)?;
        Ok(Output::new(self.patch.add(&mut self.graph, node)?, 0))
    }

    /// A constant vector of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> Result<Output> {
        self.constant(Tensor::vector(values)?)
    }

    pub(super) fn define(&mut self, id: ValueId, ty: TensorType, output: Output) {
        let value = Value {
            ty,
            full: Some(output),
            small: None,
        };
        self.values.insert(id, value);
    }

    /// Defines a value that is a broadcast of another one.
    pub(super) fn define_broadcast(&mut self, id: ValueId, ty: TensorType, small: Small) {
        let value = Value {
            ty,
            full: None,
            small: Some(small),
        };
        self.values.insert(id, value);
    }

    /// The type of the only result of an op.
    pub(super) fn result<'o>(&self, op: &'o Op) -> Result<(ValueId, &'o TensorType)> {
        match &op.results[..] {
            [(id, t)] => Ok((*id, tensor_type(t)?)),
            results => Err(invalid_argument!(
                "{} results instead of one",
                results.len()
            )),
        }
    }

    /// Defines the only result of an op.
    pub(super) fn set(&mut self, op: &Op, output: Output) -> Result<()> {
        let (id, ty) = self.result(op)?;
        self.define(id, ty.clone(), output);
        Ok(())
    }

    /// Defines all results of an op as the outputs of a node.
    pub(super) fn set_all(&mut self, op: &Op, node: Output) -> Result<()> {
        for (slot, (id, t)) in op.results.iter().enumerate() {
            let output = Output::new(node.node, slot);
            self.define(*id, tensor_type(t)?.clone(), output);
        }
        Ok(())
    }

    pub(super) fn value(&self, id: ValueId) -> Result<&Value> {
        self.values.get(&id).ok_or_else(|| unknown(id))
    }

    pub(super) fn ty(&self, id: ValueId) -> Result<&TensorType> {
        Ok(&self.value(id)?.ty)
    }

    /// The operand `i` of an op.
    pub(super) fn operand(&self, op: &Op, i: usize) -> Result<ValueId> {
        let id = op.operands.get(i).copied();
        id.ok_or_else(|| invalid_argument!("the op has {} operands", op.operands.len()))
    }

    /// A value in its whole shape.
    pub(super) fn full(&mut self, id: ValueId) -> Result<Output> {
        let value = self.value(id)?.clone();
        let small = match (value.full, value.small) {
            (Some(full), _) => return Ok(full),
            (None, Some(small)) => small,
            (None, None) => return Err(unknown(id)),
        };
        let shape = match small.target {
            Target::Known(dims) => self.ints(&sizes(&dims))?,
            Target::Computed(shape) => shape,
        };
        let full = self.broadcast(small.output, shape, value.ty.dtype)?;
        if let Some(value) = self.values.get_mut(&id) {
            value.full = Some(full);
        }
        Ok(full)
    }

    pub(super) fn broadcast(&mut self, x: Output, shape: Output, dtype: DType) -> Result<Output> {
        let index = self.graph.dtype(shape).unwrap_or(DType::Int64);
        let attrs = typed(dtype).with("Tidx", AttrValue::Type(index));
        self.node("BroadcastTo", attrs, &[x, shape])
    }

    /// What the value is a broadcast of, if it is one.
    pub(super) fn small(&self, id: ValueId) -> Result<Option<Small>> {
        Ok(self.value(id)?.small.clone())
    }

    /// Operands of an elementwise op, broadcast no further than the op broadcasts them, and the shape of the result if that is
    /// a broadcast, too, of a scalar or not.
    pub(super) fn broadcastable(&mut self, ids: &[ValueId]) -> Result<Inputs> {
        let mut outputs = Vec::new();
        let mut target = None;
        let (mut all, mut are_scalars) = (true, true);
        for id in ids {
            match self.small(*id)? {
                Some(small) => {
                    outputs.push(small.output);
                    target = Some(small.target);
                    are_scalars &= small.is_scalar;
                }
                None => {
                    all &= self.ty(*id)?.dims.is_empty();
                    outputs.push(self.full(*id)?);
                }
            }
        }
        Ok(Inputs {
            outputs,
            broadcast: target.filter(|_| all).map(|t| (t, are_scalars)),
        })
    }

    /// The number that a value is a broadcast of, if it is a constant.
    pub(super) fn known_scalar(&self, id: ValueId) -> Result<Option<Tensor>> {
        let value = self.value(id)?;
        let output = value.small.as_ref().map(|s| s.output).or(value.full);
        let Some(output) = output else {
            return Ok(None);
        };
        let node = self.graph.node(output.node);
        let tensor = match node.attrs.tensor("value") {
            Ok(tensor) if node.op() == "Const" && tensor.shape().is_scalar() => tensor.get()?,
            _ => return Ok(None),
        };
        Ok(Some(tensor))
    }

    /// `x` as another dtype.
    pub(super) fn cast(&mut self, x: Output, from: DType, to: DType) -> Result<Output> {
        if from == to {
            return Ok(x);
        }
        let attrs = Attrs::default()
            .with("SrcT", AttrValue::Type(from))
            .with("DstT", AttrValue::Type(to));
        self.node("Cast", attrs, &[x])
    }

    /// `x` in a computed shape.
    pub(super) fn reshape_to(&mut self, x: Output, dtype: DType, shape: Output) -> Result<Output> {
        let index = self.graph.dtype(shape).unwrap_or(DType::Int64);
        let attrs = typed(dtype).with("Tshape", AttrValue::Type(index));
        self.node("Reshape", attrs, &[x, shape])
    }

    pub(super) fn transpose(&mut self, x: Output, dtype: DType, perm: &[usize]) -> Result<Output> {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(x);
        }
        let perm = self.ints(&sizes(perm))?;
        let attrs = typed(dtype).with("Tperm", AttrValue::Type(DType::Int64));
        self.node("Transpose", attrs, &[x, perm])
    }

    /// The shape of a value as a vector of integers.
    pub(super) fn shape_of(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let attrs = typed(dtype).with("out_type", AttrValue::Type(DType::Int64));
        self.node("Shape", attrs, &[x])
    }
}

pub(super) fn sizes(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|d| *d as i64).collect()
}

/// The dimensions of a type as Reshape takes them: -1 for an open one.
pub(super) fn open_dims(ty: &TensorType) -> Vec<i64> {
    ty.dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect()
}

/// The dimensions of a type, if all are known.
pub(super) fn known_dims(ty: &TensorType) -> Option<Vec<usize>> {
    ty.dims.iter().copied().collect()
}
