//! TensorFlow's io ops: files, readers, saving and restoring checkpoints.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod files;
mod readers;
mod remap;
mod restore;
mod save;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("files", files::OPS),
    ("readers", readers::OPS),
    ("remap", remap::OPS),
    ("restore", restore::OPS),
    ("save", save::OPS),
];
// codegen:end
