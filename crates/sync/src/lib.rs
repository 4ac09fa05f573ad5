//! Threads: the work-stealing pool, `parallel_for`, cancellation, asynchronous values.
//!
//! Entry points, in reading order: [`Parallelism`] and [`parallel_for`], [`par_chunks_mut`],
//! [`parallel_for_async`], [`Pool`], [`CancelToken`], [`Timer`], [`Mailbox`], [`Exchange`] and [`StepTable`]; for the host
//! runtime [`AsyncValue`] with [`Promise`], and [`WorkQueue`].
//!
//! Does not know: tensors, ops, graphs.

#![warn(clippy::missing_errors_doc)]

mod async_value;
mod atomic;
mod blocking;
mod cancel;
mod chunks;
mod denormals;
mod depth;
mod deque;
mod exchange;
mod mailbox;
mod parallel;
mod pin;
mod pool;
mod sleep;
mod spawner;
mod step_table;
mod timer;
mod work_queue;

pub use async_value::{
    AsyncValue, AsyncValueRef, Chain, Constructed, Diagnostic, IndirectPromise, Location, Promise,
    Ready, RefBatch, ValueState,
};
pub use cancel::{CancelToken, Registration};
pub use chunks::par_chunks_mut;
pub use denormals::FlushDenormals;
pub use depth::DepthGuard;
#[cfg(loom)]
pub use deque::{Deque, Inbox, Item, Steal, Stealer};
pub use exchange::{Exchange, Received};
pub use mailbox::Mailbox;
pub use parallel::{BlockSizes, Inline, Parallelism, parallel_for, parallel_for_async};
pub use pool::{Pool, StandIn};
#[cfg(loom)]
pub use sleep::{Outstanding, Sleepers};
pub use spawner::Spawner;
pub use step_table::{Step, StepTable};
pub use timer::Timer;
pub use work_queue::{MultiThreadedWorkQueue, SingleThreadedWorkQueue, Task, WorkQueue};
