//! Quantized numbers as their stored integers.

use ferroflow_base::Result;
pub(crate) use ferroflow_functors::quantized::stored;
use ferroflow_opdef::{KernelBuild, KernelCtx, NodeInfo, OpKernel, Value};
use ferroflow_tensor::{DType, Tensor};

/// A kernel over integers, used for quantized numbers.
struct OfStored {
    node: NodeInfo,
    kernel: Box<dyn OpKernel>,
    output: DType,
    stored: fn(DType) -> DType,
}

/// Returns a kernel of one output that sees quantized inputs as integers; its output gets the
/// node's dtype.
pub(crate) fn of_stored(
    build: &KernelBuild,
    kernel: Box<dyn OpKernel>,
) -> Result<Box<dyn OpKernel>> {
    of_stored_as(build, kernel, stored)
}

/// Like [`of_stored`], with more dtypes that have stored integers.
pub(crate) fn of_stored_as(
    build: &KernelBuild,
    kernel: Box<dyn OpKernel>,
    stored: fn(DType) -> DType,
) -> Result<Box<dyn OpKernel>> {
    let output = build.output(0)?;
    let mut dtypes = build.inputs.iter().chain([&output]);
    if dtypes.all(|t| stored(*t) == *t) {
        return Ok(kernel);
    }
    let node = NodeInfo {
        name: build.node.to_string(),
        op: build.def.name.to_string(),
    };
    Ok(Box::new(OfStored {
        node,
        kernel,
        output,
        stored,
    }))
}

fn as_dtype(t: Tensor, dtype: DType) -> Result<Tensor> {
    match t.dtype() == dtype {
        true => Ok(t),
        false => t.bitcast(dtype),
    }
}

impl OpKernel for OfStored {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let mut inputs = Vec::with_capacity(ctx.num_inputs());
        for i in 0..ctx.num_inputs() {
            let input = ctx.take_input(i)?;
            let dtype = (self.stored)(input.dtype());
            inputs.push(Value::Tensor(as_dtype(input, dtype)?));
        }
        let mut output = [Value::Empty];
        let mut inner = KernelCtx::new(&self.node, &mut inputs, &[], &mut output, ctx.services());
        self.kernel.compute(&mut inner)?;
        let [output] = output;
        match output.into_tensor() {
            Some(output) => ctx.set_output(0, as_dtype(output, self.output)?),
            None => Ok(()),
        }
    }
}
