//! Engines: `dataflow` runs plans, `async` and `sync` run host programs.
//!
//! Entry points: [`Executor`], [`RunArgs`], [`TraceSink`], [`MemoryUse`]; [`host::Program`].
//!
//! Invariants: a step's state is touched by one thread at a time, the one that holds its lock;
//! a node runs once in a step; an error ends the step and names its node.
//!
//! Does not know: graphs, passes, ops.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod calls;
mod control;
mod dataflow;
mod deadlock;
pub mod host;
mod kernel;
mod loops;
mod memory;
mod offloaded;
mod propagate;
mod schedule;
mod send_recv;
mod state;
mod trace;
mod while_in_place;

pub use dataflow::Executor;
pub use kernel::{NodeRunner, RunArgs};
pub use memory::{BlockUse, MemoryUse, SharedOutput};
pub use trace::{DeadNode, NodeSpan, StreamSpan, TraceSink, TracedTensor};
