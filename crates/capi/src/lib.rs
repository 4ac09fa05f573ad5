//! TensorFlow's C API: what `libtensorflow.so.2` exports.
//!
//! Wiring only: each function converts its arguments and calls the rooms below. Handles are boxes whose
//! address the client keeps; a delete function takes NULL. No panic crosses the border: it becomes
//! an INTERNAL status ([`guard`]).
//!
//! The contract of each function is that of TensorFlow's header (`tensorflow/c/c_api.h` and those it
//! includes): pointers are valid for their documented use, and handles were made by this library and not
//! deleted.
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "names are those of TensorFlow's headers"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of all functions is stated above"
)]

mod buffer;
mod checkpoint_reader;
mod constant;
mod deprecated_session;
mod description;
mod eager;
mod env;
mod experimental;
mod filesystem;
mod function;
mod function_text;
mod graph;
mod guard;
mod handle_shapes;
mod import;
mod kernels;
mod op_spec;
mod operation;
mod operation_attrs;
mod ops;
mod partial_run;
mod placement_log;
mod registries;
mod run_metadata;
mod server;
mod session;
mod session_options;
mod status;
mod tensor;
#[cfg(test)]
mod tests;
mod tstring;
mod unsupported;
mod while_loop;

pub use buffer::*;
pub use checkpoint_reader::*;
pub use constant::*;
pub use deprecated_session::*;
pub use description::*;
pub use eager::*;
pub use env::*;
pub use experimental::*;
pub use filesystem::*;
pub use function::*;
pub use graph::*;
pub use handle_shapes::*;
pub use import::*;
pub use kernels::*;
pub use operation::*;
pub use operation_attrs::*;
pub use ops::*;
pub use partial_run::*;
pub use registries::*;
pub use server::*;
pub use session::*;
pub use session_options::*;
pub use status::*;
pub use tensor::*;
pub use tstring::*;
pub use unsupported::*;
pub use while_loop::*;

use ferroflow_runtime::Pool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

static POOL: OnceLock<Arc<Pool>> = OnceLock::new();

/// The threads of all sessions and eager contexts that do not ask for some of their own.
pub(crate) fn shared_pool() -> Arc<Pool> {
    let make = || {
        // SAFETY: the function may run at any time; a failure only leaves threads to the end of the process.
        unsafe { libc::atexit(end_pool) };
        Arc::new(Pool::new(Pool::available_threads()))
    };
    POOL.get_or_init(make).clone()
}

/// Ends idle threads before the library is unloaded or the process ends, so that leak checkers find nothing of theirs.
extern "C" fn end_pool() {
    guard::guard_plain((), || {
        if let Some(pool) = POOL.get() {
            pool.end_idle(Duration::from_millis(100));
        }
    });
}
