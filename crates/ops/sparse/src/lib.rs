//! TensorFlow's sparse ops: sparse tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod csr;
mod csr_cholesky;
mod csr_gradients;
mod csr_product;
mod minimum_degree;
mod serialize_sparse;
mod sparse_add;
mod sparse_binary;
mod sparse_concat;
mod sparse_cross;
mod sparse_fill_empty_rows;
mod sparse_matmul;
mod sparse_parts;
mod sparse_reduce;
mod sparse_reorder;
mod sparse_reshape;
mod sparse_slice;
mod sparse_softmax;
mod sparse_tensors_map;
mod sparse_to_dense;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("csr", csr::OPS),
    ("csr_cholesky", csr_cholesky::OPS),
    ("csr_product", csr_product::OPS),
    ("serialize_sparse", serialize_sparse::OPS),
    ("sparse_add", sparse_add::OPS),
    ("sparse_binary", sparse_binary::OPS),
    ("sparse_concat", sparse_concat::OPS),
    ("sparse_cross", sparse_cross::OPS),
    ("sparse_fill_empty_rows", sparse_fill_empty_rows::OPS),
    ("sparse_matmul", sparse_matmul::OPS),
    ("sparse_reduce", sparse_reduce::OPS),
    ("sparse_reorder", sparse_reorder::OPS),
    ("sparse_reshape", sparse_reshape::OPS),
    ("sparse_slice", sparse_slice::OPS),
    ("sparse_softmax", sparse_softmax::OPS),
    ("sparse_tensors_map", sparse_tensors_map::OPS),
    ("sparse_to_dense", sparse_to_dense::OPS),
];
// codegen:end
