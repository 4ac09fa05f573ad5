//! TensorFlow's parsing ops: CSV, tf.Example, raw bytes.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod decode_csv;
mod parse_example;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("decode_csv", decode_csv::OPS),
    ("parse_example", parse_example::OPS),
];
// codegen:end
