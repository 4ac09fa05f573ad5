//! TensorFlow's random ops: random numbers, generators, candidate sampling.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod candidate_sampling;
mod draws;
mod generator;
mod multinomial;
mod parameterized;
mod parameterized_truncated_normal;
mod random_binomial;
mod random_gamma;
mod random_index_shuffle;
mod random_ops;
mod random_poisson;
mod random_shuffle;
mod range_sampler;
mod stateless;
mod stochastic_cast;
mod truncated;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("candidate_sampling", candidate_sampling::OPS),
    ("generator", generator::OPS),
    ("multinomial", multinomial::OPS),
    ("parameterized_truncated_normal", parameterized_truncated_normal::OPS),
    ("random_binomial", random_binomial::OPS),
    ("random_gamma", random_gamma::OPS),
    ("random_index_shuffle", random_index_shuffle::OPS),
    ("random_ops", random_ops::OPS),
    ("random_poisson", random_poisson::OPS),
    ("random_shuffle", random_shuffle::OPS),
    ("stateless", stateless::OPS),
    ("stochastic_cast", stochastic_cast::OPS),
];
// codegen:end
