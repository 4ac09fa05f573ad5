//! TensorFlow's math ops: elementwise maths, comparisons, reductions, segments, matrix products, casts.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod argmax;
mod bessel;
mod binary;
mod cast;
mod compare;
mod elementwise_program;
mod float8;
mod fused_elementwise;
mod matmul;
mod matmul_gradient;
mod quantized;
mod reduce;
mod reduce_gradient;
mod scan;
mod segment;
mod segment_grad;
mod segment_gradient;
mod select;
mod special;
mod unary;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("argmax", argmax::OPS),
    ("bessel", bessel::OPS),
    ("binary", binary::OPS),
    ("cast", cast::OPS),
    ("compare", compare::OPS),
    ("fused_elementwise", fused_elementwise::OPS),
    ("matmul", matmul::OPS),
    ("reduce", reduce::OPS),
    ("scan", scan::OPS),
    ("segment", segment::OPS),
    ("segment_grad", segment_grad::OPS),
    ("select", select::OPS),
    ("special", special::OPS),
    ("unary", unary::OPS),
];
// codegen:end
