//! TensorFlow's gRPC services, for unmodified TensorFlow clients.
//!
//! Entry points, in reading order: [`Server`] listens; [`Master`] has one method for each method of
//! `tensorflow.MasterService`. Only `service.rs` knows HTTP paths, only `wire.rs` the encoding of messages.
//!
//! This is the only room with an async runtime. Steps run on its blocking threads; steps known to be short
//! run on its workers.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod calls;
mod config;
mod cost_graph;
mod device;
mod master;
mod master_session;
mod monitor;
mod recent_requests;
mod server;
mod service;
mod status;
mod step_stats;
mod tensors;
mod wire;

pub use device::{ServerDef, TaskName};
pub use master::{Master, MasterOptions};
pub use server::{Server, ServerOptions, TlsOptions};
pub use step_stats::StepTrace;
