//! Batch normalization (Ioffe & Szegedy 2015; TensorFlow: `core/kernels/fused_batch_norm_op.cc`
//! and `batch_norm_op.cc`).

use crate::fused::affine;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::unary::float_input;
use ferroflow_functors::window::Layout;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::batch_norm;
use ferroflow_primitives::math::{UnaryOp, scale_offset, unary};
use ferroflow_primitives::rows::{ReduceOp, reduce_middle};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FusedBatchNorm",
        "x: T, scale: T, offset: T, mean: T, variance: T -> y: T, batch_mean: T, \
         batch_variance: T, reserve_space_1: T, reserve_space_2: T | T: type {float}; \
         epsilon: float = 0.0001; exponential_avg_factor: float = 1.0; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(shape)
    .kernel(build)
    .gradient(fused_gradient),
    Op::new(
        "FusedBatchNormV2",
        "x: T, scale: U, offset: U, mean: U, variance: U -> y: T, batch_mean: U, \
         batch_variance: U, reserve_space_1: U, reserve_space_2: U | T: type \
         {half,bfloat16,float}; U: type {float}; epsilon: float = 0.0001; \
         exponential_avg_factor: float = 1.0; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; is_training: bool = true",
    )
    .shape(shape)
    .kernel(build)
    .gradient(fused_gradient),
    Op::new(
        "FusedBatchNormV3",
        "x: T, scale: U, offset: U, mean: U, variance: U -> y: T, batch_mean: U, \
         batch_variance: U, reserve_space_1: U, reserve_space_2: U, reserve_space_3: U \
         | T: type {half,bfloat16,float}; U: type {bfloat16,float}; epsilon: float = \
         0.0001; exponential_avg_factor: float = 1.0; data_format: string \
         {'NHWC','NCHW','NDHWC','NCDHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(shape)
    .kernel(build)
    .gradient(fused_gradient),
    // The pass `composite` splits it.
    Op::new(
        "_FusedBatchNormEx",
        "x: T, scale: U, offset: U, mean: U, variance: U, side_input: num_side_inputs*T \
         -> y: T, batch_mean: U, batch_variance: U, reserve_space_1: U, \
         reserve_space_2: U, reserve_space_3: U | T: type {half,float,bfloat16}; U: \
         type {float}; epsilon: float = 0.0001; exponential_avg_factor: float = 1.0; \
         num_side_inputs: int >= 0 = 0; activation_mode: string = 'Identity'; \
         data_format: string {'NHWC','NCHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(shape),
    Op::new(
        "BatchNormWithGlobalNormalization",
        "t: T, m: T, v: T, beta: T, gamma: T -> result: T | T: numbertype; \
         variance_epsilon: float; scale_after_normalization: bool",
    )
    .shape(shape_global)
    .kernel(build_global)
    .gradient(crate::batch_norm_grad::global_gradient),
];

/// Elements per block.
const BLOCK: usize = 16 * 1024;

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    let training = ctx.attrs().bool("is_training")?;
    let x = ctx.input(0);
    let Some(dims) = x.dims() else {
        for i in 1..5 {
            let size = ctx.with_rank(1, 1)?.dim(0);
            ctx.set(i, PartialShape::of([size]));
        }
        return Ok(());
    };
    // Channels-last tensors may have one more dimension than the format has.
    if dims.len() != 4 && dims.len() != 5 {
        return Err(invalid_argument!("input must be 4 or 5-dimensional{x}"));
    }
    let at = if layout.channels_last {
        dims.len() - 1
    } else {
        1
    };
    let mut channels = dims[at];
    let n_params = if training { 3 } else { 5 };
    for i in 1..n_params {
        let size = ctx.with_rank(i, 1)?.dim(0);
        channels = match (channels, size) {
            (Some(a), Some(b)) if a != b => return Err(other_size(PARAMS[i - 1], b, a)),
            (a, b) => a.or(b),
        };
    }
    let mut out: Vec<_> = dims.to_vec();
    out[at] = channels;
    ctx.set(0, PartialShape::of(out));
    for i in 1..5 {
        ctx.set(i, PartialShape::of([channels]));
    }
    Ok(())
}

