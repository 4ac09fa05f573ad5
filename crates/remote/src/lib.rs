//! TensorFlow's gRPC services, for unmodified TensorFlow clients.
//!
//! Entry points, in reading order: [`Server`] listens; [`Master`] has one method for each method of
//! `tensorflow.MasterService`, [`Worker`] one for each of `tensorflow.WorkerService`'s, [`EagerService`] one
//! for each of `tensorflow.eager.EagerService`'s. [`EagerCluster`] is the client of that one, [`GrpcSession`] that of
//! a master. Only `service.rs` knows HTTP paths.
//!
//! Steps run on blocking threads; steps known to be short
//! run where the request arrived.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod cluster;
mod cluster_graph;
mod collectives;
mod config;
mod coordination;
mod cost_graph;
mod device;
mod eager;
mod eager_client;
mod eager_context;
mod eager_outputs;
mod eager_transfers;
mod environment;
mod function_tasks;
mod grpc_session;
mod handles;
mod link;
mod local_cluster;
mod master;
mod master_session;
mod master_steps;
mod monitor;
#[cfg(feature = "mpi")]
mod mpi;
mod node_names;
mod packed_handles;
mod partial_steps;
mod peers;
mod recent_requests;
mod rendezvous;
mod security;
mod server;
mod service;
mod step_stats;
mod task;
mod tensors;
mod transport;
mod worker;
mod worker_session;
mod worker_steps;

pub use collectives::carrier::{Buffer, Carrier, Expected, Inbox};
pub use config::compile_options;
pub use device::{ServerDef, ServerDefaults, TaskName};
pub use eager::EagerService;
pub use eager_client::{EagerCluster, JoinOptions, RemoteCall, RemoteInput, RemoteTensor};
pub use environment::ReadVariable;
pub use ferroflow_rpc::TlsOptions;
pub use grpc_session::{GrpcSession, GrpcStep};
pub use local_cluster::LocalCluster;
pub use master::{Master, MasterOptions};
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use security::Security;
pub use server::{GRACE, Server, ServerOptions};
pub use step_stats::StepTrace;
pub use transport::Traffic;
pub use worker::Worker;
