//! The rules by op, those that TensorFlow's C++ gradients have and no others (`tensorflow/cc/gradients`).

use super::backprop::Rule;
use super::{array, einsum, gather, math, nn, reductions, segments};
use crate::Output;
use ferroflow_base::Result;

/// A table of rules.
pub(super) type Rules = &'static [(&'static str, Rule)];

const TABLES: &[Rules] = &[
    array::RULES,
    einsum::RULES,
    gather::RULES,
    math::RULES,
    nn::RULES,
    reductions::RULES,
    segments::RULES,
];

/// Ops whose inputs have no gradient (`REGISTER_NO_GRADIENT_OP`).
pub(super) const NO_GRADIENT: &[&str] = &[
    "ApproximateEqual",
    "BroadcastGradientArgs",
    "ConcatOffset",
    "Const",
    "DeleteSessionTensor",
    "EditDistance",
    "Equal",
    "Floor",
    "GetSessionHandle",
    "GetSessionHandleV2",
    "GetSessionTensor",
    "Greater",
    "GreaterEqual",
    "InvertPermutation",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "NonMaxSuppression",
    "NonMaxSuppressionV2",
    "NonMaxSuppressionV3",
    "NonMaxSuppressionV4",
    "NonMaxSuppressionV5",
    "NotEqual",
    "OneHot",
    "Queue",
    "QueueClose",
    "QueueDequeue",
    "QueueDequeueMany",
    "QueueDequeueUpTo",
    "QueueEnqueue",
    "QueueEnqueueMany",
    "QueueSize",
    "Rank",
    "Shape",
    "ShapeN",
    "Size",
    "Stack",
    "StackClose",
    "StackPop",
    "StackPush",
    "StopGradient",
    "ZerosLike",
];

/// The rule of an op; `Some(None)` if its inputs have no gradient, `None` if it cannot be differentiated.
pub(super) fn of_op(op: &str) -> Option<Option<Rule>> {
    if NO_GRADIENT.contains(&op) {
        return Some(None);
    }
    let mut all = TABLES.iter().flat_map(|table| table.iter());
    all.find(|(name, _)| *name == op)
        .map(|(_, rule)| Some(*rule))
}

/// The gradient of the only input, or of the first `n` inputs.
pub(super) fn all<const N: usize>(gradients: [Output; N]) -> Result<Vec<Option<Output>>> {
    Ok(gradients.into_iter().map(Some).collect())
}

/// The gradient of the first input of `n`; the others have none.
pub(super) fn first(gradient: Output, n: usize) -> Result<Vec<Option<Output>>> {
    let mut gradients = vec![None; n];
    gradients[..1].fill(Some(gradient));
    Ok(gradients)
}
