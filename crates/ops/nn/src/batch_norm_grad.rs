//! FusedBatchNormGrad, versions 1 to 3, and BatchNormWithGlobalNormalizationGrad (TensorFlow:
//! `core/kernels/fused_batch_norm_op.cc` and `batch_norm_op.cc`).

use crate::batch_norm::{block, totals};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_functors::unary::float_input;
use ferroflow_functors::window::Layout;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::batch_norm::{gradient, gradient_sums};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FusedBatchNormGrad",
        "y_backprop: T, x: T, scale: T, reserve_space_1: T, reserve_space_2: T -> \
         x_backprop: T, scale_backprop: T, offset_backprop: T, reserve_space_3: T, \
         reserve_space_4: T | T: type {float}; epsilon: float = 0.0001; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(batch_norm_shape)
    .cost(Cost::Expensive)
    .kernel(batch_norm)
    .gradient(fused_gradient),
    Op::new(
        "FusedBatchNormGradV2",
        "y_backprop: T, x: T, scale: float, reserve_space_1: U, reserve_space_2: U -> \
         x_backprop: T, scale_backprop: U, offset_backprop: U, reserve_space_3: U, \
         reserve_space_4: U | T: type {half,bfloat16,float}; U: type {float}; epsilon: \
         float = 0.0001; data_format: string {'NHWC','NCHW'} = 'NHWC'; is_training: \
         bool = true",
    )
    .shape(batch_norm_shape)
    .cost(Cost::Expensive)
    .kernel(batch_norm)
    .gradient(fused_gradient),
    Op::new(
        "FusedBatchNormGradV3",
        "y_backprop: T, x: T, scale: float, reserve_space_1: U, reserve_space_2: U, \
         reserve_space_3: U -> x_backprop: T, scale_backprop: U, offset_backprop: U, \
         reserve_space_4: U, reserve_space_5: U | T: type {half,bfloat16,float}; U: \
         type {float}; epsilon: float = 0.0001; data_format: string \
         {'NHWC','NCHW','NDHWC','NCDHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(batch_norm_shape)
    .cost(Cost::Expensive)
    .kernel(batch_norm)
    .gradient(fused_gradient),
    // The pass `composite` splits it.
    Op::new(
        "_FusedBatchNormGradEx",
        "y_backprop: T, x: T, scale: float, reserve_space_1: U, reserve_space_2: U, \
         reserve_space_3: U, offset: float, y: T -> x_backprop: T, scale_backprop: U, \
         offset_backprop: U, reserve_space_4: U, reserve_space_5: U, \
         side_input_backprop: num_side_inputs*T | T: type {half,float}; U: type \
         {float}; epsilon: float = 0.0001; num_side_inputs: int >= 0 = 0; \
         activation_mode: string = 'Identity'; data_format: string \
         {'NHWC','NCHW','NDHWC','NCDHW'} = 'NHWC'; is_training: bool = true",
    )
    .shape(|ctx| {
        batch_norm_shape(ctx)?;
        if ctx.attrs().int("num_side_inputs")? == 1 {
            ctx.set(5, ctx.input(0));
        }
        Ok(())
    }),
    // The pass `fuse_norm` makes it, for devices: the gradient of a normalization with Relu behind it, `y`.
    Op::new(
        "_ReluBatchNormGrad",
        "y_backprop: T, x: T, scale: float, reserve_space_1: U, reserve_space_2: U, \
         reserve_space_3: U, offset: float, y: T -> x_backprop: T, scale_backprop: U, \
         offset_backprop: U, reserve_space_4: U, reserve_space_5: U | T: type \
         {half,bfloat16,float}; U: type {float}; epsilon: float = 0.0001; data_format: \
         string {'NHWC'} = 'NHWC'; is_training: bool = true",
    )
    .shape(batch_norm_shape),
    Op::new(
        "BatchNormWithGlobalNormalizationGrad",
        "t: T, m: T, v: T, gamma: T, backprop: T -> dx: T, dm: T, dv: T, db: T, dg: T \
         | T: numbertype; variance_epsilon: float; scale_after_normalization: bool",
    )
    .shape(|ctx| {
        let t = ctx.with_rank(0, 4)?;
        let t = ctx.merge(&t, &ctx.input(4))?;
        let mut channels = ferroflow_tensor::PartialShape::of([t.dim(3)]);
        for i in 1..4 {
            channels = ctx.merge(&channels, &ctx.with_rank(i, 1)?)?;
        }
        ctx.set(0, t);
        for i in 1..5 {
            ctx.set(i, channels.clone());
        }
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(global),
];

fn batch_norm_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    let x = ctx.merge(&ctx.input(0), &ctx.input(1))?;
    let channels = match x.rank() {
        None => None,
        Some(4 | 5) => x.dim(if layout.channels_last { -1 } else { 1 }),
        Some(_) => return Err(invalid_argument!("input must be 4 or 5-dimensional{x}")),
    };
    ctx.set(0, x);
    ctx.set(1, PartialShape::of([channels]));
    ctx.set(2, PartialShape::of([channels]));
    ctx.set(3, PartialShape::of([Some(0)]));
    ctx.set(4, PartialShape::of([Some(0)]));
    Ok(())
}

fn batch_norm(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let format = Layout::of(build.attrs)?;
    let epsilon = build.attrs.float("epsilon")?;
    let training = build.attrs.bool("is_training")?;
    let (x_dtype, param) = (build.output(0)?, build.output(1)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let par = ctx.par();
        let shape = ctx.shape(1)?.clone();
        if shape.rank() != 4 && shape.rank() != 5 {
            return Err(invalid_argument!("input must be 4 or 5-dimensional{shape}"));
        }
        if *ctx.shape(0)? != shape {
            return Err(invalid_argument!(
                "x and y_backprop must have same shape, but x has shape {shape} and y_backprop has \
                 shape {}",
                ctx.shape(0)?
            ));
        }
        let layout = Layout {
            spatial: shape.rank() - 2,
            ..format
        };
        let channels = shape[layout.channel()];
        let mut params = Vec::with_capacity(3);
        for (i, name) in [(2, "scale"), (3, "saved mean"), (4, "saved variance")] {
            let t = ctx.input(i)?;
            if t.shape().dims() != [channels] {
                return Err(invalid_argument!(
                    "{name} must have the same number of elements as the channels of x, got {} and \
                     {channels}",
                    t.shape()
                ));
            }
            params.push(widened(par, t)?);
        }
        let dy = layout.to_last(ctx, widened(par, ctx.input(0)?)?)?;
        let x = layout.to_last(ctx, widened(par, ctx.input(1)?)?)?;
        let mut dx = ctx.alloc(DType::Float, x.shape().clone())?;
        let moments = Moments {
            scale: params[0].slice()?,
            mean: params[1].slice()?,
            variance: params[2].slice()?,
            epsilon,
            training,
        };
        let [scale, offset] = moments.backward(par, dy.slice()?, x.slice()?, dx.slice_mut()?);
        let dx = layout.restored(ctx, dx)?;
        ctx.set_output(0, narrowed(par, dx, x_dtype)?)?;
        ctx.set_output(1, narrowed(par, Tensor::vector(&scale)?, param)?)?;
        ctx.set_output(2, narrowed(par, Tensor::vector(&offset)?, param)?)?;
        for i in 3..5 {
            ctx.set_output(i, Tensor::zeros(param, Shape::from([0]))?)?;
        }
        Ok(())
    }))
}

