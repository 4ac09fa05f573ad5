//! Computes products of floats, and what is around them, in a dtype of half the size (TensorFlow:
//! `core/grappler/optimizers/auto_mixed_precision.cc`).
//!
//! All ops of [`OPS`] change: their kernels compute with floats inside, so that means and normalizations lose nothing
//! but the rounding of what is stored. Sums may be larger than a half and stay as they are. Casts stand where they meet others; constants are converted.

use crate::pass::constant_node;
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, LazyTensor, Tensor};
use rustc_hash::FxHashMap;
use std::sync::Arc;

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "computes products, and what is around them, in bfloat16 or half, if asked to",
    run,
};

pub(crate) const NAME: &str = "mixed_precision";

/// Ops that change, and the attr with their dtype.
const OPS: &[(&str, &str)] = &[
    ("AddN", "T"),
    ("AddV2", "T"),
    ("AvgPool", "T"),
    ("AvgPoolGrad", "T"),
    ("BatchMatMul", "T"),
    ("BatchMatMulV2", "T"),
    ("BiasAdd", "T"),
    ("BiasAddGrad", "T"),
    ("BroadcastTo", "T"),
    ("ConcatV2", "T"),
    ("Conv2D", "T"),
    ("Conv2DBackpropFilter", "T"),
    ("Conv2DBackpropInput", "T"),
    ("DepthwiseConv2dNative", "T"),
    ("DepthwiseConv2dNativeBackpropFilter", "T"),
    ("DepthwiseConv2dNativeBackpropInput", "T"),
    ("Einsum", "T"),
    ("Elu", "T"),
    ("EluGrad", "T"),
    ("Erf", "T"),
    ("ExpandDims", "T"),
    ("FusedBatchNormGradV2", "T"),
    ("FusedBatchNormGradV3", "T"),
    ("FusedBatchNormV2", "T"),
    ("FusedBatchNormV3", "T"),
    ("GatherV2", "Tparams"),
    ("Identity", "T"),
    ("LeakyRelu", "T"),
    ("LeakyReluGrad", "T"),
    ("MatMul", "T"),
    ("Max", "T"),
    ("MaxPool", "T"),
    ("MaxPoolGrad", "T"),
    ("Maximum", "T"),
    ("Mean", "T"),
    ("Min", "T"),
    ("Minimum", "T"),
    ("Mul", "T"),
    ("Neg", "T"),
    ("Pack", "T"),
    ("Pad", "T"),
    ("RealDiv", "T"),
    ("Relu", "T"),
    ("Relu6", "T"),
    ("Relu6Grad", "T"),
    ("ReluGrad", "T"),
    ("Reshape", "T"),
    ("SelectV2", "T"),
    ("Selu", "T"),
    ("SeluGrad", "T"),
    ("Shape", "T"),
    ("Sigmoid", "T"),
    ("SigmoidGrad", "T"),
    ("Slice", "T"),
    ("Softmax", "T"),
    ("Softplus", "T"),
    ("SoftplusGrad", "T"),
    ("Split", "T"),
    ("SplitV", "T"),
    ("Square", "T"),
    ("SquaredDifference", "T"),
    ("Squeeze", "T"),
    ("StridedSlice", "T"),
    ("StridedSliceGrad", "T"),
    ("Sub", "T"),
    ("Tanh", "T"),
    ("TanhGrad", "T"),
    ("Tile", "T"),
    ("Transpose", "T"),
    ("Unpack", "T"),
    ("_Attention", "T"),
    ("_Dense", "T"),
    ("_FusedBatchNormEx", "T"),
    ("_FusedConv2D", "T"),
    ("_FusedDepthwiseConv2dNative", "T"),
    ("_FusedElementwise", "T"),
    ("_FusedMatMul", "T"),
    ("_Gelu", "T"),
    ("_GeluTanh", "T"),
    ("_HardSwish", "T"),
    ("_LayerNorm", "T"),
    ("_ReluBatchNormGrad", "T"),
    ("_Swish", "T"),
];

/// Ops of which only some inputs and outputs change, with their numbers: statistics stay floats.
const PARTS: &[(&str, &[usize], &[usize])] = &[
    ("FusedBatchNormGradV2", &[0, 1], &[0]),
    ("FusedBatchNormGradV3", &[0, 1], &[0]),
    ("FusedBatchNormV2", &[0], &[0]),
    ("FusedBatchNormV3", &[0], &[0]),
    ("_FusedBatchNormEx", &[0, 5], &[0]),
    ("_ReluBatchNormGrad", &[0, 1, 7], &[0]),
];

/// Whether input `i` of an op changes.
fn input_changes(op: &str, i: usize) -> bool {
    let part = PARTS.iter().find(|(name, ..)| *name == op);
    part.is_none_or(|(_, inputs, _)| inputs.contains(&i))
}

/// Whether output `i` of an op changes.
fn output_changes(op: &str, i: usize) -> bool {
    let part = PARTS.iter().find(|(name, ..)| *name == op);
    part.is_none_or(|(.., outputs)| outputs.contains(&i))
}

/// The attr with a node's dtype, if the node changes.
fn dtype_attr(node: &Node) -> Option<&'static str> {
    let at = OPS.binary_search_by_key(&node.op(), |(op, _)| op).ok()?;
    let attr = OPS[at].1;
    let is_float = matches!(node.attrs.get(attr), Some(AttrValue::Type(DType::Float)));
    is_float.then_some(attr)
}

fn is_product(op: &str) -> bool {
    op.contains("MatMul")
        || op.contains("Conv2")
        || matches!(op, "_Attention" | "_Dense" | "Einsum")
}

