//! TensorFlow's logging ops: assertions, printing, summaries.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod logging;
mod media;
mod summaries;
mod summary_database;
mod summary_tables;
mod summary_writer;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("logging", logging::OPS),
    ("media", media::OPS),
    ("summaries", summaries::OPS),
    ("summary_database", summary_database::OPS),
    ("summary_writer", summary_writer::OPS),
];
// codegen:end
