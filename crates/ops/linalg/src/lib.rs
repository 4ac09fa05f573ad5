//! TensorFlow's linalg ops: einsum, decompositions, solvers.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod einsum;
mod einsum_gradient;
mod equation;
mod matrix;
mod matrix_gradient;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("einsum", einsum::OPS),
    ("matrix", matrix::OPS),
];
// codegen:end
