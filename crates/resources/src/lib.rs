//! State of graphs that outlives a step, and the functions by which ops share it.
//!
//! Entry points, in reading order: [`resource`] (handles and variables), [`queue`], [`waiting`], [`table`],
//! [`reader`], [`dataset`], [`rendezvous`], [`collective`].
//!
//! Does not know: which ops exist, graphs, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod collective;
pub mod dataset;
pub mod file_system;
mod heap;
pub mod log;
pub mod queue;
mod queue_batch;
pub mod reader;
pub mod rendezvous;
pub mod resource;
pub mod sparse_tensors;
pub mod sqlite;
pub mod string_handle;
pub mod table;
mod table_buckets;
mod table_index;
pub mod waiting;
