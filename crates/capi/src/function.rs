//! `TF_Function` (`tensorflow/c/c_api_function.cc`).

use crate::graph::{TF_Graph, TF_Operation, TF_Output, outputs_of};
use crate::guard::{
    delete, guard, guard_plain, handle, list, list_mut, shared, text, texts, unique,
};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_graph::{FunctionRequest, NodeId};
use ferroflow_model::proto::{AttrValue, FunctionDef};
use prost::Message;
use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::sync::Arc;

/// A function in its file form.
pub struct TF_Function {
    pub(crate) def: Arc<FunctionDef>,
    name: CString,
}

/// Options of functions; there are none.
pub struct TF_FunctionOptions {
    _private: (),
}

impl TF_Function {
    pub(crate) fn new(def: Arc<FunctionDef>) -> TF_Function {
        let name = def.signature.as_ref().map_or("", |s| &s.name);
        let name = CString::new(name).unwrap_or_default();
        TF_Function { def, name }
    }
}

/// The names in an array of C strings, if there is one.
///
/// # Safety
/// `names` is NULL or has `n` C strings.
unsafe fn names(names: *const *const c_char, n: c_int) -> Result<Option<Vec<String>>> {
    match names.is_null() {
        true => Ok(None),
        // SAFETY: as this function's.
        false => unsafe { texts(names, n) }.map(Some),
    }
}

/// The nodes behind an array of handles.
///
/// # Safety
/// The handles are NULL or live.
unsafe fn nodes(graph: &TF_Graph, opers: &[*const TF_Operation]) -> Result<Vec<NodeId>> {
    let node = |oper: &*const TF_Operation| {
        // SAFETY: as this function's.
        let operation = unsafe { shared(*oper) }?;
        match operation.is_in(&graph.state) {
            true => Ok(operation.id),
            false => Err(invalid_argument!(
                "Operation '{}' is in another graph",
                operation.name()
            )),
        }
    };
    opers.iter().map(node).collect()
}

/// Makes a function of a graph, or of some of its nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphToFunctionWithControlOutputs(
    fn_body: *const TF_Graph,
    fn_name: *const c_char,
    append_hash_to_fn_name: c_uchar,
    num_opers: c_int,
    opers: *const *const TF_Operation,
    ninputs: c_int,
    inputs: *const TF_Output,
    noutputs: c_int,
    outputs: *const TF_Output,
    output_names: *const *const c_char,
    ncontrol_outputs: c_int,
    control_outputs: *const *const TF_Operation,
    control_output_names: *const *const c_char,
    _opts: *const TF_FunctionOptions,
    description: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Function {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let def = unsafe {
            let graph = shared(fn_body)?;
            let name = text(fn_name)?;
            let (inputs, outputs) = (list(inputs, ninputs), list(outputs, noutputs));
            let in_graph = |list: &[TF_Output], what: (&str, &str)| {
                for (i, output) in list.iter().enumerate() {
                    graph.check_node(output.oper).map_err(|e| {
                        let (e, (what, way)) = (e.message(), what);
                        invalid_argument!(
                            "{e}\n\tEncountered while processing {what} {i} {way} function '{name}'"
                        )
                    })?;
                }
                Ok::<(), Status>(())
            };
            in_graph(inputs, ("input", "into"))?;
            in_graph(outputs, ("output", "from"))?;
            let (inputs, outputs) = (outputs_of(inputs)?, outputs_of(outputs)?);
            let body = match num_opers {
                -1 => None,
                n => Some(nodes(graph, list(opers, n))?),
            };
            let request = FunctionRequest {
                name,
                append_hash: append_hash_to_fn_name != 0,
                body,
                inputs: &inputs,
                outputs: &outputs,
                output_names: names(output_names, noutputs)?,
                control_outputs: &nodes(graph, list(control_outputs, ncontrol_outputs))?,
                control_output_names: names(control_output_names, ncontrol_outputs)?,
                description: match description.is_null() {
                    true => None,
                    false => Some(text(description)?),
                },
            };
            graph.state.lock().graph.to_function(&request)?
        };
        Ok(handle(TF_Function::new(Arc::new(def))))
    })
}

