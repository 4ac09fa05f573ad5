//! Unique, UniqueV2, UniqueWithCounts, UniqueWithCountsV2 (TensorFlow:
//! `core/kernels/unique_op.cc`).

use crate::hash_key::{Key, dispatch_keys};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Index, axis_in, constant};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor, dispatch};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::hash::Hash;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Unique",
        "x: T -> y: T, idx: out_idx | T: type; out_idx: type {int32,int64} = int32",
    )
    .shape(unique_shape)
    .kernel(unique),
    Op::new(
        "UniqueV2",
        "x: T, axis: Taxis -> y: T, idx: out_idx | T: type; Taxis: type {int32,int64} \
         = int64; out_idx: type {int32,int64} = int32",
    )
    .shape(unique_v2_shape)
    .kernel(unique),
    Op::new(
        "UniqueWithCounts",
        "x: T -> y: T, idx: out_idx, count: out_idx | T: type; out_idx: type \
         {int32,int64} = int32",
    )
    .shape(unique_shape)
    .kernel(unique),
    Op::new(
        "UniqueWithCountsV2",
        "x: T, axis: Taxis -> y: T, idx: out_idx, count: out_idx | T: type; \
         Taxis: type {int32,int64} = int64; out_idx: type {int32,int64} = int32",
    )
    .shape(unique_v2_shape)
    .kernel(unique),
];

fn unique(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    dispatch_keys!(build, dtype, T => dispatch!(index, I in [i32, i64] =>
        Ok(Box::new(unique_items::<T, I>)),
        else Err(build.unsupported(index))))
}

/// Numbers the keys in order of first appearance; returns the number of each key, and the position
/// of each number's first key.
fn number<K: Hash + Eq>(keys: impl Iterator<Item = Option<K>>) -> (Vec<usize>, Vec<usize>) {
    let mut seen = HashMap::with_hasher(RandomState::default());
    let mut numbers = Vec::with_capacity(keys.size_hint().0);
    let mut first = Vec::new();
    for (i, key) in keys.enumerate() {
        let next = first.len();
        let number = key.map_or(next, |key| *seen.entry(key).or_insert(next));
        if number == next {
            first.push(i);
        }
        numbers.push(number);
    }
    (numbers, first)
}

/// The same for a vector of integers that are close to each other: looked up by value.
fn number_integers(input: &Tensor) -> Result<Option<(Vec<usize>, Vec<usize>)>> {
    if input.shape().rank() != 1 {
        return Ok(None);
    }
    Ok(match input.dtype() {
        DType::Int32 => number_in_table(input.slice::<i32>()?),
        DType::Int64 => number_in_table(input.slice::<i64>()?),
        _ => None,
    })
}

/// Entries of a table for each value.
const SPARSE: usize = 8;

fn number_in_table<I: Index + Ord>(values: &[I]) -> Option<(Vec<usize>, Vec<usize>)> {
    let lowest = values.iter().min()?.to_i64();
    let range = values.iter().max()?.to_i64().checked_sub(lowest)?;
    let size = usize::try_from(range).ok()?.checked_add(1)?;
    if size / SPARSE > values.len() || u32::try_from(values.len()).is_err() {
        return None;
    }
    let mut table = vec![u32::MAX; size];
    let mut first = Vec::new();
    let numbers = values.iter().enumerate().map(|(i, v)| {
        let number = &mut table[(v.to_i64() - lowest) as usize];
        if *number == u32::MAX {
            *number = first.len() as u32;
            first.push(i);
        }
        *number as usize
    });
    Some((numbers.collect(), first))
}

fn unique_items<T: Key, I: Index>(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    let axis = match ctx.num_inputs() {
        1 => indices::Ints::new(),
        _ => indices::ints(ctx.input(1)?)?,
    };
    let at = match axis[..] {
        // Without an axis the input is one vector.
        [] if shape.rank() == 1 => 0,
        [] => return Err(invalid_argument!("unique expects a 1D vector.")),
        [axis] => axis_in(axis, shape.rank())
            .ok_or_else(|| invalid_argument!("axis has to be between [0, {})", shape.rank()))?,
        _ => {
            return Err(invalid_argument!(
                "axis does not support input tensors larger than 1 elements"
            ));
        }
    };
    let dtype = input.dtype();
    let values = input.items::<T>()?;
    let n = shape[at];
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let (numbers, first) = if let Some(found) = number_integers(input)? {
        found
    } else if outer == 1 && inner == 1 {
        number(values.iter().map(|v| v.key(dtype)))
    } else {
        number((0..n).map(|i| {
            let part = |o: usize| values[(o * n + i) * inner..][..inner].iter();
            (0..outer)
                .flat_map(part)
                .map(|v| v.key(dtype))
                .collect::<Option<Vec<_>>>()
        }))
    };
    let out_shape: Shape = shape
        .iter()
        .enumerate()
        .map(|(j, &d)| if j == at { first.len() } else { d })
        .collect();
    let mut y = ctx.alloc(dtype, out_shape)?;
    if inner > 0 {
        let rows = y.items_mut::<T>()?.chunks_mut(inner);
        let from = (0..outer).flat_map(|o| first.iter().map(move |i| (o * n + i) * inner));
        for (to, from) in rows.zip(from) {
            to.clone_from_slice(&values[from..from + inner]);
        }
    }
    let mut idx = ctx.alloc(I::DTYPE, Shape::from([n]))?;
    for (to, &v) in idx.slice_mut::<I>()?.iter_mut().zip(&numbers) {
        *to = I::from_i64(v as i64);
    }
    ctx.set_output(1, idx)?;
    if ctx.num_outputs() > 2 {
        let mut counts = vec![0i64; first.len()];
        numbers.iter().for_each(|&i| counts[i] += 1);
        ctx.set_output(2, indices::int_vector(I::DTYPE, counts.into_iter())?)?;
    }
    ctx.set_output(0, y)
}

fn unique_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.with_rank(0, 1)?;
    ctx.set(1, n);
    for i in [0, 2] {
        ctx.set(i, PartialShape::of_rank(1));
    }
    Ok(())
}

fn unique_v2_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(1, PartialShape::of_rank(1));
    ctx.set(2, PartialShape::of_rank(1));
    let input = ctx.input(0);
    let Some(rank) = input.rank() else {
        return Ok(());
    };
    let shape = match constant(ctx, 1).as_deref() {
        Some([axis]) => {
            let at = axis_in(*axis, rank).ok_or_else(|| {
                invalid_argument!("axis expected to be in the range [-{rank}, {rank})")
            })?;
            ctx.set(1, PartialShape::of([input.dim(at as isize)]));
            indices::partial(rank, |i| if i == at { None } else { input.dim(i as isize) })
        }
        _ => PartialShape::of_rank(rank),
    };
    ctx.set(0, shape);
    Ok(())
}
