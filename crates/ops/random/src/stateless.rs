//! Random ops that depend only on a seed input (TensorFlow: `core/kernels/stateless_random_ops.cc`
//! and `stateless_random_ops_v2.cc`).

use crate::multinomial::{draw, multinomial_shape};
use crate::random_ops::{Floats, filled, integers, shape_from_input, wanted_shape};
use crate::random_shuffle::shuffle;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::distributions::Integers;
use ferroflow_functors::indices::dispatch_index;
use ferroflow_functors::random_stream::{self, PHILOX};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::{Philox, scrambled};
use ferroflow_tensor::{PartialShape, Shape, Tensor, dispatch};

/// StatelessRandomUniform, StatelessRandomNormal, StatelessTruncatedNormal,
/// StatelessRandomUniformInt, StatelessRandomUniformFullInt, StatelessMultinomial, the same with a
/// key and a counter (V2), StatelessShuffle, StatelessRandomGetKeyCounter, StatelessRandomGetAlg,
/// StatelessRandomGetKeyCounterAlg.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StatelessRandomUniform",
        "shape: T, seed: Tseed -> output: dtype | dtype: type \
         {half,bfloat16,float,double} = float; T: type {int32,int64} = int32; Tseed: \
         type {int32,int64} = int64",
    )
    .shape(seeded_shape)
    .kernel(|b| floats(b, Floats::Uniform, of_seed))
    .not_differentiable(),
    Op::new(
        "StatelessRandomNormal",
        "shape: T, seed: Tseed -> output: dtype | dtype: type \
         {half,bfloat16,float,double} = float; T: type {int32,int64} = int32; Tseed: \
         type {int32,int64} = int64",
    )
    .shape(seeded_shape)
    .kernel(|b| floats(b, Floats::Normal, of_seed))
    .not_differentiable(),
    Op::new(
        "StatelessTruncatedNormal",
        "shape: T, seed: Tseed -> output: dtype | dtype: type \
         {half,bfloat16,float,double} = float; T: type {int32,int64} = int32; Tseed: \
         type {int32,int64} = int64",
    )
    .shape(seeded_shape)
    .kernel(|b| floats(b, Floats::Truncated, of_seed))
    .not_differentiable(),
    Op::new(
        "StatelessRandomUniformInt",
        "shape: T, seed: Tseed, minval: dtype, maxval: dtype -> output: dtype | dtype: \
         type {int32,int64}; T: type {int32,int64}; Tseed: type {int32,int64} = int64",
    )
    .shape(seeded_shape)
    .kernel(|_| uniform_int(2, of_seed))
    .not_differentiable(),
    Op::new(
        "StatelessRandomUniformFullInt",
        "shape: T, seed: Tseed -> output: dtype | dtype: type \
         {int32,int64,uint32,uint64} = uint64; T: type {int32,int64} = int32; Tseed: \
         type {int32,int64,uint32,uint64} = int64",
    )
    .shape(seeded_shape)
    .kernel(|b| full_int(b, of_seed))
    .not_differentiable(),
    Op::new(
        "StatelessMultinomial",
        "logits: T, num_samples: int32, seed: Tseed -> output: output_dtype | T: \
         realnumbertype; Tseed: type {int32,int64} = int64; output_dtype: type \
         {int32,int64} = int64",
    )
    .shape(|ctx| {
        check_seed(ctx, 2)?;
        multinomial_shape(ctx)
    })
    .kernel(|build| {
        dispatch_index!(build.output(0)?, I => Ok(Box::new(|ctx: &mut KernelCtx| {
            let from = seed_input(ctx, 2)?;
            let out = draw::<I>(ctx, |_| Ok(from))?;
            ctx.set_output(0, out)
        })))
    })
    .not_differentiable(),
    Op::new(
        "StatelessRandomUniformV2",
        "shape: Tshape, key: uint64, counter: uint64, alg: int32 -> output: dtype | \
         dtype: type {half,bfloat16,float,double} = float; Tshape: type {int32,int64} \
         = int32",
    )
    .shape(keyed_shape)
    .kernel(|b| floats(b, Floats::Uniform, of_key))
    .not_differentiable(),
    Op::new(
        "StatelessRandomNormalV2",
        "shape: Tshape, key: uint64, counter: uint64, alg: int32 -> output: dtype | \
         dtype: type {half,bfloat16,float,double} = float; Tshape: type {int32,int64} \
         = int32",
    )
    .shape(keyed_shape)
    .kernel(|b| floats(b, Floats::Normal, of_key))
    .not_differentiable(),
    Op::new(
        "StatelessTruncatedNormalV2",
        "shape: Tshape, key: uint64, counter: uint64, alg: int32 -> output: dtype | \
         dtype: type {half,bfloat16,float,double} = float; Tshape: type {int32,int64} \
         = int32",
    )
    .shape(keyed_shape)
    .kernel(|b| floats(b, Floats::Truncated, of_key))
    .not_differentiable(),
    Op::new(
        "StatelessRandomUniformIntV2",
        "shape: Tshape, key: uint64, counter: uint64, alg: int32, minval: dtype, \
         maxval: dtype -> output: dtype | dtype: type {int32,int64,uint32,uint64}; \
         Tshape: type {int32,int64} = int32",
    )
    .shape(keyed_shape)
    .kernel(|_| uniform_int(4, of_key))
    .not_differentiable(),
    Op::new(
        "StatelessRandomUniformFullIntV2",
        "shape: Tshape, key: uint64, counter: uint64, alg: int32 -> output: dtype | \
         dtype: type {int32,int64,uint32,uint64} = uint64; Tshape: type {int32,int64} \
         = int32",
    )
    .shape(keyed_shape)
    .kernel(|b| full_int(b, of_key))
    .not_differentiable(),
    Op::new(
        "StatelessShuffle",
        "value: T, key: uint64, counter: uint64, alg: int32 -> output: T | T: type |",
    )
    .shape(|ctx| {
        check_key(ctx)?;
        shapes::unchanged(ctx)
    })
    .kernel(|build| shuffle(build, keyed, |stream, _, _| Ok(*stream))),
    Op::new(
        "StatelessRandomGetKeyCounter",
        "seed: Tseed -> key: uint64, counter: uint64 | Tseed: type {int32,int64} = \
         int64",
    )
    .shape(key_counter_shape)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(key_counter))),
    Op::new("StatelessRandomGetAlg", "-> alg: int32 | | stateful")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                ctx.set_output(0, Tensor::scalar(PHILOX))
            }))
        }),
    Op::new(
        "StatelessRandomGetKeyCounterAlg",
        "seed: Tseed -> key: uint64, counter: uint64, alg: int32 | \
         Tseed: type {int32,int64} = int64 |",
    )
    .shape(|ctx| {
        ctx.set(2, PartialShape::scalar());
        key_counter_shape(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            ctx.set_output(2, Tensor::scalar(PHILOX))?;
            key_counter(ctx)
        }))
    }),
];

