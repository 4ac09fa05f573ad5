//! TensorFlow's ops, a file per op or family. `cargo xtask codegen` keeps the list below in step
//! with the folder.

// codegen:begin
pub mod concat;
pub mod fill;
pub mod identity;
pub mod pad;
pub mod shape_ops;
pub mod slice;
pub mod transpose;

/// The ops of every file in this folder.
#[rustfmt::skip]
pub const ALL: &[&[ferroflow_opdef::Op]] = &[
    concat::OPS,
    fill::OPS,
    identity::OPS,
    pad::OPS,
    shape_ops::OPS,
    slice::OPS,
    transpose::OPS,
];
// codegen:end
