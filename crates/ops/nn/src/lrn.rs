//! LRN and LRNGrad: local response normalization (TensorFlow: `core/kernels/lrn_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::math::{BinaryOp, UnaryOp, binary_left, unary_in_place};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "LRN",
        "input: T -> output: T | depth_radius: int = 5; bias: float = 1.0; alpha: float \
         = 1.0; beta: float = 0.5; T: type {half,bfloat16,float} = float",
    )
    .shape(|ctx| {
        let input = ctx.with_rank(0, 4)?;
        ctx.set(0, input);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(gradient),
    Op::new(
        "LRNGrad",
        "input_grads: T, input_image: T, output_image: T -> output: T | depth_radius: \
         int = 5; bias: float = 1.0; alpha: float = 1.0; beta: float = 0.5; T: type \
         {half,bfloat16,float} = float",
    )
    .shape(|ctx| {
        let shape = ctx.with_rank(0, 4)?;
        let shape = ctx.merge(&shape, &ctx.input(1))?;
        let shape = ctx.merge(&shape, &ctx.input(2))?;
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(lrn),
];

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
        let radius = radius.min(c);
        let x = widened(ctx.par(), ctx.input(0)?)?;
        let x = x.slice::<f32>()?;
        let mut out = ctx.alloc(DType::Float, shape)?;
        let rows = (CHUNK / (c + 2 * radius).max(1)).max(1);
        par_chunks_mut(
            ctx.par(),
            out.slice_mut::<f32>()?,
            rows * c,
            1,
            &|i, out| {
                let x = &x[i * rows * c..][..out.len()];
                let mut factors = sums_of_squares(x, c, radius);
                vectorized(
                    #[inline(always)]
                    || {
                        for o in &mut factors {
                            *o = bias + alpha * *o;
                        }
                    },
                );
                power(&mut factors, beta);
                let rows = out.chunks_mut(c.max(1)).zip(x.chunks(c.max(1)));
                for ((out, x), factors) in rows.zip(factors.chunks(c + 2 * radius)) {
                    out.copy_from_slice(&factors[..c]);
                    binary_left(BinaryOp::Mul, out, x);
                }
            },
        );
        ctx.set_output(0, narrowed(ctx.par(), out, dtype)?)
    }))
}

/// Numbers that a task computes together.
const CHUNK: usize = 4096;

/// Returns the sums of the squares near each number of rows of `c`, and `2 * radius` other numbers behind each row.
fn sums_of_squares(x: &[f32], c: usize, radius: usize) -> Vec<f32> {
    let pitch = c + 2 * radius;
    let n_rows = x.len() / c.max(1);
    let mut squares = vec![0.0; n_rows * pitch + 2 * radius];
    for (squares, x) in squares
        .chunks_exact_mut(pitch.max(1))
        .zip(x.chunks(c.max(1)))
    {
        let own = squares[radius..].iter_mut().zip(x);
        own.for_each(|(square, x)| *square = x * x);
    }
    let mut sums = vec![0.0; n_rows * pitch];
    vectorized(
        #[inline(always)]
        || {
            for near in squares.windows(sums.len()).take(2 * radius + 1) {
                for (sum, square) in sums.iter_mut().zip(near) {
                    *sum += square;
                }
            }
        },
    );
    sums
}

/// Computes the powers of `-beta`.
fn power(x: &mut [f32], beta: f32) {
    match beta {
        0.5 => unary_in_place(UnaryOp::Rsqrt, x),
        1.0 => unary_in_place(UnaryOp::Reciprocal, x),
        // AlexNet's.
        0.75 => vectorized(
            #[inline(always)]
            || {
                for x in x.iter_mut() {
                    let root = x.sqrt();
                    *x = 1.0 / (root * root.sqrt());
                }
            },
        ),
        beta => unary_in_place(UnaryOp::Pow(-beta), x),
    }
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let attrs = ["depth_radius", "bias", "alpha", "beta"].map(|name| g.attr(name));
    let dx = g.dy(0).op_with("LRNGrad", &[g.x(0), g.y(0)], &attrs);
    g.set(0, dx)
}

fn lrn(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let radius = attrs.int("depth_radius")?;
    let Ok(radius) = usize::try_from(i32::try_from(radius).unwrap_or(-1)) else {
        return Err(invalid_argument!(
            "depth_radius = {radius} is not a valid radius"
        ));
    };
    let (bias, alpha) = (attrs.float("bias")?, attrs.float("alpha")?);
    let (beta, dtype) = (attrs.float("beta")?, build.output(0)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        if shape.rank() != 4 || ctx.shape(1)?.rank() != 4 {
            return Err(invalid_argument!("inputs must be 4-dimensional"));
        }
        if *ctx.shape(1)? != shape || *ctx.shape(2)? != shape {
            return Err(invalid_argument!(
                "input_grads, input_image, and out_image should have the same shape"
            ));
        }
        let (par, c) = (ctx.par(), shape[3]);
        let [grad, x, y] = [0, 1, 2].map(|i| widened(par, ctx.input(i)?));
        let (grad, x, y) = (grad?, x?, y?);
        let (grad, x, y) = (grad.slice::<f32>()?, x.slice::<f32>()?, y.slice::<f32>()?);
        let mut out = ctx.alloc(DType::Float, shape)?;
        let group = (1024 / c.max(1)).max(1);
        par_chunks_mut(par, out.slice_mut::<f32>()?, c, group, &|i, out| {
            let [grad, x, y] = [grad, x, y].map(|t| &t[i * c..][..c]);
            out.fill(0.0);
            for j in 0..c {
                let near = j.saturating_sub(radius)..(j + radius + 1).min(c);
                let norm = bias + alpha * x[near.clone()].iter().map(|v| v * v).sum::<f32>();
                let each = -2.0 * alpha * beta * y[j] / norm * grad[j];
                for (o, x) in out[near.clone()].iter_mut().zip(&x[near]) {
                    *o += each * x;
                }
                out[j] += norm.powf(-beta) * grad[j];
            }
        });
        ctx.set_output(0, narrowed(par, out, dtype)?)
    }))
}
