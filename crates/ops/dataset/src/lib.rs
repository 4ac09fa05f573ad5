//! TensorFlow's dataset ops: datasets, iterators, optionals.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod datasets;
mod iterator;
mod optional;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("datasets", datasets::OPS),
    ("iterator", iterator::OPS),
    ("optional", optional::OPS),
];
// codegen:end
