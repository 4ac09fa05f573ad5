//! TensorFlow's debug ops: copies and summaries of watched tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod debug;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("debug", debug::OPS),
];
// codegen:end
