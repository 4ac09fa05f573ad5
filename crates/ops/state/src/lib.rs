//! TensorFlow's state ops: variables by handle and by reference.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod stub_resources;
mod temporary_variables;
mod variables;
mod variables_ref;
mod variables_scatter;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("stub_resources", stub_resources::OPS),
    ("temporary_variables", temporary_variables::OPS),
    ("variables", variables::OPS),
    ("variables_ref", variables_ref::OPS),
    ("variables_scatter", variables_scatter::OPS),
];
// codegen:end
