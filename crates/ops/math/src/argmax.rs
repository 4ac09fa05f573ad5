//! ArgMax and ArgMin (TensorFlow: `core/kernels/argmax_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::widened;
use ferroflow_functors::indices::{axis_in, int, narrowed};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch};

macro_rules! args {
    ($($ty:ty),*) => {$(
        impl Arg for $ty {
            const LEAST: Self = <$ty as Ordered>::LOWEST;
            const MOST: Self = <$ty as Ordered>::HIGHEST;
        }
    )*};
}

/// ArgMax, ArgMin.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ArgMax",
        "input: T, dimension: Tidx -> output: output_type | T: type \
         {realnumbertype,qint8,quint8,qint32,qint16,quint16,bool}; Tidx: type \
         {int16,int32,int64} = int32; output_type: type {int16,uint16,int32,int64} = \
         int64",
    )
    .shape(arg_shape)
    .kernel(factory::<true>)
    .not_differentiable(),
    Op::new(
        "ArgMin",
        "input: T, dimension: Tidx -> output: output_type | T: type \
         {realnumbertype,qint8,quint8,qint32,qint16,quint16,bool}; Tidx: type \
         {int32,int64} = int32; output_type: type {int32,int64} = int64",
    )
    .shape(arg_shape)
    .kernel(factory::<false>)
    .not_differentiable(),
];

fn arg_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let shape = match (input.dims(), ctx.constant(1)) {
        // As in TensorFlow, the kernel checks the axis of scalars and vectors.
        (Some([] | [_]), _) => PartialShape::scalar(),
        (Some(dims), Some(axis)) => {
            let axis = position(axis_value(axis)?, dims.len())?;
            PartialShape::of(
                dims.iter()
                    .enumerate()
                    .filter(|(i, _)| *i != axis)
                    .map(|(_, d)| *d),
            )
        }
        (Some([_, rest @ ..]), None) => PartialShape::of_rank(rest.len()),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Returns the value of a scalar axis input.
fn axis_value(axis: &Tensor) -> Result<i64> {
    if axis.num_elements() != 1 || !axis.shape().is_scalar() {
        return Err(invalid_argument!(
            "dim must be a scalar, but received tensor of shape: {}",
            axis.shape()
        ));
    }
    int(axis).ok_or_else(|| invalid_argument!("dim must be an integer"))
}

fn position(axis: i64, rank: usize) -> Result<usize> {
    axis_in(axis, rank).ok_or_else(|| {
        let least = -(rank as i64);
        invalid_argument!("Expected dimension in the range [{least}, {rank}), but got {axis}")
    })
}

/// An element that can be the largest or smallest.
trait Arg: Element + PartialOrd {
    const LEAST: Self;
    const MOST: Self;
}

args!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl Arg for bool {
    const LEAST: Self = false;
    const MOST: Self = true;
}

fn factory<const LARGEST: bool>(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(0)?);
    if let DType::Float | DType::Half | DType::Bfloat16 = dtype {
        return Ok(Box::new(move |ctx: &mut KernelCtx| {
            let x = widened(ctx.par(), ctx.input(0)?)?;
            arg::<f32, LARGEST>(ctx, &x, index, vectorized_row::<f32, LARGEST>)
        }));
    }
    dispatch!(dtype, T in [f64, i8, i16, i32, i64, u8, u16, u32, u64, bool] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let x = ctx.input(0)?.clone();
            arg::<T, LARGEST>(ctx, &x, index, arg_row::<T, LARGEST>)
        })),
        else Err(build.unsupported(dtype)))
}

/// Returns whether `a` beats `b`; NaN beats nothing.
#[inline(always)]
fn beats<T: PartialOrd, const LARGEST: bool>(a: T, b: T) -> bool {
    if LARGEST { a > b } else { a < b }
}

/// What a reduction works on: outer elements, `n` of the axis, `cols` within each.
struct Job {
    out: Shape,
    n: usize,
    cols: usize,
}

