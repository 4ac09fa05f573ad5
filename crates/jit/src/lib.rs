//! The cluster compiler: programs of scalars with loops and conditionals
//! ([`Cluster`](ferroflow_opdef::Cluster)) as machine code, by Cranelift.
//!
//! Entry points: [`compile`], which makes [`Code`], and [`Code::run`].
//!
//! `vector_code.rs` ([`VectorCode`]) compiles programs of elementwise functions, for vectors as wide as the machine has them.
//!
//! `translate.rs` makes Cranelift's intermediate code, `arithmetic.rs` that of single functions,
//! `helpers.rs` has the functions that code calls (those of the kernels, so that results are the
//! same), `draws.rs` those of random numbers, `code.rs` is the memory that code runs in. Pages are writable or executable, never both;
//! code is made here, or read from bytes that a key has sealed (`sealed.rs`); its total size is bounded.
//!
//! Unsafe code: the call of what was compiled, and the arrays that it reads and writes.
//!
//! Does not know: graphs, engines, where programs come from.
#![warn(clippy::missing_errors_doc)]

mod arithmetic;
mod code;
mod draws;
mod helpers;
mod sealed;
mod translate;
mod vector_code;

pub use code::{Array, Code, Exit};
pub use sealed::CodeKey;
pub use translate::compile;
pub use vector_code::VectorCode;
