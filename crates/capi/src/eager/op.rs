//! `TFE_Op`: a call that is being described.

use super::context::TFE_Context;
use super::device::parse;
use super::handle::{TFE_TensorHandle, reference, valid};
use crate::TF_Status;
use crate::guard::{delete, guard, handle, list, shared, text, unique};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_opdef::{ArgDef, AttrValue, Attrs};
use ferroflow_runtime::CancelToken;
use ferroflow_runtime::eager::{CallDef, Given};
use ferroflow_tensor::DType;
use smallvec::SmallVec;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Arc, OnceLock};

/// A call: an op or a function, attrs, inputs and a device.
pub struct TFE_Op {
    pub(super) context: Arc<TFE_Context>,
    pub(super) def: Arc<CallDef>,
    pub(super) attrs: Attrs,
    /// Attrs that the op does not declare. Only custom devices look at them.
    pub(super) undeclared: Attrs,
    pub(super) inputs: SmallVec<[Arc<TFE_TensorHandle>; 4]>,
    pub(super) given: SmallVec<[Given; 4]>,
    pub(super) device: Option<CString>,
    pub(super) cancel: Option<CancelToken>,
    name: OnceLock<CString>,
    /// The error of a function that has no status; the call fails with it.
    pub(super) error: Option<Status>,
    /// The dtypes of the inputs of the last run, which has taken these.
    ran: Option<SmallVec<[DType; 4]>>,
    /// Whether an input may be a packed handle.
    pub(super) has_packed: bool,
}

impl TFE_Op {
    /// The attrs with those that the inputs determine.
    pub(super) fn all_attrs(&self) -> Result<Attrs> {
        self.def
            .with_inferred(&self.attrs, &self.given, &self.dtypes())
    }

    #[inline]
    pub(super) fn dtypes(&self) -> SmallVec<[DType; 4]> {
        if let Some(ran) = &self.ran {
            return ran.clone();
        }
        let dtype = |h: &Arc<TFE_TensorHandle>| DType::from_number(h.dtype());
        self.inputs.iter().filter_map(dtype).collect()
    }

    /// Drops the inputs of a run; what they determined stays known until there are others.
    #[inline]
    pub(super) fn end_run(&mut self) {
        self.ran = Some(self.dtypes());
        self.inputs.clear();
        self.has_packed = false;
    }

    /// Forgets what the inputs of the last run determined.
    #[inline]
    pub(super) fn begin_inputs(&mut self) {
        if self.ran.take().is_some() {
            self.given.clear();
        }
    }

    pub(super) fn device_text(&self) -> &str {
        let device = self.device.as_ref().map(|device| device.to_str());
        device.and_then(|device| device.ok()).unwrap_or("")
    }

    fn set_device(&mut self, name: &str) -> Result<()> {
        if name.is_empty() {
            self.device = None;
            return Ok(());
        }
        if self.device_text() == name {
            return Ok(());
        }
        let spec = parse(name).map_err(|_| {
            invalid_argument!(
                "Malformed device specification '{name}' in eager op: {}",
                self.name_text()
            )
        })?;
        self.device = CString::new(spec.to_string()).ok();
        Ok(())
    }

    pub(super) fn name_text(&self) -> &str {
        &self.def.op_def().name
    }

    /// The number of tensors of the argument `name`; the lengths of all of them must be known.
    fn length(&self, args: &[ArgDef], name: &str, what: &str) -> Result<c_int> {
        let attrs = self.all_attrs()?;
        let missing = |attr: &str| not_found!("No attr named '{attr}' in NodeDef:");
        let mut length = None;
        for arg in args {
            let n = match arg {
                ArgDef::Single { .. } => 1,
                ArgDef::Repeated { number, .. } => match attrs.get(number) {
                    Some(AttrValue::Int(n)) => *n as c_int,
                    _ => return Err(missing(number)),
                },
                ArgDef::List { types, .. } => match attrs.get(types) {
                    Some(AttrValue::List(types)) => types.len() as c_int,
                    _ => return Err(missing(types)),
                },
            };
            if arg.name() == name {
                length = Some(n);
            }
        }
        length.ok_or_else(|| invalid_argument!("{what} '{name}' not found"))
    }
}

/// Begins a call of an op or of a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_NewOp(
    ctx: *mut TFE_Context,
    op_or_function_name: *const c_char,
    status: *mut TF_Status,
) -> *mut TFE_Op {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header; contexts are made by `TFE_NewContext`.
        let (context, name) = unsafe {
            shared(ctx)?;
            Arc::increment_strong_count(ctx);
            (Arc::from_raw(ctx.cast_const()), text(op_or_function_name)?)
        };
        let def = context.engine.def(name)?;
        Ok(handle(TFE_Op {
            context,
            def,
            attrs: Attrs::default(),
            undeclared: Attrs::default(),
            inputs: SmallVec::new(),
            given: SmallVec::new(),
            device: None,
            cancel: None,
            name: OnceLock::new(),
            error: None,
            ran: None,
            has_packed: false,
        }))
    })
}

