//! `TFE_TensorHandle`.

use super::context::TFE_Context;
use super::custom_device::CustomTensor;
use super::device::{Place, cpu_name, find_named, index_of, intern};
use super::packed::Packed;
use crate::guard::{guard, handle, list, shared, text};
use crate::tensor::Deallocator;
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::{Result, Status, failed_precondition, internal, invalid_argument};
use ferroflow_remote::RemoteTensor;
use ferroflow_runtime::eager::TensorHandle;
use ferroflow_tensor::{DType, Tensor};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

/// A reference to a tensor on a device, which may still be computed.
pub struct TFE_TensorHandle {
    pub(super) value: HandleValue,
    /// The CPU device, of a tensor in this process.
    pub(super) place: Place,
    /// What the client got of a tensor without memory of its own: later calls return the same memory.
    resolved: OnceLock<Box<TF_Tensor>>,
}

pub(super) enum HandleValue {
    Tensor(TensorHandle),
    /// A tensor of another task, and its copy.
    Remote(Arc<RemoteTensor>, OnceLock<TensorHandle>),
    Custom(CustomTensor),
    /// Tensors of several devices.
    Packed(Packed),
    /// An op overwrote the tensor, to which only the op referred.
    Forwarded(DType),
}

impl TFE_TensorHandle {
    #[inline]
    pub(super) fn of(tensor: TensorHandle, place: Place) -> TFE_TensorHandle {
        TFE_TensorHandle::with(HandleValue::Tensor(tensor), place)
    }

    #[inline]
    pub(super) fn with(value: HandleValue, place: Place) -> TFE_TensorHandle {
        TFE_TensorHandle {
            value,
            place,
            resolved: OnceLock::new(),
        }
    }

    /// A handle of a tensor of another task.
    pub(super) fn remote(tensor: Arc<RemoteTensor>) -> TFE_TensorHandle {
        TFE_TensorHandle::with(HandleValue::Remote(tensor, OnceLock::new()), 0)
    }

    /// The tensor as the client sees it: each call returns the same memory, as in TensorFlow.
    fn resolve(&self) -> Result<TF_Tensor> {
        if let Some(resolved) = self.resolved.get() {
            return Ok(resolved.share());
        }
        let tensor = self.tensor()?;
        if !tensor.shape().is_scalar() {
            return TF_Tensor::of_engine(tensor);
        }
        let own = Box::new(TF_Tensor::of_scalar(tensor)?);
        Ok(self.resolved.get_or_init(|| own).share())
    }

    /// Hands a reference to the client.
    #[inline]
    pub(super) fn give(self) -> *mut TFE_TensorHandle {
        Arc::into_raw(Arc::new(self)).cast_mut()
    }

    #[inline]
    pub(super) fn dtype(&self) -> c_int {
        match &self.value {
            HandleValue::Tensor(tensor) => tensor.dtype() as c_int,
            HandleValue::Remote(remote, _) => remote.dtype() as c_int,
            HandleValue::Custom(custom) => custom.dtype,
            HandleValue::Packed(packed) => packed.first().dtype(),
            HandleValue::Forwarded(dtype) => *dtype as c_int,
        }
    }

    /// The tensor on the CPU; one of another task is requested the first time.
    pub(super) fn local(&self) -> Result<&TensorHandle> {
        match &self.value {
            HandleValue::Tensor(tensor) => Ok(tensor),
            HandleValue::Remote(remote, copy) => match copy.get() {
                Some(copy) => Ok(copy),
                None => {
                    let tensor = remote.fetch()?;
                    Ok(copy.get_or_init(|| tensor.into()))
                }
            },
            HandleValue::Custom(custom) => Err(invalid_argument!(
                "the tensor is on the custom device {}",
                custom.device.name_text()
            )),
            HandleValue::Packed(packed) => Err(internal!(
                "Invalid Tensor call on a PACKED handle: {:p}",
                packed.first()
            )),
            HandleValue::Forwarded(_) => Err(forwarded()),
        }
    }

    #[inline]
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.value, HandleValue::Packed(_))
    }

    /// The tensor, once it is computed.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        self.local()?.get()
    }

    fn dims(&self) -> Result<Vec<i64>> {
        match &self.value {
            HandleValue::Custom(custom) => custom.dims(),
            HandleValue::Packed(packed) => packed.first().dims(),
            HandleValue::Remote(remote, _) => match remote.shape()?.to_full() {
                Some(shape) => Ok(shape.to_i64().to_vec()),
                None => Ok(self.tensor()?.shape().to_i64().to_vec()),
            },
            _ => Ok(self.tensor()?.shape().to_i64().to_vec()),
        }
    }

    fn device_name(&self) -> *const c_char {
        match &self.value {
            HandleValue::Custom(custom) => custom.device.name().as_ptr(),
            HandleValue::Remote(remote, _) => intern(remote.device()).as_ptr(),
            HandleValue::Packed(packed) => packed.device_name().as_ptr(),
            _ => cpu_name(self.place).as_ptr(),
        }
    }
}

