//! The interface of gradient functions: the node to differentiate, the gradients of its outputs,
//! and a graph that grows as expressions are written.

use crate::{AttrValue, Attrs, NodeId, Output};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Writes the gradients of one node's inputs; see [`GradientCtx`].
pub type GradientFn = fn(&mut GradientCtx) -> Result<()>;

/// The gradient rule of an op.
#[derive(Clone, Copy, Default)]
pub enum GradientRule {
    /// There is no rule: differentiating the op is an error.
    #[default]
    Undefined,
    /// Inputs have no gradient, because outputs do not depend on them, or only in jumps.
    None,
    /// This function writes the gradient.
    Function(GradientFn),
}

/// The output of a node that could not be added; the graph holds the error.
fn nothing() -> Output {
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

/// The node to differentiate.
pub struct GradientNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its op.
    pub op: &'a str,
    /// Its attrs.
    pub attrs: &'a Attrs,
    /// The values that it reads.
    pub inputs: &'a [Output],
    /// Its outputs.
    pub outputs: &'a [Output],
    /// For each input, whether its gradient is needed.
    pub needed: &'a [bool],
}

/// The context of a gradient function.
///
/// ```
/// use ferroflow_opdef::{GradientCtx, Op};
/// // y = tanh(x), so dx = dy * (1 - y * y).
/// const TANH: Op = Op::new("Tanh", "x: T -> y: T | T: type").gradient(|g| {
///     let (y, dy) = (g.y(0), g.dy(0));
///     g.set(0, dy * (1.0 - y * y))
/// });
/// assert_eq!(TANH.name, "Tanh");
/// ```
pub struct GradientCtx<'g> {
    graph: &'g dyn GradientGraph,
    node: GradientNode<'g>,
    arrived: Vec<Option<Gradient<Expr<'g>>>>,
    results: Vec<Option<Gradient<Expr<'g>>>>,
}

impl<'g> GradientCtx<'g> {
    /// Creates a context for `node`; `arrived` has the gradients of its outputs.
    pub fn new(
        graph: &'g dyn GradientGraph,
        node: GradientNode<'g>,
        arrived: Vec<Option<Gradient<Expr<'g>>>>,
    ) -> Self {
        let results = vec![None; node.inputs.len()];
        GradientCtx {
            graph,
            node,
            arrived,
            results,
        }
    }

