//! TensorFlow's lookup ops: lookup tables.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod frozen_table;
mod lookup_table;
mod lookup_table_ref;
mod table_file;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("frozen_table", frozen_table::OPS),
    ("lookup_table", lookup_table::OPS),
    ("lookup_table_ref", lookup_table_ref::OPS),
];
// codegen:end
