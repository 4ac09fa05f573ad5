//! TensorFlow's array ops: shapes, slices, concatenation, gathers and scatters, padding, diagonals, fake quantization.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod check_numerics;
mod concat;
mod concat_gradient;
mod diag;
mod diag_gradient;
mod fake_quant;
mod fill;
mod gather;
mod identity;
mod pad;
mod quantize;
mod scatter;
mod shape_ops;
mod slice;
mod space_batch;
mod strided_spec;
mod transpose;
mod unique;
mod unravel;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("check_numerics", check_numerics::OPS),
    ("concat", concat::OPS),
    ("diag", diag::OPS),
    ("fake_quant", fake_quant::OPS),
    ("fill", fill::OPS),
    ("gather", gather::OPS),
    ("identity", identity::OPS),
    ("pad", pad::OPS),
    ("quantize", quantize::OPS),
    ("scatter", scatter::OPS),
    ("shape_ops", shape_ops::OPS),
    ("slice", slice::OPS),
    ("space_batch", space_batch::OPS),
    ("transpose", transpose::OPS),
    ("unique", unique::OPS),
    ("unravel", unravel::OPS),
];
// codegen:end
