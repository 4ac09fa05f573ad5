//! `TFE_CancellationManager`.

use super::op::TFE_Op;
use crate::TF_Status;
use crate::guard::{delete, guard, guard_plain, handle, shared, unique};
use ferroflow_runtime::CancelToken;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cancels calls, and calls back.
#[derive(Default)]
pub struct TFE_CancellationManager {
    token: CancelToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    callbacks: BTreeMap<i64, Callback>,
    next: i64,
    is_cancelling: bool,
    is_cancelled: bool,
}

/// A function of the client and its argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TFE_CancelCallback {
    /// The function.
    pub callback: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Its argument.
    pub context: *mut c_void,
}

struct Callback(TFE_CancelCallback);

// SAFETY: the header lets the thread that cancels call it.
unsafe impl Send for Callback {}

impl TFE_CancellationManager {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        let mut state = self.lock();
        if state.is_cancelling || state.is_cancelled {
            return;
        }
        state.is_cancelling = true;
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.token.cancel();
        for Callback(called) in callbacks.into_values() {
            if let Some(callback) = called.callback {
                // SAFETY: the client registered the function with this argument.
                unsafe { callback(called.context) };
            }
        }
        let mut state = self.lock();
        state.is_cancelling = false;
        state.is_cancelled = true;
    }
}

/// Creates a manager.
#[unsafe(no_mangle)]
pub extern "C" fn TFE_NewCancellationManager() -> *mut TFE_CancellationManager {
    handle(TFE_CancellationManager::default())
}

/// Asks a manager, if there is one.
///
/// # Safety
/// `manager` is NULL or valid.
unsafe fn ask<T>(
    manager: *mut TFE_CancellationManager,
    otherwise: T,
    body: impl FnOnce(&TFE_CancellationManager) -> T,
) -> T {
    // SAFETY: as this function's.
    match unsafe { manager.as_ref() } {
        Some(manager) => guard_plain(otherwise, || body(manager)),
        None => otherwise,
    }
}

/// Returns whether cancellation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerIsCancelled(
    manager: *mut TFE_CancellationManager,
) -> bool {
    // SAFETY: the contract of the header.
    unsafe { ask(manager, false, |m| m.lock().is_cancelled) }
}

/// Returns whether cancellation is in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerIsCancelling(
    manager: *mut TFE_CancellationManager,
) -> bool {
    // SAFETY: the contract of the header.
    unsafe { ask(manager, false, |m| m.lock().is_cancelling) }
}

/// Cancels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerStartCancel(manager: *mut TFE_CancellationManager) {
    // SAFETY: the contract of the header.
    unsafe { ask(manager, (), TFE_CancellationManager::start) }
}

/// Returns a number for a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerGetToken(
    manager: *mut TFE_CancellationManager,
) -> i64 {
    let next = |m: &TFE_CancellationManager| {
        let mut state = m.lock();
        state.next += 1;
        state.next - 1
    };
    // SAFETY: the contract of the header.
    unsafe { ask(manager, -1, next) }
}

/// Registers a callback; returns false if cancellation has begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerRegisterCallback(
    manager: *mut TFE_CancellationManager,
    token: i64,
    c_callback: *const TFE_CancelCallback,
    _callback_name: *const c_char,
) -> bool {
    // SAFETY: the contract of the header.
    let Some(callback) = (unsafe { c_callback.as_ref() }).copied() else {
        return false;
    };
    let register = |m: &TFE_CancellationManager| {
        let mut state = m.lock();
        let is_open = !state.is_cancelling && !state.is_cancelled;
        if is_open {
            state.callbacks.insert(token, Callback(callback));
        }
        is_open
    };
    // SAFETY: the contract of the header.
    unsafe { ask(manager, false, register) }
}

fn deregister(manager: &TFE_CancellationManager, token: i64) -> bool {
    let mut state = manager.lock();
    let is_open = !state.is_cancelling && !state.is_cancelled;
    if is_open {
        state.callbacks.remove(&token);
    }
    is_open
}

/// Removes a callback; returns false, after the end of a cancellation in progress, if that calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerDeregisterCallback(
    manager: *mut TFE_CancellationManager,
    token: i64,
) -> bool {
    let remove = |m: &TFE_CancellationManager| {
        let removed = deregister(m, token);
        while m.lock().is_cancelling {
            std::thread::yield_now();
        }
        removed
    };
    // SAFETY: the contract of the header.
    unsafe { ask(manager, false, remove) }
}

/// As [`TFE_CancellationManagerDeregisterCallback`], without waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CancellationManagerTryDeregisterCallback(
    manager: *mut TFE_CancellationManager,
    token: i64,
) -> bool {
    // SAFETY: the contract of the header.
    unsafe { ask(manager, false, |m| deregister(m, token)) }
}

/// Deletes a manager, after having cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteCancellationManager(manager: *mut TFE_CancellationManager) {
    // SAFETY: the contract of the header.
    unsafe {
        ask(manager, (), TFE_CancellationManager::start);
        delete(manager);
    }
}

/// Lets a manager cancel a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetCancellationManager(
    op: *mut TFE_Op,
    cancellation_manager: *mut TFE_CancellationManager,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (op, manager) = unsafe { (unique(op)?, shared(cancellation_manager)?) };
        op.cancel = Some(manager.token.clone());
        Ok(())
    });
}
