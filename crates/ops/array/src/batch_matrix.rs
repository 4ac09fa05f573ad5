//! The names that ops on the diagonals of matrices had before they worked on batches (TensorFlow: the
//! `Batch*` ops of `core/ops/array_ops.cc`).

use crate::{matrix_band_part, matrix_diag};
use ferroflow_opdef::{GradientRule, Op};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    renamed(
        matrix_band_part::OPS[0],
        "BatchMatrixBandPart",
        "input: T, num_lower: int64, num_upper: int64 -> band: T | T: type",
    ),
    renamed(
        matrix_diag::OPS[0],
        "BatchMatrixDiag",
        "diagonal: T -> output: T | T: type",
    ),
    renamed(
        matrix_diag::OPS[3],
        "BatchMatrixDiagPart",
        "input: T -> diagonal: T | T: type",
    ),
    renamed(
        matrix_diag::OPS[6],
        "BatchMatrixSetDiag",
        "input: T, diagonal: T -> output: T | T: type",
    ),
];

/// Returns an op under another name; TensorFlow does not differentiate the old names.
const fn renamed(op: Op, name: &'static str, signature: &'static str) -> Op {
    Op {
        name,
        signature,
        gradient: GradientRule::Undefined,
        ..op
    }
}
