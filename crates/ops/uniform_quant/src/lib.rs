//! TensorFlow's uniform quantization ops: codes with scales and zero points.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod conv_params;
mod scales;
mod uniform_conv;
mod uniform_dot;
mod uniform_quantize;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("uniform_conv", uniform_conv::OPS),
    ("uniform_dot", uniform_dot::OPS),
    ("uniform_quantize", uniform_quantize::OPS),
];
// codegen:end
