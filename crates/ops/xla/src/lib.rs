//! TensorFlow's XLA ops, which Keras, Transformers and jax2tf emit (TensorFlow: `compiler/tf2xla/ops/xla_ops.cc`).
//!
//! TensorFlow compiles each with XLA when it first runs; here they are kernels as any other.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod axis;
mod call_module;
mod control_flow;
mod conv;
mod dequantize;
mod dynamic_slice;
mod function;
mod gather;
mod identity;
mod known;
mod pad;
mod passes;
mod random_bits;
mod reduce;
mod reduce_precision;
mod reduce_window;
mod scatter;
mod sort;
mod threefry;
mod windows;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("call_module", call_module::OPS),
    ("control_flow", control_flow::OPS),
    ("conv", conv::OPS),
    ("dequantize", dequantize::OPS),
    ("dynamic_slice", dynamic_slice::OPS),
    ("gather", gather::OPS),
    ("identity", identity::OPS),
    ("pad", pad::OPS),
    ("random_bits", random_bits::OPS),
    ("reduce", reduce::OPS),
    ("reduce_precision", reduce_precision::OPS),
    ("reduce_window", reduce_window::OPS),
    ("scatter", scatter::OPS),
    ("sort", sort::OPS),
    ("threefry", threefry::OPS),
];
// codegen:end
