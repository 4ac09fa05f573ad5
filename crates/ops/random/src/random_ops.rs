//! Random ops that remember where they are: the numbers of a session's steps follow one another.

use crate::distributions::{
    self, Distribution, Integers, Normal, RESERVED, Truncated, Uniform, unit_f64,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Index, dispatch_index, int, ints, shape_input};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{
    DType, Element, PartialShape, Shape, Tensor, bf16, dispatch, dispatch_items, f16,
};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// RandomUniform, RandomStandardNormal, TruncatedNormal, RandomUniformInt, RandomShuffle,
/// Multinomial.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomUniform",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; \
         dtype: type {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Uniform))
    .not_differentiable(),
    Op::new(
        "RandomStandardNormal",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; \
         dtype: type {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Normal))
    .not_differentiable(),
    Op::new(
        "TruncatedNormal",
        "shape: T -> output: dtype | seed: int = 0; seed2: int = 0; \
         dtype: type {half,bfloat16,float,double}; T: type {int32,int64} | stateful",
    )
    .shape(shape_from_input)
    .kernel(|b| floats(b, Floats::Truncated))
    .not_differentiable(),
    Op::new(
        "RandomUniformInt",
        "shape: T, minval: Tout, maxval: Tout -> output: Tout | seed: int = 0; seed2: int = 0; \
         Tout: type {int32,int64}; T: type {int32,int64} | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(2, 0)?;
        shape_from_input(ctx)
    })
    .kernel(uniform_int),
    Op::new(
        "RandomShuffle",
        "value: T -> output: T | seed: int = 0; seed2: int = 0; T: type | stateful",
    )
    .shape(shapes::unchanged)
    .kernel(|build| {
        let node = Seeded::new(build)?;
        shuffle(build, move |ctx, n| {
            node.reserve(ctx, n.div_ceil(4) as u128)
        })
    })
    .not_differentiable(),
    Op::new(
        "Multinomial",
        "logits: T, num_samples: int32 -> output: output_dtype | seed: int = 0; seed2: int = 0; \
         T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64}; \
         output_dtype: type {int32,int64} = int64 | stateful",
    )
    .shape(multinomial_shape)
    .kernel(multinomial)
    .not_differentiable(),
];

/// Where a node's stream is. It belongs to the session, so that every plan with the node goes on
/// where the last step stopped.
struct Stream(Mutex<Philox>);

/// The stream of a node, by its name and seeds.
pub(crate) struct Seeded {
    name: String,
    seeds: (u64, u64),
}

impl Seeded {
    pub(crate) fn new(build: &KernelBuild) -> Result<Self> {
        let attr = |name| build.attrs.int(name).map(|seed| seed as u64);
        let seeds = (attr("seed")?, attr("seed2")?);
        let name = format!("{}/{}/{}", build.node, seeds.0, seeds.1);
        Ok(Seeded { name, seeds })
    }

    /// The stream now, which goes on `n_blocks` later for whoever comes next.
    pub(crate) fn reserve(&self, ctx: &KernelCtx, n_blocks: u128) -> Result<Philox> {
        let resources = ctx.resources();
        let stream = resources.own(&self.name, || {
            let (seed, seed2) = match self.seeds {
                (0, 0) => {
                    let fresh = || RandomState::new().hash_one(&self.name);
                    (fresh(), fresh())
                }
                seeds => seeds,
            };
            Ok(Stream(Mutex::new(Philox::new(seed, seed2))))
        })?;
        let mut next = stream.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = *next;
        *next = now.skipped(n_blocks);
        Ok(now)
    }

    /// The stream of `n` numbers.
    pub(crate) fn outputs(&self, ctx: &KernelCtx, n: usize) -> Result<Philox> {
        self.reserve(ctx, n as u128 * RESERVED)
    }
}

pub(crate) fn shape_from_input(ctx: &mut ShapeCtx) -> Result<()> {
    shape_from_input_at(ctx, 0)
}

/// The output has the shape that input `i` asks for.
pub(crate) fn shape_from_input_at(ctx: &mut ShapeCtx, i: usize) -> Result<()> {
    ctx.with_rank(i, 1)?;
    let shape = shape_input(ctx, i)?;
    ctx.set(0, shape);
    Ok(())
}

