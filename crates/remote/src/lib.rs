//! TensorFlow's gRPC services, for unmodified TensorFlow clients.
//!
//! Entry points, in reading order: [`Server`] listens; [`Master`] has one method for each method of
//! `tensorflow.MasterService`, [`Worker`] one for each of `tensorflow.WorkerService`'s. Only `service.rs` knows HTTP paths, only `wire.rs` the encoding of messages.
//!
//! This is the only room with an async runtime. Steps run on its blocking threads; steps known to be short
//! run on its workers.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod calls;
mod cluster;
mod config;
mod cost_graph;
mod device;
mod eager;
mod eager_context;
mod master;
mod master_session;
mod monitor;
mod peers;
mod recent_requests;
mod rendezvous;
mod server;
mod service;
mod status;
mod step_stats;
mod task;
mod tensors;
mod wire;
mod worker;

pub use device::{ServerDef, TaskName};
pub use eager::EagerService;
pub use master::{Master, MasterOptions};
pub use server::{Server, ServerOptions, TlsOptions};
pub use step_stats::StepTrace;
pub use worker::Worker;
