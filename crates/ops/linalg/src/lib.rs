//! TensorFlow's linalg ops: einsum, decompositions, solvers.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod cholesky;
mod determinant;
mod einsum;
mod einsum_dense;
mod equation;
mod lu;
mod matrix_inverse;
mod matrix_solve;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("cholesky", cholesky::OPS),
    ("determinant", determinant::OPS),
    ("einsum", einsum::OPS),
    ("matrix_inverse", matrix_inverse::OPS),
    ("matrix_solve", matrix_solve::OPS),
];
// codegen:end
