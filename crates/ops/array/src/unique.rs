//! Searching and telling apart: Where, Unique and its kin, ListDiff, LowerBound, UpperBound.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Index, axis_in, constant};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{
    Bytes, Complex32, Complex64, DType, Element, Item, PartialShape, Shape, bf16, dispatch, f16,
};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Where, Unique, UniqueV2, UniqueWithCounts, UniqueWithCountsV2, ListDiff, LowerBound, UpperBound.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Where",
        "input: T -> index: int64 | T: type {float,double,int32,uint8,int16,int8,complex64,int64,\
         qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64,bool} = bool",
    )
    .shape(|ctx| {
        let rank = ctx.input(0).rank();
        ctx.set(0, PartialShape::of([None, rank]));
        Ok(())
    })
    .kernel(where_),
    Op::new("Unique", "x: T -> y: T, idx: out_idx | T: type; out_idx: type {int32,int64} = int32")
        .shape(unique_shape)
        .kernel(unique),
    Op::new(
        "UniqueV2",
        "x: T, axis: Taxis -> y: T, idx: out_idx | T: type; Taxis: type {int32,int64} = int64; \
         out_idx: type {int32,int64} = int32",
    )
    .shape(unique_v2_shape)
    .kernel(unique),
    Op::new(
        "UniqueWithCounts",
        "x: T -> y: T, idx: out_idx, count: out_idx | T: type; out_idx: type {int32,int64} = int32",
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
    Op::new(
        "ListDiff",
        "x: T, y: T -> out: T, idx: out_idx | T: type; out_idx: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..2 {
            ctx.with_rank(i, 1)?;
            ctx.set(i, PartialShape::of_rank(1));
        }
        Ok(())
    })
    .kernel(list_diff),
    Op::new(
        "LowerBound",
        "sorted_inputs: T, values: T -> output: out_type | T: type; \
         out_type: type {int32,int64} = int32",
    )
    .shape(bound_shape)
    .kernel(|b| bound(b, false)),
    Op::new(
        "UpperBound",
        "sorted_inputs: T, values: T -> output: out_type | T: type; \
         out_type: type {int32,int64} = int32",
    )
    .shape(bound_shape)
    .kernel(|b| bound(b, true)),
];

fn where_(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    /// The positions of the elements that are not zero.
    fn kernel<T: Element>(ctx: &mut KernelCtx) -> Result<()> {
        let input = ctx.input(0)?;
        let dims = input.shape();
        let rank = dims.rank();
        if !(1..=8).contains(&rank) {
            return Err(invalid_argument!(
                "WhereOp : Unhandled input dimensions: {rank}"
            ));
        }
        let values = input.slice::<T>()?;
        let zero = T::default();
        let n = values.iter().filter(|v| **v != zero).count();
        let mut out = ctx.alloc(DType::Int64, indices::shape_of([n, rank])?)?;
        let hits = values.iter().enumerate().filter(|(_, v)| **v != zero);
        let mut coords = vec![0; rank];
        let row = dims[rank - 1].max(1);
        let mut at = usize::MAX;
        for (to, (i, _)) in out.slice_mut::<i64>()?.chunks_mut(rank).zip(hits) {
            if i / row != at {
                at = i / row;
                ferroflow_functors::strided::unravel(i, dims, &mut coords);
            }
            coords[rank - 1] = i - at * row;
            for (t, &c) in to.iter_mut().zip(&coords) {
                *t = c as i64;
            }
        }
        ctx.set_output(0, out)
    }
    dispatch!(dtype, T in [bool, f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16, Complex32, Complex64] =>
        Ok(Box::new(kernel::<T>)),
        else Err(build.unsupported(dtype)))
}

/// A value as a key of hash maps. `None` for a value that equals nothing, itself included.
trait Key: Item {
    type Key: Hash + Eq + Ord + Clone + Send + Sync;
    fn key(&self, dtype: DType) -> Option<Self::Key>;
}

macro_rules! bits {
    ($($ty:ty, $dtype:pat => $float:expr;)*) => {$(
        impl Key for $ty {
            type Key = $ty;
            fn key(&self, dtype: DType) -> Option<$ty> {
                match dtype {
                    $dtype => $float(*self),
                    _ => Some(*self),
                }
            }
        }
    )*};
}

/// The bits of a float: both zeros are one key, and not-a-number is none.
macro_rules! float_bits {
    ($float:ty) => {
        |bits| {
            let v = <$float>::from_bits(bits);
            match v {
                v if v.is_nan() => None,
                v if v == <$float>::default() => Some(0),
                _ => Some(bits),
            }
        }
    };
}

bits! {
    u8, DType::String => Some;
    u32, DType::Float => float_bits!(f32);
    u64, DType::Double => float_bits!(f64);
    [u64; 2], DType::String => Some;
}

