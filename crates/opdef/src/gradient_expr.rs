//! Expressions of gradient functions: a graph that grows as they are written.

use crate::gradient::repeated;
use crate::{AttrValue, Attrs, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The output of a node that could not be added; the graph holds the error.
pub(crate) fn nothing() -> Output {
    Output::new(NodeId::new(u32::MAX as usize), 0)
}

/// A graph that gradient functions add nodes to.
pub trait GradientGraph {
    /// Adds a node. Attrs that follow from the inputs may be left out.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node is not valid.
    fn add(
        &self,
        op: &str,
        inputs: &[Output],
        attrs: Attrs,
        controls: &[NodeId],
    ) -> Result<Vec<Output>>;
    /// Adds a constant and returns its output.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node is not valid.
    fn constant(&self, value: Tensor) -> Result<Output>;
    /// Returns the dtype of a value.
    fn dtype(&self, value: Output) -> Option<DType>;
    /// Returns what is known of a value's shape.
    fn shape(&self, value: Output) -> PartialShape;
    /// Returns the value of a constant.
    fn value(&self, value: Output) -> Option<Tensor>;
    /// Returns the shape that an integer vector holds, as far as it is known.
    fn held_shape(&self, value: Output) -> Option<PartialShape>;
    /// Records an error; the first one counts.
    fn fail(&self, error: Status);
    /// Returns a name that all gradients of one request share.
    fn source(&self) -> String;
}

/// A value of the graph; arithmetic on it adds nodes.
///
/// Errors do not interrupt an expression: the graph keeps the first one, and it becomes the error
/// of the gradient function.
#[derive(Clone, Copy)]
pub struct Expr<'g> {
    graph: &'g dyn GradientGraph,
    output: Output,
}

/// Slices of a tensor that is zero elsewhere: `values[i]` belongs to slice `indices[i]` of the
/// first dimension. Slices with the same index are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexedSlices<T> {
    /// The slices, concatenated along the first dimension.
    pub values: T,
    /// The index of each slice.
    pub indices: T,
    /// The shape of the tensor, as an integer vector.
    pub dense_shape: T,
}

/// A gradient: of expressions while it is written, of outputs of the graph afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gradient<T> {
    /// A tensor.
    Dense(T),
    /// Slices of a tensor, such as the gradient of a Gather.
    Slices(IndexedSlices<T>),
}

impl<T> Gradient<T> {
    /// Returns the same gradient with each value converted by `f`.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> Gradient<U> {
        match self {
            Gradient::Dense(value) => Gradient::Dense(f(value)),
            Gradient::Slices(slices) => Gradient::Slices(slices.map(f)),
        }
    }
}

impl<T> IndexedSlices<T> {
    /// Returns the same slices with each value converted by `f`.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> IndexedSlices<U> {
        IndexedSlices {
            values: f(self.values),
            indices: f(self.indices),
            dense_shape: f(self.dense_shape),
        }
    }
}

impl<'g> Gradient<Expr<'g>> {
    /// Returns the gradient as a tensor.
    pub fn dense(self) -> Expr<'g> {
        match self {
            Gradient::Dense(value) => value,
            Gradient::Slices(s) => {
                let n = s.dense_shape.op("Gather", &[s.values.int(0)]);
                s.values
                    .op("UnsortedSegmentSum", &[s.indices, n])
                    .reshape(s.dense_shape)
            }
        }
    }
}

impl<'g> Expr<'g> {
    /// Returns the value `output` of `graph`.
    pub fn new(graph: &'g dyn GradientGraph, output: Output) -> Self {
        Expr { graph, output }
    }

    /// Returns the output that the expression stands for.
    pub fn output(self) -> Output {
        self.output
    }

    /// Returns another value of the same graph.
    pub fn at(self, output: Output) -> Self {
        Expr::new(self.graph, output)
    }

    /// Returns the value's dtype.
    pub fn dtype(self) -> DType {
        self.graph.dtype(self.output).unwrap_or(DType::Float)
    }

    /// Returns what is known of the value's shape.
    pub fn shape(self) -> PartialShape {
        self.graph.shape(self.output)
    }

    /// Returns the value's rank, if known.
    pub fn rank(self) -> Option<usize> {
        self.shape().rank()
    }

    /// Returns the value, if it is a constant.
    pub fn constant_value(self) -> Option<Tensor> {
        self.graph.value(self.output)
    }

