//! SIMD primitives over plain slices: matrix products, convolutions, pooling, elementwise
//! functions, row operations and transposes.
//!
//! Entry points, in reading order: [`gemm`], [`conv`], [`depthwise`], [`pool`], [`math`],
//! [`rows`], [`transpose`]. Every algorithm is written once against the vector traits of
//! `vector.rs` and compiled for each instruction set of [`Isa`]; `table.rs` picks one at run
//! time.
//!
//! [`int8`] has the products and convolutions of 8-bit codes, with the steps that follow them.
//!
//! Also here: [`columns`] (of matrices, as rows), [`lanes`] (eight integers), [`philox`] and
//! [`threefry`] (random bits), [`special`] and [`special_gamma`] (special functions), [`special_vectors`],
//! [`special_blocks`], [`bessel`] and [`special_slices`] (those in loops), [`triples`] (pixels of three bytes),
//! [`vector_program`] (the functions of [`math`] as instructions, for a compiler).
//!
//! Does not know: tensors, ops, graphs. Every exported function is safe and checks the sizes it is
//! given.

mod aligned;
mod amx;
pub mod batch_norm;
pub mod bessel;
pub mod bf16;
pub mod columns;
pub mod conv;
pub mod depthwise;
pub mod double;
pub mod each;
mod elementwise;
mod epilogue;
mod functions;
pub mod gemm;
pub mod halves;
pub mod int8;
pub mod int_gemm;
mod isa;
pub mod lanes;
pub mod math;
pub mod philox;
pub mod pool;
pub mod rows;
pub mod scalar;
pub mod special;
pub mod special_blocks;
pub mod special_gamma;
pub mod special_slices;
pub mod special_vectors;
mod table;
pub mod threefry;
pub mod transpose;
pub mod triples;
pub mod truncate;
mod vector;
pub mod vector_program;

pub use aligned::as_constants;
pub use isa::{Isa, vectorized};
