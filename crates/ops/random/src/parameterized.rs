//! Random numbers of distributions whose parameters are tensors.

use crate::distributions::{Distribution, Normal, RESERVED, Uniform};
use crate::draws;
use crate::random_ops::{Seeded, as_doubles, shape_from_input, wanted_shape, wanted_shape_at};
use crate::stateless::{Source, check_key, check_seed, keyed, seeded};
use crate::truncated::{Cuts, MAX_TRIES};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::broadcast::broadcast_tensor;
use ferroflow_functors::indices::{shape_input, shape_of};
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{
    DType, Element, PartialShape, Shape, Tensor, dispatch, dispatch_items, f16,
};
use num_traits::Float;

/// RandomGamma, StatelessRandomGammaV2, StatelessRandomGammaV3, RandomPoisson, RandomPoissonV2,
/// StatelessRandomPoisson, StatelessRandomBinomial, ParameterizedTruncatedNormal,
/// StatelessParameterizedTruncatedNormal.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomGamma",
        "shape: S, alpha: T -> output: T | seed: int = 0; seed2: int = 0; S: type {int32,int64}; \
         T: type {half,float,double} | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| gamma(build, (1, Asked::Samples), of_node(build)?))
    .gradient(|g| gamma_gradient(g, 1)),
    Op::new(
        "StatelessRandomGammaV2",
        "shape: T, seed: Tseed, alpha: dtype -> output: dtype | dtype: type {half,float,double}; \
         T: type {int32,int64}; Tseed: type {int32,int64} = int64 |",
    )
    .shape(stateless_shape)
    .kernel(|build| gamma(build, (2, Asked::All), of_input(seeded)))
    .gradient(|g| gamma_gradient(g, 2)),
    Op::new(
        "StatelessRandomGammaV3",
        "shape: shape_dtype, key: uint64, counter: uint64, alg: int32, alpha: dtype -> \
         output: dtype | dtype: type {half,float,double}; shape_dtype: type {int32,int64} = int32 |",
    )
    .shape(|ctx| {
        check_key(ctx)?;
        shape_from_input(ctx)
    })
    .kernel(|build| gamma(build, (4, Asked::All), of_input(keyed)))
    .gradient(|g| gamma_gradient(g, 4)),
    Op::new(
        "RandomPoisson",
        "shape: S, rate: dtype -> output: dtype | seed: int = 0; seed2: int = 0; \
         S: type {int32,int64}; dtype: type {half,float,double} | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| poisson(build, (1, Asked::Samples), of_node(build)?)),
    Op::new(
        "RandomPoissonV2",
        "shape: S, rate: R -> output: dtype | seed: int = 0; seed2: int = 0; \
         S: type {int32,int64}; R: type {half,float,double,int32,int64} = double; \
         dtype: type {half,float,double,int32,int64} = int64 | stateful",
    )
    .shape(samples_shape)
    .kernel(|build| poisson(build, (1, Asked::Samples), of_node(build)?)),
    Op::new(
        "StatelessRandomPoisson",
        "shape: T, seed: Tseed, lam: Rtype -> output: dtype | \
         Rtype: type {half,float,double,int32,int64}; \
         dtype: type {half,float,double,int32,int64}; T: type {int32,int64}; \
         Tseed: type {int32,int64} = int64 |",
    )
    .shape(stateless_shape)
    .kernel(|build| poisson(build, (2, Asked::All), of_input(seeded)))
    .not_differentiable(),
    Op::new(
        "StatelessRandomBinomial",
        "shape: S, seed: Tseed, counts: T, probs: T -> output: dtype | S: type {int32,int64}; \
         Tseed: type {int32,int64} = int64; T: type {half,float,double,int32,int64} = double; \
         dtype: type {half,float,double,int32,int64} = int64 |",
    )
    .shape(stateless_shape)
    .kernel(|build| {
        let (wide, dtype) = (build.input(2)?, build.output(0)?);
        dispatch!(dtype, T in [f16, f32, f64, i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let out = binomial::<T>(ctx, [0, 2], wide, |_| seeded(ctx))?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(dtype)))
    })
    .not_differentiable(),
    Op::new(
        "ParameterizedTruncatedNormal",
        "shape: T, means: dtype, stdevs: dtype, minvals: dtype, maxvals: dtype -> output: dtype | \
         seed: int = 0; seed2: int = 0; dtype: type {half,bfloat16,float,double}; \
         T: type {int32,int64} | stateful",
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
        "shape: S, seed: Tseed, means: dtype, stddevs: dtype, minvals: dtype, maxvals: dtype -> \
         output: dtype | S: type {int32,int64}; Tseed: type {int32,int64} = int64; \
         dtype: type {half,float,double} |",
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

/// How a kernel comes to the stream of so many numbers.
type Stream = Box<dyn Fn(&KernelCtx, usize) -> Result<Philox> + Send + Sync>;

fn of_node(build: &KernelBuild) -> Result<Stream> {
    let node = Seeded::new(build)?;
    Ok(Box::new(move |ctx, n| node.outputs(ctx, n)))
}

fn of_input(source: Source) -> Stream {
    Box::new(move |ctx, _| source(ctx))
}

/// The shape in input 0, then that of the parameters in input 1.
fn samples_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 1)?;
    let samples = shape_input(ctx, 0)?;
    let dims = match (samples.dims(), ctx.input(1).dims()) {
        (Some(a), Some(b)) => PartialShape::of(a.iter().chain(b).copied()),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, dims);
    Ok(())
}

