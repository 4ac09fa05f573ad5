//! `TFE_Executor`: the order of calls.

use super::context::TFE_Context;
use crate::TF_Status;
use crate::guard::{delete, guard, handle, shared};
use ferroflow_runtime::eager::Executor;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// A reference to an executor.
pub struct TFE_Executor(Arc<Executor>);

impl TFE_Context {
    /// The executor of this thread.
    #[inline]
    pub(super) fn with_executor<T>(&self, body: impl FnOnce(&Arc<Executor>) -> T) -> T {
        if !self.has_thread_executors.load(Ordering::Acquire) {
            return body(&self.default_executor);
        }
        let executors = self.thread_executors.read();
        let executors = executors.unwrap_or_else(PoisonError::into_inner);
        let own = executors.get(&std::thread::current().id()).cloned();
        drop(executors);
        body(own.as_ref().unwrap_or(&self.default_executor))
    }
}

/// Creates an executor.
#[unsafe(no_mangle)]
pub extern "C" fn TFE_NewExecutor(
    is_async: bool,
    _enable_streaming_enqueue: bool,
    in_flight_nodes_limit: c_int,
) -> *mut TFE_Executor {
    let limit = usize::try_from(in_flight_nodes_limit).unwrap_or(0);
    handle(TFE_Executor(Arc::new(Executor::new(is_async, limit))))
}

/// Deletes a reference; the executor runs what it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteExecutor(executor: *mut TFE_Executor) {
    // SAFETY: the contract of the header.
    unsafe { delete(executor) }
}

/// Returns whether calls run asynchronously.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ExecutorIsAsync(executor: *mut TFE_Executor) -> bool {
    // SAFETY: the contract of the header.
    unsafe { executor.as_ref() }.is_some_and(|e| e.0.is_async())
}

/// Waits for all calls; returns the first error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ExecutorWaitForAllPendingNodes(
    executor: *mut TFE_Executor,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    guard(status, (), || unsafe { shared(executor) }?.0.wait());
}

/// Lets calls run again after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ExecutorClearError(executor: *mut TFE_Executor) {
    // SAFETY: the contract of the header.
    if let Some(executor) = unsafe { executor.as_ref() } {
        executor.0.clear_error();
    }
}

/// Sets the executor of this thread; NULL stands for the context's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextSetExecutorForThread(
    ctx: *mut TFE_Context,
    executor: *mut TFE_Executor,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (context, executor) = unsafe { (shared(ctx)?, executor.as_ref()) };
        let executors = context.thread_executors.write();
        let mut executors = executors.unwrap_or_else(PoisonError::into_inner);
        let thread = std::thread::current().id();
        match executor {
            Some(executor) => executors.insert(thread, executor.0.clone()),
            None => executors.remove(&thread),
        };
        let has_some = !executors.is_empty();
        context
            .has_thread_executors
            .store(has_some, Ordering::Release);
        Ok(())
    });
}

/// Returns a reference to the executor of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_ContextGetExecutorForThread(
    ctx: *mut TFE_Context,
) -> *mut TFE_Executor {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let context = unsafe { shared(ctx) }?;
        Ok(context.with_executor(|executor| handle(TFE_Executor(executor.clone()))))
    })
}
