//! Transposition.

use crate::strided::Strided;
use ferroflow_base::Result;
use ferroflow_opdef::KernelCtx;
use ferroflow_primitives::transpose::permute_elements;
use ferroflow_tensor::{Complex32, Complex64, Shape, Tensor, bf16, dispatch, f16};

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
    dispatch!(value.dtype(), T in [
        bool, f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16, Complex32, Complex64
    ] => {
        let (from, to) = (value.slice::<T>()?, out.slice_mut::<T>()?);
        permute_elements(ctx.par(), value.shape(), perm, from, to);
    }, else view.gather(ctx.par(), &value, &mut out)?);
    Ok(out)
}
