//! TensorFlow's linalg ops: einsum, decompositions, solvers.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod banded_triangular_solve;
mod batch_ops;
mod cholesky;
mod cholesky_grad;
mod dense;
mod determinant;
mod eig;
mod einsum;
mod einsum_dense;
mod equation;
mod lu;
mod lu_decomposition;
mod matrix_functions;
mod matrix_inverse;
mod matrix_solve;
mod matrix_solve_ls;
mod qr;
mod self_adjoint_eig;
mod svd;
mod triangular_functions;
mod tridiagonal;
mod xla_decompositions;
mod xla_dot;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("banded_triangular_solve", banded_triangular_solve::OPS),
    ("batch_ops", batch_ops::OPS),
    ("cholesky", cholesky::OPS),
    ("cholesky_grad", cholesky_grad::OPS),
    ("determinant", determinant::OPS),
    ("eig", eig::OPS),
    ("einsum", einsum::OPS),
    ("lu_decomposition", lu_decomposition::OPS),
    ("matrix_functions", matrix_functions::OPS),
    ("matrix_inverse", matrix_inverse::OPS),
    ("matrix_solve", matrix_solve::OPS),
    ("matrix_solve_ls", matrix_solve_ls::OPS),
    ("qr", qr::OPS),
    ("self_adjoint_eig", self_adjoint_eig::OPS),
    ("svd", svd::OPS),
    ("tridiagonal", tridiagonal::OPS),
    ("xla_decompositions", xla_decompositions::OPS),
    ("xla_dot", xla_dot::OPS),
];
// codegen:end
