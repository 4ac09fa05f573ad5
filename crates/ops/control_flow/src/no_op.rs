//! NoOp.

use ferroflow_opdef::{Cost, KernelCtx, Op};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new("NoOp", "->")
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(|_: &mut KernelCtx| Ok(()))))];