/// The type and the number of a tensor's device on its task.
fn local_device(tensor: &RemoteTensor) -> (&str, &str) {
    let device = tensor.device().rsplit_once("/device:");
    let local = device.and_then(|(_, local)| local.split_once(':'));
    local.unwrap_or(("CPU", "0"))
}

#[cold]
pub(super) fn forwarded() -> Status {
    failed_precondition!(
        "an op that ran before overwrote the tensor, because its handle was deleted: keep the handle"
    )
}

/// The handle behind a pointer.
///
/// # Safety
/// `h` is NULL or valid during `'a`.
pub(super) unsafe fn valid<'a>(h: *const TFE_TensorHandle) -> Result<&'a TFE_TensorHandle> {
    // SAFETY: as this function's.
    unsafe { h.as_ref() }.ok_or_else(|| invalid_argument!("Invalid handle"))
}

/// Another reference to the handle behind a pointer.
///
/// # Safety
/// `h` is a live reference.
#[inline]
pub(super) unsafe fn reference(h: *const TFE_TensorHandle) -> Arc<TFE_TensorHandle> {
    // SAFETY: as this function's; handles are made by `give`.
    unsafe {
        Arc::increment_strong_count(h);
        Arc::from_raw(h)
    }
}

/// Creates a handle of a tensor, whose memory it shares.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewTensorHandle(
    t: *const TF_Tensor,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let tensor = unsafe { shared(t) }?.to_engine()?;
        Ok(TFE_TensorHandle::of(tensor.into(), 0).give())
    })
}

/// As [`TFE_NewTensorHandle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewTensorHandleFromTensor(
    _ctx: *mut TFE_Context,
    t: *mut TF_Tensor,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    // SAFETY: the contract is the same.
    unsafe { TFE_NewTensorHandle(t, status) }
}

/// Creates a handle of a scalar.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewTensorHandleFromScalar(
    data_type: c_int,
    data: *mut c_void,
    len: usize,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        let dtype = DType::from_number(data_type)
            .ok_or_else(|| invalid_argument!("unknown dtype {data_type}"))?;
        // SAFETY: the contract of the header.
        let bytes = unsafe { list(data.cast::<u8>(), len) };
        let scalar: [usize; 0] = [];
        let tensor = Tensor::from_bytes(dtype, scalar.into(), bytes)?;
        Ok(TFE_TensorHandle::of(tensor.into(), 0).give())
    })
}

/// Deletes a reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteTensorHandle(h: *mut TFE_TensorHandle) {
    if !h.is_null() {
        // SAFETY: the contract of the header: the client's reference, which it does not use any more.
        drop(unsafe { Arc::from_raw(h) });
    }
}

/// Returns the dtype.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDataType(h: *mut TFE_TensorHandle) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { h.as_ref() }.map_or(0, TFE_TensorHandle::dtype)
}

/// Returns the rank; waits for the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleNumDims(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> c_int {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        Ok(unsafe { valid(h) }?.dims()?.len() as c_int)
    })
}

/// Returns the number of elements; waits for the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleNumElements(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> i64 {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        Ok(unsafe { valid(h) }?.dims()?.iter().product())
    })
}

/// Returns the size of a dimension; waits for the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDim(
    h: *mut TFE_TensorHandle,
    dim_index: c_int,
    status: *mut TF_Status,
) -> i64 {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        let dims = unsafe { valid(h) }?.dims()?;
        let dim = usize::try_from(dim_index).ok().and_then(|i| dims.get(i));
        dim.copied().ok_or_else(|| {
            invalid_argument!("dimension {dim_index} of a tensor of rank {}", dims.len())
        })
    })
}

/// Returns the name of the device of the op that computes the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDeviceName(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *const c_char {
    guard(status, std::ptr::null(), || {
        // SAFETY: the contract of the header.
        Ok(unsafe { valid(h) }?.device_name())
    })
}

/// Returns the name of the device in whose memory the tensor is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleBackingDeviceName(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *const c_char {
    // SAFETY: the contract is the same.
    unsafe { TFE_TensorHandleDeviceName(h, status) }
}

/// Returns the type of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDeviceType(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *const c_char {
    guard(status, std::ptr::null(), || {
        // SAFETY: the contract of the header.
        match &unsafe { valid(h) }?.value {
            HandleValue::Custom(custom) => Ok(custom.device.kind().as_ptr()),
            HandleValue::Remote(remote, _) => Ok(intern(local_device(remote).0).as_ptr()),
            HandleValue::Packed(_) => Ok(c"COMPOSITE".as_ptr()),
            _ => Ok(c"CPU".as_ptr()),
        }
    })
}

/// Returns the number of the device among those of its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDeviceID(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> c_int {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        let handle = unsafe { valid(h) }?;
        match &handle.value {
            HandleValue::Custom(custom) => Ok(custom.device.index()),
            HandleValue::Remote(remote, _) => Ok(local_device(remote).1.parse().unwrap_or(0)),
            HandleValue::Packed(packed) => Ok(packed.index() as c_int),
            _ => Ok(index_of(handle.place) as c_int),
        }
    })
}

