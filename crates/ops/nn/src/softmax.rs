//! Softmax and LogSoftmax (TensorFlow: `core/kernels/softmax_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::float_input;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::{double, rows, vectorized};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Softmax",
        "logits: T -> softmax: T | T: type {half,bfloat16,float,double} |",
    )
    .shape(shape)
    .kernel(|build| build_rows(build, rows::softmax, false))
    .gradient(softmax_gradient),
    Op::new(
        "LogSoftmax",
        "logits: T -> logsoftmax: T | T: type {half,bfloat16,float,double} |",
    )
    .shape(shape)
    .kernel(|build| build_rows(build, rows::log_softmax, true))
    .gradient(log_softmax_gradient),
];

pub(crate) fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank_at_least(0, 1)?;
    shapes::unchanged(ctx)
}

type Rows = fn(&dyn Parallelism, &[f32], usize, &mut [f32]);

fn build_rows(build: &KernelBuild, run: Rows, log: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = float_input(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let Some(&n) = shape.last() else {
            return Err(invalid_argument!(
                "logits must have >= 1 dimension, got {shape}"
            ));
        };
        if dtype == DType::Double {
            let mut out = ctx.alloc(dtype, shape)?;
            let x = ctx.slice::<f64>(0)?;
            each_row(ctx.par(), out.slice_mut::<f64>()?, n, |i, out| {
                let sum = exponentials(&x[i * n..][..n], out);
                if log {
                    let shift = sum.ln();
                    let max = largest(&x[i * n..][..n]);
                    for (o, x) in out.iter_mut().zip(&x[i * n..]) {
                        *o = x - max - shift;
                    }
                } else {
                    out.iter_mut().for_each(|o| *o /= sum);
                }
            });
            return ctx.set_output(0, out);
        }
        let x = widened(ctx.par(), ctx.input(0)?)?;
        let mut out = ctx.alloc(DType::Float, shape)?;
        if out.num_elements() > 0 {
            run(ctx.par(), x.slice()?, n, out.slice_mut()?);
        }
        ctx.set_output(0, narrowed(ctx.par(), out, dtype)?)
    }))
}

pub(crate) fn each_row<T: Send>(
    par: &dyn Parallelism,
    out: &mut [T],
    n: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    par_chunks_mut(par, out, n, (4096 / n.max(1)).max(1), &f);
}

#[inline(always)]
pub(crate) fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b))
}

/// Computes `out = e^(x - max x)`; returns the sum.
pub(crate) fn exponentials(x: &[f64], out: &mut [f64]) -> f64 {
    vectorized(
        #[inline(always)]
        || {
            let max = largest(x);
            for (o, x) in out.iter_mut().zip(x) {
                *o = double::exp(x - max);
            }
            let (blocks, rest) = out.as_chunks::<8>();
            let mut sums = [0.0; 8];
            for block in blocks {
                sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
            }
            sums.iter().chain(rest).sum()
        },
    )
}

pub(crate) fn last_sum<'g>(x: Expr<'g>) -> Expr<'g> {
    x.sum(x.ints([-1]), true)
}

fn softmax_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, d) = (g.y(0), g.dy(0));
    g.set(0, (d - last_sum(d * y)) * y)
}

fn log_softmax_gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, d) = (g.y(0), g.dy(0));
    g.set(0, d - last_sum(d) * y.op("Exp", &[]))
}
