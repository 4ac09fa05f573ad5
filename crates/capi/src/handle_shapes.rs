//! What resource handles refer to: shapes and dtypes of variables, of the elements of arrays and datasets
//! (`tensorflow/c/c_api.h`, `core/framework/cpp_shape_inference.proto`).

use crate::guard::{guard, guard_plain, list, shared};
use crate::{TF_Buffer, TF_Graph, TF_Output, TF_Status};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::HandleData;
use ferroflow_model::proto::{DataType, FullTypeDef, TensorShapeProto};
use ferroflow_model::{shape_from_proto, shape_to_proto};
use ferroflow_tensor::DType;
use prost::Message;
use std::ffi::c_void;

/// `CppShapeInferenceResult.HandleShapeAndType`.
#[derive(Clone, PartialEq, Message)]
struct HandleShapeAndType {
    #[prost(message, optional, tag = "1")]
    shape: Option<TensorShapeProto>,
    #[prost(enumeration = "DataType", tag = "2")]
    dtype: i32,
    #[prost(message, optional, tag = "4")]
    full_type: Option<FullTypeDef>,
}

/// `CppShapeInferenceResult.HandleData`.
#[derive(Clone, PartialEq, Message)]
struct HandleDataProto {
    #[prost(bool, tag = "1")]
    is_set: bool,
    #[prost(message, repeated, tag = "2")]
    shape_and_type: Vec<HandleShapeAndType>,
}

/// Returns the serialized `HandleData` of an output: what the handle refers to. NULL if it is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetHandleShapeAndType(
    graph: *mut TF_Graph,
    output: TF_Output,
) -> *mut TF_Buffer {
    let find = || -> Result<Option<Vec<HandleData>>> {
        // SAFETY: the contract of the header.
        let (graph, output) = unsafe { (shared(graph)?, output.output()?) };
        graph.state.lock().graph.handle_data(output)
    };
    guard_plain(std::ptr::null_mut(), || {
        let Ok(Some(data)) = find() else {
            return std::ptr::null_mut();
        };
        let entries = data.iter().map(|of| HandleShapeAndType {
            shape: Some(shape_to_proto(&of.shape)),
            dtype: of.dtype.map_or(0, |t| t as i32),
            full_type: Some(FullTypeDef::default()),
        });
        let message = HandleDataProto {
            is_set: true,
            shape_and_type: entries.collect(),
        };
        crate::buffer::new_buffer(message.encode_to_vec())
    })
}

/// Declares what the handle in an output refers to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetHandleShapeAndType(
    graph: *mut TF_Graph,
    output: TF_Output,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (graph, output, bytes) = unsafe {
            let bytes = list(proto.cast::<u8>(), proto_len);
            (shared(graph)?, output.output()?, bytes)
        };
        let message = HandleDataProto::decode(bytes)
            .map_err(|_| invalid_argument!("Couldn't deserialize HandleData proto"))?;
        let data = message.shape_and_type.iter().map(|of| {
            Ok(HandleData {
                shape: shape_from_proto(of.shape.as_ref().unwrap_or(&Default::default()))?,
                dtype: DType::from_number(of.dtype),
            })
        });
        let data = data.collect::<Result<Vec<_>>>()?;
        graph.state.change(|g| g.set_handle_data(output, data))
    });
}
