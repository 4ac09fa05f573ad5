//! TensorFlow's state ops: variables by handle and by reference.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod mutex;
mod resource_scatter;
mod resource_variable;
mod scatter_nd;
mod stub_resources;
mod temporary_variables;
mod variables_ref;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("mutex", mutex::OPS),
    ("resource_scatter", resource_scatter::OPS),
    ("resource_variable", resource_variable::OPS),
    ("scatter_nd", scatter_nd::OPS),
    ("stub_resources", stub_resources::OPS),
    ("temporary_variables", temporary_variables::OPS),
    ("variables_ref", variables_ref::OPS),
];
// codegen:end
