//! Random ops with a variable as generator state: `tf.random.Generator`. The state is a counter of
//! two 64-bit words and a key. TensorFlow: `core/kernels/stateful_random_ops.cc` and
//! `random_binomial_op.cc`.

use crate::random_binomial::binomial;
use crate::random_ops::{
    Floats, filled, integers, shape_from_input, shape_from_input_at, wanted_shape, wanted_shape_at,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::distributions::{Integers, RESERVED};
use ferroflow_functors::random_stream::check_algorithm;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::philox::Philox;
use ferroflow_resources::resource::{value_mut, variable};
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch, f16};
use std::hash::{BuildHasher, RandomState};

/// StatefulStandardNormal, StatefulStandardNormalV2, StatefulUniform, StatefulTruncatedNormal, StatefulUniformInt,
/// StatefulUniformFullInt, StatefulRandomBinomial, RngSkip, RngReadAndSkip, NonDeterministicInts.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StatefulStandardNormal",
        "resource: resource, shape: shape_dtype -> output: dtype | dtype: type = float; shape_dtype: type = int64 \
         | stateful",
    )
    .shape(|ctx| shape_from_input_at(ctx, 1))
    .kernel(normals_by_state),
    Op::new("StatefulStandardNormalV2", FLOATS)
        .shape(|ctx| shape_from_input_at(ctx, 2))
        .kernel(|build| floats(build, Floats::Normal)),
    Op::new("StatefulUniform", FLOATS)
        .shape(|ctx| shape_from_input_at(ctx, 2))
        .kernel(|build| floats(build, Floats::Uniform)),
    Op::new("StatefulTruncatedNormal", FLOATS)
        .shape(|ctx| shape_from_input_at(ctx, 2))
        .kernel(|build| floats(build, Floats::Truncated)),
    Op::new(
        "StatefulUniformInt",
        "resource: resource, algorithm: int64, shape: shape_dtype, minval: dtype, \
         maxval: dtype -> output: dtype | dtype: type = int64; shape_dtype: type = \
         int64 | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(3, 0)?;
        ctx.with_rank(4, 0)?;
        shape_from_input_at(ctx, 2)
    })
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let shape = wanted_shape_at(ctx, 2)?;
            let out = integers(ctx, 3, shape, |n| Ok(reserve(ctx, n as u64)?.now))?;
            ctx.set_output(0, out)
        }))
    }),
    Op::new(
        "StatefulUniformFullInt",
        "resource: resource, algorithm: int64, shape: shape_dtype -> output: dtype | \
         dtype: type = uint64; shape_dtype: type = int64 | stateful",
    )
    .shape(|ctx| shape_from_input_at(ctx, 2))
    .kernel(full_int),
    Op::new(
        "StatefulRandomBinomial",
        "resource: resource, algorithm: int64, shape: S, counts: T, probs: T -> \
         output: dtype | S: type {int32,int64}; T: type \
         {half,float,double,int32,int64} = double; dtype: type \
         {half,float,double,int32,int64} = int64 | stateful",
    )
    .shape(|ctx| shape_from_input_at(ctx, 2))
    .kernel(|build| {
        let (wide, dtype) = (build.input(3)?, build.output(0)?);
        dispatch!(dtype, T in [f16, f32, f64, i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let out = binomial::<T>(ctx, [2, 3], wide, |[batches, samples]| {
                let numbers = batches as u128 * 200 * (samples as u128 + 3) / 4;
                Ok(reserve(ctx, numbers as u64)?.now)
            })?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(dtype)))
    }),
    Op::new(
        "RngSkip",
        "resource: resource, algorithm: int64, delta: int64 -> | | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(2, 0)?;
        Ok(())
    })
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let n = scalar(ctx.input(2)?, 2)?.to_scalar::<i64>()?;
            reserve(ctx, n as u64)?;
            Ok(())
        }))
    }),
    Op::new(
        "RngReadAndSkip",
        "resource: resource, alg: int32, delta: uint64 -> value: int64 | | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        ctx.with_rank(2, 0)?;
        ctx.set(0, PartialShape::of([Some(STATE)]));
        Ok(())
    })
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let n = scalar(ctx.input(2)?, 2)?.to_scalar::<u64>()?;
            let before = reserve(ctx, n)?.before;
            ctx.set_output(0, Tensor::vector(&before)?)
        }))
    }),
    Op::new(
        "NonDeterministicInts",
        "shape: shape_dtype -> output: dtype | dtype: type = int64; shape_dtype: type \
         = int64 | stateful",
    )
    .shape(shape_from_input)
    .kernel(|build| {
        dispatch!(build.output(0)?, T in [i32, u32, i64, u64] => Ok(Box::new(|ctx: &mut KernelCtx| {
            let shape = wanted_shape(ctx)?;
            let all = Integers { low: 0 as T, range: 0 };
            let fresh = || RandomState::new().hash_one(0);
            let out = filled::<T, _>(ctx, shape, &Philox::new(fresh(), fresh()), &all)?;
            ctx.set_output(0, out)
        })), else Err(build.unsupported(build.output(0)?)))
    }),
];

