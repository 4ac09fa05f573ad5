//! The border: pointers become references, errors and panics become statuses.

use crate::TF_Status;
use ferroflow_base::{Result, Status, internal, invalid_argument};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function that reports errors by `status`, which may be NULL; returns `otherwise`
/// after an error.
pub(crate) fn guard<T>(
    status: *mut TF_Status,
    otherwise: T,
    body: impl FnOnce() -> Result<T>,
) -> T {
    let result = catch_unwind(AssertUnwindSafe(body));
    let result = result.unwrap_or_else(|panic| Err(of_panic(panic.as_ref())));
    // SAFETY: by the contract of the caller `status` is NULL or a status without other users now.
    let status = unsafe { status.as_mut() };
    match result {
        Ok(value) => {
            if let Some(status) = status {
                status.clear();
            }
            value
        }
        Err(error) => {
            if let Some(status) = status {
                status.set(&error);
            }
            otherwise
        }
    }
}

/// Runs the body of a function without a status; returns `otherwise` if it panics.
pub(crate) fn guard_plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

#[cold]
fn of_panic(panic: &(dyn std::any::Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    internal!("panic: {}", text.unwrap_or("unknown cause"))
}

/// The text behind a C string.
///
/// # Safety
/// `text` is NULL or ends with a NUL, and lives as long as `'a`.
///
/// # Errors
/// INVALID_ARGUMENT if it is NULL or not UTF-8.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid_argument!("a string argument is NULL"));
    }
    // SAFETY: as this function's.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| {
        invalid_argument!("'{}' is not UTF-8", crate::status::escaped(text.to_bytes()))
    })
}

/// The texts behind an array of C strings; none if it is NULL.
///
/// # Safety
/// `texts` is NULL or has `n` elements, each as [`text`] wants it.
///
/// # Errors
/// Those of [`text`].
pub(crate) unsafe fn texts(texts: *const *const c_char, n: c_int) -> Result<Vec<String>> {
    // SAFETY: as this function's.
    let texts = unsafe { list(texts, n) }.iter();
    // SAFETY: as this function's.
    let texts = texts.map(|t| unsafe { text(*t) }.map(str::to_string));
    texts.collect()
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is NULL or valid for reads during `'a`.
///
/// # Errors
/// INVALID_ARGUMENT if it is NULL.
pub(crate) unsafe fn shared<'a, T>(handle: *const T) -> Result<&'a T> {
    // SAFETY: as this function's.
    unsafe { handle.as_ref() }.ok_or_else(|| null_handle::<T>())
}

/// The object behind a handle, for changes.
///
/// # Safety
/// `handle` is NULL or valid during `'a` and not used otherwise.
///
/// # Errors
/// INVALID_ARGUMENT if it is NULL.
pub(crate) unsafe fn unique<'a, T>(handle: *mut T) -> Result<&'a mut T> {
    // SAFETY: as this function's.
    unsafe { handle.as_mut() }.ok_or_else(|| null_handle::<T>())
}

#[cold]
fn null_handle<T>() -> Status {
    let name = std::any::type_name::<T>();
    let name = name.rsplit("::").next().unwrap_or(name);
    invalid_argument!("{name} argument is NULL")
}

/// The elements behind a pointer and a count; none if the pointer is NULL or the count not positive.
///
/// # Safety
/// `list` is NULL or has `n` elements that live as long as `'a`.
pub(crate) unsafe fn list<'a, T>(list: *const T, n: impl TryInto<usize>) -> &'a [T] {
    match n.try_into() {
        // SAFETY: as this function's.
        Ok(n) if n > 0 && !list.is_null() => unsafe { std::slice::from_raw_parts(list, n) },
        _ => &[],
    }
}

/// As [`list`], for writing.
///
/// # Safety
/// As [`list`], and nothing else uses the elements.
pub(crate) unsafe fn list_mut<'a, T>(list: *mut T, n: impl TryInto<usize>) -> &'a mut [T] {
    match n.try_into() {
        // SAFETY: as this function's.
        Ok(n) if n > 0 && !list.is_null() => unsafe { std::slice::from_raw_parts_mut(list, n) },
        _ => &mut [],
    }
}

/// Hands an object to the client.
pub(crate) fn handle<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes an object back from the client and drops it; NULL is allowed.
///
/// # Safety
/// `handle` is NULL or came from [`handle`] and is not used any more.
pub(crate) unsafe fn delete<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as this function's.
        let object = unsafe { Box::from_raw(handle) };
        guard_plain((), || drop(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TF_DeleteStatus, TF_GetCode, TF_Message, TF_NewStatus};

    #[test]
    fn panics_become_internal() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("while it is deleted");
            }
        }
        let name = "formatted".to_string();
        let rows: [(&str, &dyn Fn() -> i32); 3] = [
            ("panic: plain", &|| panic!("plain")),
            ("panic: formatted", &|| panic!("{name}")),
            ("panic: unknown cause", &|| std::panic::panic_any(7)),
        ];
        let status = TF_NewStatus();
        for (expected, body) in rows {
            assert_eq!(guard(status, -1, || Ok(body())), -1);
            // SAFETY: the status lives until the end.
            let (code, message) =
                unsafe { (TF_GetCode(status), CStr::from_ptr(TF_Message(status))) };
            assert_eq!((code, message.to_str()), (13, Ok(expected)));
            assert_eq!(guard_plain(-1, body), -1);
        }
        // SAFETY: the handle was just made; the status is not used any more.
        unsafe {
            delete(handle(Panics));
            TF_DeleteStatus(status);
        }
    }
}