/// Returns the stream of an op, from its inputs.
pub(crate) type StreamSource = fn(&KernelCtx) -> Result<Philox>;

pub(crate) fn check_seed(ctx: &ShapeCtx, i: usize) -> Result<()> {
    match ctx.with_rank(i, 1)?.dim(0) {
        None | Some(2) => Ok(()),
        Some(n) => Err(invalid_argument!("Dimension must be 2 but is {n}")),
    }
}

fn seeded_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_seed(ctx, 1)?;
    for i in 2..ctx.num_inputs() {
        ctx.with_rank(i, 0)?;
    }
    shape_from_input(ctx)
}

/// Checks key, counter and algorithm in the inputs 1 to 3.
pub(crate) fn check_key(ctx: &ShapeCtx) -> Result<()> {
    ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 1)?;
    ctx.with_rank(3, 0)?;
    Ok(())
}

fn keyed_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_key(ctx)?;
    for i in 4..ctx.num_inputs() {
        ctx.with_rank(i, 0)?;
    }
    shape_from_input(ctx)
}

fn key_counter_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_seed(ctx, 0)?;
    ctx.set(0, PartialShape::of([Some(1)]));
    ctx.set(1, PartialShape::of([Some(2)]));
    Ok(())
}

fn seed_input(ctx: &KernelCtx, i: usize) -> Result<Philox> {
    random_stream::stateless(ctx.input(i)?)
}

pub(crate) fn seeded(ctx: &KernelCtx) -> Result<Philox> {
    seed_input(ctx, 1)
}

pub(crate) fn keyed(ctx: &KernelCtx) -> Result<Philox> {
    random_stream::stateless_of_key(ctx.input(1)?, ctx.input(2)?, ctx.input(3)?)
}

/// The shape and the stream of an op, from its inputs.
type Sample = fn(&KernelCtx) -> Result<(Shape, Philox)>;

fn of_seed(ctx: &KernelCtx) -> Result<(Shape, Philox)> {
    Ok((wanted_shape(ctx)?, seeded(ctx)?))
}

/// Checks the key before the shape.
fn of_key(ctx: &KernelCtx) -> Result<(Shape, Philox)> {
    let stream = keyed(ctx)?;
    Ok((wanted_shape(ctx)?, stream))
}

fn floats(build: &KernelBuild, kind: Floats, sample: Sample) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, from) = sample(ctx)?;
        let out = kind.fill(ctx, dtype, shape, &from)?;
        ctx.set_output(0, out)
    }))
}

fn uniform_int(at: usize, sample: Sample) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, from) = sample(ctx)?;
        let out = integers(ctx, at, shape, |_| Ok(from))?;
        ctx.set_output(0, out)
    }))
}

fn full_int(build: &KernelBuild, sample: Sample) -> Result<Box<dyn OpKernel>> {
    dispatch!(build.output(0)?, T in [i32, i64, u32, u64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, from) = sample(ctx)?;
        let all = Integers { low: 0 as T, range: 0 };
        let out = filled::<T, _>(ctx, shape, &from, &all)?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(build.output(0)?)))
}

fn key_counter(ctx: &mut KernelCtx) -> Result<()> {
    let [seed, seed2] = random_stream::seeds(ctx.input(0)?)?;
    let (key, counter) = scrambled(seed, seed2);
    ctx.set_output(0, Tensor::vector(&[key])?)?;
    ctx.set_output(
        1,
        Tensor::vector(&[counter as u64, (counter >> 64) as u64])?,
    )
}