/// Returns another reference to the same tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleCopySharingTensor(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        unsafe {
            valid(h)?;
            Arc::increment_strong_count(h);
        }
        Ok(h)
    })
}

/// Returns the tensor on the CPU; waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleResolve(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let found = unsafe { valid(h) }?;
        if found.is_packed() {
            return Err(invalid_argument!(
                "Resolve() is not supported on packed TensorHandles."
            ));
        }
        let HandleValue::Custom(custom) = &found.value else {
            return Ok(handle(found.resolve()?));
        };
        // SAFETY: the handle is live.
        let copy = unsafe { custom.device.copy_from(custom.context(), h, cpu_name(0)) }?;
        Ok(handle(TF_Tensor::of_engine(copy.tensor()?)?))
    })
}

/// Returns the tensor's error, if any; waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleGetStatus(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    guard(status, (), || match &unsafe { valid(h) }?.value {
        HandleValue::Tensor(tensor) => tensor.get().map(drop),
        HandleValue::Remote(remote, _) => remote.shape().map(drop),
        _ => Ok(()),
    });
}

/// Copies a tensor to a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleCopyToDevice(
    h: *mut TFE_TensorHandle,
    ctx: *mut TFE_Context,
    device_name: *const c_char,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (found, context) = unsafe { (valid(h)?, shared(ctx)?) };
        // SAFETY: as above; NULL stands for the CPU.
        let name = match device_name.is_null() {
            true => "",
            // SAFETY: as above.
            false => unsafe { text(device_name) }?,
        };
        if let Some(device) = context.custom_device(name) {
            // SAFETY: the handle is live.
            let copy = unsafe { device.copy_to(ctx, h) }?;
            return Ok(Arc::into_raw(copy).cast_mut());
        }
        if let HandleValue::Custom(custom) = &found.value {
            // SAFETY: the handle is live, and the name a C string.
            let copy = unsafe {
                let name = std::ffi::CString::new(name).unwrap_or_default();
                custom.device.copy_from(ctx, h, &name)
            }?;
            return Ok(Arc::into_raw(copy).cast_mut());
        }
        let named = match name {
            "" => Some(context.base()),
            name => find_named(name, context.base(), context.n_cpus()),
        };
        let Some(place) = named else {
            return Ok(context.copy_to_other(found, name)?.give());
        };
        found.local()?;
        if place == found.place && !matches!(found.value, HandleValue::Remote(..)) {
            // SAFETY: the handle is live.
            unsafe { Arc::increment_strong_count(h) };
            return Ok(h);
        }
        Ok(TFE_TensorHandle::of(found.local()?.clone(), place).give())
    })
}

/// Returns the address of the tensor's memory; waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDevicePointer(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> *mut c_void {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let found = unsafe { valid(h) }?;
        if let HandleValue::Custom(custom) = &found.value {
            return Ok(custom.data);
        }
        let tensor = found.local()?;
        tensor.get()?;
        let tensor = tensor.available().ok_or_else(forwarded)?;
        Ok(tensor.bytes()?.as_ptr().cast_mut().cast())
    })
}

/// Returns the number of bytes of the tensor's memory; waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_TensorHandleDeviceMemorySize(
    h: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) -> usize {
    // SAFETY: the contract of the header.
    guard(status, 0, || Ok(unsafe { valid(h) }?.tensor()?.byte_len()))
}

/// Creates a handle of memory on a device; the deallocator is called at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewTensorHandleFromDeviceMemory(
    ctx: *mut TFE_Context,
    device_name: *const c_char,
    dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    data: *mut c_void,
    len: usize,
    deallocator: Option<Deallocator>,
    deallocator_arg: *mut c_void,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let tensor = unsafe {
            crate::TF_NewTensor(
                dtype,
                dims,
                num_dims,
                data,
                len,
                deallocator,
                deallocator_arg,
            )
        };
        // SAFETY: `TF_NewTensor` made it.
        let made = unsafe { shared(tensor) }.and_then(|tensor| {
            // SAFETY: the contract of the header.
            let (context, name) = unsafe { (shared(ctx)?, text(device_name)?) };
            let place = context.find_cpu(name);
            let place = place.ok_or_else(|| invalid_argument!("{name} unknown device."))?;
            Ok(TFE_TensorHandle::of(tensor.to_engine()?.into(), place))
        });
        // SAFETY: as above; the handle keeps the memory.
        unsafe { crate::TF_DeleteTensor(tensor) };
        Ok(made?.give())
    })
}

/// Allocates a tensor to be filled by the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_AllocateHostTensor(
    _ctx: *mut TFE_Context,
    dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    status: *mut TF_Status,
) -> *mut TF_Tensor {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let sizes = unsafe { list(dims, num_dims) };
        handle_of_new(dtype, sizes)
    })
}

fn handle_of_new(dtype: c_int, dims: &[i64]) -> Result<*mut TF_Tensor> {
    TF_Tensor::allocate_host(dtype, dims).map(handle)
}
