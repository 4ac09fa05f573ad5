//! Lists of ops and kernels, and libraries with more of them (`tensorflow/c/c_api.h`).

use crate::env::not_loaded;
use crate::guard::{delete, guard, handle, list, shared, text, unique};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Result, failed_precondition, invalid_argument, unimplemented_error};
use ferroflow_model::proto;
use ferroflow_opdef::Op;
use ferroflow_runtime::registry;
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

fn op_list() -> Result<proto::OpList> {
    let defs = registry().defs()?;
    let is_public = |name: &str| !name.starts_with('_');
    let public = defs.iter().filter(|d| is_public(&d.name));
    let op = public
        .map(|d| ferroflow_graph::op_def_to_proto(d))
        .collect::<Result<_>>()?;
    Ok(proto::OpList { op })
}

/// Returns the `OpList` of all ops, which the client deletes.
#[unsafe(no_mangle)]
pub extern "C" fn TF_GetAllOpList() -> *mut TF_Buffer {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        Ok(crate::buffer::new_buffer(op_list()?.encode_to_vec()))
    })
}

/// The kernels of all ops, or of one.
fn kernels(filter: Option<&str>) -> Result<Vec<u8>> {
    let kernel = crate::kernels::client_kernels(filter);
    let mut list = proto::KernelList { kernel };
    for def in registry().defs()? {
        let is_built_in = |op: &&Op| op.kernel.is_some() && !op.signature.is_empty();
        let has_kernel = registry().op(&def.name).filter(is_built_in).is_some();
        if has_kernel && filter.is_none_or(|name| name == def.name) {
            list.kernel.push(proto::KernelDef {
                op: def.name.to_string(),
                device_type: "CPU".to_string(),
                ..Default::default()
            });
        }
    }
    Ok(list.encode_to_vec())
}

/// Returns the `KernelList` of all ops, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetAllRegisteredKernels(status: *mut TF_Status) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        Ok(crate::buffer::new_buffer(kernels(None)?))
    })
}

/// Returns the `KernelList` of an op, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetRegisteredKernelsForOp(
    name: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(name) }?;
        Ok(crate::buffer::new_buffer(kernels(Some(name))?))
    })
}

/// A library that was loaded, and the ops that it defined. It stays loaded, since kernels and definitions of ops point
/// into it.
pub struct TF_Library {
    op_list: Arc<[u8]>,
}

/// The ops of the loaded libraries, by the handles of these.
static LOADED: Mutex<BTreeMap<usize, Arc<[u8]>>> = Mutex::new(BTreeMap::new());

/// Loads a library that defines ops by `TF_RegisterOpDefinition` when it is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_LoadLibrary(
    library_filename: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Library {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(library_filename) }?;
        let before = op_list()?;
        // SAFETY: the client asks to run the library's initializers.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|e| not_loaded(name, &e))?;
        let address = libloading::os::unix::Library::from(library).into_raw() as usize;
        let mut ops = op_list()?;
        ops.op
            .retain(|op| !before.op.iter().any(|old| old.name == op.name));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        // A library that was loaded before has defined its ops then.
        let op_list = loaded
            .entry(address)
            .or_insert_with(|| ops.encode_to_vec().into())
            .clone();
        Ok(handle(TF_Library { op_list }))
    })
}

/// Returns the `OpList` of a library; the bytes belong to the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetOpList(lib_handle: *mut TF_Library) -> TF_Buffer {
    // SAFETY: the contract of the header.
    let bytes = unsafe { lib_handle.as_ref() }.map_or(&[][..], |l| &l.op_list);
    TF_Buffer {
        data: bytes.as_ptr().cast(),
        length: bytes.len(),
        data_deallocator: None,
    }
}

/// Deletes the handle of a library, which stays loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteLibraryHandle(lib_handle: *mut TF_Library) {
    // SAFETY: the contract of the header.
    unsafe { delete(lib_handle) }
}

/// Loads a library with the driver of a device (StreamExecutor's plugin interface), which is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_LoadPluggableDeviceLibrary(
    library_filename: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Library {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(library_filename) }?;
        // SAFETY: the client asks to run the library's initializers.
        let library = unsafe { libloading::Library::new(name) };
        library.map_err(|e| not_loaded(name, &e))?;
        Err(unimplemented_error!(
            "TF_LoadPluggableDeviceLibrary is not supported by Ferroflow: {name}"
        ))
    })
}

/// What a function of the client is told about each log line.
pub type LogListener = Option<unsafe extern "C" fn(*const c_char)>;

/// Passes what PrintV2 prints to a function, instead of to the standard streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RegisterLogListener(listener: LogListener) {
    if let Some(listener) = listener {
        ferroflow_runtime::listen_to_prints(move |text| {
            // As in TensorFlow, which passes a C string, the text ends at its first NUL.
            let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
            let text = CString::new(&text[..end]).unwrap_or_default();
            // SAFETY: the client registered the function; the text lives until it returns.
            unsafe { listener(text.as_ptr()) };
        });
    }
}

