//! TensorFlow's list ops: tensor lists.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod composite_tensor;
mod tensor_list;
mod tensor_list_batch;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("composite_tensor", composite_tensor::OPS),
    ("tensor_list", tensor_list::OPS),
    ("tensor_list_batch", tensor_list_batch::OPS),
];
// codegen:end
