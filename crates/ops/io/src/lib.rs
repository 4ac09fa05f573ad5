//! TensorFlow's io ops: files, readers, saving and restoring checkpoints.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod file_systems;
mod files;
mod lmdb_reader;
mod mersenne_twister;
mod readers;
mod record_input;
mod remap;
mod restore;
mod save;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("file_systems", file_systems::OPS),
    ("files", files::OPS),
    ("lmdb_reader", lmdb_reader::OPS),
    ("readers", readers::OPS),
    ("record_input", record_input::OPS),
    ("remap", remap::OPS),
    ("restore", restore::OPS),
    ("save", save::OPS),
];
// codegen:end
