//! Batch normalization with the statistics of a model that is not trained.

use crate::elementwise;
use crate::kernel::{GpuCtx, GpuKernel, Row};
use crate::ptx::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Attrs, BinaryFn, KernelBuild, UnaryFn};
use ferroflow_tensor::{DType, Tensor};
use std::sync::OnceLock;

const FORMAT: &[(&str, &[&str])] = &[("data_format", &["NHWC"])];
const T: &[(&str, &[DType])] = &[("T", &[DType::Float])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("FusedBatchNorm", batch_norm)
        .types(T)
        .strings(FORMAT)
        .only_if(is_inference),
    Row::new("FusedBatchNormV2", batch_norm)
        .types(T)
        .strings(FORMAT)
        .only_if(is_inference),
    Row::new("FusedBatchNormV3", batch_norm)
        .types(T)
        .strings(FORMAT)
        .only_if(is_inference),
];

/// GPU kernels do not train.
fn is_inference(attrs: &Attrs) -> bool {
    attrs.bool("is_training").is_ok_and(|trains| !trains)
}

fn batch_norm(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epsilon = build.attrs.float("epsilon")?;
    // Of x, scale, offset, mean, variance and epsilon: (x - mean) * (scale * rsqrt(variance + epsilon)) + offset.
    let steps = [
        Step::Binary(BinaryFn::Add, 4, 5),
        Step::Unary(UnaryFn::Rsqrt, 6),
        Step::Binary(BinaryFn::Mul, 1, 7),
        Step::Binary(BinaryFn::Sub, 0, 3),
        Step::Binary(BinaryFn::Mul, 9, 8),
        Step::Binary(BinaryFn::Add, 10, 2),
    ];
    let (is_v3, on_device) = (build.def.name == "FusedBatchNormV3", OnceLock::new());
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let inputs = (0..5).map(|i| ctx.input(i));
        let mut inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        let shape = inputs[0].shape().clone();
        if shape.rank() != 4 {
            return Err(invalid_argument!("input must be 4 or 5-dimensional{shape}"));
        }
        let channels = shape[3];
        if let Some(wrong) = inputs[1..].iter().find(|t| t.shape().dims() != [channels]) {
            return Err(invalid_argument!(
                "scale, offset, mean and variance must have {channels} elements, not the shape {}",
                wrong.shape()
            ));
        }
        inputs.push(match on_device.get() {
            Some(epsilon) => Tensor::clone(epsilon),
            None => {
                let epsilon = ctx.memory.upload(&Tensor::scalar(epsilon))?;
                on_device.get_or_init(|| epsilon).clone()
            }
        });
        let y = elementwise::apply(ctx, &steps, &inputs)?;
        ctx.set_output(0, y)?;
        // Statistics pass through; those of nothing are unknown. Nothing reads what training would keep.
        let mut statistics = [inputs[3].clone(), inputs[4].clone()];
        if shape.num_elements() == 0 {
            for t in &mut statistics {
                *t = ctx.alloc(t.dtype(), t.shape().clone())?;
                ctx.memory.fill(t, &f32::NAN.to_le_bytes())?;
            }
        }
        for output in 1..ctx.num_outputs() {
            let t = match output {
                1 | 2 => statistics[output - 1].clone(),
                5 if is_v3 => Tensor::scalar(0.0f32),
                _ => inputs[3 + (output + 1) % 2].clone(),
            };
            ctx.set_output(output, t)?;
        }
        Ok(())
    }))
}
