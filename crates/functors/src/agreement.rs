//! Kernels of two inputs that do not broadcast them.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, OpKernel};
use ferroflow_tensor::Shape;

/// How two inputs that are not broadcast must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// In the number of elements (TensorFlow: `SimpleBinaryOp`).
    Count,
    /// In the shape (TensorFlow: `BinaryElementWiseOp`).
    Shape,
}

impl Agreement {
    /// Checks the shapes of the two inputs of a node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they do not agree.
    pub fn check(self, op: &str, node: &str, [a, b]: [&Shape; 2]) -> Result<()> {
        let counts = [a, b].map(Shape::num_elements);
        match self {
            _ if a == b => Ok(()),
            Agreement::Count if counts[0] != counts[1] => Err(invalid_argument!(
                "The two arguments to a cwise op must have same number of elements, got {} and {}",
                counts[0],
                counts[1]
            )),
            Agreement::Count => Ok(()),
            Agreement::Shape => Err(invalid_argument!(
                "Inputs to operation {node} of type {op} must have the same size and shape.  Input 0: {a} != input 1: {b}"
            )),
        }
    }
}

/// Returns a kernel that refuses inputs that do not agree.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn without_broadcast(
    build: &KernelBuild,
    agreement: Agreement,
    kernel: Box<dyn OpKernel>,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Agreeing {
        op: build.def.name.to_string(),
        agreement,
        kernel,
    }))
}

struct Agreeing {
    op: String,
    agreement: Agreement,
    kernel: Box<dyn OpKernel>,
}

impl OpKernel for Agreeing {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
        if a == b {
            return self.kernel.compute(ctx);
        }
        self.agreement.check(&self.op, ctx.node(), [a, b])?;
        let a = a.clone();
        let b = ctx.take_input(1)?.with_shape(a)?;
        ctx.set_input(1, b)?;
        self.kernel.compute(ctx)
    }
}
