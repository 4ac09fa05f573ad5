//! TensorFlow's sparse ops: sparse tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod sparse;
mod sparse_matmul;
mod sparse_rows;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("sparse", sparse::OPS),
    ("sparse_matmul", sparse_matmul::OPS),
    ("sparse_rows", sparse_rows::OPS),
];
// codegen:end
