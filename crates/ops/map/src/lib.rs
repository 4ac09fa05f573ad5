//! TensorFlow's map ops: maps from tensors to tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod tensor_map;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("tensor_map", tensor_map::OPS),
];
// codegen:end
