//! Devices of the client: `TFE_RegisterCustomDevice`.

use super::context::TFE_Context;
use super::device::{check_full, cpu_name};
use super::handle::{HandleValue, TFE_TensorHandle};
use super::op::TFE_Op;
use crate::guard::{guard, guard_plain, shared, text};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Result, already_exists, invalid_argument, unimplemented_error};
use ferroflow_tensor::DType;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// What a device does; pointers are to functions of the client.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TFE_CustomDevice {
    /// The version of this struct.
    pub version: c_int,
    /// Copies a tensor to the device.
    pub copy_tensor_to_device: Option<
        unsafe extern "C" fn(
            *mut TFE_Context,
            *mut TFE_TensorHandle,
            *mut TF_Status,
            *mut c_void,
        ) -> *mut TFE_TensorHandle,
    >,
    /// Copies a tensor from the device to another one.
    pub copy_tensor_from_device: Option<
        unsafe extern "C" fn(
            *mut TFE_Context,
            *mut TFE_TensorHandle,
            *const c_char,
            *mut TF_Status,
            *mut c_void,
        ) -> *mut TFE_TensorHandle,
    >,
    /// Runs a call.
    pub execute: Option<
        unsafe extern "C" fn(
            *const TFE_Op,
            *mut c_int,
            *mut *mut TFE_TensorHandle,
            *mut TF_Status,
            *mut c_void,
        ),
    >,
    /// Ends the device.
    pub delete_device: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Makes one tensor of several.
    pub pack: Option<
        unsafe extern "C" fn(
            *mut TFE_Context,
            *mut *mut TFE_TensorHandle,
            c_int,
            *mut TF_Status,
            *mut c_void,
        ) -> *mut TFE_TensorHandle,
    >,
    /// Returns whether a call runs here.
    pub shall_pin_to_this_device:
        Option<unsafe extern "C" fn(*const TFE_Op, *mut TF_Status) -> bool>,
}

/// What a tensor of such a device does.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TFE_CustomDeviceTensorHandle {
    /// The version of this struct.
    pub version: c_int,
    /// Returns the rank.
    pub num_dims: Option<unsafe extern "C" fn(*mut c_void, *mut TF_Status) -> c_int>,
    /// Returns the size of a dimension.
    pub dim: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut TF_Status) -> i64>,
    /// Frees the tensor.
    pub deallocator: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Describes the tensor.
    pub summarize: Option<unsafe extern "C" fn(*mut c_void, *mut TF_Status) -> *mut TF_Buffer>,
}

/// A device of a context.
pub(crate) struct CustomDevice {
    pub(super) device: TFE_CustomDevice,
    pub(super) info: *mut c_void,
    name: CString,
    kind: CString,
}

/// A tensor of a custom device.
pub(crate) struct CustomTensor {
    pub(super) device: Arc<CustomDevice>,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    context: *mut TFE_Context,
    methods: TFE_CustomDeviceTensorHandle,
}

// SAFETY: the header lets any thread use a device.
unsafe impl Send for CustomDevice {}
// SAFETY: as above.
unsafe impl Sync for CustomDevice {}
// SAFETY: as above, for its tensors.
unsafe impl Send for CustomTensor {}
// SAFETY: as above.
unsafe impl Sync for CustomTensor {}

impl Drop for CustomDevice {
    fn drop(&mut self) {
        if let Some(delete) = self.device.delete_device {
            // SAFETY: the client gave the function for this device.
            unsafe { delete(self.info) };
        }
    }
}

impl Drop for CustomTensor {
    fn drop(&mut self) {
        if let Some(deallocator) = self.methods.deallocator {
            // SAFETY: the client gave the function for this tensor.
            unsafe { deallocator(self.data) };
        }
    }
}

/// Calls a function of the client that reports by a status.
pub(super) fn ask<T>(call: impl FnOnce(*mut TF_Status) -> T) -> Result<T> {
    let mut status = TF_Status::default();
    let value = call(&raw mut status);
    status.error().map_or(Ok(value), Err)
}

/// The handle that a function of the client returned.
///
/// # Safety
/// It is NULL or a reference that the client gave away.
unsafe fn returned(h: *mut TFE_TensorHandle) -> Result<Arc<TFE_TensorHandle>> {
    match h.is_null() {
        true => Err(invalid_argument!("the custom device returned no tensor")),
        // SAFETY: as this function's.
        false => Ok(unsafe { Arc::from_raw(h.cast_const()) }),
    }
}