impl Key for u16 {
    type Key = u16;
    fn key(&self, dtype: DType) -> Option<u16> {
        match dtype {
            DType::Half => float_bits!(f16)(*self),
            DType::Bfloat16 => float_bits!(bf16)(*self),
            _ => Some(*self),
        }
    }
}

impl Key for bool {
    type Key = bool;
    fn key(&self, _: DType) -> Option<bool> {
        Some(*self)
    }
}

impl Key for Bytes {
    type Key = Bytes;
    fn key(&self, _: DType) -> Option<Bytes> {
        Some(self.clone())
    }
}

/// Runs `$body` for the item type of a dtype that can be compared.
macro_rules! dispatch_keys {
    ($build:expr, $dtype:expr, $T:ident => $body:expr) => {{
        let dtype: DType = $dtype;
        match (dtype, dtype.size()) {
            (DType::Resource | DType::Variant, _) => Err($build.unsupported(dtype)),
            (DType::Bool, _) => {
                type $T = bool;
                $body
            }
            (_, 1) => {
                type $T = u8;
                $body
            }
            (_, 2) => {
                type $T = u16;
                $body
            }
            (_, 4) => {
                type $T = u32;
                $body
            }
            (_, 8) => {
                type $T = u64;
                $body
            }
            (_, 16) => {
                type $T = [u64; 2];
                $body
            }
            _ => {
                type $T = Bytes;
                $body
            }
        }
    }};
}

fn unique(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    dispatch_keys!(build, dtype, T => dispatch!(index, I in [i32, i64] =>
        Ok(Box::new(unique_items::<T, I>)),
        else Err(build.unsupported(index))))
}

/// Numbers for the keys in the order in which they first appear: the number of each, and where
/// each number was first seen.
fn number<K: Hash + Eq>(keys: impl Iterator<Item = Option<K>>) -> (Vec<usize>, Vec<usize>) {
    let mut seen = HashMap::new();
    let (mut numbers, mut first) = (Vec::new(), Vec::new());
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
    let (numbers, first) = if outer == 1 && inner == 1 {
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

fn list_diff(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(1)?);
    dispatch_keys!(build, dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (x, y) = (ctx.input(0)?, ctx.input(1)?);
        for (name, t) in [("x", x), ("y", y)] {
            if t.shape().rank() != 1 {
                return Err(invalid_argument!("{name} should be a 1D vector."));
            }
        }
        let taken: HashSet<_> = y.items::<T>()?.iter().filter_map(|v| v.key(dtype)).collect();
        let from = x.items::<T>()?;
        let kept: Vec<usize> = (0..from.len())
            .filter(|&i| from[i].key(dtype).is_none_or(|k| !taken.contains(&k)))
            .collect();
        let mut out = ctx.alloc(dtype, Shape::from([kept.len()]))?;
        for (to, &i) in out.items_mut::<T>()?.iter_mut().zip(&kept) {
            to.clone_from(&from[i]);
        }
        ctx.set_output(1, indices::int_vector(index, kept.iter().map(|&i| i as i64))?)?;
        ctx.set_output(0, out)
    })))
}

fn bound_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank(1, 2)?;
    ctx.with_rank(0, 2)?;
    ctx.set(0, shape);
    Ok(())
}

fn bound(build: &KernelBuild, upper: bool) -> Result<Box<dyn OpKernel>> {
    fn kernel<T: Element + PartialOrd>(index: DType, upper: bool) -> Box<dyn OpKernel> {
        Box::new(move |ctx: &mut KernelCtx| {
            let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
            let (s, v) = (sorted.shape(), values.shape());
            if s.rank() != 2 || v.rank() != 2 {
                return Err(invalid_argument!("Sorted input argument must be a matrix"));
            }
            if s[0] != v[0] {
                return Err(invalid_argument!(
                    "Leading dim_size of both tensors must match."
                ));
            }
            let (n, m) = (s[1], v[1]);
            let (from, wanted) = (sorted.slice::<T>()?, values.slice::<T>()?);
            let mut out = ctx.alloc(index, v.clone())?;
            let find = |i: usize| {
                let row = &from[i / m * n..][..n];
                let v = wanted[i];
                row.partition_point(|x| {
                    if upper {
                        !matches!(v.partial_cmp(x), Some(std::cmp::Ordering::Less))
                    } else {
                        *x < v
                    }
                })
            };
            dispatch!(index, I in [i32, i64] => {
                par_chunks_mut(ctx.par(), out.slice_mut::<I>()?, 4096, 1, &|block, to| {
                    for (j, o) in to.iter_mut().enumerate() {
                        *o = find(block * 4096 + j) as I;
                    }
                });
            }, else {});
            ctx.set_output(0, out)
        })
    }
    let (dtype, index) = (build.input(0)?, build.output(0)?);
    dispatch!(dtype, T in [f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16] =>
        Ok(kernel::<T>(index, upper)),
        else Err(build.unsupported(dtype)))
}
