//! PyFunc, PyFuncStateless, EagerPyFunc, which fail, as in any server without a Python interpreter.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "PyFunc",
        "input: list(Tin) -> output: list(Tout) | token: string; Tin: list(type) >= 0; \
         Tout: list(type) >= 0 | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(no_python)
    .not_differentiable(),
    Op::new(
        "PyFuncStateless",
        "input: list(Tin) -> output: list(Tout) | token: string; Tin: list(type) >= 0; \
         Tout: list(type) >= 0",
    )
    .cost(Cost::Cheap)
    .kernel(no_python)
    .not_differentiable(),
    Op::new(
        "EagerPyFunc",
        "input: list(Tin) -> output: list(Tout) | token: string; is_async: bool = \
         false; Tin: list(type) >= 0; Tout: list(type) >= 0 | stateful",
    )
    .cost(Cost::Cheap)
    // Its gradient is a Python function, too.
    .kernel(no_python),
];

fn no_python(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let token = build.attrs.str("token")?.to_string();
    Ok(Box::new(move |_: &mut KernelCtx| {
        Err(invalid_argument!(
            "ValueError: Could not find callback with key={token} in the registry. Functions of Python \
             run only in the process that made them."
        ))
    }))
}