/// The shape that input 0 asks for.
pub(crate) fn wanted_shape(ctx: &KernelCtx) -> Result<Shape> {
    wanted_shape_at(ctx, 0)
}

/// The shape that input `i` asks for.
pub(crate) fn wanted_shape_at(ctx: &KernelCtx, i: usize) -> Result<Shape> {
    let dims = ctx.input(i)?;
    if dims.shape().rank() != 1 {
        return Err(invalid_argument!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            dims.shape()
        ));
    }
    Shape::checked(&ints(dims)?)
}

/// A distribution of floats.
#[derive(Clone, Copy)]
pub(crate) enum Floats {
    Uniform,
    Normal,
    Truncated,
}

impl Floats {
    /// A tensor of random numbers.
    pub(crate) fn fill(
        self,
        ctx: &KernelCtx,
        dtype: DType,
        shape: Shape,
        from: &Philox,
    ) -> Result<Tensor> {
        dispatch!(dtype, T in [f32, f64, f16, bf16] => match self {
            Floats::Uniform => filled::<T, _>(ctx, shape, from, &Uniform),
            Floats::Normal => filled::<T, _>(ctx, shape, from, &Normal),
            Floats::Truncated => filled::<T, _>(ctx, shape, from, &Truncated),
        }, else Err(invalid_argument!("no random numbers of type {dtype}")))
    }
}

pub(crate) fn filled<T: Element, D: Distribution<T>>(
    ctx: &KernelCtx,
    shape: Shape,
    from: &Philox,
    distribution: &D,
) -> Result<Tensor> {
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    distributions::fill(ctx.par(), from, distribution, out.slice_mut::<T>()?);
    Ok(out)
}

fn floats(build: &KernelBuild, kind: Floats) -> Result<Box<dyn OpKernel>> {
    let (dtype, seeded) = (build.output(0)?, Seeded::new(build)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = wanted_shape(ctx)?;
        let from = seeded.outputs(ctx, shape.num_elements())?;
        let out = kind.fill(ctx, dtype, shape, &from)?;
        ctx.set_output(0, out)
    }))
}

/// Integers from input `at` up to the next input.
pub(crate) fn integers(
    ctx: &KernelCtx,
    at: usize,
    shape: Shape,
    from: impl FnOnce(usize) -> Result<Philox>,
) -> Result<Tensor> {
    let (low, high) = (ctx.input(at)?, ctx.input(at + 1)?);
    for (name, t) in [("minval", low), ("maxval", high)] {
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "{name} must be 0-D, got shape {}",
                t.shape()
            ));
        }
    }
    if shape.num_elements() == 0 {
        return ctx.alloc(low.dtype(), shape);
    }
    macro_rules! between {
        ($T:ty, $U:ty) => {{
            let (low, high) = (low.to_scalar::<$T>()?, high.to_scalar::<$T>()?);
            if low >= high {
                return Err(invalid_argument!(
                    "Need minval < maxval, got {low} >= {high}"
                ));
            }
            let range = (high as $U).wrapping_sub(low as $U);
            let from = from(shape.num_elements())?;
            filled::<$T, _>(ctx, shape, &from, &Integers { low, range })
        }};
    }
    match low.dtype() {
        DType::Int32 => between!(i32, u32),
        DType::Int64 => between!(i64, u64),
        DType::Uint32 => between!(u32, u32),
        DType::Uint64 => between!(u64, u64),
        dtype => Err(invalid_argument!("no random integers of type {dtype}")),
    }
}

fn uniform_int(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let seeded = Seeded::new(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = wanted_shape(ctx)?;
        let out = integers(ctx, 1, shape, |n| seeded.outputs(ctx, n))?;
        ctx.set_output(0, out)
    }))
}

