//! Odds and ends of `tensorflow/c/c_api_experimental.h`.

use crate::guard::{delete, guard, guard_plain, handle, list, shared, text, unique};
use crate::{
    TF_Buffer, TF_DeleteLibraryHandle, TF_Function, TF_Library, TF_SessionOptions, TF_Status,
};
use ferroflow_base::{Result, internal, invalid_argument, not_found};
use ferroflow_model::proto::{ConfigProto, RunOptions, run_options};
use ferroflow_opdef::{ArgDef, AttrValue, Attrs, OpDef};
use ferroflow_runtime::registry;
use ferroflow_tensor::DType;
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

fn op_def(name: &str) -> Result<Arc<OpDef>> {
    let def = registry().def(name)?;
    def.ok_or_else(|| ferroflow_graph::op_not_registered(name))
}

/// Accepts the wish to compile by XLA, which there is none of; results are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_EnableXLACompilation(
    _options: *mut TF_SessionOptions,
    _enable: c_uchar,
) {
}

/// Flags of XLA, which are kept and have no effect.
static LAZY: AtomicU8 = AtomicU8::new(1);
static CPU_JIT: AtomicU8 = AtomicU8::new(0);
static AUTO_JIT: AtomicU8 = AtomicU8::new(0);
static NO_FOLDING: AtomicU8 = AtomicU8::new(0);

/// Sets a flag without effect and returns the former value.
#[unsafe(no_mangle)]
pub extern "C" fn TF_SetXlaEnableLazyCompilation(enable: c_uchar) -> c_uchar {
    LAZY.swap(enable, Ordering::Relaxed)
}

/// Sets a flag without effect and returns the former value.
#[unsafe(no_mangle)]
pub extern "C" fn TF_SetTfXlaCpuGlobalJit(enable: c_uchar) -> c_uchar {
    CPU_JIT.swap(enable, Ordering::Relaxed)
}

/// Sets a mode without effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetXlaAutoJitMode(mode: *const c_char) {
    // SAFETY: the contract of the header.
    let is_on = unsafe { text(mode) }.is_ok_and(|mode| !matches!(mode, "" | "0" | "default"));
    AUTO_JIT.store(u8::from(is_on), Ordering::Relaxed);
}

/// Returns whether a mode was set.
#[unsafe(no_mangle)]
pub extern "C" fn TF_GetXlaAutoJitEnabled() -> c_uchar {
    AUTO_JIT.load(Ordering::Relaxed)
}

/// Accepts a size without effect.
#[unsafe(no_mangle)]
pub extern "C" fn TF_SetXlaMinClusterSize(_size: c_int) {}

/// Returns a flag without effect.
#[unsafe(no_mangle)]
pub extern "C" fn TF_GetXlaConstantFoldingDisabled() -> c_uchar {
    NO_FOLDING.load(Ordering::Relaxed)
}

/// Sets a flag without effect.
#[unsafe(no_mangle)]
pub extern "C" fn TF_SetXlaConstantFoldingDisabled(should_enable: c_uchar) {
    NO_FOLDING.store(should_enable, Ordering::Relaxed);
}

/// Creates a serialized `ConfigProto`, which the client deletes.
#[unsafe(no_mangle)]
pub extern "C" fn TF_CreateConfig(
    _enable_xla_compilation: c_uchar,
    _gpu_memory_allow_growth: c_uchar,
    num_cpu_devices: c_uint,
) -> *mut TF_Buffer {
    guard_plain(std::ptr::null_mut(), || {
        let n = i32::try_from(num_cpu_devices).unwrap_or(1);
        let config = ConfigProto {
            device_count: [("CPU".to_string(), n)].into_iter().collect(),
            ..Default::default()
        };
        crate::buffer::new_buffer(config.encode_to_vec())
    })
}

/// Creates a serialized `RunOptions`, which the client deletes.
#[unsafe(no_mangle)]
pub extern "C" fn TF_CreateRunOptions(enable_full_trace: c_uchar) -> *mut TF_Buffer {
    guard_plain(std::ptr::null_mut(), || {
        let level = match enable_full_trace {
            0 => run_options::TraceLevel::NoTrace,
            _ => run_options::TraceLevel::FullTrace,
        };
        let options = RunOptions {
            trace_level: level as i32,
            ..Default::default()
        };
        crate::buffer::new_buffer(options.encode_to_vec())
    })
}

/// Returns a function as text, to be freed by `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionDebugString(
    func: *mut TF_Function,
    len: *mut usize,
) -> *mut c_char {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (function, len) = unsafe { (shared(func)?, len.as_mut()) };
        let text = crate::function_text::function_text(&function.def)?;
        if let Some(len) = len {
            *len = text.len();
        }
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the text ends with a NUL.
        Ok(unsafe { libc::strdup(text.as_ptr()) })
    })
}

/// Reads a `ServerDef` in text form and returns it serialized; the client deletes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_GetServerDef(
    text_proto: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let text = unsafe { text(text_proto) }?;
        let bytes = ferroflow_model::message_from_text("tensorflow.ServerDef", text);
        let bytes = bytes.map_err(|_| internal!("Invalid text proto for ServerDef: {text}"))?;
        Ok(crate::buffer::new_buffer(bytes))
    })
}

