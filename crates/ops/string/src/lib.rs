//! TensorFlow's string ops: strings and regular expressions.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod as_string;
mod base64;
mod charset;
mod hash_bucket;
mod join;
mod ngrams;
mod packer;
mod printf;
mod re2;
mod regex;
mod split;
mod string_format;
mod strings;
mod substr;
mod unicode;
mod unicode_script;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("as_string", as_string::OPS),
    ("base64", base64::OPS),
    ("hash_bucket", hash_bucket::OPS),
    ("join", join::OPS),
    ("ngrams", ngrams::OPS),
    ("regex", regex::OPS),
    ("split", split::OPS),
    ("string_format", string_format::OPS),
    ("strings", strings::OPS),
    ("substr", substr::OPS),
    ("unicode", unicode::OPS),
    ("unicode_script", unicode_script::OPS),
];
// codegen:end
