//! Engines: they run plans. One engine so far, `dataflow`.
//!
//! Entry points: [`Executor`], [`TraceSink`].
//!
//! Invariants: a step's state is touched by one thread at a time, the one that holds its lock;
//! a node runs once in a step; an error ends the step and names its node.
//!
//! Does not know: graphs, passes, ops.
#![forbid(unsafe_code)]

mod calls;
mod control;
mod dataflow;
mod detached;
pub mod host;
mod loops;
mod state;
mod stuck;
mod trace;

pub use dataflow::Executor;
pub use trace::{DeadNode, NodeSpan, TraceSink, TracedTensor};
