//! Importing GraphDefs (`tensorflow/c/c_api.h`).

use crate::graph::{TF_Graph, TF_Operation, TF_Output};
use crate::guard::{delete, guard, guard_plain, handle, list_mut, shared, text, unique};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{ImportOptions, ImportResults};
use ferroflow_model::proto::GraphDef;
use prost::Message;
use std::ffi::{CString, c_char, c_int, c_uchar};

/// How a GraphDef is imported.
#[derive(Default)]
pub struct TF_ImportGraphDefOptions {
    options: ImportOptions,
}

/// What an import added; owns the arrays that the client reads.
pub struct TF_ImportGraphDefResults {
    outputs: Vec<TF_Output>,
    operations: Vec<*mut TF_Operation>,
    _missing: Vec<CString>,
    missing_names: Vec<*const c_char>,
    missing_indices: Vec<c_int>,
}

/// Creates default options.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewImportGraphDefOptions() -> *mut TF_ImportGraphDefOptions {
    let mut options = TF_ImportGraphDefOptions::default();
    options.options.checks_colocation = true;
    handle(options)
}

/// Deletes options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteImportGraphDefOptions(opts: *mut TF_ImportGraphDefOptions) {
    // SAFETY: the contract of the header.
    unsafe { delete(opts) }
}

/// Declares functions that set an option.
macro_rules! setters {
    ($($(#[$doc:meta])* fn $name:ident($options:ident $(, $arg:ident: $ty:ty)*) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(opts: *mut TF_ImportGraphDefOptions $(, $arg: $ty)*) {
                guard(std::ptr::null_mut(), (), || {
                    #[allow(unused_unsafe, reason = "not all values are behind pointers")]
                    // SAFETY: the contract of the header.
                    unsafe {
                        let $options = &mut unique(opts)?.options;
                        $body
                    }
                    Ok(())
                })
            }
        )*
    };
}

setters! {
    /// Sets the prefix of all names.
    fn TF_ImportGraphDefOptionsSetPrefix(o, prefix: *const c_char) { o.prefix = text(prefix)?.to_string(); }
    /// Sets the device of nodes that request none.
    fn TF_ImportGraphDefOptionsSetDefaultDevice(o, device: *const c_char) {
        o.default_device = text(device)?.to_string();
    }
    /// Sets whether taken names get a number.
    fn TF_ImportGraphDefOptionsSetUniquifyNames(o, uniquify_names: c_uchar) {
        o.uniquify_names = uniquify_names != 0;
    }
    /// Sets whether a taken prefix gets a number.
    fn TF_ImportGraphDefOptionsSetUniquifyPrefix(o, uniquify_prefix: c_uchar) {
        o.uniquify_prefix = uniquify_prefix != 0;
    }
    /// Lets a tensor of the graph stand for one of the GraphDef.
    fn TF_ImportGraphDefOptionsAddInputMapping(o, src_name: *const c_char, src_index: c_int, dst: TF_Output) {
        match usize::try_from(src_index) {
            Ok(slot) => o.input_map.push(((text(src_name)?.to_string(), slot), dst.output()?)),
            Err(_) => o.control_map.push((text(src_name)?.to_string(), shared(dst.oper)?.id)),
        }
    }
    /// Lets control edges start at a node of the graph.
    fn TF_ImportGraphDefOptionsRemapControlDependency(o, src_name: *const c_char, dst: *mut TF_Operation) {
        o.control_map.push((text(src_name)?.to_string(), shared(dst)?.id));
    }
    /// Lets the new nodes wait for a node of the graph.
    fn TF_ImportGraphDefOptionsAddControlDependency(o, oper: *mut TF_Operation) {
        o.control_dependencies.push(shared(oper)?.id);
    }
    /// Asks where a tensor of the GraphDef is in the graph.
    fn TF_ImportGraphDefOptionsAddReturnOutput(o, oper_name: *const c_char, index: c_int) {
        let slot = usize::try_from(index).unwrap_or(usize::MAX - 1);
        o.return_outputs.push((text(oper_name)?.to_string(), slot));
    }
    /// Asks where a node of the GraphDef is in the graph.
    fn TF_ImportGraphDefOptionsAddReturnOperation(o, oper_name: *const c_char) {
        o.return_nodes.push(text(oper_name)?.to_string());
    }
    /// Sets whether nodes may only be colocated with nodes of the GraphDef. It is set by default.
    fn TF_ImportGraphDefOptionsSetValidateColocationConstraints(o, enable: c_uchar) {
        o.checks_colocation = enable != 0;
    }
}

/// Returns the number of tensors asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ImportGraphDefOptionsNumReturnOutputs(
    opts: *const TF_ImportGraphDefOptions,
) -> c_int {
    guard_plain(0, || {
        // SAFETY: the contract of the header.
        unsafe { opts.as_ref() }.map_or(0, |o| o.options.return_outputs.len() as c_int)
    })
}

