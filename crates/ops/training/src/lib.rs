//! TensorFlow's training ops: optimizers.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod optimizers;
mod optimizers_product;
mod optimizers_ref;
mod optimizers_sparse;
mod rules;
mod sdca;
mod sdca_examples;
mod sdca_losses;
mod update;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("optimizers", optimizers::OPS),
    ("optimizers_product", optimizers_product::OPS),
    ("optimizers_ref", optimizers_ref::OPS),
    ("optimizers_sparse", optimizers_sparse::OPS),
    ("sdca", sdca::OPS),
];
// codegen:end
