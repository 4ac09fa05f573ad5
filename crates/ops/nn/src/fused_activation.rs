//! Activations that graphs express by several nodes: x·sigmoid(x), GELU, hard swish.

use ferroflow_base::Result;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelCtx, Op, OpKernel};
use ferroflow_primitives::math::{UnaryOp, unary, unary_in_place};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::DType;

/// `_Swish`, `_HardSwish`, `_Gelu`, `_GeluTanh`: internal, float only.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_Swish",
        "features: T -> activations: T | T: type {bfloat16,half,float}",
    )
    .shape(shapes::unchanged)
    .kernel(|_| kernel(UnaryOp::Swish)),
    Op::new(
        "_HardSwish",
        "features: T -> activations: T | T: type {bfloat16,half,float}",
    )
    .shape(shapes::unchanged)
    .kernel(|_| kernel(UnaryOp::HardSwish)),
    Op::new(
        "_Gelu",
        "features: T -> activations: T | T: type {bfloat16,half,float}",
    )
    .shape(shapes::unchanged)
    .kernel(|_| kernel(UnaryOp::GeluErf)),
    Op::new(
        "_GeluTanh",
        "features: T -> activations: T | T: type {bfloat16,half,float}",
    )
    .shape(shapes::unchanged)
    .kernel(|_| kernel(UnaryOp::GeluTanh)),
];

/// Elements per block.
const CHUNK: usize = 4096;

fn kernel(op: UnaryOp) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let (mut out, forwarded) = ctx.forward_or_alloc(&[0], DType::Float, shape)?;
        let par = ctx.par();
        if forwarded.is_some() {
            par_chunks_mut(par, out.slice_mut::<f32>()?, CHUNK, 1, &|_, chunk| {
                unary_in_place(op, chunk);
            });
        } else {
            let src = ctx.slice::<f32>(0)?;
            par_chunks_mut(par, out.slice_mut::<f32>()?, CHUNK, 1, &|i, chunk| {
                unary(op, &src[i * CHUNK..][..chunk.len()], chunk);
            });
        }
        ctx.set_output(0, out)
    }))
}
