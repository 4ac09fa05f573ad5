//! TensorFlow's array ops: shapes, slices, concatenation, gathers and scatters, padding, diagonals,
//! fake quantization.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod batch_matrix;
mod bitcast;
mod broadcast;
mod check_numerics;
mod concat;
mod constant;
mod diag;
mod edit_distance;
mod extract_image_patches;
mod extract_volume_patches;
mod fake_quant;
mod fill;
mod fingerprint;
mod gather;
mod hash_key;
mod identity;
mod inplace;
mod invert_permutation;
mod list_diff;
mod matrix_band_part;
mod matrix_diag;
mod mirror_pad;
mod one_hot;
mod pack;
mod pad;
mod placeholder;
mod quantize;
mod quantize_and_dequantize;
mod quantized_concat;
mod quantized_instance_norm;
mod reshape;
mod reverse;
mod roll;
mod scatter_nd;
mod searchsorted;
mod shape_ops;
mod slice;
mod space_batch;
mod split;
mod strided_slice;
mod tile;
mod transpose;
mod unique;
mod unravel_index;
mod where_op;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("batch_matrix", batch_matrix::OPS),
    ("bitcast", bitcast::OPS),
    ("broadcast", broadcast::OPS),
    ("check_numerics", check_numerics::OPS),
    ("concat", concat::OPS),
    ("constant", constant::OPS),
    ("diag", diag::OPS),
    ("edit_distance", edit_distance::OPS),
    ("extract_image_patches", extract_image_patches::OPS),
    ("extract_volume_patches", extract_volume_patches::OPS),
    ("fake_quant", fake_quant::OPS),
    ("fill", fill::OPS),
    ("fingerprint", fingerprint::OPS),
    ("gather", gather::OPS),
    ("identity", identity::OPS),
    ("inplace", inplace::OPS),
    ("invert_permutation", invert_permutation::OPS),
    ("list_diff", list_diff::OPS),
    ("matrix_band_part", matrix_band_part::OPS),
    ("matrix_diag", matrix_diag::OPS),
    ("mirror_pad", mirror_pad::OPS),
    ("one_hot", one_hot::OPS),
    ("pack", pack::OPS),
    ("pad", pad::OPS),
    ("placeholder", placeholder::OPS),
    ("quantize", quantize::OPS),
    ("quantize_and_dequantize", quantize_and_dequantize::OPS),
    ("quantized_concat", quantized_concat::OPS),
    ("quantized_instance_norm", quantized_instance_norm::OPS),
    ("reshape", reshape::OPS),
    ("reverse", reverse::OPS),
    ("roll", roll::OPS),
    ("scatter_nd", scatter_nd::OPS),
    ("searchsorted", searchsorted::OPS),
    ("shape_ops", shape_ops::OPS),
    ("slice", slice::OPS),
    ("space_batch", space_batch::OPS),
    ("split", split::OPS),
    ("strided_slice", strided_slice::OPS),
    ("tile", tile::OPS),
    ("transpose", transpose::OPS),
    ("unique", unique::OPS),
    ("unravel_index", unravel_index::OPS),
    ("where_op", where_op::OPS),
];
// codegen:end