/// Makes a status INTERNAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_MakeInternalErrorStatus(
    status: *mut TF_Status,
    err_msg: *const c_char,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        Err(internal!("{}", unsafe { text(err_msg) }?))
    });
}

/// Attrs of a node that is looked for.
pub struct TF_AttrBuilder {
    op: String,
    attrs: Attrs,
}

/// Begins a list of attrs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewAttrBuilder(op_name: *const c_char) -> *mut TF_AttrBuilder {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let op = unsafe { text(op_name) }?.to_string();
        let attrs = Attrs::default();
        Ok(handle(TF_AttrBuilder { op, attrs }))
    })
}

/// Deletes a list of attrs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteAttrBuilder(builder: *mut TF_AttrBuilder) {
    // SAFETY: the contract of the header.
    unsafe { delete(builder) }
}

fn dtype(number: c_int) -> Result<AttrValue> {
    let dtype = DType::from_number(number);
    dtype
        .map(AttrValue::Type)
        .ok_or_else(|| invalid_argument!("unknown dtype {number}"))
}

/// Sets a dtype.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AttrBuilderSetType(
    builder: *mut TF_AttrBuilder,
    attr_name: *const c_char,
    value: c_int,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (builder, name) = unsafe { (unique(builder)?, text(attr_name)?) };
        builder.attrs.set(name.to_string(), dtype(value)?);
        Ok(())
    });
}

/// Sets a list of dtypes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AttrBuilderSetTypeList(
    builder: *mut TF_AttrBuilder,
    attr_name: *const c_char,
    values: *const c_int,
    num_values: c_int,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        let (builder, name, values) =
            unsafe { (unique(builder)?, text(attr_name)?, list(values, num_values)) };
        let values: Result<Vec<_>> = values.iter().map(|v| dtype(*v)).collect();
        builder
            .attrs
            .set(name.to_string(), AttrValue::List(values?));
        Ok(())
    });
}

/// Returns whether a type of device has a kernel for the op with these attrs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AttrBuilderCheckCanRunOnDevice(
    builder: *mut TF_AttrBuilder,
    device_type: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (builder, device) = unsafe { (shared(builder)?, text(device_type)?) };
        let def = op_def(&builder.op)?;
        let missing = || {
            not_found!(
                "No registered '{}' OpKernel for '{device}' devices compatible with node",
                builder.op
            )
        };
        if device != "CPU" || !registry().has_kernel(&builder.op) {
            return Err(missing());
        }
        let is_valid = |(name, value)| def.attr(name).is_none_or(|a| a.check(value).is_ok());
        match builder
            .attrs
            .iter()
            .all(|(name, value)| is_valid((name.as_ref(), value)))
        {
            true => Ok(()),
            false => Err(missing()),
        }
    });
}

/// Returns the attr with the length of an input that is a list of one dtype; the name lives as long as the
/// process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetNumberAttrForOpListInput(
    op_name: *const c_char,
    input_index: c_int,
    status: *mut TF_Status,
) -> *const c_char {
    static NAMES: Mutex<BTreeMap<String, &'static CStr>> = Mutex::new(BTreeMap::new());
    guard(status, std::ptr::null(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(op_name) }?;
        let def = op_def(name)?;
        let arg = usize::try_from(input_index)
            .ok()
            .and_then(|i| def.inputs.get(i));
        let arg = arg.ok_or_else(|| {
            invalid_argument!(
                "Invalid input_index [{input_index}] for op_name [{name}] with {} inputs",
                def.inputs.len()
            )
        })?;
        let number = match arg {
            ArgDef::Repeated { number, .. } => number.to_string(),
            _ => {
                return Err(invalid_argument!(
                    "Input {input_index} of op {name} is not a list with a number attr"
                ));
            }
        };
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let text = names.entry(number.clone()).or_insert_with(|| {
            let text: &'static CStr = Box::leak(CString::new(number).unwrap_or_default().into());
            text
        });
        Ok(text.as_ptr())
    })
}

/// Returns whether an op has state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpIsStateful(op_type: *const c_char, status: *mut TF_Status) -> c_int {
    guard(status, 0, || {
        // SAFETY: the contract of the header.
        let def = op_def(unsafe { text(op_type) }?)?;
        Ok(c_int::from(def.flags.stateful))
    })
}

/// Begins a program; nothing needs to be done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_InitMain(
    _usage: *const c_char,
    _argc: *mut c_int,
    _argv: *mut *mut *mut c_char,
) {
}

/// Returns a TCP port that is not in use; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn TF_PickUnusedPortOrDie() -> c_int {
    guard_plain(0, || {
        let bound = std::net::TcpListener::bind(("127.0.0.1", 0));
        let address = bound.and_then(|listener| listener.local_addr());
        address.map_or(0, |address| c_int::from(address.port()))
    })
}

/// Deletes the handle of a library of devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeletePluggableDeviceLibraryHandle(lib_handle: *mut TF_Library) {
    // SAFETY: the contract of the header.
    unsafe { TF_DeleteLibraryHandle(lib_handle) }
}
