//! Nodes that are being described: `TF_OperationDescription` (`tensorflow/c/c_api.h`).

use crate::graph::{GraphState, TF_Graph, TF_Operation, TF_Output, shape_of};
use crate::guard::{guard, guard_plain, handle, list, shared, text};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_graph::{NodeDescription, Output, no_output};
use ferroflow_model::proto;
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use ferroflow_tensor::DType;
use prost::Message;
use std::ffi::{c_char, c_float, c_int, c_uchar, c_void};
use std::sync::Arc;

/// A node that is being described.
pub struct TF_OperationDescription {
    graph: Arc<GraphState>,
    description: NodeDescription,
    /// The first error of a function that has no status.
    error: Option<Status>,
}

/// Runs the body of a function on a description; its error is that of `TF_FinishOperation`.
///
/// # Safety
/// `desc` is NULL or valid and not used otherwise.
unsafe fn describe(
    desc: *mut TF_OperationDescription,
    body: impl FnOnce(&mut NodeDescription) -> Result<()>,
) {
    // SAFETY: as this function's.
    if let Some(desc) = unsafe { desc.as_mut() } {
        let result = guard_plain(Ok(()), || body(&mut desc.description));
        if let (Err(error), None) = (result, &desc.error) {
            desc.error = Some(error);
        }
    }
}

/// Begins the description of a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewOperation(
    graph: *mut TF_Graph,
    op_type: *const c_char,
    oper_name: *const c_char,
) -> *mut TF_OperationDescription {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (graph, op, name) = unsafe { (shared(graph)?, text(op_type)?, text(oper_name)?) };
        Ok(handle(TF_OperationDescription {
            graph: graph.state.clone(),
            description: NodeDescription::new(op, name),
            error: None,
        }))
    })
}

/// As [`TF_NewOperation`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewOperationLocked(
    graph: *mut TF_Graph,
    op_type: *const c_char,
    oper_name: *const c_char,
) -> *mut TF_OperationDescription {
    // SAFETY: the contract is the same.
    unsafe { TF_NewOperation(graph, op_type, oper_name) }
}

/// Adds the node to the graph and deletes the description; returns NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FinishOperation(
    desc: *mut TF_OperationDescription,
    status: *mut TF_Status,
) -> *mut TF_Operation {
    guard(status, std::ptr::null_mut(), || {
        if desc.is_null() {
            return Err(invalid_argument!(
                "TF_OperationDescription argument is NULL"
            ));
        }
        // SAFETY: the contract of the header: the description is not used any more.
        let desc = *unsafe { Box::from_raw(desc) };
        if let Some(error) = desc.error {
            return Err(error);
        }
        let (graph, description) = (desc.graph, desc.description);
        let id = graph.change(|g| g.add(description))?;
        Ok(graph.lock().operation(id))
    })
}

/// As [`TF_FinishOperation`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FinishOperationLocked(
    desc: *mut TF_OperationDescription,
    status: *mut TF_Status,
) -> *mut TF_Operation {
    // SAFETY: the contract is the same.
    unsafe { TF_FinishOperation(desc, status) }
}

/// Sets the requested device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetDevice(desc: *mut TF_OperationDescription, device: *const c_char) {
    // SAFETY: the contract of the header.
    unsafe {
        describe(desc, |d| {
            d.set_device(text(device)?);
            Ok(())
        })
    }
}

/// The source of an input; TensorFlow checks it before it looks at the op.
///
/// # Safety
/// The node is NULL or lives.
unsafe fn source(description: &NodeDescription, input: TF_Output) -> Result<Output> {
    let op = description.op();
    // SAFETY: as this function's.
    let node = unsafe { input.oper.as_ref() }
        .ok_or_else(|| invalid_argument!("Attempt to add nullptr Node to node with type {op}"))?;
    // SAFETY: as this function's.
    unsafe { input.output() }.map_err(|_| {
        // SAFETY: as this function's; the graph lives as long as its nodes.
        let inner = unsafe { node.graph() }.lock();
        let n = inner.graph.node(node.id).map_or(0, |n| n.outputs.len());
        no_output(op, node.name(), input.index.into(), n)
    })
}

