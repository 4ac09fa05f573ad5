//! TensorFlow's data flow ops: queues, stacks, tensor arrays, dynamic partition and stitch, session tensors.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod array_state;
mod dynamic_partition;
mod queue;
mod queue_ref;
mod session_state;
mod stack;
mod tensor_array;
mod tensor_array_v1;

/// The ops of the group, file by file.
#[rustfmt::skip]
pub const ALL: &[ferroflow_opdef::OpFile] = &[
    ("dynamic_partition", dynamic_partition::OPS),
    ("queue", queue::OPS),
    ("queue_ref", queue_ref::OPS),
    ("session_state", session_state::OPS),
    ("stack", stack::OPS),
    ("tensor_array", tensor_array::OPS),
    ("tensor_array_v1", tensor_array_v1::OPS),
];
// codegen:end
