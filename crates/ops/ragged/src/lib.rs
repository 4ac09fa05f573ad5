//! TensorFlow's ragged ops: ragged tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod ragged;
mod ragged_cross;
mod ragged_fill_empty_rows;
mod ragged_gather;
mod ragged_range;
mod ragged_to_sparse;
mod ragged_to_tensor;
mod splits;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("ragged", ragged::OPS),
    ("ragged_cross", ragged_cross::OPS),
    ("ragged_fill_empty_rows", ragged_fill_empty_rows::OPS),
    ("ragged_gather", ragged_gather::OPS),
    ("ragged_range", ragged_range::OPS),
    ("ragged_to_sparse", ragged_to_sparse::OPS),
    ("ragged_to_tensor", ragged_to_tensor::OPS),
];
// codegen:end