fn job(ctx: &KernelCtx) -> Result<Job> {
    let (shape, axis) = (ctx.shape(0)?, axis_value(ctx.input(1)?)?);
    let axis = position(axis, shape.rank())?;
    let (outer, inner) = (&shape[..axis], &shape[axis + 1..]);
    let out: Shape = outer.iter().chain(inner).copied().collect();
    if shape[axis] == 0 && out.num_elements() > 0 {
        return Err(invalid_argument!(
            "Reduction axis {axis} is empty in shape {shape}"
        ));
    }
    Ok(Job {
        out,
        n: shape[axis],
        cols: inner.iter().product(),
    })
}

/// `row` returns the index of the best element of a row.
fn arg<T: Arg, const LARGEST: bool>(
    ctx: &mut KernelCtx,
    x: &Tensor,
    index: DType,
    row: fn(&[T]) -> usize,
) -> Result<()> {
    let Job { out, n, cols } = job(ctx)?;
    let mut out = ctx.alloc(DType::Int64, out)?;
    let x = x.slice::<T>()?;
    let values = out.slice_mut::<i64>()?;
    if !values.is_empty() {
        let group = (CHEAP / (n * cols)).max(1);
        par_chunks_mut(ctx.par(), values, cols, group, &|i, out| {
            let x = &x[i * n * cols..(i + 1) * n * cols];
            match out {
                [out] => *out = row(x) as i64,
                _ => arg_columns::<T, LARGEST>(x, out),
            }
        });
    }
    let out = narrowed(out, index)?;
    ctx.set_output(0, out)
}

/// Elements that are compared at a time.
const LANES: usize = 64;
/// Longest rows whose elements are compared one after another.
const SHORT: usize = 24;

#[inline(always)]
fn arg_row<T: Arg, const LARGEST: bool>(x: &[T]) -> usize {
    let better = |x: T, best: T| match beats::<T, LARGEST>(x, best) {
        true => x,
        false => best,
    };
    let least = if LARGEST { T::LEAST } else { T::MOST };
    if x.len() <= SHORT {
        let (mut best, mut at) = (least, 0);
        for (i, x) in x.iter().enumerate() {
            if beats::<T, LARGEST>(*x, best) {
                (best, at) = (*x, i);
            }
        }
        return at;
    }
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [least; LANES];
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = better(*x, *lane);
    }
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = better(*x, *lane);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low = better(*high, *low);
        }
        half /= 2;
    }
    let best = lanes[0];
    if best == least {
        // Nothing beats the least number: they all are, or not numbers.
        return 0;
    }
    let has_best = |block: &[T; LANES]| block.iter().fold(false, |has, x| has | (*x == best));
    let start = LANES * blocks.iter().position(has_best).unwrap_or(blocks.len());
    let found = x[start..].iter().position(|x| *x == best);
    found.map_or(0, |i| start + i)
}

/// Like [`arg_row`], with the best instructions of the CPU.
fn vectorized_row<T: Arg, const LARGEST: bool>(x: &[T]) -> usize {
    vectorized(
        #[inline(always)]
        || arg_row::<T, LARGEST>(x),
    )
}

fn arg_columns<T: Arg, const LARGEST: bool>(x: &[T], out: &mut [i64]) {
    const WIDTH: usize = 256;
    let cols = out.len();
    for (i, out) in out.chunks_mut(WIDTH).enumerate() {
        let mut best = [if LARGEST { T::LEAST } else { T::MOST }; WIDTH];
        out.fill(0);
        for (r, row) in x.chunks_exact(cols).enumerate() {
            let row = &row[i * WIDTH..i * WIDTH + out.len()];
            for ((best, out), x) in best.iter_mut().zip(out.iter_mut()).zip(row) {
                if beats::<T, LARGEST>(*x, *best) {
                    *best = *x;
                    *out = r as i64;
                }
            }
        }
    }
}
