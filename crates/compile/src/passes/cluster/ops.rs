//! Ops as instructions, element by element.

use super::build::{Elements, MAX_ELEMENTS, Meaning};
use super::translate::Translator;
use ferroflow_graph::Node;
use ferroflow_opdef::{ScalarBinary, ScalarType, ScalarUnary, ValueId};
use ferroflow_tensor::Shape;
use std::rc::Rc;

/// The one output of a node.
pub(super) fn one(elements: Elements) -> Option<Vec<Meaning>> {
    Some(vec![Meaning::Tensor(Rc::new(elements))])
}

impl Translator<'_> {
    /// The outputs of a node without regions or functions; `None` if the op has no translation.
    pub(super) fn op(&mut self, node: &Node, inputs: &[Meaning]) -> Option<Vec<Meaning>> {
        if node.def.flags.stateful {
            return None;
        }
        if node.op().starts_with("TensorList") {
            return self.list_op(node, inputs);
        }
        if node.op() == "Range" {
            return self.range(inputs);
        }
        let tensors = inputs.iter().map(|m| m.tensor().cloned());
        let tensors: Vec<Rc<Elements>> = tensors.collect::<Option<_>>()?;
        let inputs: Vec<&Elements> = tensors.iter().map(Rc::as_ref).collect();
        match (node.op(), &inputs[..]) {
            (op, &[a]) if ScalarUnary::of_op(op).is_some() => {
                let f = ScalarUnary::of_op(op)?;
                self.each(&[a], |t, v| t.b.unary(f, v[0]))
            }
            (op, &[a, b]) if ScalarBinary::of_op(op).is_some() => {
                let f = ScalarBinary::of_op(op)?;
                self.each(&[a, b], |t, v| t.b.binary(f, v[0], v[1]))
            }
            ("Cast", &[a]) if !node.attrs.bool("Truncate").ok()? => {
                let to = ScalarType::of(*node.outputs.first()?)?;
                let values = a.values.iter().map(|v| self.b.cast(to, *v));
                one(Elements {
                    ty: to,
                    dims: a.dims.clone(),
                    values: values.collect::<Option<_>>()?,
                })
            }
            ("ToBool", &[a]) if a.dims.is_empty() => {
                let truth = self.b.truth(&Meaning::Tensor(Rc::new(a.clone())))?;
                one(Elements::scalar(ScalarType::Bool, truth))
            }
            ("Select", &[c, a, b]) => {
                match a.dims == b.dims && (c.dims.is_empty() || c.dims == a.dims) {
                    true => self.each(&[c, a, b], |t, v| t.b.select(v[0], v[1], v[2])),
                    false => None,
                }
            }
            ("SelectV2", &[c, a, b]) => self.each(&[c, a, b], |t, v| t.b.select(v[0], v[1], v[2])),
            ("Snapshot" | "StopGradient" | "PreventGradient" | "EnsureShape", &[a]) => {
                match node.op() == "EnsureShape" {
                    true => {
                        let shape: Shape = a.dims.iter().copied().collect();
                        let fits = node.attrs.shape("shape").ok()?.matches(&shape);
                        fits.then(|| one(a.clone()))?
                    }
                    false => one(a.clone()),
                }
            }
            _ => self.shaping(node, &inputs),
        }
    }

    /// Applies a function to the elements of tensors, broadcast together.
    pub(super) fn each(
        &mut self,
        inputs: &[&Elements],
        mut f: impl FnMut(&mut Self, &[ValueId]) -> Option<ValueId>,
    ) -> Option<Vec<Meaning>> {
        let mut dims: Vec<usize> = Vec::new();
        for input in inputs {
            dims = broadcast(&dims, &input.dims)?;
        }
        let n: usize = dims.iter().product();
        if n > MAX_ELEMENTS || n == 0 {
            return None;
        }
        let mut values = Vec::with_capacity(n);
        for i in 0..n {
            let operands = inputs.iter().map(|e| e.values[source(&dims, &e.dims, i)]);
            let operands: Vec<ValueId> = operands.collect();
            values.push(f(self, &operands)?);
        }
        let ty = self.b.types[*values.first()? as usize];
        one(Elements { ty, dims, values })
    }

    /// Ops that only look at shapes or move elements.
    fn shaping(&mut self, node: &Node, inputs: &[&Elements]) -> Option<Vec<Meaning>> {
        let &first = inputs.first()?;
        let out = ScalarType::of(*node.outputs.first()?)?;
        match (node.op(), inputs) {
            ("Shape", [a]) => {
                let dims = a.dims.iter().map(|d| self.b.int(out, *d as i64));
                one(Elements {
                    ty: out,
                    dims: vec![a.dims.len()],
                    values: dims.collect::<Option<_>>()?,
                })
            }
            ("Size" | "Rank", [a]) => {
                let n = if node.op() == "Size" {
                    a.values.len()
                } else {
                    a.dims.len()
                };
                let n = self.b.int(out, n as i64)?;
                one(Elements::scalar(out, n))
            }
            ("ZerosLike" | "OnesLike", [a]) => {
                let value = i64::from(node.op() == "OnesLike");
                let (int, ty) = (self.b.int(ScalarType::I32, value)?, a.ty);
                let value = match ty.is_float() {
                    true => self.float(ty, value as f64)?,
                    false => self.b.cast(ty, int)?,
                };
                one(Elements {
                    values: vec![value; a.values.len()],
                    ..first.clone()
                })
            }
            ("Reshape", [a, shape]) => {
                let dims = reshaped(&self.b.ints(shape)?, a.values.len())?;
                one(Elements {
                    dims,
                    ..first.clone()
                })
            }
            ("ExpandDims", [a, axis]) => expanded(a, *self.b.ints(axis)?.first()?),
            ("Fill", [shape, value]) => filled(&self.b.ints(shape)?, value),
            ("Pack", parts) if node.attrs.int("axis").ok()? == 0 => packed(parts),
            ("Unpack", [a]) if node.attrs.int("axis").ok()? == 0 => unpacked(a, node.outputs.len()),
            _ => {
                let moved = self.moving(node, inputs);
                let reduced = moved.or_else(|| self.reduction(node, inputs));
                reduced.or_else(|| self.network(node, inputs))
            }
        }
    }

    /// A float constant.
    pub(super) fn float(&mut self, ty: ScalarType, x: f64) -> Option<ValueId> {
        let bits = match ty {
            ScalarType::F32 => u64::from((x as f32).to_bits()),
            _ => x.to_bits(),
        };
        self.b.constant(ty, bits)
    }
}

