//! TensorFlow's gRPC services, for unmodified TensorFlow clients.
//!
//! Entry points, in reading order: [`Server`] listens; [`Master`] has one method for each method of
//! `tensorflow.MasterService`. Only `service.rs` knows HTTP paths.
//!
//! Steps run on blocking threads; steps known to be short
//! run where the request arrived.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod config;
mod cost_graph;
mod device;
mod master;
mod master_session;
mod monitor;
mod recent_requests;
mod server;
mod service;
mod step_stats;
mod tensors;

pub use device::{ServerDef, TaskName};
pub use ferroflow_rpc::TlsOptions;
pub use master::{Master, MasterOptions};
pub use server::{Server, ServerOptions};