impl CustomDevice {
    pub(super) fn name(&self) -> &CStr {
        &self.name
    }

    pub(super) fn name_text(&self) -> &str {
        self.name.to_str().unwrap_or("")
    }

    pub(super) fn kind(&self) -> &CStr {
        &self.kind
    }

    pub(super) fn index(&self) -> c_int {
        let index = self.name_text().rsplit(':').next();
        index.and_then(|i| i.parse().ok()).unwrap_or(-1)
    }

    /// Copies a tensor here.
    ///
    /// # Safety
    /// Both handles are live.
    pub(super) unsafe fn copy_to(
        &self,
        context: *mut TFE_Context,
        h: *mut TFE_TensorHandle,
    ) -> Result<Arc<TFE_TensorHandle>> {
        let copy = self.device.copy_tensor_to_device;
        let copy = copy.ok_or_else(|| unimplemented_error!("copy_tensor_to_device is NULL"))?;
        // SAFETY: the client's function, with its own argument.
        unsafe { returned(ask(|status| copy(context, h, status, self.info))?) }
    }

    /// Copies a tensor from here.
    ///
    /// # Safety
    /// Both handles are live.
    pub(super) unsafe fn copy_from(
        &self,
        context: *mut TFE_Context,
        h: *mut TFE_TensorHandle,
        to: &CStr,
    ) -> Result<Arc<TFE_TensorHandle>> {
        let copy = self.device.copy_tensor_from_device;
        let copy = copy.ok_or_else(|| unimplemented_error!("copy_tensor_from_device is NULL"))?;
        let to = to.as_ptr();
        // SAFETY: the client's function, with its own argument.
        unsafe { returned(ask(|status| copy(context, h, to, status, self.info))?) }
    }

    /// Runs a call here.
    ///
    /// # Safety
    /// `op` is live and `retvals` has `*n` elements.
    pub(super) unsafe fn execute(
        &self,
        op: *const TFE_Op,
        n: &mut c_int,
        retvals: *mut *mut TFE_TensorHandle,
    ) -> Result<()> {
        let execute = self.device.execute;
        let execute = execute.ok_or_else(|| unimplemented_error!("execute is NULL"))?;
        // SAFETY: the client's function, with its own argument.
        ask(|status| unsafe { execute(op, n, retvals, status, self.info) })
    }

    /// Whether the device wants a call; none if it leaves that to the context.
    fn wants(&self, op: *const TFE_Op) -> Option<bool> {
        let shall_pin = self.device.shall_pin_to_this_device?;
        // SAFETY: the client's function; the op is live.
        ask(|status| unsafe { shall_pin(op, status) }).ok()
    }
}

impl CustomTensor {
    pub(super) fn context(&self) -> *mut TFE_Context {
        self.context
    }

    pub(super) fn dims(&self) -> Result<Vec<i64>> {
        let (Some(num_dims), Some(dim)) = (self.methods.num_dims, self.methods.dim) else {
            return Err(unimplemented_error!("the custom tensor has no shape"));
        };
        // SAFETY: the client's function for this tensor.
        let n = ask(|status| unsafe { num_dims(self.data, status) })?;
        // SAFETY: as above.
        let dims = (0..n).map(|i| ask(|status| unsafe { dim(self.data, i, status) }));
        dims.collect()
    }
}

impl TFE_Context {
    /// The custom device of this full name.
    pub(super) fn custom_device(&self, name: &str) -> Option<Arc<CustomDevice>> {
        if !self.has_custom_devices.load(Ordering::Acquire) {
            return None;
        }
        let devices = self.custom_devices.read();
        let devices = devices.unwrap_or_else(PoisonError::into_inner);
        devices.iter().find(|d| d.name_text() == name).cloned()
    }
}

