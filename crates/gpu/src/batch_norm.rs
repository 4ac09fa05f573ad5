//! Batch normalization with the statistics of a model that is not trained.

use crate::elementwise;
use crate::kernel::{GpuCtx, GpuKernel, Row};
use crate::ptx::Step;
use ferroflow_base::Result;
use ferroflow_opdef::{BinaryFn, KernelBuild, UnaryFn};
use ferroflow_tensor::{DType, Tensor};

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];
const T: &[(&str, &[DType])] = &[("T", &[DType::Float])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("FusedBatchNorm", batch_norm)
        .types(T)
        .strings(FORMAT),
    Row::new("FusedBatchNormV2", batch_norm)
        .types(T)
        .strings(FORMAT),
    Row::new("FusedBatchNormV3", batch_norm)
        .types(T)
        .strings(FORMAT),
];

fn batch_norm(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epsilon = build.attrs.float("epsilon")?;
    if build.attrs.bool("is_training")? {
        return Err(ferroflow_base::unimplemented_error!(
            "GPU kernels of {} do not train; place node '{}' on a CPU",
            build.def.name,
            build.node
        ));
    }
    // Of x, scale, offset, mean, variance and epsilon: (x - mean) * (scale * rsqrt(variance + epsilon)) + offset.
    let steps = [
        Step::Binary(BinaryFn::Add, 4, 5),
        Step::Unary(UnaryFn::Rsqrt, 6),
        Step::Binary(BinaryFn::Mul, 1, 7),
        Step::Binary(BinaryFn::Sub, 0, 3),
        Step::Binary(BinaryFn::Mul, 9, 8),
        Step::Binary(BinaryFn::Add, 10, 2),
    ];
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..5).map(|i| ctx.input(i));
        let mut inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        inputs.push(ctx.memory.upload(&Tensor::scalar(epsilon))?);
        let y = elementwise::apply(ctx, &steps, &inputs)?;
        ctx.set_output(0, y)?;
        // Statistics pass through; nothing reads what training would keep.
        for (output, input) in [(1, 3), (2, 4), (3, 3), (4, 4), (5, 3)] {
            if output < ctx.num_outputs() {
                ctx.set_output(output, inputs[input].clone())?;
            }
        }
        Ok(())
    }))
}
