//! Names of ops that TensorFlow's oneDNN layout pass writes into the graphs that it sends
//! (`core/common_runtime/mkl_layout_pass.cc`, `core/graph/mkl_graph_util.h`). Their nodes mean what those of the op
//! itself do.

use ferroflow_base::Result;
use ferroflow_model::proto::NodeDef;
use ferroflow_opdef::{AttrValue, Attrs, KERNEL_LABEL, OpDef, Registry};
use ferroflow_tensor::DType;
use std::sync::Arc;

const PREFIX: &str = "_Mkl";

/// The ops whose names have no `Native`, and those that begin with `Quantized`. Others without it are ops of blocked
/// layouts, with further inputs, which TensorFlow makes only if a variable of the environment asks for them.
const PLAIN: &[&str] = &[
    "BatchMatMul",
    "BatchMatMulV2",
    "ConjugateTranspose",
    "Dequantize",
    "Einsum",
    "MatMul",
    "QuantizeV2",
    "Softmax",
    "SparseTensorDenseMatMul",
    "Transpose",
];

/// The schema of `op`; that of Conv2D for `_MklNativeConv2D` and of `_FusedConv2D` for `_MklNativeFusedConv2D`.
pub(crate) fn find(op: &str, registry: &Registry) -> Result<Option<Arc<OpDef>>> {
    let found = registry.def(op)?;
    let Some(rest) = op.strip_prefix(PREFIX).filter(|_| found.is_none()) else {
        return Ok(found);
    };
    let plain = match rest.strip_prefix("Native") {
        Some(plain) => plain,
        None if PLAIN.contains(&rest) || rest.starts_with("Quantized") => rest,
        None => return Ok(None),
    };
    match registry.def(plain)? {
        Some(def) => Ok(Some(def)),
        None => registry.def(&format!("_{plain}")),
    }
}

/// Removes what only oneDNN's kernels read, and adds what only their ops have a default for.
pub(crate) fn adjust_attrs(op: &str, attrs: &mut Attrs) {
    if op.starts_with(PREFIX) {
        for name in [KERNEL_LABEL, "is_filter_const", "workspace_enabled"] {
            attrs.remove(name);
        }
    }
    if op == "_MklSoftmax" && attrs.get("T").is_none() {
        attrs.set("T", AttrValue::Type(DType::Float));
    }
}

/// Whether the data input after the first `n` of the node counts: a pool's gradient reads the memory of the pool's
/// kernel, too.
pub(crate) fn is_input(node: &NodeDef, n: usize) -> bool {
    let op = node.op.as_str();
    n < 3 || !matches!(op, "_MklNativeMaxPoolGrad" | "_MklNativeMaxPool3DGrad")
}
