//! TensorFlow's lookup ops: lookup tables.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod table_file;
mod tables;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("tables", tables::OPS),
];
// codegen:end
