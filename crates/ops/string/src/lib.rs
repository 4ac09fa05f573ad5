//! TensorFlow's string ops: strings and regular expressions.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod regex;
mod string_format;
mod strings;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("regex", regex::OPS),
    ("string_format", string_format::OPS),
    ("strings", strings::OPS),
];
// codegen:end
