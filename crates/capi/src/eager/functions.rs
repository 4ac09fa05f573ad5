//! Functions of contexts.

use super::context::TFE_Context;
use crate::guard::{guard, guard_plain, handle, list, shared, text};
use crate::{TF_Buffer, TF_Function, TF_Status};
use ferroflow_base::{invalid_argument, not_found};
use ferroflow_model::proto::FunctionDef;
use prost::Message;
use std::ffi::{c_char, c_uchar};
use std::sync::Arc;

/// Adds a serialized `FunctionDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextAddFunctionDef(
    ctx: *mut TFE_Context,
    serialized_function_def: *const c_char,
    size: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, bytes) = unsafe {
            (
                shared(ctx)?,
                list(serialized_function_def.cast::<u8>(), size),
            )
        };
        let def = FunctionDef::decode(bytes)
            .map_err(|_| invalid_argument!("Invalid FunctionDef proto"))?;
        context.engine.add_function(Arc::new(def))
    });
}

/// Adds a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextAddFunction(
    ctx: *mut TFE_Context,
    function: *mut TF_Function,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, function) = unsafe { (shared(ctx)?, shared(function)?) };
        context.engine.add_function(function.def.clone())
    });
}

/// Removes a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextRemoveFunction(
    ctx: *mut TFE_Context,
    name: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (context, name) = unsafe { (shared(ctx)?, text(name)?) };
        context.engine.remove_function(name)?;
        match context.cluster() {
            Some(cluster) => cluster.remove_function(name),
            None => Ok(()),
        }
    });
}

/// Returns whether there is a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextHasFunction(
    ctx: *mut TFE_Context,
    name: *const c_char,
) -> c_uchar {
    guard_plain(0, || {
        // SAFETY: the contract of the header.
        let (Some(context), Ok(name)) = (unsafe { ctx.as_ref() }, unsafe { text(name) }) else {
            return 0;
        };
        c_uchar::from(context.engine.function(name).is_some())
    })
}

/// A function of a context.
///
/// # Safety
/// The pointers are NULL or valid.
unsafe fn find(
    ctx: *mut TFE_Context,
    name: *const c_char,
    what: &str,
) -> ferroflow_base::Result<Arc<FunctionDef>> {
    // SAFETY: as this function's.
    let (context, name) = unsafe { (shared(ctx)?, text(name)?) };
    let found = context.engine.function(name);
    found.ok_or_else(|| not_found!("Unable to find {what} with name: {name}"))
}

/// Returns a function in its file form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextGetFunctionDef(
    ctx: *mut TFE_Context,
    function_name: *const c_char,
    buf: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe { crate::buffer::fill_message(buf, &*find(ctx, function_name, "FunctionDef")?) }
    });
}

/// Returns a function, to be deleted by `TF_DeleteFunction`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextGetFunction(
    ctx: *mut TFE_Context,
    name: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Function {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        Ok(handle(TF_Function::new(unsafe {
            find(ctx, name, "Function")
        }?)))
    })
}

/// Returns the stack traces of a function's nodes: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextGetGraphDebugInfo(
    ctx: *mut TFE_Context,
    function_name: *const c_char,
    buf: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            find(ctx, function_name, "FunctionDef")?;
            crate::buffer::fill(buf, Vec::new())
        }
    });
}
