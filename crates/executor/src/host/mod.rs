//! Engines of host programs: `async` over values that come later, and `sync`.
//!
//! Entry point: [`Program`], a file whose kernels are found.

mod costs;
mod engine;
mod program;
mod registers;
mod shared;
mod streams;
mod sync_engine;

pub use program::Program;
