//! The integration tests of the crate, in one program: each would contain the whole engine.

mod client_sessions;
mod cluster;
mod collectives;
mod configurations;
mod coordination;
mod eager;
mod eager_client;
mod foreign;
mod links;
mod mangled;
mod messages;
mod one_server;
mod partial_runs;
mod ring;
mod service;
mod tasks;
mod world;