    /// Returns the integers of a constant.
    pub fn constant_ints(self) -> Option<Vec<i64>> {
        let t = self.constant_value()?;
        match t.dtype() {
            DType::Int32 => Some(t.slice::<i32>().ok()?.iter().map(|&v| v.into()).collect()),
            DType::Int64 => Some(t.slice::<i64>().ok()?.to_vec()),
            _ => None,
        }
    }

    /// Returns the shape that this integer vector holds, as far as it is known.
    pub fn held_shape(self) -> Option<PartialShape> {
        self.graph.held_shape(self.output)
    }

    /// Returns all outputs of a new node.
    pub fn node(
        self,
        op: &str,
        inputs: &[Expr<'g>],
        attrs: &[(&'static str, AttrValue)],
    ) -> Vec<Self> {
        self.node_after(op, inputs, attrs, &[])
    }

    /// Like [`Expr::node`], with control edges from the nodes of `after`.
    pub fn node_after(
        self,
        op: &str,
        inputs: &[Expr<'g>],
        attrs: &[(&'static str, AttrValue)],
        after: &[Expr<'g>],
    ) -> Vec<Self> {
        let inputs_: Vec<Output> = inputs.iter().map(|e| e.output).collect();
        let controls: Vec<NodeId> = after.iter().map(|e| e.output.node).collect();
        if inputs_.contains(&nothing()) || controls.contains(&nothing().node) {
            return Vec::new();
        }
        let attrs = attrs
            .iter()
            .map(|(k, v)| ((*k).into(), v.clone()))
            .collect();
        match self.graph.add(op, &inputs_, attrs, &controls) {
            Ok(outputs) => outputs
                .into_iter()
                .map(|s| Expr::new(self.graph, s))
                .collect(),
            Err(e) => {
                self.graph.fail(e);
                Vec::new()
            }
        }
    }

    /// Returns the first output of a new node, which reads this value and `others`.
    pub fn op(self, op: &str, others: &[Expr<'g>]) -> Self {
        self.op_with(op, others, &[])
    }

    /// Like [`Expr::op`], with attrs.
    pub fn op_with(
        self,
        op: &str,
        others: &[Expr<'g>],
        attrs: &[(&'static str, AttrValue)],
    ) -> Self {
        // Ops such as Gather are written `x.op(..)`, those with other first inputs by `make`.
        let mut inputs = Vec::with_capacity(others.len() + 1);
        inputs.push(self);
        inputs.extend_from_slice(others);
        self.make(op, &inputs, attrs)
    }

    /// Returns the first output of a new node that reads `inputs`.
    pub fn make(self, op: &str, inputs: &[Expr<'g>], attrs: &[(&'static str, AttrValue)]) -> Self {
        let outputs = self.node(op, inputs, attrs);
        outputs.first().copied().unwrap_or(self.nothing())
    }

    /// Returns the value of a failed expression.
    pub fn nothing(self) -> Self {
        Expr::new(self.graph, nothing())
    }

    /// Returns a constant in the graph of this value.
    pub fn constant(self, value: Result<Tensor>) -> Self {
        match value.and_then(|v| self.graph.constant(v)) {
            Ok(output) => Expr::new(self.graph, output),
            Err(e) => {
                self.graph.fail(e);
                self.nothing()
            }
        }
    }

    /// Returns an int32 scalar in the graph of this value.
    pub fn int(self, value: i32) -> Self {
        self.constant(Ok(Tensor::scalar(value)))
    }

    /// Returns an int32 vector in the graph of this value.
    pub fn ints(self, values: impl IntoIterator<Item = i64>) -> Self {
        let values = values.into_iter().map(|v| {
            i32::try_from(v)
                .map_err(|_| invalid_argument!("{v} is too large for the constant of a gradient"))
        });
        let values: Result<Vec<i32>> = values.collect();
        self.constant(values.and_then(|v| Tensor::vector(&v)))
    }

    /// Returns a scalar of this value's dtype.
    pub fn number(self, value: f64) -> Self {
        self.constant(scalar(self.dtype(), value))
    }

    /// Returns the value as another dtype.
    pub fn cast(self, dtype: DType) -> Self {
        match self.dtype() == dtype {
            true => self,
            false => self.op_with("Cast", &[], &[("DstT", dtype.into())]),
        }
    }

    /// Returns the complex conjugate; the value itself if it is real.
    pub fn conj(self) -> Self {
        match self.dtype().is_complex() {
            true => self.op("Conj", &[]),
            false => self,
        }
    }

    /// Returns the value's shape as an int32 vector; a constant if it is known.
    pub fn shape_of(self) -> Self {
        match self.shape().to_full() {
            Some(shape) if self.dtype() != DType::Resource => self.ints(shape.to_i64()),
            _ => self.op("Shape", &[]),
        }
    }

    /// Returns the value in another shape.
    pub fn reshape(self, shape: Expr<'g>) -> Self {
        self.op("Reshape", &[shape])
    }

    /// Returns the value in the shape of another; unchanged if both are known to have the same
    /// shape.
    pub fn reshape_like(self, other: Expr<'g>) -> Self {
        let (a, b) = (self.shape().to_full(), other.shape().to_full());
        match a.is_some() && a == b {
            true => self,
            false => self.reshape(other.shape_of()),
        }
    }

    /// Returns the sum over some axes, which are kept as 1 or removed.
    pub fn sum(self, axes: Expr<'g>, keep_dims: bool) -> Self {
        self.op_with("Sum", &[axes], &[("keep_dims", keep_dims.into())])
    }

    /// Returns the gradient of `x`, which was broadcast to the shape of `self`.
    pub fn sum_to(self, x: Expr<'g>) -> Self {
        let (from, to) = (self.shape(), x.shape());
        if let (Some(from), Some(to)) = (from.dims(), to.dims())
            && let Some([axes, _]) = repeated(to, from)
        {
            return match axes.is_empty() {
                true => self,
                false => {
                    let axes = self.ints(axes.iter().map(|&a| a as i64));
                    self.sum(axes, false).reshape(x.shape_of())
                }
            };
        }
        let shapes = [x.shape_of(), self.op("Shape", &[])];
        match self.node("BroadcastGradientArgs", &shapes, &[]).first() {
            Some(axes) => self.sum(*axes, false).reshape(shapes[0]),
            None => self.nothing(),
        }
    }

    /// Returns zeros of this value's shape and dtype.
    pub fn zeros_like(self) -> Self {
        self.op("ZerosLike", &[])
    }

    /// Returns the elements of `self` where `condition` is true, else those of `other`.
    pub fn where_(self, condition: Expr<'g>, other: Expr<'g>) -> Self {
        condition.op("SelectV2", &[self, other])
    }
}

/// Returns a scalar of any numeric type.
fn scalar(dtype: DType, value: f64) -> Result<Tensor> {
    use ferroflow_tensor::{Complex, bf16, f16};
    Ok(match dtype {
        DType::Float => Tensor::scalar(value as f32),
        DType::Double => Tensor::scalar(value),
        DType::Half => Tensor::scalar(f16::from_f64(value)),
        DType::Bfloat16 => Tensor::scalar(bf16::from_f64(value)),
        DType::Complex64 => Tensor::scalar(Complex::new(value as f32, 0.0)),
        DType::Complex128 => Tensor::scalar(Complex::new(value, 0.0)),
        DType::Int32 => Tensor::scalar(value as i32),
        DType::Int64 => Tensor::scalar(value as i64),
        _ => {
            return Err(invalid_argument!(
                "the gradient needs a constant of dtype {dtype}"
            ));
        }
    })
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:literal;)*) => {$(
        impl<'g> $trait for Expr<'g> {
            type Output = Expr<'g>;
            fn $method(self, other: Expr<'g>) -> Expr<'g> {
                self.op($op, &[other])
            }
        }
        impl<'g> $trait<f64> for Expr<'g> {
            type Output = Expr<'g>;
            fn $method(self, other: f64) -> Expr<'g> {
                self.op($op, &[self.number(other)])
            }
        }
        impl<'g> $trait<Expr<'g>> for f64 {
            type Output = Expr<'g>;
            fn $method(self, other: Expr<'g>) -> Expr<'g> {
                other.number(self).op($op, &[other])
            }
        }
    )*};
}

arithmetic! {
    Add add "AddV2";
    Sub sub "Sub";
    Mul mul "Mul";
    Div div "RealDiv";
}

impl<'g> Neg for Expr<'g> {
    type Output = Expr<'g>;
    fn neg(self) -> Expr<'g> {
        self.op("Neg", &[])
    }
}