fn stateless_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_seed(ctx, 1)?;
    shape_from_input(ctx)
}

/// A number type that draws are stored as.
pub(crate) trait Drawn: Element {
    /// The number; what is infinite or none is zero as an integer.
    fn of(x: f64) -> Self;
}

macro_rules! drawn {
    ($($ty:ty: $of:expr),*) => {$(
        impl Drawn for $ty {
            fn of(x: f64) -> Self {
                let of: fn(f64) -> $ty = $of;
                of(x)
            }
        }
    )*};
}
drawn! {
    f16: f16::from_f64, f32: |x| x as f32, f64: |x| x,
    i32: |x| if x.is_finite() { x as i32 } else { 0 },
    i64: |x| if x.is_finite() { x as i64 } else { 0 }
}

/// A tensor of `shape`, whose last dimensions are those of `parameters`, of what `draw` makes of a
/// parameter and the position of the number: all numbers of a parameter follow one another.
fn spread<O: Element, P: Copy + Sync>(
    ctx: &KernelCtx,
    shape: Shape,
    parameters: &[P],
    draw: impl Fn(P, u128) -> O + Sync,
) -> Result<Tensor> {
    let mut out = ctx.alloc(O::DTYPE, shape)?;
    let samples = out.num_elements() / parameters.len().max(1);
    let (par, row) = (ctx.par(), parameters.len());
    par_chunks_mut(par, out.slice_mut::<O>()?, row, 64, &|s, out| {
        for (p, (out, parameter)) in out.iter_mut().zip(parameters).enumerate() {
            *out = draw(*parameter, (p * samples + s) as u128);
        }
    });
    Ok(out)
}

/// What the shape in input 0 is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The numbers for each parameter.
    Samples,
    /// All numbers; its last dimensions are the parameters'.
    All,
}

/// The shape of all numbers for the parameters in input `at`.
fn full_shape(ctx: &KernelCtx, at: usize, asked: Asked) -> Result<Shape> {
    let (shape, of) = (wanted_shape(ctx)?, ctx.shape(at)?);
    if asked == Asked::Samples {
        return shape_of(shape.dims().iter().chain(of.dims()).copied());
    }
    check_end(&shape, of)?;
    Ok(shape)
}

fn check_end(shape: &Shape, of: &Shape) -> Result<()> {
    if shape.dims().ends_with(of.dims()) {
        return Ok(());
    }
    Err(invalid_argument!(
        "Shape passed in must end with broadcasted shape."
    ))
}

fn broadcast(ctx: &KernelCtx, t: &Tensor, to: &Shape) -> Result<Tensor> {
    dispatch_items!(t.dtype(), T => broadcast_tensor::<T>(ctx, t, to.clone()))
}

fn gamma(
    build: &KernelBuild,
    (at, asked): (usize, Asked),
    stream: Stream,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f16, f32, f64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, alphas) = (full_shape(ctx, at, asked)?, as_doubles(ctx.input(at)?)?);
        let from = stream(ctx, shape.num_elements())?;
        let out = spread(ctx, shape, &alphas, |alpha, position| {
            let x = draws::gamma(from.skipped(RESERVED * position), alpha);
            <T as Drawn>::of(x)
        })?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

