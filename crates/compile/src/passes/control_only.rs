//! Removes nodes whose only consumers are control edges, as `tf.tuple` leaves them when it gates the gradients of a layer:
//! those of its constants are computed in vain. Consumers wait for the inputs instead.
//!
//! Limited to ops that fail on shapes alone: others may be awaited for their error, or for what they do.
//!
//! (TensorFlow: `SafeToConvertToNoOp` of `core/grappler/optimizers/dependency_optimizer.cc`.)

use super::elementwise::is_elementwise;
use crate::view::has_dead_outputs;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeId, Output, Patch, integers, topological_order};
use ferroflow_opdef::Attrs;
use rustc_hash::FxHashSet;

pub(crate) const PASS: Pass = Pass {
    name: "control_only",
    about: "removes nodes whose only consumers are control edges, if they fail on shapes alone",
    run,
};

/// Most elements of a Fill that cannot fail.
const MAX_FILLED: i64 = 1 << 40;

/// Ops that fail on shapes alone, or on values that are shapes, besides elementwise ones.
const SAFE: &[&str] = &[
    "AddN",
    "AvgPool",
    "AvgPoolGrad",
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "BiasAddGrad",
    "BroadcastGradientArgs",
    "BroadcastTo",
    "Cast",
    "Conv2D",
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3D",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
    "EluGrad",
    "Equal",
    "ExpandDims",
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "Greater",
    "GreaterEqual",
    "Identity",
    "InvGrad",
    "L2Loss",
    "LeakyReluGrad",
    "Less",
    "LessEqual",
    "LogSoftmax",
    "MatMul",
    "Max",
    "MaxPool",
    "MaxPoolGrad",
    "Mean",
    "Min",
    "NotEqual",
    "OnesLike",
    "Prod",
    "ReciprocalGrad",
    "Relu6Grad",
    "Reshape",
    "RsqrtGrad",
    "Select",
    "SelectV2",
    "SeluGrad",
    "Shape",
    "ShapeN",
    "Softmax",
    "SoftmaxCrossEntropyWithLogits",
    "SoftplusGrad",
    "SoftsignGrad",
    "SqrtGrad",
    "Squeeze",
    "Sum",
    "Tile",
    "Transpose",
    "ZerosLike",
];

/// Whether nothing can wait for the node but for its outputs: it has no effects, and fails on shapes alone.
pub(super) fn is_safe(graph: &Graph, node: &Node) -> bool {
    // Integers may be divided by zero.
    let has_floats = || node.outputs.iter().all(|dtype| dtype.is_floating());
    SAFE.contains(&node.op()) || is_elementwise(node) && has_floats() || fills_shape(graph, node)
}

/// Whether the node is a Fill of the shape of a tensor, or of a constant one that is not absurd.
fn fills_shape(graph: &Graph, node: &Node) -> bool {
    let ("Fill", Some(dims)) = (node.op(), node.inputs.first()) else {
        return false;
    };
    let dims = graph.node(dims.node);
    let is_valid = |dims: &[i64]| {
        let size = dims.iter().try_fold(1i64, |size, &d| size.checked_mul(d));
        dims.iter().all(|d| *d >= 0) && size.is_some_and(|size| size < MAX_FILLED)
    };
    let constant = |dims: &Node| -> Option<Vec<i64>> {
        integers(&dims.attrs.tensor("value").ok()?.get().ok()?)
    };
    match dims.op() {
        "Shape" => true,
        _ => dims.is_free_constant() && constant(dims).is_some_and(|dims| is_valid(&dims)),
    }
}

/// Whether consumers that read no output of the node may wait for its inputs.
fn is_idle(graph: &Graph, node: &Node) -> bool {
    // A control edge cannot name one side of a Switch.
    let mut inputs = node.inputs.iter();
    is_safe(graph, node) && !inputs.any(|i: &Output| has_dead_outputs(graph.node(i.node)))
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let consumers = Consumers::new(graph);
    let mut removed: FxHashSet<NodeId> = FxHashSet::default();
    let mut patch = Patch::new();
    let mut order = topological_order(graph)?;
    // What only a removed node read is next.
    order.reverse();
    for id in order {
        let node = graph.node(id);
        let mut readers = consumers.of(id).iter().filter(|(_, slot)| slot.is_some());
        let is_read = readers.any(|(by, _)| !removed.contains(by));
        if is_idle(graph, node) && !graph.is_target(id) && !is_read {
            *patch.edit(graph, id) = waiting(node, ctx)?;
            removed.insert(id);
        }
    }
    patch.apply(graph);
    Ok(())
}

/// A node that waits for what `node` would be computed from, and computes nothing.
pub(super) fn waiting(node: &Node, ctx: &PassCtx) -> Result<Node> {
    let (name, attrs) = (node.name.clone(), Attrs::default());
    let mut waiting = ctx.node(name, "NoOp", attrs, &[], &node.controls)?;
    waiting.device = node.device.clone();
    wait_for(&mut waiting, node.inputs.iter().map(|i| i.node));
    Ok(waiting)
}

/// Makes `node` wait for `others`.
pub(super) fn wait_for(node: &mut Node, others: impl IntoIterator<Item = NodeId>) {
    for other in others {
        if !node.controls.contains(&other) {
            node.controls.push(other);
        }
    }
}
