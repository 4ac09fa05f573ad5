//! TensorFlow's collective ops: collectives among the nodes of a step, _Send and _Recv.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod collective;
mod communicator;
mod merge;
mod send_recv;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("collective", collective::OPS),
    ("communicator", communicator::OPS),
    ("send_recv", send_recv::OPS),
];
// codegen:end
