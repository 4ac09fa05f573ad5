//! While loops and gradients (`tensorflow/c/c_api.h`).

use crate::TF_Status;
use crate::graph::{NO_OUTPUT, TF_Graph, TF_Output, outputs_of};
use crate::guard::{guard, guard_plain, handle, list, list_mut, shared, text};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{NodeDescription, Output, WhileLoop};
use ferroflow_opdef::AttrValue;
use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

/// A loop that is being built. The client fills in `cond_output`, `body_outputs` and `name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_WhileParams {
    /// The number of loop variables.
    pub ninputs: c_int,
    /// The graph that computes the condition.
    pub cond_graph: *mut TF_Graph,
    /// The loop variables in it.
    pub cond_inputs: *const TF_Output,
    /// The condition.
    pub cond_output: TF_Output,
    /// The graph that computes the next values.
    pub body_graph: *mut TF_Graph,
    /// The loop variables in it.
    pub body_inputs: *const TF_Output,
    /// Their next values.
    pub body_outputs: *mut TF_Output,
    /// The loop's name.
    pub name: *const c_char,
}

const NO_LOOP: TF_WhileParams = TF_WhileParams {
    ninputs: 0,
    cond_graph: std::ptr::null_mut(),
    cond_inputs: std::ptr::null(),
    cond_output: NO_OUTPUT,
    body_graph: std::ptr::null_mut(),
    body_inputs: std::ptr::null(),
    body_outputs: std::ptr::null_mut(),
    name: std::ptr::null(),
};

/// The loops that were begun and neither finished nor aborted.
static LOOPS: Mutex<Vec<Begun>> = Mutex::new(Vec::new());

/// What the client must give back unchanged.
struct Begun {
    params: TF_WhileParams,
    parent: *const TF_Graph,
    inputs: Vec<TF_Output>,
}

// SAFETY: the pointers are only compared, or followed by calls of the client that name the loop.
unsafe impl Send for Begun {}

fn take(params: &TF_WhileParams) -> Option<Begun> {
    let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |b: &Begun| {
        let own = &b.params;
        own.cond_graph == params.cond_graph
            && own.body_graph == params.body_graph
            && own.cond_inputs == params.cond_inputs
            && own.body_inputs == params.body_inputs
            && own.body_outputs == params.body_outputs
            && own.ninputs == params.ninputs
    };
    let i = loops.iter().position(is_it)?;
    Some(loops.swap_remove(i))
}

/// An array for the client, of `n` elements.
fn array(outputs: Vec<TF_Output>) -> *mut TF_Output {
    Box::into_raw(outputs.into_boxed_slice()).cast()
}

/// Frees graphs and arrays of a loop.
fn free(begun: &Begun) {
    let params = &begun.params;
    let n = params.ninputs as usize;
    let free_array = |array: *const TF_Output| {
        let array = std::ptr::slice_from_raw_parts_mut(array.cast_mut(), n);
        // SAFETY: `array` made it, with this length, and it is freed once.
        drop(unsafe { Box::from_raw(array) });
    };
    free_array(params.cond_inputs);
    free_array(params.body_inputs);
    free_array(params.body_outputs);
    // SAFETY: `TF_NewWhile` made the graphs, and they are deleted once.
    unsafe {
        crate::guard::delete(params.cond_graph);
        crate::guard::delete(params.body_graph);
    }
}

/// A graph with a placeholder for each loop variable.
fn graph_of(
    parent: &TF_Graph,
    inputs: &[Output],
    prefix: &str,
) -> Result<(TF_Graph, Vec<TF_Output>)> {
    let graph = TF_Graph {
        state: crate::graph::GraphState::new(),
    };
    let mut placeholders = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let dtype = parent.state.lock().graph.dtype(*input)?;
        let mut node = NodeDescription::new("Placeholder", &format!("{prefix}{i}"));
        node.set_attr("dtype", AttrValue::Type(dtype));
        let id = graph.state.change(|g| {
            for function in parent.state.lock().graph.functions() {
                g.add_function(function, None)?;
            }
            g.add(node)
        })?;
        placeholders.push(graph.state.lock().output(Output::new(id, 0)));
    }
    Ok((graph, placeholders))
}

/// Begins a loop; the client builds its two graphs, then calls `TF_FinishWhile` or `TF_AbortWhile`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewWhile(
    g: *mut TF_Graph,
    inputs: *mut TF_Output,
    ninputs: c_int,
    status: *mut TF_Status,
) -> TF_WhileParams {
    guard(status, NO_LOOP, || {
        if ninputs == 0 {
            return Err(invalid_argument!(
                "TF_NewWhile() must be passed at least one input"
            ));
        }
        // SAFETY: the contract of the header.
        let (parent, given) = unsafe { (shared(g)?, list(inputs.cast_const(), ninputs)) };
        // SAFETY: the contract of the header.
        let values = unsafe { outputs_of(given) }?;
        let (cond, cond_inputs) = graph_of(parent, &values, "cond_input")?;
        let (body, body_inputs) = graph_of(parent, &values, "body_input")?;
        let params = TF_WhileParams {
            ninputs,
            cond_graph: handle(cond),
            cond_inputs: array(cond_inputs),
            cond_output: NO_OUTPUT,
            body_graph: handle(body),
            body_inputs: array(body_inputs),
            body_outputs: array(vec![NO_OUTPUT; given.len()]),
            name: std::ptr::null(),
        };
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.push(Begun {
            params,
            parent: g,
            inputs: given.to_vec(),
        });
        Ok(params)
    })
}