/// The parameters of a normalization.
struct Moments<'a> {
    scale: &'a [f32],
    mean: &'a [f32],
    variance: &'a [f32],
    epsilon: f32,
    training: bool,
}

impl Moments<'_> {
    /// Writes the gradient by `x`; returns those by scale and offset.
    fn backward(
        &self,
        par: &dyn Parallelism,
        dy: &[f32],
        x: &[f32],
        dx: &mut [f32],
    ) -> [Vec<f32>; 2] {
        let c = self.mean.len();
        let (rows, block) = (x.len() / c.max(1), block(c));
        // For each block the sums of the gradient, and of the gradient times the distance from the
        // mean.
        let mut partial = vec![0f32; x.len().div_ceil(block.max(1)) * 2 * c];
        par_chunks_mut(par, &mut partial, 2 * c, 1, &|i, sums| {
            let block = i * block..((i + 1) * block).min(x.len());
            let (plain, weighted) = sums.split_at_mut(c);
            gradient_sums([&dy[block.clone()], &x[block]], self.mean, plain, weighted);
        });
        let sums = totals(&partial, 2 * c);
        let (plain, weighted) = sums.split_at(c);
        let inverse: Vec<f64> = self
            .variance
            .iter()
            .map(|v| 1.0 / (*v as f64 + self.epsilon as f64).sqrt())
            .collect();
        // dx = factor * dy + slope * (x - mean) + bias
        let n = rows.max(1) as f64;
        let mut terms: [Vec<f32>; 3] = [vec![], vec![], vec![]];
        for (((inverse, scale), sum), weighted) in
            inverse.iter().zip(self.scale).zip(plain).zip(weighted)
        {
            let factor = inverse * *scale as f64;
            let (slope, bias) = match self.training {
                true => (
                    -factor * inverse * inverse * weighted / n,
                    -factor * sum / n,
                ),
                false => (0.0, 0.0),
            };
            for (term, value) in terms.iter_mut().zip([factor, slope, bias]) {
                term.push(value as f32);
            }
        }
        let [factor, slope, bias] = &terms;
        par_chunks_mut(par, dx, block, 1, &|i, dx| {
            let block = i * block..i * block + dx.len();
            let params = [self.mean, factor, slope, bias];
            gradient([&dy[block.clone()], &x[block]], params, dx);
        });
        let scale = weighted.iter().zip(&inverse).map(|(w, i)| (w * i) as f32);
        [scale.collect(), plain.iter().map(|s| *s as f32).collect()]
    }
}