const PARAMS: [&str; 4] = ["scale", "offset", "mean", "variance"];

#[cold]
fn other_size(name: &str, got: usize, channels: usize) -> ferroflow_base::Status {
    let name = if name == "mean" {
        "estimated_mean"
    } else {
        name
    };
    invalid_argument!(
        "{name} must have the same number of elements as the channels of x, got {got} and {channels}"
    )
}

struct BatchNorm {
    layout: Layout,
    epsilon: f32,
    /// The weight of the new mean in the running one.
    factor: f32,
    training: bool,
    x_dtype: DType,
    param_dtype: DType,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(BatchNorm {
        layout: Layout::of(build.attrs)?,
        epsilon: build.attrs.float("epsilon")?,
        factor: build.attrs.float("exponential_avg_factor")?,
        training: build.attrs.bool("is_training")?,
        x_dtype: build.input(0)?,
        param_dtype: build.input(1)?,
    }))
}

impl OpKernel for BatchNorm {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let par = ctx.par();
        let shape = ctx.shape(0)?.clone();
        if shape.rank() != 4 && shape.rank() != 5 {
            return Err(invalid_argument!("input must be 4 or 5-dimensional{shape}"));
        }
        let layout = Layout {
            spatial: shape.rank() - 2,
            ..self.layout
        };
        let channels = shape[layout.channel()];
        let with_old = !self.training || self.factor != 1.0;
        let mut params = Vec::with_capacity(4);
        for (i, name) in PARAMS.into_iter().enumerate() {
            let t = ctx.input(i + 1)?;
            if t.shape().rank() != 1 {
                return Err(invalid_argument!(
                    "{name} must be 1-dimensional{}",
                    t.shape()
                ));
            }
            if (i < 2 || with_old) && t.num_elements() != channels {
                return Err(other_size(name, t.num_elements(), channels));
            }
            params.push(widened(par, t)?);
        }
        let x = widened(par, ctx.input(0)?)?;
        // Mean, variance, and the values that the gradient reuses.
        let mut sums = [
            params[2].clone(),
            params[3].clone(),
            vector(channels, 0.0)?,
            vector(channels, 0.0)?,
        ];
        let y = if shape.num_elements() == 0 {
            sums[0] = vector(channels, f32::NAN)?;
            sums[1] = vector(channels, f32::NAN)?;
            ctx.alloc(DType::Float, shape)?
        } else if self.training {
            let x = layout.to_last(ctx, x)?;
            let y = self.train(par, &x, &params, &mut sums)?;
            layout.restored(ctx, y)?
        } else {
            self.infer(ctx, layout, x.slice()?, &params)?
        };
        ctx.set_output(0, narrowed(par, y, self.x_dtype)?)?;
        for (i, t) in sums.into_iter().enumerate() {
            ctx.set_output(i + 1, narrowed(par, t, self.param_dtype)?)?;
        }
        if ctx.num_outputs() > 5 {
            let nothing = narrowed(par, Tensor::scalar(0f32), self.param_dtype)?;
            ctx.set_output(5, nothing)?;
        }
        Ok(())
    }
}

impl BatchNorm {
    /// Normalizes `x`, which is not empty, by the mean and variance among the parameters.
    fn infer(
        &self,
        ctx: &KernelCtx,
        layout: Layout,
        x: &[f32],
        params: &[Tensor],
    ) -> Result<Tensor> {
        let (factor, bias) = affine(
            params[0].slice()?,
            params[1].slice()?,
            params[2].slice()?,
            params[3].slice()?,
            self.epsilon,
        );
        let mut y = ctx.alloc(DType::Float, ctx.shape(0)?.clone())?;
        if layout.channels_last {
            apply(ctx.par(), x, &factor, &bias, y.slice_mut()?);
        } else {
            let channels = factor.len();
            let plane = x.len() / y.shape()[0] / channels;
            let group = (BLOCK / plane).max(1);
            par_chunks_mut(ctx.par(), y.slice_mut()?, plane, group, &|i, y| {
                let c = i % channels;
                let op = UnaryOp::Affine(factor[c], bias[c]);
                unary(op, &x[i * plane..][..plane], y);
            });
        }
        Ok(y)
    }

