//! [`Batcher`]: merges requests of the same signature into batches.
//!
//! With TensorFlow Serving's parameters, a batch is closed when it is full or when its first request has waited for
//! the timeout. In adaptive mode it is closed as soon as a thread is free, so that requests wait, and batches grow,
//! only while the processors are busy, and only if rows together take less time than alone ([`Gain`]).

mod gain;
mod merge;
mod queue;

pub(crate) use gain::Gain;
pub use queue::{Batcher, Parameters, Waiting};
