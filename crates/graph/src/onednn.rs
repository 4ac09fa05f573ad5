//! Names of ops that TensorFlow's oneDNN layout pass writes into the graphs that it sends
//! (`core/common_runtime/mkl_layout_pass.cc`, `core/graph/mkl_graph_util.h`). Their nodes mean what those of the op
//! itself do.

use ferroflow_base::Result;
use ferroflow_model::proto::NodeDef;
use ferroflow_opdef::{AttrValue, Attrs, KERNEL_LABEL, OpDef, Registry};
use ferroflow_tensor::DType;
use std::sync::Arc;

const PREFIX: &str = "_Mkl";

/// The schema of `op`; that of Conv2D for `_MklNativeConv2D` and of `_FusedConv2D` for `_MklNativeFusedConv2D`.
pub(crate) fn find(op: &str, registry: &Registry) -> Result<Option<Arc<OpDef>>> {
    let found = registry.def(op)?;
    let Some(plain) = op.strip_prefix(PREFIX).filter(|_| found.is_none()) else {
        return Ok(found);
    };
    let plain = plain.strip_prefix("Native").unwrap_or(plain);
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

/// How many data inputs of the node count: a pool's gradient reads the memory of the pool's kernel too.
pub(crate) fn n_inputs(node: &NodeDef) -> usize {
    match node.op.as_str() {
        "_MklNativeMaxPoolGrad" | "_MklNativeMaxPool3DGrad" => 3,
        _ => usize::MAX,
    }
}