pub(crate) fn sums<T: Num>(
    par: &dyn Parallelism,
    x: &Tensor,
    [outer, n, inner]: [usize; 3],
) -> Result<Tensor> {
    let mut out = Tensor::for_overwrite(T::DTYPE, Shape::from([n]))?;
    let x = x.slice::<T>()?;
    par_chunks_mut(par, out.slice_mut::<T>()?, 1, 1, &|c, out| {
        let rows = (0..outer).map(|o| &x[(o * n + c) * inner..][..inner]);
        out.fill(rows.flatten().fold(T::ZERO, |sum, x| sum.add(*x)));
    });
    Ok(out)
}

fn global(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let epsilon = build.attrs.float("variance_epsilon")?;
    let scaled = build.attrs.bool("scale_after_normalization")?;
    let dtype = float_input(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        if shape.rank() != 4 {
            return Err(invalid_argument!("input must be 4-dimensional{shape}"));
        }
        for (i, name) in [(1, "mean"), (2, "var"), (3, "gamma")] {
            let own = ctx.shape(i)?;
            if own.rank() != 1 {
                return Err(invalid_argument!("{name} must be 1-dimensional{own}"));
            }
            if own[0] != shape[3] {
                return Err(invalid_argument!(
                    "Must provide as many {name}s as the last dimension of the input tensor: \
                     {own} vs. {shape}"
                ));
            }
        }
        if *ctx.shape(4)? != shape {
            return Err(invalid_argument!(
                "out_backprop must be 4-dimensional and of the input's shape {shape}, got {}",
                ctx.shape(4)?
            ));
        }
        let wide = |i: usize| match dtype {
            DType::Double => ctx.input(i).cloned(),
            _ => widened(ctx.par(), ctx.input(i)?),
        };
        let inputs = [wide(0)?, wide(1)?, wide(2)?, wide(3)?, wide(4)?];
        let results = match dtype {
            DType::Double => global_backward::<f64>(&inputs, f64::from(epsilon), scaled)?,
            _ => global_backward::<f32>(&inputs, epsilon, scaled)?,
        };
        for (i, result) in results.into_iter().enumerate() {
            let result = match dtype {
                DType::Double => result,
                _ => narrowed(ctx.par(), result, dtype)?,
            };
            ctx.set_output(i, result)?;
        }
        Ok(())
    }))
}

/// Computes the gradients of `(t - m) / √(v + epsilon) * gamma + beta` by each of its five inputs.
fn global_backward<T: Ordered>(
    inputs: &[Tensor; 5],
    epsilon: T,
    scaled: bool,
) -> Result<[Tensor; 5]> {
    let [x, m, v, gamma, d] = inputs;
    let (t, m, v) = (x.slice::<T>()?, m.slice::<T>()?, v.slice::<T>()?);
    let (gamma, d, c) = (gamma.slice::<T>()?, d.slice::<T>()?, v.len());
    let inverse: Vec<T> = v
        .iter()
        .map(|v| T::ONE.div(v.add(epsilon).root()))
        .collect();
    let factor = |j: usize| match scaled {
        true => inverse[j].mul(gamma[j]),
        false => inverse[j],
    };
    let factor: Vec<T> = (0..c).map(factor).collect();
    let mut dx = Tensor::for_overwrite(T::DTYPE, x.shape().clone())?;
    // Sums of the gradient, and of the gradient times the distance from the mean.
    let (mut plain, mut weighted) = (vec![T::ZERO; c], vec![T::ZERO; c]);
    let rows = d.chunks_exact(c.max(1)).zip(t.chunks_exact(c.max(1)));
    for (dx, (d, t)) in dx.slice_mut::<T>()?.chunks_exact_mut(c.max(1)).zip(rows) {
        for j in 0..c {
            dx[j] = d[j].mul(factor[j]);
            plain[j] = plain[j].add(d[j]);
            weighted[j] = weighted[j].add(d[j].mul(t[j].sub(m[j])));
        }
    }
    let half = T::ONE.div(T::ONE.add(T::ONE));
    let each = |f: &dyn Fn(usize) -> T| -> Result<Tensor> {
        let mut out = Tensor::for_overwrite(T::DTYPE, Shape::from([c]))?;
        for (j, o) in out.slice_mut::<T>()?.iter_mut().enumerate() {
            *o = f(j);
        }
        Ok(out)
    };
    let dm = each(&|j| T::ZERO.sub(plain[j].mul(factor[j])))?;
    let cubed = |j: usize| factor[j].mul(inverse[j]).mul(inverse[j]);
    let dv = each(&|j| T::ZERO.sub(half.mul(weighted[j]).mul(cubed(j))))?;
    let db = each(&|j| plain[j])?;
    let dg = each(&|j| match scaled {
        true => weighted[j].mul(inverse[j]),
        false => T::ZERO,
    })?;
    Ok([dx, dm, dv, db, dg])
}