/// Documentation of ops, merged from several texts (`core/framework/op_gen_lib.cc`).
pub struct TF_ApiDefMap {
    ops: BTreeMap<String, proto::OpDef>,
    defs: BTreeMap<String, proto::ApiDef>,
    /// Whether a definition was read; no text may be added then.
    is_read: AtomicBool,
}

/// Creates a map for the ops of an `OpList`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewApiDefMap(
    op_list_buffer: *mut TF_Buffer,
    status: *mut TF_Status,
) -> *mut TF_ApiDefMap {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let bytes = unsafe { crate::buffer::bytes_of(op_list_buffer) };
        let ops =
            proto::OpList::decode(bytes).map_err(|_| invalid_argument!("Unparseable OpList"))?;
        let ops = ops.op.into_iter().map(|op| (op.name.clone(), op)).collect();
        let defs = BTreeMap::new();
        Ok(handle(TF_ApiDefMap {
            ops,
            defs,
            is_read: AtomicBool::new(false),
        }))
    })
}

/// Deletes a map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteApiDefMap(apimap: *mut TF_ApiDefMap) {
    // SAFETY: the contract of the header.
    unsafe { delete(apimap) }
}

/// Adds the text of an `ApiDefs` message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ApiDefMapPut(
    api_def_map: *mut TF_ApiDefMap,
    api_text: *const c_char,
    text_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (map, bytes) = unsafe { (unique(api_def_map)?, list(api_text.cast::<u8>(), text_len)) };
        if map.is_read.load(Ordering::Acquire) {
            return Err(failed_precondition!(
                "TF_ApiDefMapPut cannot be called after TF_ApiDefMapGet has been called."
            ));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| invalid_argument!("the ApiDefs text is not UTF-8"))?;
        for def in ferroflow_model::api_defs_from_text(text)?.op {
            if map.ops.contains_key(&def.graph_op_name) {
                map.defs.insert(def.graph_op_name.clone(), def);
            }
        }
        Ok(())
    });
}

/// Returns the serialized `ApiDef` of an op, which the client deletes; NULL if the map has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ApiDefMapGet(
    api_def_map: *mut TF_ApiDefMap,
    name: *const c_char,
    name_len: usize,
    status: *mut TF_Status,
) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (map, name) = unsafe { (shared(api_def_map)?, list(name.cast::<u8>(), name_len)) };
        let name = String::from_utf8_lossy(name);
        map.is_read.store(true, Ordering::Release);
        let op = map.ops.get(&*name);
        let Some(op) = op else {
            return Ok(std::ptr::null_mut());
        };
        let def = map.defs.get(&*name).cloned().unwrap_or_default();
        Ok(crate::buffer::new_buffer(
            completed(def, op).encode_to_vec(),
        ))
    })
}

/// Adds what follows from the op's definition.
fn completed(mut def: proto::ApiDef, op: &proto::OpDef) -> proto::ApiDef {
    def.graph_op_name.clone_from(&op.name);
    if def.visibility == proto::api_def::Visibility::DefaultVisibility as i32 {
        def.visibility = proto::api_def::Visibility::Visible as i32;
    }
    if def.endpoint.is_empty() {
        def.endpoint.push(proto::api_def::Endpoint {
            name: op.name.clone(),
            ..Default::default()
        });
    }
    def.in_arg = merged_args(&op.input_arg, &def.in_arg);
    def.out_arg = merged_args(&op.output_arg, &def.out_arg);
    let given = std::mem::take(&mut def.attr);
    def.attr = op
        .attr
        .iter()
        .map(|attr| merged_attr(attr, &given))
        .collect();
    if def.arg_order.is_empty() {
        def.arg_order = op.input_arg.iter().map(|a| a.name.clone()).collect();
    }
    or_else(&mut def.summary, &op.summary);
    or_else(&mut def.description, &op.description);
    def
}

/// Sets an empty text.
fn or_else(text: &mut String, otherwise: &str) {
    if text.is_empty() {
        *text = otherwise.to_string();
    }
}

fn merged_args(
    args: &[proto::op_def::ArgDef],
    given: &[proto::api_def::Arg],
) -> Vec<proto::api_def::Arg> {
    let merged = |arg: &proto::op_def::ArgDef| {
        let given = given.iter().find(|g| g.name == arg.name);
        let mut merged = given.cloned().unwrap_or_default();
        merged.name.clone_from(&arg.name);
        or_else(&mut merged.rename_to, &arg.name);
        or_else(&mut merged.description, &arg.description);
        merged
    };
    args.iter().map(merged).collect()
}

fn merged_attr(
    attr: &proto::op_def::AttrDef,
    given: &[proto::api_def::Attr],
) -> proto::api_def::Attr {
    let given = given.iter().find(|g| g.name == attr.name);
    let mut merged = given.cloned().unwrap_or_default();
    merged.name.clone_from(&attr.name);
    or_else(&mut merged.rename_to, &attr.name);
    or_else(&mut merged.description, &attr.description);
    merged.default_value = merged.default_value.or_else(|| attr.default_value.clone());
    merged
}
