//! Threads: the work-stealing pool, `parallel_for`, cancellation.
//!
//! Entry points, in reading order: [`Parallelism`] and [`parallel_for`], [`par_chunks_mut`].
//!
//! Does not know: tensors, ops, graphs.

mod cancel;
mod chunks;
mod parallel;

pub use cancel::CancelToken;
pub use chunks::par_chunks_mut;
pub use parallel::{Inline, Parallelism, parallel_for};
