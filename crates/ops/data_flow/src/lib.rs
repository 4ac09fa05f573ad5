//! TensorFlow's data flow ops: queues, stacks, tensor arrays, dynamic partition and stitch, session
//! tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod accumulator;
mod accumulator_state;
mod barrier;
mod batch_options;
mod batching;
mod dynamic_partition;
mod queue;
mod queue_ref;
mod script;
mod session_tensor;
mod stack;
mod staging;
mod staging_map;
mod tensor_array;
mod tensor_array_state;
mod tensor_array_v1;
mod unbatch;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("accumulator", accumulator::OPS),
    ("barrier", barrier::OPS),
    ("batching", batching::OPS),
    ("dynamic_partition", dynamic_partition::OPS),
    ("queue", queue::OPS),
    ("queue_ref", queue_ref::OPS),
    ("script", script::OPS),
    ("session_tensor", session_tensor::OPS),
    ("stack", stack::OPS),
    ("staging", staging::OPS),
    ("staging_map", staging_map::OPS),
    ("tensor_array", tensor_array::OPS),
    ("tensor_array_v1", tensor_array_v1::OPS),
    ("unbatch", unbatch::OPS),
];
// codegen:end
