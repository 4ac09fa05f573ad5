//! TensorArrays of the first two versions: their handles are strings.

use super::tensor_array::{
    close, concat, create, gather, gather_shape, gradient_array, read, scatter, size, split, write,
};
use crate::shapes;
use ferroflow_base::Result;
use ferroflow_opdef::{Cost, Op, ShapeCtx};
use ferroflow_tensor::PartialShape;

/// TensorArray, TensorArrayWrite, TensorArrayRead, TensorArrayGather, TensorArrayScatter,
/// TensorArrayConcat, TensorArraySplit, TensorArraySize, TensorArrayGrad, TensorArrayClose,
/// TensorArrayPack, TensorArrayUnpack, TensorArrayV2, TensorArrayWriteV2, TensorArrayReadV2,
/// TensorArrayGatherV2, TensorArrayScatterV2, TensorArrayConcatV2, TensorArraySplitV2,
/// TensorArraySizeV2, TensorArrayGradV2, TensorArrayCloseV2.
pub const OPS: &[Op] = &[
    Op::new(
        "TensorArray",
        "size: int32 -> handle: Ref(string) | dtype: type; dynamic_size: bool = false; clear_after_read: bool = true; tensor_array_name: string = ''; element_shape: shape = unknown | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create),
    Op::new(
        "TensorArrayWrite",
        "handle: Ref(string), index: int32, value: T, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(write),
    Op::new(
        "TensorArrayRead",
        "handle: Ref(string), index: int32, flow_in: float -> value: dtype | dtype: type",
    )
    .cost(Cost::Cheap)
    .kernel(read),
    Op::new(
        "TensorArrayGather",
        "handle: Ref(string), indices: int32, flow_in: float -> value: dtype | dtype: type; element_shape: shape = unknown",
    )
    .shape(gather_shape)
    .kernel(|build| gather(build, false)),
    Op::new(
        "TensorArrayScatter",
        "handle: Ref(string), indices: int32, value: T, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(|build| scatter(build, false)),
    Op::new(
        "TensorArrayConcat",
        "handle: Ref(string), flow_in: float -> value: dtype, lengths: int64 | dtype: type; element_shape_except0: shape = unknown",
    )
    .kernel(concat),
    Op::new(
        "TensorArraySplit",
        "handle: Ref(string), value: T, lengths: int64, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(split),
    Op::new(
        "TensorArraySize",
        "handle: Ref(string), flow_in: float -> size: int32 |",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size),
    Op::new(
        "TensorArrayGrad",
        "handle: string, flow_in: float -> grad_handle: Ref(string) | source: string | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, false)),
    Op::new(
        "TensorArrayClose",
        "handle: Ref(string) -> |",
    )
    .cost(Cost::Cheap)
    .kernel(close),
    Op::new(
        "TensorArrayPack",
        "handle: Ref(string), flow_in: float -> value: dtype | dtype: type; element_shape: shape = unknown",
    )
    .kernel(|build| gather(build, true)),
    Op::new(
        "TensorArrayUnpack",
        "handle: Ref(string), value: T, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(|build| scatter(build, true)),
    Op::new(
        "TensorArrayV2",
        "size: int32 -> handle: string | dtype: type; element_shape: shape = unknown; dynamic_size: bool = false; clear_after_read: bool = true; tensor_array_name: string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create),
    Op::new(
        "TensorArrayWriteV2",
        "handle: string, index: int32, value: T, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(write),
    Op::new(
        "TensorArrayReadV2",
        "handle: string, index: int32, flow_in: float -> value: dtype | dtype: type",
    )
    .cost(Cost::Cheap)
    .kernel(read),
    Op::new(
        "TensorArrayGatherV2",
        "handle: string, indices: int32, flow_in: float -> value: dtype | dtype: type; element_shape: shape = unknown",
    )
    .shape(gather_shape)
    .kernel(|build| gather(build, false)),
    Op::new(
        "TensorArrayScatterV2",
        "handle: string, indices: int32, value: T, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(|build| scatter(build, false)),
    Op::new(
        "TensorArrayConcatV2",
        "handle: string, flow_in: float -> value: dtype, lengths: int64 | dtype: type; element_shape_except0: shape = unknown",
    )
    .kernel(concat),
    Op::new(
        "TensorArraySplitV2",
        "handle: string, value: T, lengths: int64, flow_in: float -> flow_out: float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(split),
    Op::new(
        "TensorArraySizeV2",
        "handle: string, flow_in: float -> size: int32 |",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size),
    Op::new(
        "TensorArrayGradV2",
        "handle: string, flow_in: float -> grad_handle: string | source: string | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, false)),
    Op::new(
        "TensorArrayCloseV2",
        "handle: string -> |",
    )
    .cost(Cost::Cheap)
    .kernel(close),
];

fn handle_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::of([Some(2)]));
    Ok(())
}
