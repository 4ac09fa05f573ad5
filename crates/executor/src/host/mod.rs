//! Engines of host programs: `async` over values that come later, and `sync`.
//!
//! Entry points: [`Program`], a file whose kernels are found; [`HostExecutor`], a compiled model.

mod engine;
mod nodes;
mod program;
mod registers;
mod shared;
mod streams;
mod sync_engine;

pub use nodes::HostExecutor;
pub use program::Program;
