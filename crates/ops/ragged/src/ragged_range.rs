//! RaggedRange (TensorFlow: `core/kernels/ragged_range_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::int_vector;
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RaggedRange",
    "starts: T, limits: T, deltas: T -> rt_nested_splits: Tsplits, rt_dense_values: T | \
     T: type {bfloat16,float,double,int32,int64} = int32; Tsplits: type {int32,int64} = \
     int64",
)
.shape(range_shape)
.kernel(|build| {
    let (dtype, splits) = (build.output(1)?, build.output(0)?);
    dispatch!(dtype, T in [f32, f64, i32, i64] => {
        Ok(Box::new(move |ctx: &mut KernelCtx| range::<T>(ctx, splits)))
    }, else Err(build.unsupported(dtype)))
})
.not_differentiable()];

fn range_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut n = PartialShape::of_rank(1);
    let mut all_scalars = true;
    for i in 0..3 {
        let shape = ctx.input(i);
        match shape.rank() {
            Some(0) => {}
            Some(1) => n = ctx.merge(&n, &shape)?,
            Some(rank) => {
                return Err(invalid_argument!(
                    "Shape must be at most rank 1 but is rank {rank} for input {i}"
                ));
            }
            None => {}
        }
        all_scalars &= shape.rank() == Some(0);
    }
    let n = if all_scalars { Some(1) } else { n.dim(0) };
    ctx.set(0, PartialShape::of([n.map(|n| n + 1)]));
    ctx.set(1, PartialShape::of_rank(1));
    Ok(())
}

/// A number that ranges are made of.
trait Step: Num + PartialOrd {
    /// The number of elements from `start` to `limit`, or `None` if there are more than `most`.
    fn count(start: Self, limit: Self, delta: Self, most: i64) -> Option<i64>;
}

macro_rules! integer_steps {
    ($($ty:ty),*) => {$(
        impl Step for $ty {
            fn count(start: Self, limit: Self, delta: Self, most: i64) -> Option<i64> {
                let range = (i128::from(limit) - i128::from(start)).unsigned_abs();
                let n = range.div_ceil(i128::from(delta).unsigned_abs());
                i64::try_from(n).ok().filter(|&n| n <= most)
            }
        }
    )*};
}
integer_steps!(i32, i64);

macro_rules! float_steps {
    ($($ty:ty),*) => {$(
        impl Step for $ty {
            fn count(start: Self, limit: Self, delta: Self, most: i64) -> Option<i64> {
                let n = ((limit - start) / delta).abs().ceil();
                (n <= most as $ty).then_some(n as i64).filter(|&n| n <= most)
            }
        }
    )*};
}
float_steps!(f32, f64);

fn range<T: Step>(ctx: &mut KernelCtx, splits_dtype: DType) -> Result<()> {
    for (i, name) in ["starts", "limits", "deltas"].into_iter().enumerate() {
        if ctx.shape(i)?.rank() > 1 {
            return Err(invalid_argument!("{name} must be a scalar or vector"));
        }
    }
    let mut n_rows = None;
    for i in 0..3 {
        let own = ctx.shape(i)?.first().copied();
        if own.is_some() && n_rows.is_some() && n_rows != own {
            return Err(invalid_argument!(
                "starts, limits, and deltas must have the same shape"
            ));
        }
        n_rows = n_rows.or(own);
    }
    let n_rows = n_rows.unwrap_or(1);
    let (starts, limits, deltas) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?, ctx.slice::<T>(2)?);
    let at = |values: &[T], shape: &Shape, row: usize| match shape.is_scalar() {
        true => values.first().copied().unwrap_or(T::ZERO),
        false => values.get(row).copied().unwrap_or(T::ZERO),
    };
    let (start_shape, limit_shape, delta_shape) = (ctx.shape(0)?, ctx.shape(1)?, ctx.shape(2)?);
    let most = match splits_dtype {
        DType::Int32 => i64::from(i32::MAX),
        _ => i64::MAX,
    };
    let mut splits = vec![0i64];
    for row in 0..n_rows {
        let start = at(starts, start_shape, row);
        let limit = at(limits, limit_shape, row);
        let delta = at(deltas, delta_shape, row);
        if delta == T::ZERO {
            return Err(invalid_argument!("Requires delta != 0"));
        }
        let is_empty = delta > T::ZERO && limit < start || delta < T::ZERO && limit > start;
        let n = match is_empty {
            true => 0,
            false => T::count(start, limit, delta, most)
                .ok_or_else(|| invalid_argument!("Requires ((limit - start) / delta) <= {most}"))?,
        };
        let last = splits.last().copied().unwrap_or(0);
        let Some(total) = last.checked_add(n).filter(|&total| total <= most) else {
            return Err(invalid_argument!(
                "The total range size overflowed. Consider using int64 instead of int32 for \
                 row_splits_dtype."
            ));
        };
        splits.push(total);
    }
    let total = splits.last().copied().unwrap_or(0);
    let mut out = ctx.alloc(T::DTYPE, Shape::checked(&[total])?)?;
    let values = out.slice_mut::<T>()?;
    for (row, pair) in splits.windows(2).enumerate() {
        let mut value = at(starts, start_shape, row);
        let delta = at(deltas, delta_shape, row);
        for to in &mut values[pair[0] as usize..pair[1] as usize] {
            *to = value;
            value = value.add(delta);
        }
    }
    ctx.set_output(0, int_vector(splits_dtype, splits.into_iter())?)?;
    ctx.set_output(1, out)
}
