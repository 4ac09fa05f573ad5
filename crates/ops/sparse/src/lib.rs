//! TensorFlow's sparse ops: sparse tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod serialize_sparse;
mod sparse_cross;
mod sparse_fill_empty_rows;
mod sparse_matmul;
mod sparse_reorder;
mod sparse_reshape;
mod sparse_to_dense;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("serialize_sparse", serialize_sparse::OPS),
    ("sparse_cross", sparse_cross::OPS),
    ("sparse_fill_empty_rows", sparse_fill_empty_rows::OPS),
    ("sparse_matmul", sparse_matmul::OPS),
    ("sparse_reorder", sparse_reorder::OPS),
    ("sparse_reshape", sparse_reshape::OPS),
    ("sparse_to_dense", sparse_to_dense::OPS),
];
// codegen:end