/// As [`TF_GraphToFunctionWithControlOutputs`], without control outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphToFunction(
    fn_body: *const TF_Graph,
    fn_name: *const c_char,
    append_hash_to_fn_name: c_uchar,
    num_opers: c_int,
    opers: *const *const TF_Operation,
    ninputs: c_int,
    inputs: *const TF_Output,
    noutputs: c_int,
    outputs: *const TF_Output,
    output_names: *const *const c_char,
    opts: *const TF_FunctionOptions,
    description: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Function {
    // SAFETY: the contract is the same.
    unsafe {
        TF_GraphToFunctionWithControlOutputs(
            fn_body,
            fn_name,
            append_hash_to_fn_name,
            num_opers,
            opers,
            ninputs,
            inputs,
            noutputs,
            outputs,
            output_names,
            0,
            std::ptr::null(),
            std::ptr::null(),
            opts,
            description,
            status,
        )
    }
}

/// Returns the function's name, which lives as long as it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionName(func: *mut TF_Function) -> *const c_char {
    // SAFETY: the contract of the header.
    unsafe { func.as_ref() }.map_or(std::ptr::null(), |f| f.name.as_ptr())
}

/// Writes the function as a `FunctionDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionToFunctionDef(
    func: *mut TF_Function,
    output_func_def: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe { crate::buffer::fill_message(output_func_def, &*shared(func)?.def) }
    });
}

/// Creates a function of a serialized `FunctionDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionImportFunctionDef(
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) -> *mut TF_Function {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let bytes = unsafe { list(proto.cast::<u8>(), proto_len) };
        let def = FunctionDef::decode(bytes).map_err(|_| {
            invalid_argument!("Invalid FunctionDef given to TF_FunctionImportFunctionDef")
        })?;
        Ok(handle(TF_Function::new(Arc::new(def))))
    })
}

/// Sets an attr of the function, in its file form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionSetAttrValueProto(
    func: *mut TF_Function,
    attr_name: *const c_char,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (function, name, bytes) = unsafe {
            (
                unique(func)?,
                text(attr_name)?,
                list(proto.cast::<u8>(), proto_len),
            )
        };
        let value = AttrValue::decode(bytes).map_err(|_| {
            invalid_argument!("Unparseable AttrValue proto passed to TF_FunctionSetAttrValueProto")
        })?;
        Arc::make_mut(&mut function.def)
            .attr
            .insert(name.to_string(), value);
        Ok(())
    });
}

/// Reads an attr of the function in its file form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FunctionGetAttrValueProto(
    func: *mut TF_Function,
    attr_name: *const c_char,
    output_attr_value: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let (function, name) = (shared(func)?, text(attr_name)?);
            let value = function.def.attr.get(name).ok_or_else(|| {
                let function = function.name.to_string_lossy();
                invalid_argument!("Function '{function}' has no attr named '{name}'.")
            })?;
            crate::buffer::fill_message(output_attr_value, value)
        }
    });
}

/// Deletes a function; graphs that it was copied to keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteFunction(func: *mut TF_Function) {
    // SAFETY: the contract of the header.
    unsafe { delete(func) }
}

/// Adds a function, and its gradient if any, to a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphCopyFunction(
    g: *mut TF_Graph,
    func: *const TF_Function,
    grad: *const TF_Function,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        if func.is_null() {
            return Err(invalid_argument!(
                "'func' argument to TF_GraphCopyFunction cannot be null"
            ));
        }
        // SAFETY: the contract of the header.
        let (graph, function, gradient) = unsafe { (shared(g)?, shared(func)?, grad.as_ref()) };
        let mut inner = graph.state.lock();
        inner
            .graph
            .add_function(&function.def, gradient.map(|g| &g.def))
    });
}

/// Removes a function from a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphRemoveFunction(
    g: *mut TF_Graph,
    func_name: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, name) = unsafe { (shared(g)?, text(func_name)?) };
        graph.state.lock().graph.remove_function(name)
    });
}

/// Returns the number of functions of a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphNumFunctions(g: *mut TF_Graph) -> c_int {
    guard_plain(0, || {
        // SAFETY: the contract of the header.
        let graph = unsafe { g.as_ref() };
        graph.map_or(0, |g| g.state.lock().graph.functions().len() as c_int)
    })
}

/// Writes at most `max_func` functions of a graph, which the client deletes; returns their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphGetFunctions(
    g: *mut TF_Graph,
    funcs: *mut *mut TF_Function,
    max_func: c_int,
    status: *mut TF_Status,
) -> c_int {
    guard(status, 0, || {
        // SAFETY: the contract of the header.
        let (graph, to) = unsafe { (shared(g)?, list_mut(funcs, max_func)) };
        if max_func < 0 {
            return Ok(max_func);
        }
        let inner = graph.state.lock();
        let mut n = 0;
        for (to, def) in to.iter_mut().zip(inner.graph.functions()) {
            *to = handle(TF_Function::new(def.clone()));
            n += 1;
        }
        Ok(n)
    })
}