impl TFE_Op {
    /// The custom device that runs the call, by TensorFlow's rules (`custom_device_op_handler.cc`). Inputs on
    /// other custom devices are copied to the CPU if there is none.
    pub(super) fn pin(&mut self) -> Result<Option<Arc<CustomDevice>>> {
        let asked = self.context.custom_device(self.device_text());
        let mut first: Option<Arc<CustomDevice>> = None;
        for input in &self.inputs {
            let HandleValue::Custom(custom) = &input.value else {
                continue;
            };
            match &first {
                None => first = Some(custom.device.clone()),
                Some(first) if Arc::ptr_eq(first, &custom.device) => {}
                Some(first) => {
                    return Err(invalid_argument!(
                        "If an operation has one of its inputs in a custom device, then all inputs should be \
                         on that same custom device or another physical device. Operation {} has one input in \
                         custom device {} and at least one input in a different custom device {}",
                        self.name_text(),
                        first.name_text(),
                        custom.device.name_text()
                    ));
                }
            }
        }
        let Some(first) = first else { return Ok(asked) };
        let op: *const TFE_Op = self;
        let is_resource = |h: &&Arc<TFE_TensorHandle>| h.dtype() == DType::Resource as c_int;
        let pinned = match (first.wants(op), self.inputs.iter().find(is_resource)) {
            (Some(true), _) => Some(first),
            (Some(false), _) => asked,
            (None, Some(resource)) => match &resource.value {
                HandleValue::Custom(custom) => Some(custom.device.clone()),
                _ => asked,
            },
            (None, None) if asked.is_some() => asked,
            (None, None) => self.device.is_none().then_some(first),
        };
        if pinned.is_none() {
            self.copy_inputs()?;
        }
        Ok(pinned)
    }

    /// Copies inputs from custom devices to the device of the call.
    fn copy_inputs(&mut self) -> Result<()> {
        let context = Arc::as_ptr(&self.context).cast_mut();
        let target = self
            .device
            .clone()
            .unwrap_or_else(|| cpu_name(self.context.base()).to_owned());
        for input in &mut self.inputs {
            if let HandleValue::Custom(custom) = &input.value {
                let device = custom.device.clone();
                // SAFETY: the op has a reference to the input.
                *input =
                    unsafe { device.copy_from(context, Arc::as_ptr(input).cast_mut(), &target) }?;
            }
        }
        Ok(())
    }
}

/// Adds a device, which the context deletes, also after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_RegisterCustomDevice(
    ctx: *mut TFE_Context,
    device: TFE_CustomDevice,
    device_name: *const c_char,
    device_info: *mut c_void,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        let mut new = CustomDevice {
            device,
            info: device_info,
            name: CString::default(),
            kind: CString::default(),
        };
        // SAFETY: the contract of the header.
        let (context, name) = unsafe { (shared(ctx)?, text(device_name)?) };
        check_full(name)?;
        if context.find_cpu(name).is_some() {
            return Err(already_exists!(
                "{name} already registered as a physical device."
            ));
        }
        let devices = context.custom_devices.write();
        let mut devices = devices.unwrap_or_else(PoisonError::into_inner);
        if devices.iter().any(|d| d.name_text() == name) {
            return Err(already_exists!(
                "{name} already registered as a custom device."
            ));
        }
        let device = name
            .rsplit_once("/device:")
            .map_or("", |(_, device)| device);
        let kind = device.split(':').next().unwrap_or("");
        new.name = CString::new(name).unwrap_or_default();
        new.kind = CString::new(kind).unwrap_or_default();
        devices.push(Arc::new(new));
        context.has_custom_devices.store(true, Ordering::Release);
        Ok(())
    });
}

/// Returns whether a name is that of a custom device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_IsCustomDevice(
    ctx: *mut TFE_Context,
    device_name: *const c_char,
) -> bool {
    guard_plain(false, || {
        // SAFETY: the contract of the header.
        let (Some(context), Ok(name)) = (unsafe { ctx.as_ref() }, unsafe { text(device_name) })
        else {
            return false;
        };
        context.custom_device(name).is_some()
    })
}

/// Creates a handle of a custom device's tensor, which is freed with the handle, also after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewCustomDeviceTensorHandle(
    ctx: *mut TFE_Context,
    device_name: *const c_char,
    dtype: c_int,
    data: *mut c_void,
    methods: TFE_CustomDeviceTensorHandle,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let found = unsafe { shared(ctx) }.and_then(|context| {
            // SAFETY: as above.
            let name = unsafe { text(device_name) }?;
            let device = context.custom_device(name);
            device.ok_or_else(|| invalid_argument!("{name} unknown device."))
        });
        let device = match found {
            Ok(device) => device,
            Err(error) => {
                if let Some(deallocator) = methods.deallocator {
                    // SAFETY: the client gave the function for this tensor.
                    unsafe { deallocator(data) };
                }
                return Err(error);
            }
        };
        let custom = CustomTensor {
            device,
            dtype,
            data,
            context: ctx,
            methods,
        };
        let value = HandleValue::Custom(custom);
        Ok(TFE_TensorHandle::with(value, 0).give())
    })
}
