//! What a client asks of a node (`tensorflow/c/c_api.h`).

use crate::graph::{Inner, NO_OUTPUT, TF_Graph, TF_Input, TF_Operation, TF_Output};
use crate::guard::{guard, list_mut, shared, text};
use crate::{TF_Buffer, TF_Status};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Node;
use ferroflow_opdef::ArgDef;
use std::ffi::{c_char, c_int};

/// Runs `body` with the graph and the node behind a handle; returns `otherwise` after an error.
///
/// # Safety
/// `oper` is NULL or lives, and so does its graph.
pub(crate) unsafe fn with_node<T>(
    oper: *const TF_Operation,
    status: *mut TF_Status,
    otherwise: T,
    body: impl FnOnce(&Inner, &Node) -> Result<T>,
) -> T {
    guard(status, otherwise, || {
        // SAFETY: as this function's.
        let operation = unsafe { shared(oper) }?;
        // SAFETY: as this function's.
        let inner = unsafe { operation.graph() }.lock();
        let node = inner.graph.node(operation.id);
        body(
            &inner,
            node.ok_or_else(|| invalid_argument!("the node was removed"))?,
        )
    })
}

/// No status.
const NONE: *mut TF_Status = std::ptr::null_mut();

fn at<T: Copy>(list: &[T], i: c_int) -> Option<T> {
    usize::try_from(i).ok().and_then(|i| list.get(i)).copied()
}

/// Returns the number of outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationNumOutputs(oper: *mut TF_Operation) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { with_node(oper, NONE, 0, |_, node| Ok(node.outputs.len() as c_int)) }
}

/// References have these numbers added to those of their dtypes.
const REFERENCE: c_int = 100;

/// Returns the dtype of an output; 0 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationOutputType(oper_out: TF_Output) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper_out.oper, NONE, 0, |inner, _| {
            let output = oper_out.output()?;
            let dtype = inner.graph.dtype(output)? as c_int;
            Ok(dtype
                + if inner.graph.is_reference(output) {
                    REFERENCE
                } else {
                    0
                })
        })
    }
}

/// The number of tensors of an argument.
fn list_length(args: &[ArgDef], node: &Node, what: &str, name: *const c_char) -> Result<c_int> {
    // SAFETY: the callers' contract: the name is NULL or a C string.
    let name = unsafe { text(name) }?;
    let arg = args.iter().find(|a| a.name() == name);
    let arg = arg.ok_or_else(|| invalid_argument!("{what} arg '{name}' not found"))?;
    Ok(arg.dtypes(&node.attrs)?.len() as c_int)
}

/// Returns the number of tensors of an output argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationOutputListLength(
    oper: *mut TF_Operation,
    arg_name: *const c_char,
    status: *mut TF_Status,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, -1, |_, node| {
            list_length(&node.def.outputs, node, "Output", arg_name)
        })
    }
}

/// Returns the number of inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationNumInputs(oper: *mut TF_Operation) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { with_node(oper, NONE, 0, |_, node| Ok(node.inputs.len() as c_int)) }
}

/// Returns the dtype of an input; 0 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationInputType(oper_in: TF_Input) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper_in.oper, NONE, 0, |_, node| {
            let dtypes = node.def.input_dtypes(&node.attrs)?;
            let references = node.def.input_references(&node.attrs)?;
            let is_reference = at(&references, oper_in.index) == Some(true);
            let dtype = at(&dtypes, oper_in.index).map_or(0, |t| t as c_int);
            Ok(dtype + if is_reference { REFERENCE } else { 0 })
        })
    }
}

/// Returns the number of tensors of an input argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationInputListLength(
    oper: *mut TF_Operation,
    arg_name: *const c_char,
    status: *mut TF_Status,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, -1, |_, node| {
            list_length(&node.def.inputs, node, "Input", arg_name)
        })
    }
}

/// Returns the output that an input reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationInput(oper_in: TF_Input) -> TF_Output {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper_in.oper, NONE, NO_OUTPUT, |inner, node| {
            Ok(at(&node.inputs, oper_in.index).map_or(NO_OUTPUT, |o| inner.output(o)))
        })
    }
}

/// Writes the outputs that the inputs read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationAllInputs(
    oper: *mut TF_Operation,
    inputs: *mut TF_Output,
    max_inputs: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, NONE, (), |inner, node| {
            let to = list_mut(inputs, max_inputs);
            for (to, input) in to.iter_mut().zip(&node.inputs) {
                *to = inner.output(*input);
            }
            Ok(())
        })
    }
}

/// Returns the number of inputs that read an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationOutputNumConsumers(oper_out: TF_Output) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper_out.oper, NONE, 0, |inner, _| {
            let output = oper_out.output()?;
            let consumers = inner.graph.consumers(output.node).iter();
            Ok(consumers.filter(|c| c.slot == output.slot).count() as c_int)
        })
    }
}

