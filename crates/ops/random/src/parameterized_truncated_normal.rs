//! ParameterizedTruncatedNormal and StatelessParameterizedTruncatedNormal (TensorFlow:
//! `core/kernels/parameterized_truncated_normal_op.cc`).

use crate::parameterized::{broadcast, check_end, stateless_shape};
use crate::random_ops::{Seeded, shape_from_input, wanted_shape};
use crate::stateless::seeded;
use crate::truncated::{MAX_TRIES, TruncatedNormals};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::distributions::{Distribution, Normal, Uniform};
use ferroflow_functors::summarize::debug_string;
use ferroflow_opdef::{Expr, GradientCtx, KernelCtx, Op};
use ferroflow_tensor::{DType, Element, Shape, Tensor, dispatch, f16};
use num_traits::Float;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ParameterizedTruncatedNormal",
        "shape: T, means: dtype, stdevs: dtype, minvals: dtype, maxvals: dtype -> \
         output: dtype | seed: int = 0; seed2: int = 0; dtype: type \
         {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|build| {
        let node = Seeded::new(build)?;
        dispatch!(build.output(0)?, T in [f16, f32, f64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let out = truncated::<T>(ctx, &node)?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(build.output(0)?)))
    })
    .not_differentiable(),
    Op::new(
        "StatelessParameterizedTruncatedNormal",
        "shape: S, seed: Tseed, means: dtype, stddevs: dtype, minvals: dtype, maxvals: \
         dtype -> output: dtype | S: type {int32,int64}; Tseed: type {int32,int64} = \
         int64; dtype: type {half,float,double}",
    )
    .shape(stateless_shape)
    .kernel(|build| {
        dispatch!(build.output(0)?, T in [f16, f32, f64] => Ok(Box::new(|ctx: &mut KernelCtx| {
            let out = stateless_truncated::<T>(ctx)?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(build.output(0)?)))
    })
    .gradient(truncated_gradient),
];

/// Returns the shape in input 0, which must be a vector.
fn vector_shape(ctx: &KernelCtx) -> Result<Shape> {
    match ctx.shape(0)?.rank() {
        1 => wanted_shape(ctx),
        _ => Err(invalid_argument!(
            "Input shape should be a vector, got shape: {}",
            ctx.shape(0)?
        )),
    }
}

/// Draws samples for the parameters in inputs 1 to 4, scalars or one per row.
fn truncated<T: Element + Float>(ctx: &KernelCtx, node: &Seeded) -> Result<Tensor>
where
    Uniform: Distribution<T>,
    Normal: Distribution<T>,
{
    const NAMES: [&str; 4] = ["means", "stddevs", "minvals", "maxvals"];
    let shape = vector_shape(ctx)?;
    let &[rows, ..] = shape.dims() else {
        return Err(invalid_argument!(
            "Shape tensor must not be empty, got {}",
            debug_string(ctx.input(0)?)
        ));
    };
    let inputs = [ctx.input(1)?, ctx.input(2)?, ctx.input(3)?, ctx.input(4)?];
    for (name, t) in NAMES.iter().zip(inputs) {
        if t.shape().rank() > 1 {
            return Err(invalid_argument!(
                "Input {name} should be a scalar or vector, got shape: {}",
                t.shape()
            ));
        }
    }
    let [mean, deviation, min, max] = inputs;
    let same = mean.num_elements() == 1
        && deviation.num_elements() == 1
        && min.shape().is_scalar()
        && max.shape().is_scalar();
    let total = shape.num_elements();
    // With the same parameters everywhere, samples are drawn in large batches.
    let (batches, size) = match same {
        true => (total.div_ceil(100), 100),
        false => (rows, total / rows.max(1)),
    };
    for (name, t) in NAMES.iter().zip(inputs) {
        if !same && t.num_elements() != 1 && t.num_elements() != rows {
            return Err(invalid_argument!(
                "Input {name} should have length 1 or shape[0], got shape: {}",
                t.shape()
            ));
        }
    }
    let blocks = (batches as u128) * 2 * (MAX_TRIES as u128) * (size as u128 + 3) / 4;
    let mut random = node.reserve(ctx, blocks)?;
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let cuts = TruncatedNormals::new(inputs)?;
    for (i, out) in out.slice_mut::<T>()?.chunks_mut(size.max(1)).enumerate() {
        cuts.at(i).draw(&mut random, out.len(), |i, x| {
            if let Some(out) = out.get_mut(i) {
                *out = x;
            }
        })?;
    }
    Ok(out)
}

/// Draws samples for parameters that are broadcast to the end of the shape.
fn stateless_truncated<T: Element + Float>(ctx: &KernelCtx) -> Result<Tensor>
where
    Uniform: Distribution<T>,
    Normal: Distribution<T>,
{
    let mut random = seeded(ctx)?;
    let inputs = [ctx.input(2)?, ctx.input(3)?, ctx.input(4)?, ctx.input(5)?];
    let mut of = Shape::scalar();
    for t in inputs {
        of = broadcast_shape(&of, t.shape()).map_err(|_| {
            let [a, b, c, d] = inputs.map(Tensor::shape);
            invalid_argument!(
                "means, stddevs, minvals, maxvals must have compatible batch dimensions: \
                 {a} vs. {b} vs. {c} vs. {d}"
            )
        })?;
    }
    let shape = vector_shape(ctx)?;
    check_end(&shape, &of)?;
    let n = of.num_elements();
    let [mean, deviation, min, max] = inputs.map(|t| broadcast(ctx, t, &of));
    let all = [mean?, deviation?, min?, max?];
    let cuts = TruncatedNormals::new(all.each_ref())?;
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let samples = out.num_elements() / n.max(1);
    let to = out.slice_mut::<T>()?;
    for i in 0..n {
        cuts.at(i).draw(&mut random, samples, |sample, x| {
            if let Some(to) = to.get_mut(sample * n + i) {
                *to = x;
            }
        })?;
    }
    Ok(out)
}

/// Implicit reparameterization by mean, deviation and bounds: the cumulative probability of a
/// sample stays constant (Figurnov et al., 2018).
fn truncated_gradient(g: &mut GradientCtx) -> Result<()> {
    let (mean, deviation, min, max, y, dy) = (g.x(2), g.x(3), g.x(4), g.x(5), g.y(0), g.dy(0));
    let standard = |x: Expr<'_>| ((x - mean) / deviation).output();
    let [min_std, max_std, at] = [min, max, y].map(|x| y.at(standard(x)));
    let half = y.number(0.5);
    let below = |x: Expr<'_>| {
        let share = (x * y.number(-std::f64::consts::FRAC_1_SQRT_2)).op("Erfc", &[]);
        (share * half).output()
    };
    let [min_cdf, max_cdf, cdf] = [min_std, max_std, at].map(|x| y.at(below(x)));
    let (tiny, epsilon) = match y.dtype() {
        DType::Double => (f64::MIN_POSITIVE, f64::EPSILON),
        DType::Half => (f16::MIN_POSITIVE.into(), f16::EPSILON.into()),
        _ => (f32::MIN_POSITIVE.into(), f32::EPSILON.into()),
    };
    let share = (cdf - min_cdf) / (max_cdf - min_cdf);
    let share = share
        .op("Minimum", &[y.number(1.0 - epsilon)])
        .op("Maximum", &[y.number(tiny)]);
    let moved_by = |bound: Expr<'_>, log: Expr<'_>| {
        ((at * at - bound * bound) * half + log)
            .op("Exp", &[])
            .output()
    };
    let by_max = y.at(moved_by(max_std, share.op("Log", &[])));
    let by_min = y.at(moved_by(min_std, (-share).op("Log1p", &[])));
    g.set(2, dy.sum_to(mean))?;
    g.set(3, (dy * at).sum_to(deviation))?;
    g.set(4, (dy * by_min).sum_to(min))?;
    g.set(5, (dy * by_max).sum_to(max))
}
