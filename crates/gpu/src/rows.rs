//! Ops on rows, the last dimension: softmax, layer normalization.

use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::{Grid, TensorArg};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::Tensor;

pub(crate) const ROWS: &[Row] = &[
    Row::new("Softmax", softmax),
    Row::new("LogSoftmax", softmax),
    Row::new("_LayerNorm", layer_norm),
];

/// Longest row that stays in the registers of a warp.
pub(crate) const SHORT: usize = 1024;
/// Warps of a block that has a row in each.
const WARPS: usize = 4;

pub(crate) fn blocks(n: usize, threads: usize) -> Grid {
    Grid {
        blocks: [n as u32, 1, 1],
        threads: [threads as u32, 1, 1],
        shared_bytes: 0,
    }
}

/// The grid of kernels that have a warp for each of `n` short rows.
pub(crate) fn warps(n: usize) -> Grid {
    blocks(n.div_ceil(WARPS), WARPS * 32)
}

/// Threads for a row of `n` elements.
pub(crate) fn threads(n: usize) -> usize {
    n.div_ceil(4).next_multiple_of(32).clamp(32, 512)
}

fn softmax(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let is_log = build.def.name == "LogSoftmax";
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let y = softmax_of(ctx, &ctx.input(0)?, is_log)?;
        ctx.set_output(0, y)
    }))
}

/// The softmax of rows, or its logarithm.
///
/// # Errors
/// INVALID_ARGUMENT for a scalar; those of the device.
pub(crate) fn softmax_of(ctx: &GpuCtx, x: &Tensor, is_log: bool) -> Result<Tensor> {
    let Some(&n) = x.shape().last() else {
        return Err(invalid_argument!("logits must have >= 1 dimension, got []"));
    };
    let y = ctx.alloc(x.dtype(), x.shape().clone())?;
    if x.num_elements() == 0 {
        return Ok(y);
    }
    let rows = x.num_elements() / n;
    let (of, is_log) = (suffix(x.dtype())?, TensorArg::I32(i32::from(is_log)));
    let (from, to) = (TensorArg::Tensor(x), TensorArg::Tensor(&y));
    let length = TensorArg::I32(int(n)?);
    if n <= SHORT {
        let args = [from, to, TensorArg::I32(int(rows)?), length, is_log];
        ctx.run(&format!("softmax_short_{of}"), &warps(rows), &args)?;
    } else {
        let args = [from, to, length, is_log];
        ctx.run(&format!("softmax_{of}"), &blocks(rows, threads(n)), &args)?;
    }
    Ok(y)
}

fn layer_norm(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let epsilon = build.attrs.float("epsilon")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, scale, offset) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        let n = x.shape().last().copied().unwrap_or(1);
        if scale.num_elements() != n || offset.num_elements() != n {
            return Err(invalid_argument!(
                "scale and offset must have {n} elements, got {} and {}",
                scale.num_elements(),
                offset.num_elements()
            ));
        }
        let y = ctx.alloc(x.dtype(), x.shape().clone())?;
        if x.num_elements() > 0 {
            let rows = x.num_elements() / n;
            let (count, of) = (TensorArg::I32(int(rows)?), suffix(x.dtype())?);
            let tensors = [&x, &scale, &offset, &y].map(TensorArg::Tensor);
            let mut args = Vec::from(tensors);
            let (name, grid) = match n <= SHORT {
                true => {
                    args.push(count);
                    (format!("layer_norm_short_{of}"), warps(rows))
                }
                false => (format!("layer_norm_{of}"), blocks(rows, threads(n))),
            };
            args.extend([TensorArg::I32(int(n)?), TensorArg::F32(epsilon)]);
            ctx.run(&name, &grid, &args)?;
        }
        ctx.set_output(0, y)
    }))
}
