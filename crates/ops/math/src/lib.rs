//! TensorFlow's math ops: elementwise math, comparisons, reductions, segments, matrix products,
//! casts.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod add_n;
mod argmax;
mod batch_matmul;
mod bessel;
mod binary;
mod bincount;
mod cast;
mod clip;
mod compare;
mod cross;
mod elementwise_program;
mod float8;
mod fused_elementwise;
mod histogram;
mod int32;
mod matmul;
mod near;
mod near_pair;
mod quantized;
mod quantized_arithmetic;
mod range;
mod reduce;
mod requantize;
mod scan;
mod segment;
mod select;
mod sobol;
mod sparse_mat_mul;
mod sparse_segment;
mod sparse_segment_grad;
mod special;
mod unary;
mod unary_grad;
mod unary_vectors;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("add_n", add_n::OPS),
    ("argmax", argmax::OPS),
    ("batch_matmul", batch_matmul::OPS),
    ("bessel", bessel::OPS),
    ("binary", binary::OPS),
    ("bincount", bincount::OPS),
    ("cast", cast::OPS),
    ("clip", clip::OPS),
    ("compare", compare::OPS),
    ("cross", cross::OPS),
    ("fused_elementwise", fused_elementwise::OPS),
    ("histogram", histogram::OPS),
    ("matmul", matmul::OPS),
    ("quantized_arithmetic", quantized_arithmetic::OPS),
    ("range", range::OPS),
    ("reduce", reduce::OPS),
    ("requantize", requantize::OPS),
    ("scan", scan::OPS),
    ("segment", segment::OPS),
    ("select", select::OPS),
    ("sobol", sobol::OPS),
    ("sparse_mat_mul", sparse_mat_mul::OPS),
    ("sparse_segment", sparse_segment::OPS),
    ("sparse_segment_grad", sparse_segment_grad::OPS),
    ("special", special::OPS),
    ("unary", unary::OPS),
    ("unary_grad", unary_grad::OPS),
];
// codegen:end
