//! The integration tests of the crate, in one program: each would contain the whole engine.

mod book;
mod cli;
mod cluster;
mod host_tools;
mod libraries;
mod machine_code;
mod serving_examples;
