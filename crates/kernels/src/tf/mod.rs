//! TensorFlow's ops, a file per op or family. `cargo xtask codegen` keeps the list below in step
//! with the folder.

// codegen:begin
pub mod identity;

/// The ops of every file in this folder.
#[rustfmt::skip]
pub const ALL: &[&[ferroflow_opdef::Op]] = &[
    identity::OPS,
];
// codegen:end
