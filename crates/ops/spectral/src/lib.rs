//! TensorFlow's spectral ops: fast Fourier transforms.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod fft;
mod half;
mod transform;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("fft", fft::OPS),
];
// codegen:end
