//! L2Loss (TensorFlow: `core/kernels/l2loss_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::half_conversion::widened;
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::reduce::{FastSumSquares, Reduce, Reducer, SumSquares, layout, reduce};
use ferroflow_functors::shapes;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op, OpKernel};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{DType, Tensor, bf16, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "L2Loss",
    "t: T -> output: T | T: type {half,bfloat16,float,double} |",
)
.shape(shapes::scalar)
.kernel(|build| match build.input(0)? {
    DType::Float => Ok(Box::new(Loss::<f32, FastSumSquares>::new())),
    DType::Double => Ok(Box::new(Loss::<f64, SumSquares>::new())),
    DType::Half => Ok(Box::new(half_loss::<f16>)),
    DType::Bfloat16 => Ok(Box::new(half_loss::<bf16>)),
    dtype => Err(build.unsupported(dtype)),
})
.gradient(l2_loss_gradient)];

/// The kernel of L2Loss.
struct Loss<T, R>(std::marker::PhantomData<fn() -> (T, R)>);

impl<T, R> Loss<T, R> {
    fn new() -> Self {
        Loss(std::marker::PhantomData)
    }
}

fn half_sum_squares<T: Num, R: Reduce<T>>(par: &dyn Parallelism, x: &[T]) -> Result<T> {
    let mut out = [T::ZERO];
    reduce(
        par,
        &Reducer::of::<R>(),
        &layout(&[x.len()], &[true]),
        x,
        &mut out,
    )?;
    Ok(out[0].div(T::ONE.add(T::ONE)))
}

impl<T: Num, R: Reduce<T>> OpKernel for Loss<T, R> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let loss = half_sum_squares::<T, R>(ctx.par(), ctx.slice::<T>(0)?)?;
        ctx.set_output(0, Tensor::scalar(loss))
    }
}

fn half_loss<H: Half>(ctx: &mut KernelCtx) -> Result<()> {
    let wide = widened(ctx.par(), ctx.input(0)?)?;
    let loss = half_sum_squares::<f32, FastSumSquares>(ctx.par(), wide.slice()?)?;
    ctx.set_output(0, Tensor::scalar(H::narrow(loss)))
}

/// Returns the gradient of L2Loss.
fn l2_loss_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.x(0) * g.dy(0);
    g.set(0, dx)
}