    /// Normalizes channels-last `x`, which is not empty, by its own mean and variance.
    fn train(
        &self,
        par: &dyn Parallelism,
        x: &Tensor,
        params: &[Tensor],
        sums: &mut [Tensor; 4],
    ) -> Result<Tensor> {
        let channels = params[0].num_elements();
        let n = x.num_elements() / channels;
        let mut mean = vec![0.0; channels];
        reduce_middle(par, ReduceOp::Mean, [1, n, channels], x.slice()?, &mut mean);
        let variance = variance(par, x.slice()?, &mean);
        let zeros = vec![0.0; channels];
        let (factor, offset) = affine(
            params[0].slice()?,
            params[1].slice()?,
            &zeros,
            &variance,
            self.epsilon,
        );
        let mut y = Tensor::for_overwrite(DType::Float, x.shape().clone())?;
        let (x, block) = (x.slice::<f32>()?, block(channels));
        par_chunks_mut(par, y.slice_mut()?, block, 1, &|i, y| {
            let x = &x[i * block..][..y.len()];
            batch_norm::normalize(x, [&mean, &factor, &offset], y);
        });
        let unbiased = n as f32 / (n - 1).max(1) as f32;
        let sample: Vec<f32> = variance.iter().map(|v| v * unbiased).collect();
        *sums = [
            self.running(&mean, &params[2])?,
            self.running(&sample, &params[3])?,
            Tensor::vector(&mean)?,
            Tensor::vector(&variance)?,
        ];
        Ok(y)
    }

    fn running(&self, new: &[f32], old: &Tensor) -> Result<Tensor> {
        let mut out = Tensor::vector(new)?;
        if self.factor != 1.0 {
            for (o, old) in out.slice_mut::<f32>()?.iter_mut().zip(old.slice::<f32>()?) {
                *o = (1.0 - self.factor) * old + self.factor * *o;
            }
        }
        Ok(out)
    }
}

fn vector(n: usize, value: f32) -> Result<Tensor> {
    let mut t = Tensor::for_overwrite(DType::Float, Shape::from([n]))?;
    t.slice_mut::<f32>()?.fill(value);
    Ok(t)
}

/// Rows that are summed in single precision.
const SUMMED: usize = 512;

/// Returns the number of elements of a block of rows.
pub(crate) fn block(channels: usize) -> usize {
    (BLOCK / channels.max(1)).clamp(1, SUMMED) * channels
}

/// Adds up the rows of sums of all blocks.
pub(crate) fn totals(partial: &[f32], columns: usize) -> Vec<f64> {
    let mut sums = vec![0f64; columns];
    for partial in partial.chunks_exact(columns.max(1)) {
        let pairs = sums.iter_mut().zip(partial);
        pairs.for_each(|(sum, x)| *sum += f64::from(*x));
    }
    sums
}

/// Returns the variance of each channel of `x`, which is not empty.
fn variance(par: &dyn Parallelism, x: &[f32], mean: &[f32]) -> Vec<f32> {
    let (channels, block) = (mean.len(), block(mean.len()));
    let mut partial = vec![0f32; x.len().div_ceil(block) * channels];
    par_chunks_mut(par, &mut partial, channels, 1, &|i, sums| {
        let block = i * block..((i + 1) * block).min(x.len());
        batch_norm::centered_squares(&x[block], mean, sums);
    });
    let n = (x.len() / channels) as f64;
    let sums = totals(&partial, channels);
    sums.iter().map(|sum| (sum / n) as f32).collect()
}

/// Computes `y = x * factor + bias` for rows of channels.
fn apply(par: &dyn Parallelism, x: &[f32], factor: &[f32], bias: &[f32], y: &mut [f32]) {
    let block = block(factor.len());
    par_chunks_mut(par, y, block, 1, &|i, y| {
        scale_offset(&x[i * block..][..y.len()], factor, bias, y);
    });
}

