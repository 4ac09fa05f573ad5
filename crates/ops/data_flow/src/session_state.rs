//! Ops that a TensorFlow server knows and cannot run: tensors that a session keeps between steps live
//! in sessions of the same process only, and functions of Python in the process that made them.

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};

/// GetSessionHandle, GetSessionHandleV2, GetSessionTensor, DeleteSessionTensor, PyFunc,
/// PyFuncStateless, EagerPyFunc.
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
    Op::new(
        "PyFunc",
        "input: list(Tin) -> output: list(Tout) | token: string; Tin: list(type) >= 0; Tout: \
         list(type) >= 0 | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(no_python)
    .not_differentiable(),
    Op::new(
        "PyFuncStateless",
        "input: list(Tin) -> output: list(Tout) | token: string; Tin: list(type) >= 0; Tout: \
         list(type) >= 0",
    )
    .cost(Cost::Cheap)
    .kernel(no_python)
    .not_differentiable(),
    Op::new(
        "EagerPyFunc",
        "input: list(Tin) -> output: list(Tout) | token: string; is_async: bool = false; Tin: \
         list(type) >= 0; Tout: list(type) >= 0 | stateful",
    )
    .cost(Cost::Cheap)
    // Its gradient is a function of Python, too.
    .kernel(no_python),
];

fn no_state(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // Both versions have the same kernel.
    let op = build.def.name.trim_end_matches("V2").to_string();
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(failed_precondition!("{op} called on null session state"))
    }))
}

fn no_python(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let token = build.attrs.str("token")?.to_string();
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(invalid_argument!(
            "ValueError: Could not find callback with key={token} in the registry. Functions of Python \
             run only in the process that made them."
        ))
    }))
}
