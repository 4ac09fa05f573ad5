//! Clusters of contexts: there is this process only.

use super::context::TFE_Context;
use crate::TF_Status;
use crate::guard::{guard, list, shared};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_model::proto::ServerDef;
use prost::Message;
use std::ffi::{c_char, c_int, c_void};

/// Checks the `ServerDef` of a cluster of contexts.
///
/// # Safety
/// The pointers are NULL or valid.
unsafe fn check(
    function: &str,
    ctx: *mut TFE_Context,
    proto: *const c_void,
    proto_len: usize,
) -> Result<()> {
    // SAFETY: as this function's.
    let bytes = unsafe {
        shared(ctx)?;
        list(proto.cast::<u8>(), proto_len)
    };
    let server = ServerDef::decode(bytes)
        .map_err(|_| invalid_argument!("Invalid tensorflow.ServerDef protocol buffer"))?;
    let jobs = server.cluster.iter().flat_map(|cluster| &cluster.job);
    match jobs.map(|job| job.tasks.len()).sum::<usize>() {
        0 | 1 => Ok(()),
        n => Err(unimplemented_error!(
            "{function}: eager contexts do not reach the {n} tasks of a cluster; run graphs by sessions"
        )),
    }
}

/// Declares functions that join a cluster.
macro_rules! cluster {
    ($($(#[$doc:meta])* fn $name:ident($($before:ident: $before_ty:ty),*; $($after:ident: $after_ty:ty),*);)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                ctx: *mut TFE_Context,
                _keep_alive_secs: c_int,
                proto: *const c_void,
                proto_len: usize,
                $($before: $before_ty,)*
                status: *mut TF_Status,
                $($after: $after_ty,)*
            ) {
                // SAFETY: the contract of the header.
                guard(status, (), || unsafe {
                    check(stringify!($name), ctx, proto, proto_len)
                });
            }
        )*
    };
}

cluster! {
    /// Joins a cluster, which must be this process.
    fn TFE_ContextSetServerDef(;);
    /// As [`TFE_ContextSetServerDef`].
    fn TFE_ContextSetServerDefWithTimeout(
        _init_timeout_in_ms: i64; _clear_existing_contexts: bool);
    /// As [`TFE_ContextSetServerDef`].
    fn TFE_ContextSetServerDefWithTimeoutAndRetries(
        _init_timeout_in_ms: i64, _retries: c_int; _clear_existing_contexts: bool);
    /// As [`TFE_ContextSetServerDef`].
    fn TFE_ContextUpdateServerDef(;);
    /// As [`TFE_ContextSetServerDef`].
    fn TFE_ContextUpdateServerDefWithTimeout(_init_timeout_in_ms: i64;);
    /// As [`TFE_ContextSetServerDef`].
    fn TFE_InitializeLocalOnlyContext(;);
}

/// Returns whether a task answers: this one does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextCheckAlive(
    ctx: *mut TFE_Context,
    _worker_name: *const c_char,
    status: *mut TF_Status,
) -> bool {
    guard(status, false, || {
        // SAFETY: the contract of the header.
        unsafe { shared(ctx) }?;
        Err(unimplemented_error!(
            "TFE_ContextCheckAlive: eager contexts do not reach other tasks"
        ))
    })
}
