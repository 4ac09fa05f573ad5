//! The products that make queries, keys and values of the same tensor, as one product whose result has the heads of all three.

use super::Operand;
use crate::pass::constant_node;
use crate::view::View;
use crate::{PassCtx, pass::FUSED_SUFFIX};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};

/// Three `_Dense` nodes of the same input, with constant weights, whose results are reshaped to heads.
pub(super) struct Projections {
    /// The first of them.
    dense: NodeId,
    weights: [Output; 3],
    biases: Option<[Output; 3]>,
    /// The shape of each result, with heads before the last dimension.
    shape: Vec<i64>,
    /// The number of heads.
    pub(super) heads: i64,
}

/// The product behind the heads of an operand.
struct Projection<'a> {
    id: NodeId,
    node: &'a Node,
    shape: Vec<i64>,
}

fn projection<'a>(view: &View<'a>, operand: Operand) -> Option<Projection<'a>> {
    let is_own = |output: Output| {
        let is_read_once = view.only_reader(output).is_some();
        output.slot == 0 && is_read_once && view.is_pure(output.node)
    };
    let reshape = view.node(operand.output.node);
    if operand.heads_first || reshape.op() != "Reshape" || !is_own(operand.output) {
        return None;
    }
    let from = reshape.inputs[0];
    let node = view.producer(from, "_Dense")?;
    let steps = node.attrs.strs("fused_ops").ok()?;
    let is_plain = matches!(steps[..], [] | ["BiasAdd"]);
    let shape = view.ints(reshape.inputs[1])?;
    (is_own(from) && is_plain && shape.len() == 4).then_some(Projection {
        id: from.node,
        node,
        shape,
    })
}

impl Projections {
    pub(super) fn of(view: &View, operands: [Operand; 3]) -> Option<Projections> {
        let [q, k, v] = operands.map(|o| projection(view, o));
        let all = [q?, k?, v?];
        let first = &all[0];
        let is_alike = |p: &Projection| {
            let same = |attr| match (p.node.attrs.get(attr), first.node.attrs.get(attr)) {
                (Some(a), Some(b)) => a.same_value(b),
                _ => false,
            };
            let is_whole = p.node.attrs.bool("transpose_w").is_ok_and(|turned| !turned);
            let has_attrs = ["T", "fused_ops"].into_iter().all(same);
            p.node.inputs[0] == first.node.inputs[0]
                && p.shape == first.shape
                && is_whole
                && has_attrs
        };
        let weights = all.each_ref().map(|p| p.node.inputs[1]);
        let biases = all.each_ref().map(|p| p.node.inputs.get(2).copied());
        let biases = match biases {
            [Some(q), Some(k), Some(v)] => Some([q, k, v]),
            _ => None,
        };
        let heads = first.shape[2];
        let columns = usize::try_from(heads.checked_mul(first.shape[3])?).ok()?;
        let is_constant = |output: &Output, rank: usize| {
            let value = view.constant(*output);
            value.is_some_and(|v| {
                v.dtype() == DType::Float
                    && v.shape().rank() == rank
                    && v.shape().last() == Some(&columns)
            })
        };
        let fits = all.iter().all(is_alike)
            && weights.iter().all(|w| is_constant(w, 2))
            && biases.iter().flatten().all(|b| is_constant(b, 1))
            && heads > 0;
        fits.then(|| Projections {
            dense: first.id,
            weights,
            biases,
            shape: first.shape.clone(),
            heads,
        })
    }

    /// The nodes of one product: its constants, itself, and its result with the heads of all three.
    pub(super) fn nodes(&self, view: &View, ctx: &PassCtx) -> Result<Merged> {
        let dense = view.node(self.dense);
        let name = |part: &str| view.graph.unique_name(&format!("{}{part}", dense.name));
        let value = |output: &Output| match view.constant(*output) {
            Some(value) => value.get(),
            None => Err(internal!("a weight is not a constant")),
        };
        let constant = |part: &str, outputs: &[Output; 3]| -> Result<Node> {
            let parts: Vec<Tensor> = outputs.iter().map(value).collect::<Result<_>>()?;
            constant_node(ctx, name(part), side_by_side(&parts)?)
        };
        let mut shape = self.shape.clone();
        shape[2] *= 3;
        let mut node = dense.clone();
        node.name = name(FUSED_SUFFIX);
        Ok(Merged {
            weights: constant("/weights", &self.weights)?,
            bias: self
                .biases
                .as_ref()
                .map(|b| constant("/biases", b))
                .transpose()?,
            dense: node,
            shape: constant_node(ctx, name("/heads/shape"), Tensor::vector(&shape)?)?,
            heads_name: name("/heads"),
        })
    }
}

/// The nodes of a product before they have their inputs.
pub(super) struct Merged {
    weights: Node,
    bias: Option<Node>,
    dense: Node,
    shape: Node,
    heads_name: String,
}

impl Merged {
    /// Adds the nodes; returns the heads.
    pub(super) fn add(
        mut self,
        graph: &mut Graph,
        ctx: &PassCtx,
        patch: &mut Patch,
    ) -> Result<Output> {
        let weights = patch.add(graph, self.weights)?;
        self.dense.inputs[1] = Output::new(weights, 0);
        if let Some(bias) = self.bias {
            self.dense.inputs[2] = Output::new(patch.add(graph, bias)?, 0);
        }
        let dense = Output::new(patch.add(graph, self.dense)?, 0);
        let shape = Output::new(patch.add(graph, self.shape)?, 0);
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(DType::Float))
            .with("Tshape", AttrValue::Type(DType::Int64));
        let heads = ctx.node(self.heads_name, "Reshape", attrs, &[dense, shape], &[])?;
        Ok(Output::new(patch.add(graph, heads)?, 0))
    }
}

/// Vectors or matrices of the same shape next to each other.
fn side_by_side(parts: &[Tensor]) -> Result<Tensor> {
    let slices: Vec<&[f32]> = parts.iter().map(Tensor::slice).collect::<Result<_>>()?;
    let mut dims = parts[0].shape().dims().to_vec();
    let columns = dims.last().copied().unwrap_or(1).max(1);
    if let Some(last) = dims.last_mut() {
        *last *= parts.len();
    }
    let mut all = Tensor::for_overwrite(DType::Float, dims.into_iter().collect())?;
    let rows = all.slice_mut::<f32>()?.chunks_mut(parts.len() * columns);
    for (i, row) in rows.enumerate() {
        for (to, from) in row.chunks_mut(columns).zip(&slices) {
            to.copy_from_slice(&from[i * columns..][..columns]);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_side_by_side() {
        let check = |shape: &[usize], expected: &[f32]| {
            let part = |start: f32| {
                let n = shape.iter().product::<usize>();
                let values: Vec<f32> = (0..n).map(|i| start + i as f32).collect();
                let vector = Tensor::vector(&values)?;
                vector.with_shape(shape.into())
            };
            let parts: Vec<Tensor> = [0.0, 10.0, 20.0]
                .map(part)
                .into_iter()
                .collect::<Result<_>>()?;
            let all = side_by_side(&parts)?;
            assert_eq!(all.slice::<f32>()?, expected);
            assert_eq!(all.shape().last().copied(), shape.last().map(|n| 3 * n));
            Ok::<(), ferroflow_base::Status>(())
        };
        check(&[2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]).expect("vectors");
        let rows = [
            0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 2.0, 3.0, 12.0, 13.0, 22.0, 23.0,
        ];
        check(&[2, 2], &rows).expect("matrices");
    }
}
