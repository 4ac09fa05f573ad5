//! TensorFlow's image ops: image codecs, resizing, crops.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod codecs;
mod crop_and_resize;
mod crop_and_resize_grad;
mod resize;
mod resize_grad;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("codecs", codecs::OPS),
    ("crop_and_resize", crop_and_resize::OPS),
    ("crop_and_resize_grad", crop_and_resize_grad::OPS),
    ("resize", resize::OPS),
    ("resize_grad", resize_grad::OPS),
];
// codegen:end