/// Returns the number of nodes asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ImportGraphDefOptionsNumReturnOperations(
    opts: *const TF_ImportGraphDefOptions,
) -> c_int {
    guard_plain(0, || {
        // SAFETY: the contract of the header.
        unsafe { opts.as_ref() }.map_or(0, |o| o.options.return_nodes.len() as c_int)
    })
}

/// Imports a GraphDef; returns the results with handles of the graph.
///
/// # Safety
/// The arguments are NULL or valid.
unsafe fn import(
    graph: *mut TF_Graph,
    graph_def: *const TF_Buffer,
    options: *const TF_ImportGraphDefOptions,
) -> Result<TF_ImportGraphDefResults> {
    // SAFETY: as this function's.
    let (graph, bytes, options) = unsafe {
        let bytes = crate::buffer::bytes_of(graph_def);
        (shared(graph)?, bytes, &shared(options)?.options)
    };
    let def = GraphDef::decode(bytes).map_err(|_| invalid_argument!("Invalid GraphDef"))?;
    let results: ImportResults = graph.state.change(|g| g.import(&def, options))?;
    let inner = graph.state.lock();
    let missing = results.missing_unused.iter();
    let names: Vec<CString> = missing
        .clone()
        .map(|(name, _)| CString::new(name.as_str()).unwrap_or_default())
        .collect();
    Ok(TF_ImportGraphDefResults {
        outputs: results
            .return_outputs
            .iter()
            .map(|o| inner.output(*o))
            .collect(),
        operations: results
            .return_nodes
            .iter()
            .map(|id| inner.operation(*id))
            .collect(),
        missing_names: names.iter().map(|n| n.as_ptr()).collect(),
        missing_indices: missing.map(|(_, slot)| *slot as c_int).collect(),
        _missing: names,
    })
}

/// Imports a GraphDef.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphImportGraphDef(
    graph: *mut TF_Graph,
    graph_def: *const TF_Buffer,
    options: *const TF_ImportGraphDefOptions,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe { import(graph, graph_def, options) }.map(drop)
    });
}

/// Imports a GraphDef; returns what was asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphImportGraphDefWithResults(
    graph: *mut TF_Graph,
    graph_def: *const TF_Buffer,
    options: *const TF_ImportGraphDefOptions,
    status: *mut TF_Status,
) -> *mut TF_ImportGraphDefResults {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        Ok(handle(unsafe { import(graph, graph_def, options) }?))
    })
}

/// Imports a GraphDef; writes the tensors asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GraphImportGraphDefWithReturnOutputs(
    graph: *mut TF_Graph,
    graph_def: *const TF_Buffer,
    options: *const TF_ImportGraphDefOptions,
    return_outputs: *mut TF_Output,
    num_return_outputs: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let wanted = unsafe { &shared(options)?.options.return_outputs };
        if wanted.len() as c_int != num_return_outputs {
            return Err(invalid_argument!(
                "Expected 'num_return_outputs' to be {}, got {num_return_outputs}",
                wanted.len()
            ));
        }
        // SAFETY: the contract of the header.
        let (results, to) = unsafe {
            (
                import(graph, graph_def, options)?,
                list_mut(return_outputs, num_return_outputs),
            )
        };
        for (to, output) in to.iter_mut().zip(results.outputs) {
            *to = output;
        }
        Ok(())
    });
}

/// Deletes results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteImportGraphDefResults(results: *mut TF_ImportGraphDefResults) {
    // SAFETY: the contract of the header.
    unsafe { delete(results) }
}

/// Returns the tensors asked for; the array belongs to the results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ImportGraphDefResultsReturnOutputs(
    results: *mut TF_ImportGraphDefResults,
    num_outputs: *mut c_int,
    outputs: *mut *mut TF_Output,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let results = unique(results)?;
            *unique(num_outputs)? = results.outputs.len() as c_int;
            *unique(outputs)? = results.outputs.as_mut_ptr();
        }
        Ok(())
    });
}

/// Returns the nodes asked for; the array belongs to the results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ImportGraphDefResultsReturnOperations(
    results: *mut TF_ImportGraphDefResults,
    num_opers: *mut c_int,
    opers: *mut *mut *mut TF_Operation,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let results = unique(results)?;
            *unique(num_opers)? = results.operations.len() as c_int;
            *unique(opers)? = results.operations.as_mut_ptr();
        }
        Ok(())
    });
}

/// Returns the mapped tensors that the GraphDef neither has nor reads; the arrays belong to the results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ImportGraphDefResultsMissingUnusedInputMappings(
    results: *mut TF_ImportGraphDefResults,
    num_missing_unused_input_mappings: *mut c_int,
    src_names: *mut *mut *const c_char,
    src_indexes: *mut *mut c_int,
) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header.
        unsafe {
            let results = unique(results)?;
            *unique(num_missing_unused_input_mappings)? = results.missing_names.len() as c_int;
            *unique(src_names)? = results.missing_names.as_mut_ptr();
            *unique(src_indexes)? = results.missing_indices.as_mut_ptr();
        }
        Ok(())
    });
}
