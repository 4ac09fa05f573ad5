//! Functions that fail with UNIMPLEMENTED: they stand for objects of C++. They
//! exist because clients that bind all names could not be loaded otherwise.

use crate::TF_Status;
use crate::guard::guard;
use ferroflow_base::unimplemented_error;
use std::ffi::{c_char, c_int, c_uchar, c_void};

type Ptr = *mut c_void;
type Text = *const c_char;
type Status = *mut TF_Status;
const NULL: Ptr = std::ptr::null_mut();

/// A shape of `tensorflow/c/tf_shape.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_Shape {
    /// The rank.
    pub num_dims: c_int,
    /// The sizes.
    pub dim_sizes: *mut i64,
}

/// The functions of a rendezvous.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_RendezvousThunk {
    /// The rendezvous.
    pub rendezvous: Ptr,
    /// Sends.
    pub send_func: Ptr,
    /// Receives.
    pub async_recv_func: Ptr,
    /// Ends.
    pub start_abort_func: Ptr,
}

const NO_RENDEZVOUS: TF_RendezvousThunk = TF_RendezvousThunk {
    rendezvous: NULL,
    send_func: NULL,
    async_recv_func: NULL,
    start_abort_func: NULL,
};

/// Declares functions whose argument `status` tells that they are not supported.
macro_rules! unsupported {
    ($(fn $name:ident($($before:ident: $before_ty:ty),*; status $(; $after:ident: $after_ty:ty)?) $(-> $ret:ty = $zero:expr)?;)*) => {
        $(
            /// Not supported: sets UNIMPLEMENTED.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($before: $before_ty,)*
                status: Status,
                $($after: $after_ty)?
            ) $(-> $ret)? {
                $(let _ = $before;)*
                $(let _ = $after;)?
                guard(status, ($($zero)?), || {
                    Err(unimplemented_error!("{} is not supported by Ferroflow", stringify!($name)))
                })
            }
        )*
    };
}

/// Declares functions that are not supported and have no status.
macro_rules! silent {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty = $zero:expr)?;)*) => {
        $(
            /// Not supported: does nothing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                $(let _ = $arg;)*
                $($zero)?
            }
        )*
    };
}

// Takes and returns objects of C++.
unsupported! {
    fn TFE_GetTaskStates(ctx: Ptr, tasks: Ptr, states: Ptr; status);
}

// Graphs: objects of C++, and what only TensorFlow's Python uses.
unsupported! {
    fn TF_GraphImportGraphDefWithResultsNoSerialization(
        graph: Ptr, graph_def: Ptr, options: Ptr; status) -> Ptr = NULL;
    fn TF_FinishWhileHelper(params: Ptr; status; outputs: Ptr);
    fn TF_DequeueNamedTensor(session: Ptr, tensor_id: c_int; status) -> Ptr = NULL;
    fn TF_EnqueueNamedTensor(session: Ptr, tensor_id: c_int, tensor: Ptr; status);
}

silent! {
    fn TF_SetFullType(graph: Ptr, op: Ptr, full_type_proto: Ptr);
    fn TF_SetRequireShapeInferenceFns(graph: Ptr, require: bool);
}

// Kernels of other devices.
unsupported! {
    fn TF_GetStream(ctx: Ptr; status) -> Ptr = NULL;
    fn TF_GetSerializedConfigProto(ctx: Ptr, buffer: Ptr; status);
    fn TF_GetSerializedFunctionDefLibrary(ctx: Ptr, buffer: Ptr; status);
    fn TF_GetSerializedResourceHandleProto(ctx: Ptr, i: c_int, buffer: Ptr; status);
}

silent! {
    fn TF_GetRendezvous(ctx: Ptr) -> TF_RendezvousThunk = NO_RENDEZVOUS;
}