/// Shuffles along the first dimension; `stream` says where the numbers for so many rows come from.
pub(crate) fn shuffle(
    build: &KernelBuild,
    stream: impl Fn(&KernelCtx, usize) -> Result<Philox> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let value = ctx.input(0)?;
            let n = value.shape().dims().first().copied().unwrap_or(1);
            if n <= 1 || value.num_elements() == 0 {
                let value = ctx.take_input(0)?;
                return ctx.set_output(0, value);
            }
            let mut stream = stream(ctx, n)?;
            let order = distributions::permutation(&mut stream, n);
            let row = value.num_elements() / n;
            let mut out = ctx.alloc(dtype, value.shape().clone())?;
            let from = value.items::<T>()?;
            par_chunks_mut(ctx.par(), out.items_mut::<T>()?, row, (4096 / row).max(1), &|i, to| {
                let start = order.get(i).map_or(0, |p| p * row);
                if let Some(from) = from.get(start..start + to.len()) {
                    to.clone_from_slice(from);
                }
            });
            ctx.set_output(0, out)
        })),
    )
}

pub(crate) fn multinomial_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let rows = ctx.with_rank(0, 2)?.dim(0);
    ctx.with_rank(1, 0)?;
    let n = match ferroflow_functors::indices::constant_int(ctx, 1) {
        Some(n) if n < 0 => {
            return Err(invalid_argument!(
                "num_samples must be non-negative, got {n}"
            ));
        }
        n => n.map(|n| n as usize),
    };
    ctx.set(0, PartialShape::of([rows, n]));
    Ok(())
}

/// Classes drawn by their logits (input 0), as many for each row as input 1 says.
pub(crate) fn draw<I: Index>(
    ctx: &KernelCtx,
    from: impl FnOnce(usize) -> Result<Philox>,
) -> Result<Tensor> {
    let (logits, count) = (ctx.input(0)?, ctx.input(1)?);
    let &[rows, classes] = logits.shape().dims() else {
        return Err(invalid_argument!(
            "logits should be a matrix, got shape {}",
            logits.shape()
        ));
    };
    if !count.shape().is_scalar() {
        return Err(invalid_argument!(
            "num_samples should be a scalar, got shape {}",
            count.shape()
        ));
    }
    let n = int(count).unwrap_or(-1);
    let Ok(n) = usize::try_from(n) else {
        return Err(invalid_argument!(
            "num_samples should be nonnegative, got {n}"
        ));
    };
    if rows > 0 && classes == 0 {
        return Err(invalid_argument!("num_classes should be positive, got 0"));
    }
    let shape = ferroflow_functors::indices::shape_of([rows, n])?;
    let mut out = ctx.alloc(I::DTYPE, shape)?;
    if out.num_elements() == 0 {
        return Ok(out);
    }
    // A draw takes a double, which is two numbers of the generator.
    let mut stream = from(rows * n.next_multiple_of(4) * 2)?;
    let wide = as_doubles(logits)?;
    let mut sums = vec![0.0; classes];
    let rows = wide.chunks(classes);
    for (logits, out) in rows.zip(out.slice_mut::<I>()?.chunks_mut(n)) {
        let finite = logits.iter().filter(|x| x.is_finite());
        let max = finite.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let mut total = 0.0;
        for (sum, x) in sums.iter_mut().zip(logits) {
            if x.is_finite() {
                total += (x - max).exp();
            }
            *sum = total;
        }
        for out in out {
            let (a, b) = (stream.next_u32(), stream.next_u32());
            let found = unit_f64(a, b) * total;
            *out = I::from_i64(sums.partition_point(|&sum| sum <= found) as i64);
        }
    }
    Ok(out)
}

/// The numbers of a tensor of a real type.
pub(crate) fn as_doubles(t: &Tensor) -> Result<Vec<f64>> {
    match t.dtype() {
        DType::Half => Ok(t.slice::<f16>()?.iter().map(|x| x.to_f64()).collect()),
        DType::Bfloat16 => Ok(t.slice::<bf16>()?.iter().map(|x| x.to_f64()).collect()),
        DType::Double => Ok(t.slice::<f64>()?.to_vec()),
        dtype => dispatch!(dtype, T in [f32, i8, i16, i32, i64, u8, u16, u32, u64]
            => Ok(t.slice::<T>()?.iter().map(|&x| x as f64).collect()),
            else Err(invalid_argument!("logits cannot be of type {dtype}"))),
    }
}

fn multinomial(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let seeded = Seeded::new(build)?;
    dispatch_index!(build.output(0)?, I => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = draw::<I>(ctx, |n| seeded.outputs(ctx, n))?;
        ctx.set_output(0, out)
    })))
}
