//! TensorFlow's XLA ops, which Keras, Transformers and jax2tf emit (TensorFlow: `compiler/tf2xla/ops/xla_ops.cc`).
//!
//! TensorFlow compiles each with XLA when it first runs; here they are kernels as any other.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod dynamic_slice;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("dynamic_slice", dynamic_slice::OPS),
];
// codegen:end