/// Adds an input, one tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddInput(desc: *mut TF_OperationDescription, input: TF_Output) {
    // SAFETY: the contract of the header.
    unsafe {
        describe(desc, |d| {
            d.add_input(source(d, input)?);
            Ok(())
        })
    }
}

/// Adds an input, a list of tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddInputList(
    desc: *mut TF_OperationDescription,
    inputs: *const TF_Output,
    num_inputs: c_int,
) {
    // SAFETY: the contract of the header.
    unsafe {
        describe(desc, |d| {
            let inputs = list(inputs, num_inputs).iter();
            let sources = inputs.map(|input| source(d, *input));
            d.add_inputs(sources.collect::<Result<_>>()?);
            Ok(())
        })
    }
}

/// Adds a node to wait for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AddControlInput(
    desc: *mut TF_OperationDescription,
    input: *mut TF_Operation,
) {
    // SAFETY: the contract of the header.
    unsafe {
        describe(desc, |d| {
            d.add_control(shared(input)?.id);
            Ok(())
        })
    }
}

/// Places the node where `op` is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ColocateWith(
    desc: *mut TF_OperationDescription,
    op: *mut TF_Operation,
) {
    // SAFETY: the contract of the header.
    unsafe {
        describe(desc, |d| {
            d.colocate_with(shared(op)?.name());
            Ok(())
        })
    }
}

/// The bytes behind a pointer and a length.
///
/// # Safety
/// `value` is NULL or has `length` bytes.
unsafe fn bytes_at(value: *const c_void, length: usize) -> bytes::Bytes {
    // SAFETY: as this function's.
    bytes::Bytes::copy_from_slice(unsafe { list(value.cast::<u8>(), length) })
}

/// The dtype of a number of the header.
///
/// # Errors
/// INVALID_ARGUMENT if there is none.
pub(crate) fn dtype_of(number: c_int) -> Result<DType> {
    DType::from_number(number)
        .ok_or_else(|| invalid_argument!("AttrValue has invalid DataType enum: {number}"))
}

/// Declares functions that set an attr.
macro_rules! setters {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) = $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                desc: *mut TF_OperationDescription,
                attr_name: *const c_char,
                $($arg: $ty),*
            ) {
                #[allow(unused_unsafe, reason = "not all values are behind pointers")]
                // SAFETY: the contract of the header.
                unsafe {
                    describe(desc, |d| {
                        let value: AttrValue = $value;
                        d.set_attr(text(attr_name)?, value);
                        Ok(())
                    })
                }
            }
        )*
    };
}

/// A list attr of the values of an iterator.
fn list_attr(values: impl Iterator<Item = Result<AttrValue>>) -> Result<AttrValue> {
    Ok(AttrValue::List(values.collect::<Result<_>>()?))
}