/// The output, which must be in `graph`.
///
/// # Safety
/// The node is NULL or lives.
unsafe fn inside(graph: &TF_Graph, output: TF_Output, what: &str) -> Result<Output> {
    // SAFETY: as this function's.
    let Some(oper) = (unsafe { output.oper.as_ref() }) else {
        return Err(invalid_argument!("TF_WhileParams `{what}` field isn't set"));
    };
    if !oper.is_in(&graph.state) {
        return Err(invalid_argument!(
            "Requested return tensor '{}:{}' not found in graph def",
            oper.name(),
            output.index
        ));
    }
    // SAFETY: as above.
    unsafe { output.output() }
}

/// Adds the loop to its graph; writes the last values of the loop variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FinishWhile(
    params: *const TF_WhileParams,
    status: *mut TF_Status,
    outputs: *mut TF_Output,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let params = unsafe { shared(params) }?;
        let begun = take(params).ok_or_else(|| {
            invalid_argument!("TF_WhileParams must be created by successful TF_NewWhile() call")
        })?;
        // SAFETY: the contract of the header.
        let result = unsafe { finish(params, &begun, outputs) };
        free(&begun);
        result
    });
}

/// # Safety
/// As [`TF_FinishWhile`].
unsafe fn finish(params: &TF_WhileParams, begun: &Begun, outputs: *mut TF_Output) -> Result<()> {
    // SAFETY: as this function's.
    let (parent, cond, body, given) = unsafe {
        (
            shared(begun.parent)?,
            shared(params.cond_graph)?,
            shared(params.body_graph)?,
            list(params.body_outputs.cast_const(), params.ninputs),
        )
    };
    // SAFETY: as this function's.
    let cond_output = unsafe { inside(cond, params.cond_output, "cond_output") }?;
    let mut next = Vec::with_capacity(given.len());
    for (i, output) in given.iter().enumerate() {
        // SAFETY: as this function's.
        next.push(unsafe { inside(body, *output, &format!("body_outputs[{i}]")) }?);
    }
    if params.name.is_null() {
        return Err(invalid_argument!("TF_WhileParams `name` field is null"));
    }
    // SAFETY: as this function's.
    let (name, inputs, cond_inputs, body_inputs) = unsafe {
        (
            text(params.name)?,
            outputs_of(&begun.inputs)?,
            outputs_of(list(params.cond_inputs, params.ninputs))?,
            outputs_of(list(params.body_inputs, params.ninputs))?,
        )
    };
    let (cond, body) = (cond.state.lock(), body.state.lock());
    let spec = WhileLoop {
        name,
        inputs: &inputs,
        cond: &cond.graph,
        cond_inputs: &cond_inputs,
        cond_output,
        body: &body.graph,
        body_inputs: &body_inputs,
        body_outputs: &next,
    };
    let exits = parent.state.change(|g| g.add_while(&spec))?;
    let inner = parent.state.lock();
    // SAFETY: as this function's.
    let to = unsafe { list_mut(outputs, params.ninputs) };
    for (to, exit) in to.iter_mut().zip(exits) {
        *to = inner.output(exit);
    }
    Ok(())
}

/// Frees a loop that is not to be finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AbortWhile(params: *const TF_WhileParams) {
    guard_plain((), || {
        // SAFETY: the contract of the header.
        if let Some(begun) = unsafe { params.as_ref() }.and_then(take) {
            free(&begun);
        }
    });
}

/// Adds the derivatives of the sum of `y` by each of `x`, in a new scope.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddGradients(
    g: *mut TF_Graph,
    y: *mut TF_Output,
    ny: c_int,
    x: *mut TF_Output,
    nx: c_int,
    dx: *mut TF_Output,
    status: *mut TF_Status,
    dy: *mut TF_Output,
) {
    // SAFETY: the contract is the same.
    unsafe { TF_AddGradientsWithPrefix(g, std::ptr::null(), y, ny, x, nx, dx, status, dy) }
}

/// Adds the derivatives of the sum of `y` by each of `x`, in the scope `prefix`; `dx` are the derivatives
/// by the `y`, or NULL for ones. Writes the results to `dy`: no operation where only ops without gradients
/// lead to an `x`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddGradientsWithPrefix(
    g: *mut TF_Graph,
    prefix: *const c_char,
    y: *mut TF_Output,
    ny: c_int,
    x: *mut TF_Output,
    nx: c_int,
    dx: *mut TF_Output,
    status: *mut TF_Status,
    dy: *mut TF_Output,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, ys, xs, grad_ys, to) = unsafe {
            let graph = shared(g)?;
            let outputs = |values: *mut TF_Output, n| {
                let values = list(values.cast_const(), n);
                values.iter().try_for_each(|v| graph.check_node(v.oper))?;
                outputs_of(values)
            };
            (
                graph,
                outputs(y, ny)?,
                outputs(x, nx)?,
                outputs(dx, ny)?,
                list_mut(dy, nx),
            )
        };
        let prefix = match prefix.is_null() {
            true => None,
            // SAFETY: the contract of the header.
            false => Some(unsafe { text(prefix) }?),
        };
        let found = graph
            .state
            .change(|g| g.add_gradients(prefix, &ys, &xs, &grad_ys))?;
        let inner = graph.state.lock();
        for (to, output) in to.iter_mut().zip(found) {
            *to = match output {
                Some(output) => inner.output(output),
                None => TF_Output::NONE,
            };
        }
        Ok(())
    });
}

/// Adds an input to a Merge of a loop (`c_api.h`: a hack of the Python client).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddWhileInputHack(
    graph: *mut TF_Graph,
    new_src: TF_Output,
    dst: *mut crate::TF_Operation,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, source, node) = unsafe { (shared(graph)?, new_src.output()?, shared(dst)?) };
        graph.state.change(|g| g.add_while_input(source, node.id))
    });
}
