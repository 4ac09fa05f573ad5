//! TensorFlow's random ops: random numbers, generators, candidate sampling.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod candidate_sampling;
mod distributions;
mod draws;
mod generator;
mod parameterized;
mod random_ops;
mod range_sampler;
mod stateless;
mod truncated;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("candidate_sampling", candidate_sampling::OPS),
    ("generator", generator::OPS),
    ("parameterized", parameterized::OPS),
    ("random_ops", random_ops::OPS),
    ("stateless", stateless::OPS),
];
// codegen:end