struct Conversion<'a, 'b> {
    ctx: &'a PassCtx<'b>,
    to: DType,
    patch: Patch,
    /// What was converted already.
    known: FxHashMap<(Output, DType), Output>,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let Some(to) = ctx.precision else {
        return Ok(());
    };
    if !matches!(to, DType::Bfloat16 | DType::Half) {
        return Err(invalid_argument!(
            "mixed precision computes in bfloat16 or half, not in {to}"
        ));
    }
    let changes = |node: &Node| dtype_attr(node);
    if !graph
        .iter()
        .any(|(_, n)| is_product(n.op()) && changes(n).is_some())
    {
        return Ok(());
    }
    let nodes: Vec<(NodeId, Option<&'static str>)> =
        graph.iter().map(|(id, n)| (id, changes(n))).collect();
    let mut changed = vec![false; graph.id_bound()];
    for (id, attr) in &nodes {
        changed[id.index()] = attr.is_some();
    }
    let mut conversion = Conversion {
        ctx,
        to,
        patch: Patch::new(),
        known: FxHashMap::default(),
    };
    for (id, attr) in nodes {
        conversion.node(graph, id, attr, &changed)?;
    }
    conversion.patch.apply(graph);
    Ok(())
}

impl Conversion<'_, '_> {
    fn node(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        attr: Option<&'static str>,
        changed: &[bool],
    ) -> Result<()> {
        let inputs: Vec<Output> = graph.node(id).inputs.to_vec();
        for (i, input) in inputs.into_iter().enumerate() {
            let is_float = graph.dtype(input) == Some(DType::Float);
            let source = graph.node(input.node).op();
            let from_changed =
                changed[input.node.index()] && output_changes(source, input.slot as usize);
            let op = graph.node(id).op();
            let wanted = match (attr.is_some() && input_changes(op, i), from_changed) {
                (true, false) => self.to,
                (false, true) => DType::Float,
                _ => continue,
            };
            if is_float {
                let converted = self.converted(graph, input, wanted)?;
                self.patch.edit(graph, id).inputs[i] = converted;
            }
        }
        let Some(attr) = attr else {
            return Ok(());
        };
        let to = self.to;
        let node = self.patch.edit(graph, id);
        node.attrs.set(attr, AttrValue::Type(to));
        if let Some(AttrValue::List(types)) = node.attrs.get("TArgs") {
            let types = vec![AttrValue::Type(to); types.len()];
            node.attrs.set("TArgs", AttrValue::List(types));
        }
        let op = node.op().to_string();
        for (i, output) in node.outputs.iter_mut().enumerate() {
            if *output == DType::Float && output_changes(&op, i) {
                *output = to;
            }
        }
        Ok(())
    }

    /// An output in another dtype: a converted constant, or a Cast.
    fn converted(&mut self, graph: &mut Graph, output: Output, to: DType) -> Result<Output> {
        if let Some(known) = self.known.get(&(output, to)) {
            return Ok(*known);
        }
        let source = graph.node(output.node);
        let name = graph.unique_name(&format!("{}/{to}", source.name));
        let node = match source.attrs.get("value") {
            Some(AttrValue::Tensor(value)) if source.op() == "Const" => {
                constant_node(self.ctx, name, narrowed(value.clone(), to))?
            }
            _ => {
                let from = if to == DType::Float {
                    self.to
                } else {
                    DType::Float
                };
                let attrs = Attrs::default()
                    .with("SrcT", AttrValue::Type(from))
                    .with("DstT", AttrValue::Type(to));
                self.ctx.node(name, "Cast", attrs, &[output], &[])?
            }
        };
        let made = Output::new(self.patch.add(graph, node)?, 0);
        self.known.insert((output, to), made);
        Ok(made)
    }
}

/// A number that stays finite where `max` is the largest: masks multiply the largest numbers by zero.
fn finite(v: f32, max: f32) -> f32 {
    match v.is_finite() {
        true => v.clamp(-max, max),
        false => v,
    }
}

/// A constant of floats in another dtype, converted when it is read.
fn narrowed(value: LazyTensor, to: DType) -> LazyTensor {
    let shape = value.shape().clone();
    let compute = move || -> Result<Tensor> {
        let floats = value.get()?;
        value.release();
        let floats = floats.slice::<f32>()?;
        let shape = value.shape().clone();
        match to {
            DType::Bfloat16 => {
                let all: Vec<_> = floats
                    .iter()
                    .map(|v| half::bf16::from_f32(finite(*v, half::bf16::MAX.to_f32())))
                    .collect();
                Tensor::from_slice(shape, &all)
            }
            DType::Half => {
                let all: Vec<_> = floats
                    .iter()
                    .map(|v| half::f16::from_f32(finite(*v, half::f16::MAX.to_f32())))
                    .collect();
                Tensor::from_slice(shape, &all)
            }
            _ => Err(internal!("a constant cannot be converted to {to}")),
        }
    };
    LazyTensor::deferred(to, shape, Arc::new(compute))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_constants_stay_finite() {
        let value = Tensor::vector(&[-1e9f32, f32::MIN, f32::INFINITY, 2.5]).expect("fits");
        for to in [DType::Half, DType::Bfloat16] {
            let narrow = narrowed(value.clone().into(), to).get().expect("converts");
            let finite: Vec<bool> = match to {
                DType::Half => narrow
                    .slice::<half::f16>()
                    .expect("halves")
                    .iter()
                    .map(|v| v.is_finite())
                    .collect(),
                _ => narrow
                    .slice::<half::bf16>()
                    .expect("bfloats")
                    .iter()
                    .map(|v| v.is_finite())
                    .collect(),
            };
            assert_eq!(finite, [true, true, false, true], "{to}");
        }
    }

    #[test]
    fn ops_are_sorted() {
        assert!(OPS.is_sorted_by_key(|(op, _)| op));
    }
}
