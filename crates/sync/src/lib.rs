//! Threads: the work-stealing pool, `parallel_for`, cancellation.
//!
//! Entry points, in reading order: [`Parallelism`] and [`parallel_for`], [`par_chunks_mut`].
//!
//! Does not know: tensors, ops, graphs.

mod chunks;
mod parallel;

pub use chunks::par_chunks_mut;
pub use parallel::{Inline, Parallelism, parallel_for};
