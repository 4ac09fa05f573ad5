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
pub const ALL: &[&[ferroflow_opdef::Op]] = &[
    dynamic_partition::OPS,
    queue::OPS,
    queue_ref::OPS,
    session_state::OPS,
    stack::OPS,
    tensor_array::OPS,
    tensor_array_v1::OPS,
];
// codegen:end
