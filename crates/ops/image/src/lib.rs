//! TensorFlow's image ops: image codecs, resizing, crops, colors, transforms, box suppression.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod animated;
mod codecs;
mod color;
mod combined_non_max_suppression;
mod crop_and_resize;
mod crop_and_resize_grad;
mod distorted_box;
mod draw_bounding_boxes;
mod encode_jpeg;
mod glimpse;
mod jpeg;
mod jpeg_writer;
mod jxl;
mod non_max_suppression;
mod png;
mod projective_transform;
mod quantized_resize;
mod random_crop;
mod resize;
mod resize_grad;
mod scale_and_translate;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("codecs", codecs::OPS),
    ("color", color::OPS),
    ("combined_non_max_suppression", combined_non_max_suppression::OPS),
    ("crop_and_resize", crop_and_resize::OPS),
    ("crop_and_resize_grad", crop_and_resize_grad::OPS),
    ("distorted_box", distorted_box::OPS),
    ("draw_bounding_boxes", draw_bounding_boxes::OPS),
    ("encode_jpeg", encode_jpeg::OPS),
    ("glimpse", glimpse::OPS),
    ("non_max_suppression", non_max_suppression::OPS),
    ("png", png::OPS),
    ("projective_transform", projective_transform::OPS),
    ("quantized_resize", quantized_resize::OPS),
    ("random_crop", random_crop::OPS),
    ("resize", resize::OPS),
    ("resize_grad", resize_grad::OPS),
    ("scale_and_translate", scale_and_translate::OPS),
];
// codegen:end
