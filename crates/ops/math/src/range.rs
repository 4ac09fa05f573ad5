//! Range and LinSpace (TensorFlow: `core/kernels/sequence_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant_int};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, bf16, dispatch, f16};

macro_rules! count_ints {
    ($($ty:ty),*) => {$(
        impl Count for $ty {
            const ZERO: Self = 0;
            fn steps(start: Self, limit: Self, delta: Self) -> Option<u64> {
                let (a, b, d) = (start as i128, limit as i128, delta as i128);
                u64::try_from((b - a).unsigned_abs().div_ceil(d.unsigned_abs())).ok()
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
            fn plus(self, delta: Self) -> Self {
                self.wrapping_add(delta)
            }
        }
    )*};
}

macro_rules! count_floats {
    ($($ty:ty, $zero:expr, $wide:expr;)*) => {$(
        impl Count for $ty {
            const ZERO: Self = $zero;
            fn steps(start: Self, limit: Self, delta: Self) -> Option<u64> {
                let steps = $wide((limit - start) / delta).abs().ceil();
                (steps < i64::MAX as f64).then_some(steps as u64)
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
            fn plus(self, delta: Self) -> Self {
                self + delta
            }
        }
    )*};
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Range",
        "start: Tidx, limit: Tidx, delta: Tidx -> output: Tidx | Tidx: type \
         {bfloat16,half,float,double,int8,int16,int32,int64,uint16,uint32,uint64} = \
         int32",
    )
    .shape(range_shape)
    .kernel(range)
    .not_differentiable(),
    Op::new(
        "LinSpace",
        "start: T, stop: T, num: Tidx -> output: T | T: type \
         {bfloat16,half,float,double}; Tidx: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..3 {
            ctx.with_rank(i, 0)?;
        }
        let num = match constant_int(ctx, 2) {
            Some(n) if n <= 0 => return Err(invalid_argument!("Requires num > 0: {n}")),
            n => n.map(|n| n as usize),
        };
        ctx.set(0, PartialShape::of([num]));
        Ok(())
    })
    .kernel(lin_space)
    .not_differentiable(),
];

fn range_len<T: Count>(start: T, limit: T, delta: T) -> Result<u64> {
    if delta == T::ZERO {
        return Err(invalid_argument!("Requires delta != 0: {delta:?}"));
    }
    let up = T::ZERO.less(delta);
    if up && limit.less(start) {
        return Err(invalid_argument!(
            "Requires start <= limit when delta > 0: {start:?}/{limit:?}"
        ));
    }
    if !up && start.less(limit) {
        return Err(invalid_argument!(
            "Requires start >= limit when delta < 0: {start:?}/{limit:?}"
        ));
    }
    T::steps(start, limit, delta)
        .ok_or_else(|| invalid_argument!("Requires ((limit - start) / delta) <= {}", i64::MAX))
}

fn range_kernel<T: Count>(ctx: &mut KernelCtx) -> Result<()> {
    let arg = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        t.to_scalar::<T>()
            .map_err(|_| invalid_argument!("{name} must be a scalar, not shape {}", t.shape()))
    };
    let (start, limit, delta) = (arg(0, "start")?, arg(1, "limit")?, arg(2, "delta")?);
    let n = range_len(start, limit, delta)?;
    let mut out = ctx.alloc(
        T::DTYPE,
        Shape::checked(&[i64::try_from(n).unwrap_or(i64::MAX)])?,
    )?;
    let mut v = start;
    for o in out.slice_mut::<T>()? {
        *o = v;
        v = v.plus(delta);
    }
    ctx.set_output(0, out)
}

fn range(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [i32, i64, f32, f64, f16, bf16, i8, i16, u16, u32, u64] =>
        Ok(Box::new(range_kernel::<T>)),
        else Err(build.unsupported(dtype)))
}

fn range_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut n = None;
    if let (Some(start), Some(limit), Some(delta)) =
        (ctx.constant(0), ctx.constant(1), ctx.constant(2))
    {
        n = dispatch!(start.dtype(), T in [i32, i64, f32, f64, f16, bf16, i8, i16, u16, u32, u64] =>
            Some(range_len(start.to_scalar::<T>()?, limit.to_scalar()?, delta.to_scalar()?)?),
            else None);
    }
    ctx.set(0, PartialShape::of([n.map(|n| n as usize)]));
    Ok(())
}

fn lin_space(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    /// Computes `start + step * i`, every operation rounded to `T`.
    fn kernel<T: Element>(
        step: fn(T, T, i64) -> T,
        at: impl Fn(T, T, i64) -> T + Send + Sync + 'static,
    ) -> Box<dyn OpKernel> {
        Box::new(move |ctx: &mut KernelCtx| {
            for (i, name) in ["start", "stop", "num"].iter().enumerate() {
                if !ctx.shape(i)?.is_scalar() {
                    let shape = ctx.shape(i)?;
                    return Err(invalid_argument!(
                        "{name} must be a scalar, not shape {shape}"
                    ));
                }
            }
            let num = indices::int(ctx.input(2)?).unwrap_or(0);
            if num <= 0 {
                return Err(invalid_argument!("Requires num > 0: {num}"));
            }
            let (start, stop) = (ctx.input(0)?.to_scalar()?, ctx.input(1)?.to_scalar()?);
            let mut out = ctx.alloc(T::DTYPE, Shape::checked(&[num])?)?;
            let values = out.slice_mut::<T>()?;
            let step = step(start, stop, (num - 1).max(1));
            vectorized(
                #[inline(always)]
                || {
                    for (i, v) in (0..).zip(values.iter_mut()) {
                        *v = at(start, step, i);
                    }
                },
            );
            values[0] = start;
            if let [_, .., last] = values {
                *last = stop;
            }
            ctx.set_output(0, out)
        })
    }
    match build.output(0)? {
        DType::Float => Ok(kernel::<f32>(
            |a, b, n| (b - a) / n as f32,
            |a, s, i| a + s * i as f32,
        )),
        DType::Double => Ok(kernel::<f64>(
            |a, b, n| (b - a) / n as f64,
            |a, s, i| a + s * i as f64,
        )),
        DType::Half => Ok(kernel::<f16>(
            |a, b, n| (b - a) / f16::from_f64(n as f64),
            |a, s, i| a + s * f16::from_f64(i as f64),
        )),
        DType::Bfloat16 => Ok(kernel::<bf16>(
            |a, b, n| (b - a) / bf16::from_f64(n as f64),
            |a, s, i| a + s * bf16::from_f64(i as f64),
        )),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// A numeric type of Range.
trait Count: Element {
    const ZERO: Self;
    /// Returns the number of steps of `delta` from `start` to `limit`.
    fn steps(start: Self, limit: Self, delta: Self) -> Option<u64>;
    fn less(self, other: Self) -> bool;
    fn plus(self, delta: Self) -> Self;
}

count_ints!(i8, i16, i32, i64, u16, u32, u64);

count_floats! {
    f32, 0.0, f64::from;
    f64, 0.0, f64::from;
    f16, f16::ZERO, f16::to_f64;
    bf16, bf16::ZERO, bf16::to_f64;
}