/// The shape of two tensors broadcast together.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |s: &[usize], i: usize| match (i + s.len()).checked_sub(rank) {
        Some(at) => s[at],
        None => 1,
    };
    let dims = (0..rank).map(|i| match (dim(a, i), dim(b, i)) {
        (x, y) if x == y => Some(x),
        (1, y) => Some(y),
        (x, 1) => Some(x),
        _ => None,
    });
    dims.collect()
}

/// The element of an operand of shape `from` for element `i` of a result of shape `dims`.
fn source(dims: &[usize], from: &[usize], mut i: usize) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (k, dim) in dims.iter().enumerate().rev() {
        let index = i % dim;
        i /= dim;
        if let Some(own) = (k + from.len()).checked_sub(dims.len()) {
            if from[own] != 1 {
                at += index * stride;
            }
            stride *= from[own];
        }
    }
    at
}

/// The shape that a Reshape asks for.
fn reshaped(shape: &[i64], n: usize) -> Option<Vec<usize>> {
    if shape.iter().filter(|d| **d < 0).count() > 1 {
        return None;
    }
    let known: i64 = shape.iter().filter(|d| **d >= 0).product();
    let dims = shape.iter().map(|d| match *d {
        -1 if known > 0 => usize::try_from(n as i64 / known).ok(),
        d => usize::try_from(d).ok(),
    });
    let dims: Vec<usize> = dims.collect::<Option<_>>()?;
    (dims.iter().product::<usize>() == n).then_some(dims)
}

/// Inserts a dimension of one element.
fn expanded(a: &Elements, axis: i64) -> Option<Vec<Meaning>> {
    let rank = a.dims.len() as i64 + 1;
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
    let mut dims = a.dims.clone();
    if axis > dims.len() {
        return None;
    }
    dims.insert(axis, 1);
    one(Elements { dims, ..a.clone() })
}

/// Repeats a scalar.
fn filled(dims: &[i64], value: &Elements) -> Option<Vec<Meaning>> {
    let dims = dims.iter().map(|&d| usize::try_from(d).ok());
    let dims: Vec<usize> = dims.collect::<Option<_>>()?;
    let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    match value.values[..] {
        [v] if value.dims.is_empty() && n <= MAX_ELEMENTS => one(Elements {
            ty: value.ty,
            dims,
            values: vec![v; n],
        }),
        _ => None,
    }
}

/// Joins tensors of one shape along a new first dimension.
fn packed(parts: &[&Elements]) -> Option<Vec<Meaning>> {
    let &first = parts.first()?;
    let is_alike = |p: &&Elements| p.dims == first.dims && p.ty == first.ty;
    if !parts.iter().all(is_alike) {
        return None;
    }
    let mut dims = vec![parts.len()];
    dims.extend(&first.dims);
    let values = parts.iter().flat_map(|p| p.values.iter().copied());
    let values: Vec<ValueId> = values.collect();
    let ty = first.ty;
    (values.len() <= MAX_ELEMENTS).then(|| one(Elements { ty, dims, values }))?
}

/// Splits a tensor along its first dimension, of `n` elements.
fn unpacked(a: &Elements, n: usize) -> Option<Vec<Meaning>> {
    let (&len, dims) = a.dims.split_first()?;
    if len != n || a.values.is_empty() {
        return None;
    }
    let rows = a.values.chunks(a.values.len() / n);
    let row = |values: &[ValueId]| {
        Meaning::Tensor(Rc::new(Elements {
            ty: a.ty,
            dims: dims.to_vec(),
            values: values.to_vec(),
        }))
    };
    Some(rows.map(row).collect())
}
