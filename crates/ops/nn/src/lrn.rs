//! Local response normalization.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::math::{BinaryOp, UnaryOp, binary, unary_in_place};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::DType;

/// LRN.
pub(crate) const OPS: &[Op] = &[Op::new(
    "LRN",
    "input: T -> output: T | depth_radius: int = 5; bias: float = 1.0; alpha: float = 1.0; beta: float = 0.5; T: type {half,bfloat16,float} = float |",
)
.shape(|ctx| {
    let input = ctx.with_rank(0, 4)?;
    ctx.set(0, input);
    Ok(())
})
.cost(Cost::Expensive)
.kernel(build)
.gradient(gradient)];

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let radius = attrs.int("depth_radius")?;
    let Ok(radius) = usize::try_from(i32::try_from(radius).unwrap_or(-1)) else {
        return Err(invalid_argument!(
            "depth_radius = {radius} is not a valid radius"
        ));
    };
    let (bias, alpha, beta) = (
        attrs.float("bias")?,
        attrs.float("alpha")?,
        attrs.float("beta")?,
    );
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        if shape.rank() != 4 {
            return Err(invalid_argument!("in must be 4-dimensional"));
        }
        let c = shape[3];
        let x = widened(ctx.par(), ctx.input(0)?)?;
        let x = x.slice::<f32>()?;
        let mut out = ctx.alloc(DType::Float, shape)?;
        let group = (4096 / c.max(1)).max(1);
        par_chunks_mut(ctx.par(), out.slice_mut::<f32>()?, c, group, &|i, out| {
            let x = &x[i * c..][..c];
            for (j, o) in out.iter_mut().enumerate() {
                let near = &x[j.saturating_sub(radius)..(j + radius + 1).min(c)];
                *o = bias + alpha * near.iter().map(|v| v * v).sum::<f32>();
            }
            unary_in_place(UnaryOp::Pow(-beta), out);
            let scale = out.to_vec();
            binary(BinaryOp::Mul, x, &scale[..], out);
        });
        ctx.set_output(0, narrowed(ctx.par(), out, dtype)?)
    }))
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = ["depth_radius", "bias", "alpha", "beta"].map(|name| g.attr(name));
    let dx = g.dy(0).op_with("LRNGrad", &[g.x(0), g.y(0)], &attrs);
    g.set(0, dx)
}