fn shape_global(ctx: &mut ShapeCtx) -> Result<()> {
    let mut dims = ctx.with_rank(0, 4)?.dims().unwrap_or_default().to_vec();
    for i in 1..5 {
        let size = ctx.with_rank(i, 1)?.dim(0);
        match (dims[3], size) {
            (Some(a), Some(b)) if a != b => {
                return Err(invalid_argument!(
                    "Dimensions must be equal, but are {a} and {b}"
                ));
            }
            (a, b) => dims[3] = a.or(b),
        }
    }
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}

fn build_global(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let epsilon = build.attrs.float("variance_epsilon")?;
    let scaled = build.attrs.bool("scale_after_normalization")?;
    let dtype = float_input(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let inputs = (0..5)
            .map(|i| ctx.input(i).cloned())
            .collect::<Result<Vec<_>>>()?;
        let shape = inputs[0].shape();
        if shape.rank() != 4 {
            return Err(invalid_argument!("input must be 4-dimensional{shape}"));
        }
        for (t, name) in inputs[1..].iter().zip(["mean", "var", "beta", "gamma"]) {
            if t.shape().rank() != 1 {
                return Err(invalid_argument!(
                    "{name} must be 1-dimensional{}",
                    t.shape()
                ));
            }
            if t.num_elements() != shape[3] {
                return Err(invalid_argument!(
                    "Must provide as many {name}s as the last dimension of the input tensor: \
                     {} vs. {shape}",
                    t.shape()
                ));
            }
        }
        let out = if dtype == DType::Double {
            normalize::<f64>(ctx.par(), &inputs, f64::from(epsilon), scaled)?
        } else {
            let wide = inputs.iter().map(|t| widened(ctx.par(), t));
            let wide = wide.collect::<Result<Vec<_>>>()?;
            let y = normalize::<f32>(ctx.par(), &wide, epsilon, scaled)?;
            narrowed(ctx.par(), y, dtype)?
        };
        ctx.set_output(0, out)
    }))
}

/// Computes `(t - m) / √(v + epsilon) * gamma + beta` over rows of channels.
fn normalize<T: Ordered>(
    par: &dyn Parallelism,
    inputs: &[Tensor],
    epsilon: T,
    scaled: bool,
) -> Result<Tensor> {
    let [t, m, v, beta, gamma] = [0, 1, 2, 3, 4].map(|i| inputs[i].slice::<T>());
    let (t, m, v, beta, gamma) = (t?, m?, v?, beta?, gamma?);
    let factor: Vec<T> = v
        .iter()
        .zip(gamma)
        .map(|(v, g)| {
            let inverse = T::ONE.div(v.add(epsilon).root());
            if scaled { inverse.mul(*g) } else { inverse }
        })
        .collect();
    let mut out = Tensor::for_overwrite(T::DTYPE, inputs[0].shape().clone())?;
    let c = factor.len();
    par_chunks_mut(
        par,
        out.slice_mut::<T>()?,
        c,
        (BLOCK / c.max(1)).max(1),
        &|i, out| {
            for (j, (o, x)) in out.iter_mut().zip(&t[i * c..]).enumerate() {
                *o = x.sub(m[j]).mul(factor[j]).add(beta[j]);
            }
        },
    );
    Ok(out)
}

fn fused_gradient(g: &mut GradientCtx) -> Result<()> {
    let training = g.attrs().bool("is_training")?;
    let version = g.op_name().trim_start_matches("FusedBatchNorm");
    let op = format!("FusedBatchNormGrad{version}");
    // Without training the moments are inputs.
    let moments = match training {
        true => [g.y(3), g.y(4)],
        false => [g.x(3), g.x(4)],
    };
    let mut inputs = vec![g.dy(0), g.x(0), g.x(1), moments[0], moments[1]];
    if version == "V3" {
        inputs.push(g.y(5));
    }
    let attrs = ["epsilon", "data_format", "is_training"].map(|name| g.attr(name));
    let results = g.x(0).node(&op, &inputs, &attrs);
    for (i, result) in results.into_iter().take(3).enumerate() {
        g.set(i, result)?;
    }
    Ok(())
}
