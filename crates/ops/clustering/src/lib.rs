//! TensorFlow's clustering ops: initial centers of clusters, nearest neighbors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod clustering;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("clustering", clustering::OPS),
];
// codegen:end
