//! Padding with one value.

use crate::data::{self, Copy};
use crate::kernel::{GpuCtx, GpuKernel, Row};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[
    Row::new("Pad", pad).host(&["paddings"]),
    Row::new("PadV2", pad).host(&["paddings"]),
];

fn pad(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, sizes) = (ctx.input(0)?, ctx.ints(1)?);
        if sizes.len() != 2 * x.shape().rank() {
            return Err(invalid_argument!(
                "The first dimension of paddings must be the rank of inputs: {} numbers, shape {}",
                sizes.len(),
                x.shape()
            ));
        }
        let mut pads = Vec::new();
        for pair in sizes.chunks_exact(2) {
            let size = |n: i64| {
                let size = usize::try_from(n);
                size.map_err(|_| {
                    invalid_argument!("Paddings must be non-negative: {} {}", pair[0], pair[1])
                })
            };
            pads.push((size(pair[0])?, size(pair[1])?));
        }
        let value = match ctx.num_inputs() {
            3 => Some(ctx.input(2)?),
            _ => None,
        };
        let y = padded(ctx, &x, &pads, value.as_ref())?;
        ctx.set_output(0, y)
    }))
}

/// Returns `x` with elements of `value`, by default zero, before and behind each dimension.
///
/// # Errors
/// Those of the device.
pub(crate) fn padded(
    ctx: &GpuCtx,
    x: &Tensor,
    pads: &[(usize, usize)],
    value: Option<&Tensor>,
) -> Result<Tensor> {
    let dims = x.shape().iter().zip(pads);
    let shape: Shape = dims
        .map(|(n, (before, after))| n.saturating_add(*before).saturating_add(*after))
        .collect();
    let y = match value {
        Some(value) => data::broadcast(ctx, value, &shape)?,
        None => {
            let y = ctx.alloc(x.dtype(), shape)?;
            data::zero(ctx, &y)?;
            y
        }
    };
    let (from, to) = (x.shape().strides(), y.shape().strides());
    let start = pads
        .iter()
        .zip(&to)
        .map(|((before, _), s)| before * s)
        .sum();
    let rank = x.shape().rank();
    let copy = Copy::new((0..rank).map(|d| (x.shape()[d], from[d] as i64, to[d] as i64)));
    copy.run(ctx, (x, 0), (&y, start))?;
    Ok(y)
}

/// Returns what `padded` put elements around.
///
/// # Errors
/// Those of the device.
pub(crate) fn unpadded(ctx: &GpuCtx, y: &Tensor, pads: &[(usize, usize)]) -> Result<Tensor> {
    let dims = y.shape().iter().zip(pads);
    let shape: Shape = dims
        .map(|(n, (before, after))| n.saturating_sub(before + after))
        .collect();
    let x = ctx.alloc(y.dtype(), shape)?;
    let (from, to) = (y.shape().strides(), x.shape().strides());
    let start = pads
        .iter()
        .zip(&from)
        .map(|((before, _), s)| before * s)
        .sum();
    let rank = x.shape().rank();
    let copy = Copy::new((0..rank).map(|d| (x.shape()[d], from[d] as i64, to[d] as i64)));
    copy.run(ctx, (y, start), (&x, 0))?;
    Ok(x)
}
