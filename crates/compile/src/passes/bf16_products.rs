//! Notes products of floats by constants that are computed in `bfloat16`, if asked to: oneDNN's floating-point math
//! mode `bf16` (TensorFlow: `TF_SET_ONEDNN_FPMATH_MODE`). Their inputs, sums and outputs stay floats.

use crate::view::View;
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Graph, NodeId, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "computes products by constant weights in bfloat16 on the CPU, if asked to",
    run,
};

pub(crate) const NAME: &str = "bf16_products";

/// The attr that kernels read.
const MATH: &str = "_math";

/// Ops whose kernels pack their constant right side.
const OPS: &[&str] = &[
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv2D",
    "Einsum",
    "MatMul",
    "_Dense",
    "_FusedConv2D",
    "_FusedMatMul",
];

/// Rows and columns from which rounding the left side takes less time than it saves.
const LEAST: [usize; 2] = [16, 8];

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let Some(precision) = ctx.precision else {
        return Ok(());
    };
    let view = View::new(graph, ctx.shapes(graph)?);
    let found: Vec<_> = graph
        .iter()
        .map(|(id, _)| id)
        .filter(|id| is_large(&view, *id))
        .collect();
    if precision != DType::Bfloat16 && !found.is_empty() {
        return Err(invalid_argument!(
            "CPUs compute products in bfloat16 or float, not in {precision}"
        ));
    }
    let mut patch = Patch::new();
    for id in found {
        let math = AttrValue::Str("bfloat16".into());
        patch.edit(graph, id).attrs.set(MATH, math);
    }
    patch.apply(graph);
    Ok(())
}

/// Returns whether a node multiplies floats by a constant that is worth it.
fn is_large(view: &View, id: NodeId) -> bool {
    let node = view.node(id);
    if OPS.binary_search(&node.op()).is_err() || node.outputs.first() != Some(&DType::Float) {
        return false;
    }
    let Some(weights) = node.inputs.get(1).and_then(|w| view.constant(*w)) else {
        return false;
    };
    let shape = weights.shape();
    let columns = shape.last().copied().unwrap_or(0);
    let rows = shape.num_elements() / columns.max(1);
    rows >= LEAST[0] && columns >= LEAST[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_are_sorted() {
        assert!(OPS.is_sorted());
    }
}