/// Writes the inputs that read an output; returns their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationOutputConsumers(
    oper_out: TF_Output,
    consumers: *mut TF_Input,
    max_consumers: c_int,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper_out.oper, NONE, 0, |inner, _| {
            let output = oper_out.output()?;
            let to = list_mut(consumers, max_consumers);
            let found = inner.graph.consumers(output.node).iter();
            let found = found.filter(|c| c.slot == output.slot);
            for (to, consumer) in to.iter_mut().zip(found.clone()) {
                *to = TF_Input {
                    oper: inner.operation(consumer.node),
                    index: consumer.input as c_int,
                };
            }
            Ok(found.count() as c_int)
        })
    }
}

/// Returns the number of nodes that the node waits for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationNumControlInputs(oper: *mut TF_Operation) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { with_node(oper, NONE, 0, |_, node| Ok(node.controls.len() as c_int)) }
}

/// Writes nodes; returns their number.
///
/// # Safety
/// `to` is NULL or has room for `max` handles.
unsafe fn write_nodes(
    inner: &Inner,
    nodes: &[ferroflow_graph::NodeId],
    to: *mut *mut TF_Operation,
    max: c_int,
) -> c_int {
    // SAFETY: as this function's.
    let to = unsafe { list_mut(to, max) };
    for (to, id) in to.iter_mut().zip(nodes) {
        *to = inner.operation(*id);
    }
    nodes.len() as c_int
}

/// Writes the nodes that the node waits for; returns their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetControlInputs(
    oper: *mut TF_Operation,
    control_inputs: *mut *mut TF_Operation,
    max_control_inputs: c_int,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, NONE, 0, |inner, node| {
            Ok(write_nodes(
                inner,
                &node.controls,
                control_inputs,
                max_control_inputs,
            ))
        })
    }
}

/// Returns the number of nodes that wait for the node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationNumControlOutputs(oper: *mut TF_Operation) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, NONE, 0, |inner, _| {
            Ok(inner.graph.control_outputs(shared(oper)?.id).len() as c_int)
        })
    }
}

/// Writes the nodes that wait for the node; returns their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetControlOutputs(
    oper: *mut TF_Operation,
    control_outputs: *mut *mut TF_Operation,
    max_control_outputs: c_int,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, NONE, 0, |inner, _| {
            let nodes = inner.graph.control_outputs(shared(oper)?.id);
            Ok(write_nodes(
                inner,
                nodes,
                control_outputs,
                max_control_outputs,
            ))
        })
    }
}

/// Writes the node as a `NodeDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationToNodeDef(
    oper: *mut TF_Operation,
    output_node_def: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |inner, _| {
            let def = inner.graph.node_def(shared(oper)?.id)?;
            crate::buffer::fill_message(output_node_def, &def)
        })
    }
}

/// Adds a control input to a node that is in the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddOperationControlInput(
    graph: *mut TF_Graph,
    op: *mut TF_Operation,
    input: *mut TF_Operation,
) {
    guard(NONE, (), || {
        // SAFETY: the contract of the header.
        let (graph, node, control) = unsafe { (shared(graph)?, shared(op)?, shared(input)?) };
        graph.state.change(|g| {
            g.add_control(node.id, control.id);
            Ok(())
        })
    });
}

/// Removes the control inputs of a node that is in the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RemoveAllControlInputs(graph: *mut TF_Graph, op: *mut TF_Operation) {
    guard(NONE, (), || {
        // SAFETY: the contract of the header.
        let (graph, node) = unsafe { (shared(graph)?, shared(op)?) };
        graph.state.change(|g| {
            g.clear_controls(node.id);
            Ok(())
        })
    });
}

/// Removes an attr of a node that is in the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ClearAttr(
    graph: *mut TF_Graph,
    op: *mut TF_Operation,
    attr_name: *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, node, name) = unsafe { (shared(graph)?, shared(op)?, text(attr_name)?) };
        graph.state.change(|g| {
            g.clear_attr(node.id, name);
            Ok(())
        })
    });
}

/// Sets an attr, in its file form, of a node that is in the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetAttr(
    graph: *mut TF_Graph,
    op: *mut TF_Operation,
    attr_name: *const c_char,
    attr_value_proto: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, node, name, bytes) = unsafe {
            let bytes = crate::buffer::bytes_of(attr_value_proto);
            (shared(graph)?, shared(op)?, text(attr_name)?, bytes)
        };
        let value = <ferroflow_model::proto::AttrValue as prost::Message>::decode(bytes)
            .map_err(|_| invalid_argument!("Invalid AttrValue proto"))?;
        let value = ferroflow_graph::attr_of_proto(&value)?;
        graph.state.change(|g| {
            g.set_attr(node.id, name, value);
            Ok(())
        })
    });
}
