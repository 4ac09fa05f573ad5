//! `_LayerNorm`: layer normalization (Ba, Kiros & Hinton 2016) as one node.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::rows::layer_norm;
use ferroflow_tensor::DType;

/// `_LayerNorm`: internal; normalizes over the last axis, then scales and shifts.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_LayerNorm",
    "x: T, scale: T, offset: T -> y: T | T: type {bfloat16,half,float}; epsilon: float",
)
.shape(|ctx| {
    ctx.set(0, ctx.input(0));
    Ok(())
})
.kernel(build)];

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let epsilon = build.attrs.float("epsilon")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let n = shape.last().copied().unwrap_or(1);
        let (scale, offset) = (ctx.slice::<f32>(1)?, ctx.slice::<f32>(2)?);
        if scale.len() != n || offset.len() != n {
            return Err(invalid_argument!(
                "scale and offset must have {n} elements, got {} and {}",
                scale.len(),
                offset.len()
            ));
        }
        let mut out = ctx.alloc(DType::Float, shape)?;
        layer_norm(
            ctx.par(),
            ctx.slice(0)?,
            scale,
            offset,
            epsilon,
            out.slice_mut()?,
        );
        ctx.set_output(0, out)
    }))
}
