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
    if !matches!(index, DType::Int32 | DType::Int64) {
        return Err(build.unsupported(index));
    }
    let kernel = dispatch_keys!(build, dtype, T => Ok((numbered::<T> as Numbered, copy_rows::<T> as CopyRows)))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        unique_items(ctx, index, kernel)
    }))
}

/// The number of each key, and the position of each number's first key.
type Numbers = (Vec<usize>, Vec<usize>);
type Numbered = fn(&Tensor, Slices) -> Result<Numbers>;
type CopyRows = fn(&Tensor, Slices, &[usize], &mut Tensor) -> Result<()>;

/// `[outer, n, inner]`: the sizes of a tensor around an axis.
#[derive(Clone, Copy)]
struct Slices {
    outer: usize,
    n: usize,
    inner: usize,
}

/// Numbers the slices along the axis.
fn numbered<T: Key>(input: &Tensor, s: Slices) -> Result<Numbers> {
    let (dtype, values) = (input.dtype(), input.items::<T>()?);
    let Slices { outer, n, inner } = s;
    if outer == 1 && inner == 1 {
        return Ok(number(values.iter().map(|v| v.key(dtype))));
    }
    Ok(number((0..n).map(|i| {
        let mut key = Vec::with_capacity(outer * inner);
        for o in 0..outer {
            for v in &values[(o * n + i) * inner..][..inner] {
                key.push(v.key(dtype)?);
            }
        }
        Some(key)
    })))
}

/// Copies the slices at `first`.
fn copy_rows<T: Key>(input: &Tensor, s: Slices, first: &[usize], y: &mut Tensor) -> Result<()> {
    let values = input.items::<T>()?;
    let rows = y.items_mut::<T>()?.chunks_mut(s.inner.max(1));
    let from = (0..s.outer).flat_map(|o| first.iter().map(move |i| (o * s.n + i) * s.inner));
    for (to, from) in rows.zip(from) {
        to.clone_from_slice(&values[from..from + s.inner]);
    }
    Ok(())
}

/// Numbers the keys in order of first appearance.
fn number<K: Hash + Eq>(keys: impl Iterator<Item = Option<K>>) -> Numbers {
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
fn number_integers(input: &Tensor) -> Result<Option<Numbers>> {
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

fn number_in_table<I: Index + Ord>(values: &[I]) -> Option<Numbers> {
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

fn unique_items(
    ctx: &mut KernelCtx,
    index: DType,
    (numbered, copy_rows): (Numbered, CopyRows),
) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    let axis = match ctx.num_inputs() {
        1 => indices::Ints::new(),
        _ if ctx.shape(1)?.rank() != 1 => {
            return Err(invalid_argument!("axis expects a 1D vector."));
        }
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
    let slices = Slices {
        outer: shape[..at].iter().product(),
        n: shape[at],
        inner: shape[at + 1..].iter().product(),
    };
    let (numbers, first) = match number_integers(input)? {
        Some(found) => found,
        None => numbered(input, slices)?,
    };
    let out_shape: Shape = shape
        .iter()
        .enumerate()
        .map(|(j, &d)| if j == at { first.len() } else { d })
        .collect();
    let mut y = ctx.alloc(dtype, out_shape)?;
    copy_rows(input, slices, &first, &mut y)?;
    let mut idx = ctx.alloc(index, Shape::from([slices.n]))?;
    dispatch!(index, I in [i32, i64] => {
        for (to, &v) in idx.slice_mut::<I>()?.iter_mut().zip(&numbers) {
            *to = v as I;
        }
    }, else {});
    ctx.set_output(1, idx)?;
    if ctx.num_outputs() > 2 {
        let mut counts = vec![0i64; first.len()];
        numbers.iter().for_each(|&i| counts[i] += 1);
        ctx.set_output(2, indices::int_vector(index, counts.into_iter())?)?;
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
