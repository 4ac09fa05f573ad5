//! TensorFlow Serving's API over sessions: `ferroflow serve`.
//!
//! Entry points, in reading order: [`Server`] listens; [`Front`] has the methods of both protocols; [`ModelManager`] loads
//! and replaces versions ([`Servable`]); [`Batcher`] merges requests. Only `grpc.rs` and `rest.rs` know paths, only
//! `json/` the text of the REST API.
//!
//! Does not know: ops, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod answer;
mod batching;
mod cache;
pub mod config;
mod connections;
mod front;
mod grpc;
mod http_server;
mod inference;
pub mod json;
mod loads;
mod manager;
mod metrics;
mod page;
mod reflection;
mod request_log;
mod rest;
mod servable;
mod server;
mod share;
mod source;
mod step;
mod trace;
mod trace_http;
mod warmup;

pub use answer::Answer;
pub use batching::{Batcher, Parameters, Waiting};
pub use config::{ModelSource, RequestLogConfig, VersionPolicy};
pub use ferroflow_rpc::{Calls, TlsOptions, TlsPem};
pub use front::{Entry, Front, FrontOptions};
pub use manager::{ManagerOptions, ModelManager, VersionStatus};
pub use metrics::Metrics;
pub use rest::{Request, Response, RestOptions};
pub use servable::{LoadOptions, PREDICT, Program, Servable};
pub use server::{Server, ServerOptions};
pub use step::{Given, Step};
pub use trace::{TraceOptions, TraceProtocol};
