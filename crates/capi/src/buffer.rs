//! `TF_Buffer` (`tensorflow/c/tf_buffer.h`): bytes with their deallocator.

use crate::guard::{handle, list};
use ferroflow_base::{Result, invalid_argument};
use prost::Message;
use std::ffi::c_void;

/// Bytes. Clients read the fields, and make such structs themselves.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_Buffer {
    /// The first byte.
    pub data: *const c_void,
    /// The number of bytes.
    pub length: usize,
    /// Frees the bytes, if any.
    pub data_deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

const EMPTY: TF_Buffer = TF_Buffer {
    data: std::ptr::null(),
    length: 0,
    data_deallocator: None,
};

/// Frees what [`fill`] allocated.
unsafe extern "C" fn free_bytes(data: *mut c_void, length: usize) {
    if !data.is_null() {
        let bytes = std::ptr::slice_from_raw_parts_mut(data.cast::<u8>(), length);
        // SAFETY: `fill` made the box, with this length.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// The bytes of a buffer; none if it is NULL.
///
/// # Safety
/// `buffer` is NULL or valid during `'a`, and so are its bytes.
pub(crate) unsafe fn bytes_of<'a>(buffer: *const TF_Buffer) -> &'a [u8] {
    // SAFETY: as this function's.
    match unsafe { buffer.as_ref() } {
        // SAFETY: as this function's.
        Some(buffer) => unsafe { list(buffer.data.cast(), buffer.length) },
        None => &[],
    }
}

/// Fills an empty buffer of the client.
///
/// # Safety
/// `buffer` is NULL or valid, and nothing else uses it.
///
/// # Errors
/// INVALID_ARGUMENT if it is NULL or not empty.
pub(crate) unsafe fn fill(buffer: *mut TF_Buffer, bytes: Vec<u8>) -> Result<()> {
    // SAFETY: as this function's.
    let buffer = unsafe { crate::guard::unique(buffer) }?;
    if !buffer.data.is_null() {
        return Err(invalid_argument!("Passing non-empty TF_Buffer is invalid."));
    }
    *buffer = of_bytes(bytes);
    Ok(())
}

/// Fills an empty buffer of the client with a message.
///
/// # Safety
/// As [`fill`].
///
/// # Errors
/// As [`fill`].
pub(crate) unsafe fn fill_message(buffer: *mut TF_Buffer, message: &impl Message) -> Result<()> {
    // SAFETY: as this function's.
    unsafe { fill(buffer, message.encode_to_vec()) }
}

/// The fields of a buffer with these bytes.
pub(crate) fn of_bytes(bytes: Vec<u8>) -> TF_Buffer {
    let bytes = bytes.into_boxed_slice();
    let length = bytes.len();
    TF_Buffer {
        data: Box::into_raw(bytes).cast(),
        length,
        data_deallocator: Some(free_bytes),
    }
}

/// Creates a buffer with these bytes.
pub(crate) fn new_buffer(bytes: Vec<u8>) -> *mut TF_Buffer {
    handle(of_bytes(bytes))
}

/// Creates an empty buffer.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewBuffer() -> *mut TF_Buffer {
    handle(EMPTY)
}

/// Creates a buffer with a copy of the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewBufferFromString(
    proto: *const c_void,
    proto_len: usize,
) -> *mut TF_Buffer {
    // SAFETY: the contract of the header.
    new_buffer(unsafe { list(proto.cast::<u8>(), proto_len) }.to_vec())
}

/// Deletes a buffer and its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteBuffer(buffer: *mut TF_Buffer) {
    // SAFETY: the contract of the header.
    let Some(found) = (unsafe { buffer.as_ref() }) else {
        return;
    };
    if let Some(deallocator) = found.data_deallocator {
        // SAFETY: the deallocator belongs to these bytes.
        unsafe { deallocator(found.data.cast_mut(), found.length) };
    }
    // SAFETY: the contract of the header.
    unsafe { crate::guard::delete(buffer) }
}

/// Returns the fields of a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetBuffer(buffer: *mut TF_Buffer) -> TF_Buffer {
    // SAFETY: the contract of the header.
    unsafe { buffer.as_ref() }.copied().unwrap_or(EMPTY)
}
