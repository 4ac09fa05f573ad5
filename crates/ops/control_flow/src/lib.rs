//! TensorFlow's control flow ops: switches, merges, loops, functional control flow and calls.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod control_flow;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("control_flow", control_flow::OPS),
];
// codegen:end
