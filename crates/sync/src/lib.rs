//! Threads: the work-stealing pool, `parallel_for`, cancellation.
//!
//! Entry points, in reading order: [`Parallelism`] and [`parallel_for`], [`par_chunks_mut`],
//! [`Pool`], [`CancelToken`].
//!
//! Does not know: tensors, ops, graphs.

mod cancel;
mod chunks;
mod parallel;
mod pool;
mod timer;

pub use cancel::{CancelToken, Registration};
pub use chunks::par_chunks_mut;
pub use parallel::{Inline, Parallelism, parallel_for};
pub use pool::Pool;
