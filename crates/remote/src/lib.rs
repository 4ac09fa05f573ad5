//! TensorFlow's gRPC services: a stock TensorFlow client drives Ferroflow's sessions.
//!
//! Entry points, in reading order: [`Server`] listens; [`Master`] is what it serves, one method
//! for each of `tensorflow.MasterService`'s. `service.rs` is the only file that knows HTTP paths,
//! `wire.rs` the only one that knows how messages travel.
//!
//! This is the only room with an async runtime. Steps run on threads for blocking work, or right
//! on the runtime's when they are known to be short.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]

mod calls;
mod config;
mod cost_graph;
mod device;
mod master;
mod monitor;
mod server;
mod service;
mod status;
mod step_stats;
mod tensors;
mod wire;

pub use device::{ServerDef, TaskName};
pub use master::{Master, MasterOptions};
pub use server::{Server, ServerOptions, TlsOptions};
