//! `TFE_TensorDebugInfo`: the shape of a tensor in the memory of its device.

use super::handle::{TFE_TensorHandle, valid};
use crate::TF_Status;
use crate::guard::{delete, guard, handle};
use std::ffi::c_int;

/// A shape.
pub struct TFE_TensorDebugInfo {
    dims: Vec<i64>,
}

/// Returns the shape of a tensor; waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleTensorDebugInfo(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *mut TFE_TensorDebugInfo {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let tensor = unsafe { valid(h) }?.tensor()?;
        let dims = tensor.shape().to_i64().to_vec();
        Ok(handle(TFE_TensorDebugInfo { dims }))
    })
}

/// Deletes a shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteTensorDebugInfo(debug_info: *mut TFE_TensorDebugInfo) {
    // SAFETY: the contract of the header.
    unsafe { delete(debug_info) }
}

/// Returns the rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorDebugInfoOnDeviceNumDims(
    debug_info: *mut TFE_TensorDebugInfo,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { debug_info.as_ref() }.map_or(-1, |info| info.dims.len() as c_int)
}

/// Returns the size of a dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorDebugInfoOnDeviceDim(
    debug_info: *mut TFE_TensorDebugInfo,
    dim_index: c_int,
) -> i64 {
    // SAFETY: the contract of the header.
    let dims = unsafe { debug_info.as_ref() }.map(|info| &info.dims);
    let index = usize::try_from(dim_index).ok();
    let dim = dims.zip(index).and_then(|(dims, i)| dims.get(i));
    dim.copied().unwrap_or(-1)
}