/// Begins another call in place of one that has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpReset(
    op_to_reset: *mut TFE_Op,
    op_or_function_name: *const c_char,
    raw_device_name: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (op, name) = unsafe { (unique(op_to_reset)?, text(op_or_function_name)?) };
        if op.name_text() != name {
            op.def = op.context.engine.def(name)?;
            op.name = OnceLock::new();
        }
        (op.attrs, op.undeclared) = Default::default();
        op.inputs.clear();
        op.given.clear();
        op.cancel = None;
        op.error = None;
        (op.ran, op.has_packed) = (None, false);
        let device = match raw_device_name.is_null() {
            true => "",
            // SAFETY: the contract of the header.
            false => unsafe { text(raw_device_name) }?,
        };
        op.set_device(device)
    });
}

/// Deletes a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_DeleteOp(op: *mut TFE_Op) {
    // SAFETY: the contract of the header.
    unsafe { delete(op) }
}

/// Returns the name of the op or function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetName(op: *const TFE_Op, status: *mut TF_Status) -> *const c_char {
    guard(status, std::ptr::null(), || {
        // SAFETY: the contract of the header.
        let op = unsafe { shared(op) }?;
        let name = || CString::new(op.name_text()).unwrap_or_default();
        Ok(op.name.get_or_init(name).as_ptr())
    })
}

/// Returns the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetContext(
    op: *const TFE_Op,
    status: *mut TF_Status,
) -> *mut TFE_Context {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        Ok(Arc::as_ptr(&unsafe { shared(op) }?.context).cast_mut())
    })
}

/// Sets the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetDevice(
    op: *mut TFE_Op,
    device_name: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header; NULL stands for none.
        unsafe {
            let name = match device_name.is_null() {
                true => "",
                false => text(device_name)?,
            };
            if !is_device_spec(name) {
                return Err(invalid_argument!(
                    "Malformed device specification '{name}' in eager op"
                ));
            }
            unique(op)?.set_device(name)
        }
    });
}

/// Whether a text consists of parts of a full device name, such as `/job:worker/device:CPU:0`.
fn is_device_spec(name: &str) -> bool {
    const KEYS: [&str; 8] = [
        "job", "replica", "task", "device", "cpu", "CPU", "gpu", "GPU",
    ];
    let is_part = |part: &str| {
        part.split_once(':')
            .is_some_and(|(key, _)| KEYS.contains(&key))
    };
    let parts = |rest: &str| rest.is_empty() || rest.split('/').all(is_part);
    name.is_empty() || name.strip_prefix('/').is_some_and(parts)
}

/// Returns the device; empty if none was set. The status stays as it is, as in TensorFlow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetDevice(
    op: *const TFE_Op,
    status: *mut TF_Status,
) -> *const c_char {
    // SAFETY: the contract of the header.
    match unsafe { shared(op) } {
        Ok(op) => op
            .device
            .as_ref()
            .map_or(c"".as_ptr(), |device| device.as_ptr()),
        Err(error) => guard(status, std::ptr::null(), || Err(error)),
    }
}

/// Adds an input, one tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpAddInput(
    op: *mut TFE_Op,
    input: *mut TFE_TensorHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let op = unique(op)?;
            op.begin_inputs();
            op.has_packed |= valid(input)?.is_packed();
            op.inputs.push(reference(input));
            op.given.push(Given::One);
        }
        Ok(())
    });
}

/// Adds an input, a list of tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpAddInputList(
    op: *mut TFE_Op,
    inputs: *mut *mut TFE_TensorHandle,
    num_inputs: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (op, inputs) = unsafe { (unique(op)?, list(inputs, num_inputs)) };
        op.begin_inputs();
        for input in inputs {
            // SAFETY: as above.
            op.has_packed |= unsafe { valid(*input) }?.is_packed();
        }
        // SAFETY: as above.
        op.inputs
            .extend(inputs.iter().map(|input| unsafe { reference(*input) }));
        op.given.push(Given::List(inputs.len() as u32));
        op.all_attrs().map(drop)
    });
}

/// Returns the number of inputs, the elements of lists counted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetFlatInputCount(
    op: *const TFE_Op,
    status: *mut TF_Status,
) -> c_int {
    guard(status, 0, || {
        // SAFETY: the contract of the header.
        Ok(unsafe { shared(op) }?.inputs.len() as c_int)
    })
}

/// Returns an input, to which the op has the reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetFlatInput(
    op: *const TFE_Op,
    index: c_int,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let inputs = unsafe { &shared(op)?.inputs };
        let input = usize::try_from(index).ok().and_then(|i| inputs.get(i));
        let input = input.ok_or_else(|| invalid_argument!("the op has no input {index}"))?;
        Ok(Arc::as_ptr(input).cast_mut())
    })
}

/// Returns the number of tensors of an input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetInputLength(
    op: *mut TFE_Op,
    input_name: *const c_char,
    status: *mut TF_Status,
) -> c_int {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        let (op, name) = unsafe { (shared(op)?, text(input_name)?) };
        op.length(&op.def.op_def().inputs, name, "Input")
    })
}

/// Returns the number of tensors of an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetOutputLength(
    op: *mut TFE_Op,
    output_name: *const c_char,
    status: *mut TF_Status,
) -> c_int {
    guard(status, -1, || {
        // SAFETY: the contract of the header.
        let (op, name) = unsafe { (shared(op)?, text(output_name)?) };
        op.length(&op.def.op_def().outputs, name, "Output")
    })
}
