//! IsotonicRegression by pooling adjacent violators (TensorFlow:
//! `core/kernels/isotonic_regression_op.cc`).

use ferroflow_base::Result;
use ferroflow_functors::shapes;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, bf16, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "IsotonicRegression",
    "input: T -> output: output_dtype, segments: int32 | T: realnumbertype; output_dtype: type \
     {half,bfloat16,float,double} = float",
)
.shape(|ctx| {
    shapes::unchanged(ctx)?;
    let shape = ctx.input(0);
    ctx.set(1, shape);
    Ok(())
})
.kernel(kernel)
.gradient(gradient)];

/// A number that is averaged; 16-bit floats round each sum, as in TensorFlow.
trait Average: Element + PartialOrd {
    fn plus(self, other: Self) -> Self;
    fn over(self, n: usize) -> Self;
}

macro_rules! averages {
    ($($ty:ty, $of_count:expr;)*) => {$(
        impl Average for $ty {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn over(self, n: usize) -> Self {
                self / $of_count(n)
            }
        }
    )*};
}
averages! {
    f32, |n| n as f32;
    f64, |n| n as f64;
    f16, |n| f16::from_f64(n as f64);
    bf16, |n| bf16::from_f64(n as f64);
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (input, output) = (build.input(0)?, build.output(0)?);
    macro_rules! pairs {
        ($($dtype:ident: $from:ty => $to:ty, $of:expr;)*) => {
            $(if input == DType::$dtype && output == <$to>::DTYPE {
                return Ok(Box::new(|ctx: &mut KernelCtx| solve::<$from, $to>(ctx, $of)));
            })*
        };
    }
    pairs! {
        Float: f32 => f32, |x| x;
        Double: f64 => f64, |x| x;
        Half: f16 => f16, |x| x;
        Bfloat16: bf16 => bf16, |x| x;
        Int8: i8 => f32, f32::from;
        Int16: i16 => f32, f32::from;
        Int32: i32 => f64, f64::from;
        Int64: i64 => f64, |x| x as f64;
    }
    Err(build.unsupported(input))
}

/// Neighbors with one value.
struct Pool<T> {
    start: usize,
    n: usize,
    sum: T,
    value: T,
}

fn solve<A: Element, T: Average>(ctx: &mut KernelCtx, of: fn(A) -> T) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let n = shape.last().copied().unwrap_or(1);
    let x = ctx.slice::<A>(0)?;
    let mut values = ctx.alloc(T::DTYPE, shape.clone())?;
    let mut segments = ctx.alloc(DType::Int32, shape)?;
    let rows = values.slice_mut::<T>()?.chunks_mut(n.max(1));
    let ids = segments.slice_mut::<i32>()?.chunks_mut(n.max(1));
    let mut rows: Vec<_> = rows.zip(ids).collect();
    let chunk = (4096 / n.max(1)).max(1);
    par_chunks_mut(ctx.par(), &mut rows, chunk, 1, &|i, rows| {
        let mut pools: Vec<Pool<T>> = Vec::with_capacity(n);
        for (j, (values, ids)) in rows.iter_mut().enumerate() {
            let row = x.get((i * chunk + j) * n..).unwrap_or_default();
            pools.clear();
            for (start, &x) in row.iter().take(n).enumerate() {
                let value = of(x);
                pools.push(Pool {
                    start,
                    n: 1,
                    sum: value,
                    value,
                });
                while let [.., before, last] = &mut pools[..]
                    && last.value > before.value
                {
                    before.n += last.n;
                    before.sum = before.sum.plus(last.sum);
                    before.value = before.sum.over(before.n);
                    pools.pop();
                }
            }
            for (id, pool) in pools.iter().enumerate() {
                let range = pool.start..pool.start + pool.n;
                values
                    .get_mut(range.clone())
                    .unwrap_or_default()
                    .fill(pool.value);
                ids.get_mut(range).unwrap_or_default().fill(id as i32);
            }
        }
    });
    drop(rows);
    ctx.set_output(0, values)?;
    ctx.set_output(1, segments)
}

/// Each element gets the average gradient of its segment.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (ids, dy) = (g.y(1), g.dy(0));
    let (zero, one, flat) = (ids.int(0), ids.int(1), ids.ints([-1]));
    let shape = ids.op("Shape", &[]);
    let n = shape.op("GatherV2", &[ids.int(-1) + ids.op("Rank", &[]), zero]);
    let total = ids.op("Size", &[]);
    // The number of the row, times its length, makes ids unique.
    let rows = zero.op("Range", &[total, one]).op("FloorDiv", &[n]) * n;
    let ids = ids.reshape(flat) + rows;
    let sums = dy.reshape(flat).op("UnsortedSegmentSum", &[ids, total]);
    let ones = dy.reshape(flat).op("OnesLike", &[]);
    let counts = ones.op("UnsortedSegmentSum", &[ids, total]);
    let means = sums.op("GatherV2", &[ids, zero]) / counts.op("GatherV2", &[ids, zero]);
    g.set(0, means.reshape_like(dy))
}
