//! TensorFlow's control flow ops: switches, merges, loops, functional control flow and calls.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod control_flow;
mod function;
mod functional;
mod no_op;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("control_flow", control_flow::OPS),
    ("function", function::OPS),
    ("functional", functional::OPS),
    ("no_op", no_op::OPS),
];
// codegen:end
