//! Bucketize and HistogramFixedWidth.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, int};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Bucketize",
        "input: T -> output: int32 | T: type {int32,int64,float,double}; boundaries: \
         list(float)",
    )
    .shape(shapes::unchanged)
    .kernel(bucketize)
    .not_differentiable(),
    Op::new(
        "HistogramFixedWidth",
        "values: T, value_range: T, nbins: int32 -> out: dtype | T: type \
         {int32,int64,float,double}; dtype: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        let n = constant_int(ctx, 2);
        if let Some(n) = n.filter(|&n| n <= 0) {
            return Err(invalid_argument!("Requires nbins > 0: {n}"));
        }
        ctx.set(0, PartialShape::of([n.map(|n| n as usize)]));
        Ok(())
    })
    .kernel(|build| {
        let (dtype, out) = (build.input(0)?, build.output(0)?);
        dispatch!(dtype, T in [i32, i64, f32, f64] => {
            Ok(Box::new(move |ctx: &mut KernelCtx| histogram::<T>(ctx, out)))
        }, else Err(build.unsupported(dtype)))
    }),
];

/// A number that can be compared with boundaries.
trait Value: Element + Num + PartialOrd {
    fn is_less(self, boundary: f32) -> bool;
    fn to_f64(self) -> f64;
}

macro_rules! values {
    ($($ty:ty => $as:ty;)*) => {$(
        impl Value for $ty {
            #[inline(always)]
            fn is_less(self, boundary: f32) -> bool {
                (self as $as) < <$as>::from(boundary)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}
// C++ compares integers with floats as floats.
values! {
    i32 => f32;
    i64 => f32;
    f32 => f32;
    f64 => f64;
}

/// Values that one thread takes in a row.
const BLOCK: usize = 4096;

fn bucketize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let boundaries = build.attrs.floats("boundaries")?;
    if boundaries.windows(2).any(|pair| pair[1] < pair[0]) {
        return Err(invalid_argument!("Expected sorted boundaries"));
    }
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [i32, i64, f32, f64] => {
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let input = ctx.input(0)?;
            let values = input.slice::<T>()?;
            let mut out = ctx.alloc(DType::Int32, input.shape().clone())?;
            let to = out.slice_mut::<i32>()?;
            par_chunks_mut(ctx.par(), to, BLOCK, 1, &|block, to| {
                for (to, &v) in to.iter_mut().zip(&values[block * BLOCK..]) {
                    *to = boundaries.partition_point(|&b| !v.is_less(b)) as i32;
                }
            });
            ctx.set_output(0, out)
        }))
    }, else Err(build.unsupported(dtype)))
}

fn histogram<T: Value + std::fmt::Display>(ctx: &mut KernelCtx, dtype: DType) -> Result<()> {
    let (range, n_bins) = (ctx.input(1)?, ctx.input(2)?);
    if range.shape().rank() != 1 {
        return Err(invalid_argument!("value_range should be a vector."));
    }
    let [low, high] = *range.slice::<T>()? else {
        return Err(invalid_argument!(
            "value_range should be a vector of 2 elements."
        ));
    };
    let Some(n) = int(n_bins).filter(|_| n_bins.shape().is_scalar()) else {
        return Err(invalid_argument!("nbins should be a scalar."));
    };
    if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) {
        return Err(invalid_argument!(
            "value_range should satisfy value_range[0] < value_range[1], but got '[{low}, {high}]'"
        ));
    }
    let Some(bins) = usize::try_from(n).ok().filter(|&n| n > 0) else {
        return Err(invalid_argument!(
            "nbins should be a positive number, but got '{n}'"
        ));
    };
    let values = ctx.slice::<T>(0)?;
    let mut counts = Tensor::zeros(DType::Int64, Shape::from([bins]))?;
    let to = counts.slice_mut::<i64>()?;
    if bins == 1 {
        to.fill(values.len() as i64);
    } else {
        count(values, low, high, to)?;
    }
    let counts = ferroflow_functors::indices::narrowed(counts, dtype)?;
    ctx.set_output(0, counts)
}

/// Values whose bins are found together.
const PLACES: usize = 512;

fn count<T: Value>(values: &[T], low: T, high: T, bins: &mut [i64]) -> Result<()> {
    let n = bins.len() as f64;
    let (first, last) = (low.to_f64(), n - 1.0);
    let step = high.to_f64() / n - first / n;
    let mut places = [0u32; PLACES];
    for values in values.chunks(PLACES) {
        let places = &mut places[..values.len()];
        let has_nan = vectorized(
            #[inline(always)]
            || {
                let mut has_nan = false;
                for (place, &value) in places.iter_mut().zip(values) {
                    has_nan |= value.to_f64().is_nan();
                    let value = if value < low { low } else { value };
                    let value = if value > high { high } else { value };
                    let bin = (value.to_f64() - first) / step;
                    // Not above the last one, and not negative.
                    let bin = if bin < last { bin } else { last };
                    *place = bin as i32 as u32;
                }
                has_nan
            },
        );
        if has_nan {
            return Err(invalid_argument!("Histogram values must not contain NaN"));
        }
        for &place in &*places {
            if let Some(bin) = bins.get_mut(place as usize) {
                *bin += 1;
            }
        }
    }
    Ok(())
}
