//! What gRPC services share.
//!
//! Entry points, in reading order: [`serve_connection`] serves a client, [`answer`] runs one call with its deadline,
//! [`unary`] reads its message and writes the response, [`blocking`] runs a handler on a thread that may block, [`spawn`]
//! starts a task, and [`Calls`] counts the calls in progress, for which [`finish`] waits.
//!
//! Does not know: services, sessions, models.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod calls;
mod connection;
mod deadline;
mod pem;
mod status;
mod tasks;
#[cfg(feature = "tls")]
mod tls;
mod unary;
mod wire;

pub use calls::{Calls, MAX_STEPS, UnderWay, finish};
pub use connection::{Answerer, BoxedStream, ByteStream, serve_connection};
pub use deadline::{client_timeout, deadline_exceeded};
pub use pem::{TlsOptions, TlsPem};
pub use status::{from_tonic, message, to_tonic};
pub use tasks::{block_on, spawn};
#[cfg(feature = "tls")]
pub use tls::{
    ServerName, TlsAcceptor, TlsConnector, secured, server_name, tls_acceptor, tls_connector,
};
pub use unary::{
    Boxed, CancelOnDrop, FrameHandler, HttpRequest, HttpResponse, answer, beside, blocking,
    measured, unary, unary_frames, unknown,
};
pub use wire::{AnyMessage, Encodable, Frames, parse};