/// The signature of the ops that make floats.
const FLOATS: &str = "resource: resource, algorithm: int64, shape: shape_dtype -> output: dtype | \
    dtype: type = float; shape_dtype: type = int64 | stateful";

/// Words of the state.
const STATE: usize = 3;

/// A generator's state before an op took numbers from it.
struct Reserved {
    now: Philox,
    before: [i64; STATE],
}

fn scalar(t: &Tensor, i: usize) -> Result<&Tensor> {
    if t.shape().is_scalar() {
        return Ok(t);
    }
    Err(invalid_argument!(
        "input {i} (0-based) must have shape [], not {}",
        t.shape()
    ))
}

/// Returns the generator in input 0, of the algorithm in input 1, advanced by `n` numbers for the
/// next user.
fn reserve(ctx: &KernelCtx, n: u64) -> Result<Reserved> {
    check_algorithm(ctx.input(1)?)?;
    reserve_after(ctx, n, 0)
}

/// Advances the generator in input 0, whose state follows `skipped` words of the variable: the algorithm, if any.
fn reserve_after(ctx: &KernelCtx, n: u64, skipped: usize) -> Result<Reserved> {
    let var = variable(ctx, 0)?;
    let mut value = var.write();
    if let Some(state) = value.as_ref() {
        check_state(state)?;
    }
    let state = value_mut(ctx, 0, &mut value, DType::Int64)?.slice_mut::<i64>()?;
    let (n_given, least) = (state.len(), skipped + STATE);
    if let Some(algorithm) = state[..skipped.min(n_given)].first() {
        check_algorithm(&Tensor::scalar(*algorithm))?;
    }
    let words = state
        .get_mut(skipped..)
        .and_then(<[i64]>::first_chunk_mut::<STATE>);
    let words = words.ok_or_else(|| {
        invalid_argument!(
            "For the Philox algorithm, the size of state must be at least {least}; got {n_given}"
        )
    })?;
    let before = *words;
    let [low, high, key] = before.map(|word| word as u64);
    let counter = u128::from(low) | u128::from(high) << 64;
    let next = counter.wrapping_add(n.wrapping_mul(RESERVED as u64).into());
    *words = [next as u64, (next >> 64) as u64, key].map(|word| word as i64);
    let now = Philox::at(key, counter);
    Ok(Reserved { now, before })
}

fn check_state(state: &Tensor) -> Result<()> {
    if state.dtype() != DType::Int64 {
        return Err(invalid_argument!(
            "dtype of RNG state variable must be int64, not {}",
            state.dtype()
        ));
    }
    if state.shape().rank() != 1 {
        return Err(invalid_argument!(
            "RNG state must have one and only one dimension, not {}",
            state.shape().rank()
        ));
    }
    Ok(())
}

/// Returns the output shape, checked to fit into memory, and the generator for its numbers.
fn reserved(ctx: &KernelCtx, dtype: DType) -> Result<(Shape, Philox)> {
    let shape = wanted_shape_at(ctx, 2)?;
    // A step that runs out of memory does not advance the generator.
    ctx.alloc(dtype, shape.clone())?;
    let from = reserve(ctx, shape.num_elements() as u64)?.now;
    Ok((shape, from))
}

fn floats(build: &KernelBuild, kind: Floats) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (shape, from) = reserved(ctx, dtype)?;
        let out = kind.fill(ctx, dtype, shape, &from)?;
        ctx.set_output(0, out)
    }))
}

/// The first version, whose state begins with the algorithm.
fn normals_by_state(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = wanted_shape_at(ctx, 1)?;
        ctx.alloc(dtype, shape.clone())?;
        let from = reserve_after(ctx, shape.num_elements() as u64, 1)?.now;
        let out = Floats::Normal.fill(ctx, dtype, shape, &from)?;
        ctx.set_output(0, out)
    }))
}

fn full_int(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    dispatch!(build.output(0)?, T in [i32, i64, u32, u64] => Ok(Box::new(|ctx: &mut KernelCtx| {
        let (shape, from) = reserved(ctx, T::DTYPE)?;
        let all = Integers { low: 0 as T, range: 0 };
        let out = filled::<T, _>(ctx, shape, &from, &all)?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(build.output(0)?)))
}
