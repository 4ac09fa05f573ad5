//! The integration tests of the crate, in one program: each would contain the whole engine.

mod lifecycle;
mod limits;
mod mangled;
mod operation;
mod requests;
mod security;
mod support;
mod traces;