// `tensorflow/c/eager/c_api_unified_experimental.h`
unsupported! {
    fn TF_SetTracingImplementation(name: Text; status);
    fn TF_CreateFunction(fn_name: Text; status) -> Ptr = NULL;
    fn TF_NewEagerExecutionContext(options: Ptr; status) -> Ptr = NULL;
    fn TF_AddFunctionParameter(func: Ptr, dtype: c_int, shape: TF_Shape; status) -> Ptr = NULL;
    fn TF_AbstractOpSetOpType(op: Ptr, op_type: Text; status);
    fn TF_AbstractOpSetOpName(op: Ptr, op_name: Text; status);
    fn TF_AbstractOpSetAttrType(op: Ptr, attr_name: Text, value: c_int; status);
    fn TF_OutputListSetNumOutputs(o: Ptr, num_outputs: c_int; status);
    fn TF_OutputListPushBack(o: Ptr, tensor: Ptr; status);
    fn TF_ExecuteOperation(op: Ptr, num_inputs: c_int, inputs: Ptr, o: Ptr; status);
    fn TF_FinalizeFunction(ctx: Ptr, outputs: Ptr; status) -> Ptr = NULL;
    fn TF_ExecutionContextRegisterFunction(ctx: Ptr, function: Ptr; status);
    fn TF_CreateAbstractTensorFromEagerTensor(t: Ptr; status) -> Ptr = NULL;
    fn TF_AbstractTensorGetEagerTensor(t: Ptr; status) -> Ptr = NULL;
    fn TF_ExecutionContextGetTFEContext(ctx: Ptr; status) -> Ptr = NULL;
}

silent! {
    fn TF_NewAbstractOp(ctx: Ptr) -> Ptr = NULL;
    fn TF_NewOutputList() -> Ptr = NULL;
    fn TF_OutputListNumOutputs(o: Ptr) -> c_int = 0;
    fn TF_OutputListGet(o: Ptr, i: c_int) -> Ptr = NULL;
    fn TF_DeleteExecutionContext(ctx: Ptr);
    fn TF_DeleteAbstractTensor(t: Ptr);
    fn TF_DeleteAbstractOp(op: Ptr);
    fn TF_DeleteAbstractFunction(function: Ptr);
    fn TF_DeleteOutputList(o: Ptr);
}

// `tensorflow/c/experimental/grappler/grappler.h`
unsupported! {
    fn TF_GetNodesToPreserveListSize(item: Ptr, num_values: Ptr, storage_size: Ptr; status);
    fn TF_GetNodesToPreserveList(
        item: Ptr, values: Ptr, lengths: Ptr, num_values: c_int, storage: Ptr, storage_size: usize;
        status);
    fn TF_GetFetchNodesListSize(item: Ptr, num_values: Ptr, storage_size: Ptr; status);
    fn TF_GetFetchNodesList(
        item: Ptr, values: Ptr, lengths: Ptr, num_values: c_int, storage: Ptr, storage_size: usize;
        status);
    fn TF_InferStatically(
        graph_properties: Ptr, assume_valid_feeds: c_uchar, aggressive_shape_inference: c_uchar,
        include_input_tensor_values: c_uchar, include_output_tensor_values: c_uchar; status);
    fn TF_GetInputPropertiesListSize(graph_properties: Ptr, name: Text, num_values: Ptr; status);
    fn TF_GetOutputPropertiesListSize(graph_properties: Ptr, name: Text, num_values: Ptr; status);
    fn TF_GetInputPropertiesList(
        graph_properties: Ptr, name: Text, properties: Ptr, num_values: c_int; status);
    fn TF_GetOutputPropertiesList(
        graph_properties: Ptr, name: Text, properties: Ptr, num_values: c_int; status);
    fn TF_NewFunctionLibraryDefinition(graph_buf: Ptr; status) -> Ptr = NULL;
    fn TF_LookUpOpDef(fn_lib: Ptr, name: Text, buf: Ptr; status);
}

silent! {
    fn TF_NewGraphProperties(item: Ptr) -> Ptr = NULL;
    fn TF_DeleteGraphProperties(graph_properties: Ptr);
    fn TF_DeleteFunctionLibraryDefinition(fn_lib: Ptr);
}
