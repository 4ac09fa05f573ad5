//! NoOp, SyncDevice.

use ferroflow_base::Result;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("NoOp", "->").cost(Cost::Cheap).kernel(nothing),
    Op::new("SyncDevice", "-> | | stateful")
        .cost(Cost::Cheap)
        .kernel(nothing),
];

/// The work of a CPU is done when its kernels return, so there is none to wait for.
fn nothing(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|_: &mut KernelCtx| Ok(())))
}
