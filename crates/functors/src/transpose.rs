//! Transposition.

use crate::strided::Strided;
use ferroflow_base::Result;
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{Shape, Tensor};

/// Returns `value` with its dimensions in the order `perm`.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the result does not fit into memory.
pub fn transposed(ctx: &KernelCtx, value: Tensor, perm: &[usize]) -> Result<Tensor> {
    let shape = value.shape();
    let strides = shape.strides();
    let out_shape: Shape = perm.iter().map(|&p| shape[p]).collect();
    let view = Strided::new(0, perm.iter().map(|&p| (shape[p], strides[p] as isize)));
    if view.is_empty() || view.as_range_start().is_some() {
        return value.with_shape(out_shape);
    }
    let mut out = ctx.alloc(value.dtype(), out_shape)?;
    view.gather(ctx.par(), &value, &mut out)?;
    Ok(out)
}