/// Returns the gradient of BatchNormWithGlobalNormalization.
pub(crate) fn global_gradient(g: &mut GradientCtx) -> Result<()> {
    let inputs = [g.x(0), g.x(1), g.x(2), g.x(4), g.dy(0)];
    let attrs = ["variance_epsilon", "scale_after_normalization"].map(|name| g.attr(name));
    let op = "BatchNormWithGlobalNormalizationGrad";
    for (i, result) in g.x(0).node(op, &inputs, &attrs).into_iter().enumerate() {
        g.set(i, result)?;
    }
    Ok(())
}

/// A tensor of channels, with the axes to reduce it to one number per channel.
#[derive(Clone, Copy)]
struct Channels<'g> {
    /// All axes but the channels.
    axes: Expr<'g>,
    /// Number of elements per channel.
    count: Expr<'g>,
}

impl<'g> Channels<'g> {
    fn sum(self, e: Expr<'g>) -> Expr<'g> {
        e.sum(self.axes, true)
    }

    fn mean(self, e: Expr<'g>) -> Expr<'g> {
        self.sum(e) / self.count
    }
}

/// Widens a 16-bit tensor to float.
fn wide(e: Expr) -> Expr {
    match e.dtype() {
        DType::Half | DType::Bfloat16 => e.cast(DType::Float),
        _ => e,
    }
}

fn size(e: Expr, dtype: DType) -> Expr {
    e.op("Size", &[]).cast(dtype)
}

/// The gradient of FusedBatchNormGrad by the incoming gradient, the input and the scale. With
/// `r = 1 / √(variance + epsilon)` and `c = x - mean`, the op returns
/// `s r (dy - mean(dy) - r² c mean(dy c))`, `r Σ dy c` and `Σ dy`; for inference, where mean and
/// variance are inputs, `s r dy` in place of the first.
pub(crate) fn fused_gradient(g: &mut GradientCtx) -> Result<()> {
    let (came, input, scale) = (g.x(0), g.x(1), g.x(2));
    let (dy, x, s) = (wide(came), wide(input), wide(scale));
    let format = g.attrs().str("data_format")?;
    let rank = input.rank().unwrap_or(format.len());
    let channel = if format.starts_with("NC") {
        1
    } else {
        rank - 1
    };
    let axes = (0..rank).filter(|a| *a != channel).map(|a| a as i64);
    let column = x.ints((0..rank).map(|a| if a == channel { -1 } else { 1 }));
    let epsilon = f64::from(g.attrs().float("epsilon")?);
    let [a, b, c] = [0, 1, 2].map(|i| wide(g.dy(i)));
    let (s, b, c) = (s.reshape(column), b.reshape(column), c.reshape(column));
    let over = Channels {
        axes: x.ints(axes),
        count: size(input, x.dtype()) / size(scale, x.dtype()),
    };
    let (by_came, by_input, by_scale);
    if g.attrs().bool("is_training")? {
        let mean = over.mean(x);
        let centred = x - mean;
        let r = (over.mean(centred * centred) + epsilon).op("Rsqrt", &[]);
        let (mean_a, mean_dy) = (over.mean(a), over.mean(dy));
        let (p, q) = (over.mean(dy * centred), over.mean(a * centred));
        let both = over.mean(a * dy) - mean_a * mean_dy;
        let r2 = r * r;
        by_came = s * r * (a - mean_a - r2 * centred * q) + b * r * centred + c;
        by_scale = r * over.count * (both - r2 * q * p);
        let of_x = centred * (3.0 * r2 * q * p - both) - (a - mean_a) * p - q * (dy - mean_dy);
        by_input = s * r * r2 * of_x + b * r * ((dy - mean_dy) - r2 * centred * p);
    } else {
        let (mean, variance) = (wide(g.x(3)).reshape(column), wide(g.x(4)).reshape(column));
        let r = (variance + epsilon).op("Rsqrt", &[]);
        by_came = a * s * r + b * (x - mean) * r + c;
        by_input = b * dy * r;
        by_scale = r * over.sum(a * dy);
    }
    g.set(0, by_came.cast(came.dtype()))?;
    g.set(1, by_input.cast(input.dtype()))?;
    g.set(2, by_scale.reshape(scale.ints([-1])).cast(scale.dtype()))
}