    /// Returns the node's attrs.
    pub fn attrs(&self) -> &'g Attrs {
        self.node.attrs
    }

    /// Returns an attr to copy to another node; an empty list if there is none.
    pub fn attr(&self, name: &'static str) -> (&'static str, AttrValue) {
        let value = self.node.attrs.get(name).cloned();
        (name, value.unwrap_or_else(|| AttrValue::List(Vec::new())))
    }

    /// Returns the node's name.
    pub fn name(&self) -> &'g str {
        self.node.name
    }

    /// Returns the node's op.
    pub fn op_name(&self) -> &'g str {
        self.node.op
    }

    /// Returns the number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns the number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.node.outputs.len()
    }

    fn expr(&self, output: Option<&Output>, what: &str, i: usize) -> Expr<'g> {
        if output.is_none() {
            let (node, op) = (self.node.name, self.node.op);
            let error = invalid_argument!("node '{node}' ({op}) has no {what} {i}");
            self.graph.fail(error);
        }
        Expr::new(self.graph, output.copied().unwrap_or(nothing()))
    }

    /// Returns input `i`.
    pub fn x(&self, i: usize) -> Expr<'g> {
        self.expr(self.node.inputs.get(i), "input", i)
    }

    /// Returns all inputs.
    pub fn xs(&self) -> Vec<Expr<'g>> {
        (0..self.num_inputs()).map(|i| self.x(i)).collect()
    }

    /// Returns output `i`.
    pub fn y(&self, i: usize) -> Expr<'g> {
        self.expr(self.node.outputs.get(i), "output", i)
    }

    /// Returns the gradient of output `i` as a tensor; zeros if there is none.
    pub fn dy(&self, i: usize) -> Expr<'g> {
        match self.arrived.get(i).copied().flatten() {
            Some(gradient) => gradient.dense(),
            None => self.y(i).zeros_like(),
        }
    }

    /// Returns the gradient of output `i`, dense or sparse, if any.
    pub fn arrived(&self, i: usize) -> Option<Gradient<Expr<'g>>> {
        self.arrived.get(i).copied().flatten()
    }

    /// Returns whether the gradient of input `i` is needed.
    pub fn needs(&self, i: usize) -> bool {
        self.node.needed.get(i).copied().unwrap_or(false)
    }

    /// Sets the gradient of input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input.
    pub fn set(&mut self, i: usize, gradient: Expr<'g>) -> Result<()> {
        self.set_gradient(i, Gradient::Dense(gradient))
    }

    /// Like [`GradientCtx::set`], for a gradient of either kind.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such input.
    pub fn set_gradient(&mut self, i: usize, gradient: Gradient<Expr<'g>>) -> Result<()> {
        match self.results.get_mut(i) {
            Some(slot) => {
                *slot = Some(gradient);
                Ok(())
            }
            None => Err(invalid_argument!(
                "the gradient of '{}' sets input {i}, which it does not have",
                self.node.name
            )),
        }
    }

    /// Sets the gradients of inputs 0 and 1, which were broadcast together: gradients are summed
    /// over repeated axes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the node has no such inputs.
    pub fn set_broadcast(&mut self, dx: Option<Expr<'g>>, dy: Option<Expr<'g>>) -> Result<()> {
        let (x, y) = (self.x(0), self.x(1));
        let (a, b) = (x.shape(), y.shape());
        if let (Some(a), Some(b)) = (a.dims(), b.dims())
            && let Some(axes) = repeated(a, b)
        {
            for (i, (gradient, axes)) in [dx, dy].into_iter().zip(axes).enumerate() {
                let Some(gradient) = gradient else { continue };
                let summed = match axes.is_empty() {
                    true => gradient,
                    false => {
                        let axes = gradient.ints(axes.iter().map(|&a| a as i64));
                        gradient.sum(axes, false).reshape(self.x(i).shape_of())
                    }
                };
                self.set(i, summed)?;
            }
            return Ok(());
        }
        let shapes = [x.shape_of(), y.shape_of()];
        let axes = x.node("BroadcastGradientArgs", &shapes, &[]);
        for (i, gradient) in [dx, dy].into_iter().enumerate() {
            let (Some(gradient), Some(axes)) = (gradient, axes.get(i)) else {
                continue;
            };
            self.set(i, gradient.sum(*axes, false).reshape(shapes[i]))?;
        }
        Ok(())
    }

    /// Returns the name that all gradients of one request share.
    pub fn source(&self) -> String {
        self.graph.source()
    }

    /// Returns the gradients that were set.
    pub fn into_results(self) -> Vec<Option<Gradient<Expr<'g>>>> {
        self.results
    }
}

/// Returns the axes along which each of two shapes is repeated when they are broadcast together;
/// `None` if that depends on unknown sizes.
fn repeated(a: &[Option<usize>], b: &[Option<usize>]) -> Option<[Vec<usize>; 2]> {
    let rank = a.len().max(b.len());
    let size = |s: &[Option<usize>], axis: usize| match axis + s.len() < rank {
        true => Some(1),
        false => s[axis + s.len() - rank],
    };
    let mut axes = [Vec::new(), Vec::new()];
    for axis in 0..rank {
        match (size(a, axis), size(b, axis)) {
            // An axis that both lack or have as 1 is kept, unless one lacks it.
            (Some(1), Some(1)) => {
                for (s, axes) in [a, b].into_iter().zip(&mut axes) {
                    if axis + s.len() < rank {
                        axes.push(axis);
                    }
                }
            }
            (Some(1), Some(_)) => axes[0].push(axis),
            (Some(_), Some(1)) => axes[1].push(axis),
            (Some(m), Some(n)) if m == n => {}
            _ => return None,
        }
    }
    Some(axes)
}

#[cfg(test)]
mod tests {
    use super::repeated;

    #[test]
    fn axes_of_broadcasting() {
        let check = |a: &[usize], b: &[usize], want: [&[usize]; 2]| {
            let known = |s: &[usize]| s.iter().map(|&d| Some(d)).collect::<Vec<_>>();
            let got = repeated(&known(a), &known(b)).expect("known");
            assert_eq!([&got[0][..], &got[1][..]], want, "{a:?} {b:?}");
        };
        check(&[2, 3], &[2, 3], [&[], &[]]);
        check(&[2, 3], &[3], [&[], &[0]]);
        check(&[], &[4], [&[0], &[]]);
        check(&[2, 1, 5], &[3, 1], [&[1], &[0, 2]]);
        check(&[1, 1], &[1], [&[], &[0]]);
        assert!(repeated(&[None], &[Some(3)]).is_none());
    }
}
