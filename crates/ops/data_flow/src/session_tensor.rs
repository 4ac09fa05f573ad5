//! Session tensors, which fail, as in a TensorFlow server: they exist in local sessions only
//! (TensorFlow: `core/kernels/session_ops.cc`).

use ferroflow_base::{Result, failed_precondition};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GetSessionHandle",
        "value: T -> handle: string | T: type | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(no_state)
    .not_differentiable(),
    Op::new(
        "GetSessionHandleV2",
        "value: T -> handle: resource | T: type | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(no_state)
    .not_differentiable(),
    Op::new(
        "GetSessionTensor",
        "handle: string -> value: dtype | dtype: type | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(no_state)
    .not_differentiable(),
    Op::new("DeleteSessionTensor", "handle: string -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(no_state)
        .not_differentiable(),
];

fn no_state(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // Both versions have the same kernel.
    let op = build.def.name.trim_end_matches("V2").to_string();
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(failed_precondition!("{op} called on null session state"))
    }))
}