fn poisson(
    build: &KernelBuild,
    (at, asked): (usize, Asked),
    stream: Stream,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f16, f32, f64, i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, rates) = (full_shape(ctx, at, asked)?, as_doubles(ctx.input(at)?)?);
        let from = stream(ctx, shape.num_elements())?;
        let out = spread(ctx, shape, &rates, |rate, position| {
            let n = draws::poisson(from.skipped(RESERVED * position), rate);
            <T as Drawn>::of(n)
        })?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

/// Binomial numbers of the shape in one input for counts and probabilities in another and the next,
/// computed with as numbers of type `dtype`. `stream` is told how many pairs there are and how many
/// numbers of each.
pub(crate) fn binomial<O: Drawn>(
    ctx: &KernelCtx,
    [shape, at]: [usize; 2],
    dtype: DType,
    stream: impl FnOnce([usize; 2]) -> Result<Philox>,
) -> Result<Tensor> {
    let (counts, probs) = (ctx.input(at)?, ctx.input(at + 1)?);
    let shape = wanted_shape_at(ctx, shape)?;
    let of = broadcast_shape(counts.shape(), probs.shape()).map_err(|_| {
        invalid_argument!(
            "counts and probs must have compatible batch dimensions: {} vs. {}",
            counts.shape(),
            probs.shape()
        )
    })?;
    check_end(&shape, &of)?;
    let n = of.num_elements();
    // A step that fails for want of memory leaves a generator where it was.
    ctx.alloc(O::DTYPE, shape.clone())?;
    let from = stream([n, shape.num_elements() / n.max(1)])?;
    let parameters: Vec<[f64; 2]> = as_doubles(&broadcast(ctx, counts, &of)?)?
        .into_iter()
        .zip(as_doubles(&broadcast(ctx, probs, &of)?)?)
        .map(|(count, prob)| [count, prob])
        .collect();
    spread(ctx, shape, &parameters, |[count, prob], position| {
        let less = if prob <= 0.5 { prob } else { 1.0 - prob };
        // The product as a number of the inputs' type.
        let many = match dtype {
            DType::Half => f16::from_f64(count) * f16::from_f64(less) >= f16::from_f32(10.0),
            DType::Float => count as f32 * less as f32 >= 10.0,
            _ => count * less >= 10.0,
        };
        O::of(draws::binomial(&from, position, count, prob, many))
    })
}

/// Numbers for the parameters in the inputs 1 to 4, scalars or one for each row.
fn truncated<T: Element + Float>(ctx: &KernelCtx, node: &Seeded) -> Result<Tensor>
where
    Uniform: Distribution<T>,
    Normal: Distribution<T>,
{
    const NAMES: [&str; 4] = ["means", "stddevs", "minvals", "maxvals"];
    let shape = wanted_shape(ctx)?;
    let &[rows, ..] = shape.dims() else {
        return Err(invalid_argument!("Shape tensor must not be empty, got []"));
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
    // With the same parameters everywhere it is drawn by the hundred.
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
    let cuts = Cuts::new(inputs)?;
    for (i, out) in out.slice_mut::<T>()?.chunks_mut(size.max(1)).enumerate() {
        cuts.at(i).draw(&mut random, out.len(), |i, x| {
            if let Some(out) = out.get_mut(i) {
                *out = x;
            }
        })?;
    }
    Ok(out)
}

/// Numbers for parameters that are broadcast to the end of the shape.
fn stateless_truncated<T: Element + Float>(ctx: &KernelCtx) -> Result<Tensor>
where
    Uniform: Distribution<T>,
    Normal: Distribution<T>,
{
    let shape = wanted_shape(ctx)?;
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
    check_end(&shape, &of)?;
    let mut random = seeded(ctx)?;
    let n = of.num_elements();
    let [mean, deviation, min, max] = inputs.map(|t| broadcast(ctx, t, &of));
    let all = [mean?, deviation?, min?, max?];
    let cuts = Cuts::new(all.each_ref())?;
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

/// How the samples move with `alpha` in input `at`, which their last dimensions are of.
fn gamma_gradient(g: &mut GradientCtx, at: usize) -> Result<()> {
    let (alpha, samples) = (g.x(at), g.y(0));
    let moved = g.dy(0) * alpha.op("RandomGammaGrad", &[samples]);
    g.set(at, moved.sum_to(alpha))
}

/// How the samples move with mean, deviation and bounds: the share of the distribution below them
/// stays (Figurnov et al., 2018).
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
