//! TensorArrays of the first two versions, whose handles are strings (TensorFlow:
//! `core/kernels/tensor_array_ops.cc`).

use crate::tensor_array::{
    close, concat, concat_gradient, create, gather, gather_gradient, gather_shape, gradient_array,
    read, read_gradient, scatter, scatter_gradient, size, split, split_gradient, write,
    write_gradient,
};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, Op};
use ferroflow_resources::string_handle::handle_shape;

/// TensorArray, TensorArrayWrite, TensorArrayRead, TensorArrayGather, TensorArrayScatter,
/// TensorArrayConcat, TensorArraySplit, TensorArraySize, TensorArrayGrad, TensorArrayClose,
/// TensorArrayPack, TensorArrayUnpack, TensorArrayV2, TensorArrayWriteV2, TensorArrayReadV2,
/// TensorArrayGatherV2, TensorArrayScatterV2, TensorArrayConcatV2, TensorArraySplitV2,
/// TensorArraySizeV2, TensorArrayGradV2, TensorArrayCloseV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TensorArray",
        "size: int32 -> handle: Ref(string) | dtype: type; dynamic_size: bool = false; \
         clear_after_read: bool = true; tensor_array_name: string = ''; element_shape: \
         shape = unknown | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new(
        "TensorArrayWrite",
        "handle: Ref(string), index: int32, value: T, flow_in: float -> flow_out: \
         float | T: type",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(write)
    .gradient(write_gradient),
    Op::new(
        "TensorArrayRead",
        "handle: Ref(string), index: int32, flow_in: float -> value: dtype | dtype: type",
    )
    .cost(Cost::Cheap)
    .kernel(read)
    .gradient(read_gradient),
    Op::new(
        "TensorArrayGather",
        "handle: Ref(string), indices: int32, flow_in: float -> value: dtype | dtype: \
         type; element_shape: shape = unknown",
    )
    .shape(gather_shape)
    .kernel(|build| gather(build, false))
    .gradient(gather_gradient),
    Op::new(
        "TensorArrayScatter",
        "handle: Ref(string), indices: int32, value: T, flow_in: float -> flow_out: \
         float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(|build| scatter(build, false))
    .gradient(scatter_gradient),
    Op::new(
        "TensorArrayConcat",
        "handle: Ref(string), flow_in: float -> value: dtype, lengths: int64 | dtype: \
         type; element_shape_except0: shape = unknown",
    )
    .kernel(concat)
    .gradient(concat_gradient),
    Op::new(
        "TensorArraySplit",
        "handle: Ref(string), value: T, lengths: int64, flow_in: float -> flow_out: \
         float | T: type",
    )
    .shape(shapes::scalar)
    .kernel(split)
    .gradient(split_gradient),
    Op::new(
        "TensorArraySize",
        "handle: Ref(string), flow_in: float -> size: int32 |",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size)
    .not_differentiable(),
    Op::new(
        "TensorArrayGrad",
        "handle: string, flow_in: float -> grad_handle: Ref(string) | source: string | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, false)),
    Op::new("TensorArrayClose", "handle: Ref(string) -> |")
        .cost(Cost::Cheap)
        .kernel(close)
        .not_differentiable(),
    Op::new(
        "TensorArrayPack",
        "handle: Ref(string), flow_in: float -> value: dtype | dtype: type; \
         element_shape: shape = unknown",
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
        "size: int32 -> handle: string | dtype: type; element_shape: shape = unknown; \
         dynamic_size: bool = false; clear_after_read: bool = true; tensor_array_name: \
         string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new(
        "TensorArrayWriteV2",
        "handle: string, index: int32, value: T, flow_in: float -> flow_out: float | \
         T: type",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(write)
    .gradient(write_gradient),
    Op::new(
        "TensorArrayReadV2",
        "handle: string, index: int32, flow_in: float -> value: dtype | dtype: type",
    )
    .cost(Cost::Cheap)
    .kernel(read)
    .gradient(read_gradient),
    Op::new(
        "TensorArrayGatherV2",
        "handle: string, indices: int32, flow_in: float -> value: dtype | dtype: type; \
         element_shape: shape = unknown",
    )
    .shape(gather_shape)
    .kernel(|build| gather(build, false))
    .gradient(gather_gradient),
    Op::new(
        "TensorArrayScatterV2",
        "handle: string, indices: int32, value: T, flow_in: float -> flow_out: float | \
         T: type",
    )
    .shape(shapes::scalar)
    .kernel(|build| scatter(build, false))
    .gradient(scatter_gradient),
    Op::new(
        "TensorArrayConcatV2",
        "handle: string, flow_in: float -> value: dtype, lengths: int64 | dtype: type; \
         element_shape_except0: shape = unknown",
    )
    .kernel(concat)
    .gradient(concat_gradient),
    Op::new(
        "TensorArraySplitV2",
        "handle: string, value: T, lengths: int64, flow_in: float -> flow_out: float | \
         T: type",
    )
    .shape(shapes::scalar)
    .kernel(split)
    .gradient(split_gradient),
    Op::new(
        "TensorArraySizeV2",
        "handle: string, flow_in: float -> size: int32 |",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size)
    .not_differentiable(),
    Op::new(
        "TensorArrayGradV2",
        "handle: string, flow_in: float -> grad_handle: string | source: string | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|build| gradient_array(build, false)),
    Op::new("TensorArrayCloseV2", "handle: string -> |")
        .cost(Cost::Cheap)
        .kernel(close)
        .not_differentiable(),
];