setters! {
    /// Sets a string.
    fn TF_SetAttrString(value: *const c_void, length: usize) = AttrValue::Str(bytes_at(value, length).to_vec().into());
    /// Sets a list of strings.
    fn TF_SetAttrStringList(values: *const *const c_void, lengths: *const usize, num_values: c_int) = {
        let (values, lengths) = (list(values, num_values), list(lengths, num_values));
        let items = values.iter().zip(lengths);
        list_attr(items.map(|(v, n)| Ok(AttrValue::Str(bytes_at(*v, *n).to_vec().into()))))?
    };
    /// Sets an integer.
    fn TF_SetAttrInt(value: i64) = AttrValue::Int(value);
    /// Sets a list of integers.
    fn TF_SetAttrIntList(values: *const i64, num_values: c_int) =
        list_attr(list(values, num_values).iter().map(|v| Ok(AttrValue::Int(*v))))?;
    /// Sets a float.
    fn TF_SetAttrFloat(value: c_float) = AttrValue::Float(value);
    /// Sets a list of floats.
    fn TF_SetAttrFloatList(values: *const c_float, num_values: c_int) =
        list_attr(list(values, num_values).iter().map(|v| Ok(AttrValue::Float(*v))))?;
    /// Sets a bool.
    fn TF_SetAttrBool(value: c_uchar) = AttrValue::Bool(value != 0);
    /// Sets a list of bools.
    fn TF_SetAttrBoolList(values: *const c_uchar, num_values: c_int) =
        list_attr(list(values, num_values).iter().map(|v| Ok(AttrValue::Bool(*v != 0))))?;
    /// Sets a dtype.
    fn TF_SetAttrType(value: c_int) = AttrValue::Type(dtype_of(value)?);
    /// Sets a list of dtypes.
    fn TF_SetAttrTypeList(values: *const c_int, num_values: c_int) =
        list_attr(list(values, num_values).iter().map(|v| Ok(AttrValue::Type(dtype_of(*v)?))))?;
    /// Lets the attr be that of the function that the node is in.
    fn TF_SetAttrPlaceholder(placeholder: *const c_char) = AttrValue::Placeholder(text(placeholder)?.to_string());
    /// Sets a function by its name.
    fn TF_SetAttrFuncName(value: *const c_char, length: usize) = AttrValue::Func(FuncRef {
        name: String::from_utf8_lossy(list(value.cast::<u8>(), length)).into_owned(),
        attrs: Attrs::default(),
    });
    /// Sets a shape; one of negative rank is unknown.
    fn TF_SetAttrShape(dims: *const i64, num_dims: c_int) = AttrValue::Shape(shape_of(dims, num_dims));
    /// Sets a list of shapes.
    fn TF_SetAttrShapeList(dims: *const *const i64, num_dims: *const c_int, num_shapes: c_int) = {
        let (dims, ranks) = (list(dims, num_shapes), list(num_dims, num_shapes));
        let items = dims.iter().zip(ranks);
        list_attr(items.map(|(dims, rank)| Ok(AttrValue::Shape(shape_of(*dims, *rank)))))?
    };
}

/// Declares functions that set an attr and report errors at once.
macro_rules! checked_setters {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) = $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                desc: *mut TF_OperationDescription,
                attr_name: *const c_char,
                $($arg: $ty,)*
                status: *mut TF_Status,
            ) {
                guard(status, (), || {
                    // SAFETY: the contract of the header.
                    let (desc, name) = unsafe { (crate::guard::unique(desc)?, text(attr_name)?) };
                    // SAFETY: the contract of the header.
                    let value: AttrValue = unsafe { $value };
                    desc.description.set_attr(name, value);
                    Ok(())
                });
            }
        )*
    };
}

checked_setters! {
    /// Sets a shape in its file form.
    fn TF_SetAttrTensorShapeProto(proto: *const c_void, proto_len: usize) =
        shape_from(list(proto.cast::<u8>(), proto_len))?;
    /// Sets a list of shapes in their file form.
    fn TF_SetAttrTensorShapeProtoList(protos: *const *const c_void, proto_lens: *const usize, num_shapes: c_int) = {
        let (protos, lens) = (list(protos, num_shapes), list(proto_lens, num_shapes));
        list_attr(protos.iter().zip(lens).enumerate().map(|(i, (p, n))| {
            let shape = shape_from(list(p.cast::<u8>(), *n));
            shape.map_err(|e| Status::new(e.code(), format!("{} at index {i}", e.message())))
        }))?
    };
    /// Sets a tensor.
    fn TF_SetAttrTensor(value: *mut TF_Tensor) = AttrValue::Tensor(shared(value)?.to_engine()?.into());
    /// Sets a list of tensors.
    fn TF_SetAttrTensorList(values: *const *mut TF_Tensor, num_values: c_int) = list_attr(
        list(values, num_values).iter().map(|v| Ok(AttrValue::Tensor(shared(*v)?.to_engine()?.into())))
    )?;
    /// Sets any value in its file form.
    fn TF_SetAttrValueProto(proto: *const c_void, proto_len: usize) = {
        let value = proto::AttrValue::decode(list(proto.cast::<u8>(), proto_len))
            .map_err(|_| invalid_argument!("Unparseable AttrValue proto"))?;
        ferroflow_graph::attr_of_proto(&value)?
    };
}

fn shape_from(bytes: &[u8]) -> Result<AttrValue> {
    let shape = proto::TensorShapeProto::decode(bytes)
        .map_err(|_| invalid_argument!("Unparseable TensorShapeProto"))?;
    Ok(AttrValue::Shape(ferroflow_model::shape_from_proto(&shape)?))
}
