//! ArgMax and ArgMin (TensorFlow: `core/kernels/argmax_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{axis_in, int, narrowed};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, bf16, dispatch, f16};

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

impl Arg for f16 {
    const LEAST: Self = f16::NEG_INFINITY;
    const MOST: Self = f16::INFINITY;
}

impl Arg for bf16 {
    const LEAST: Self = bf16::NEG_INFINITY;
    const MOST: Self = bf16::INFINITY;
}

fn factory<const LARGEST: bool>(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(0)?);
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool, f16, bf16] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| arg::<T, LARGEST>(ctx, index))),
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

fn arg<T: Arg, const LARGEST: bool>(ctx: &mut KernelCtx, index: DType) -> Result<()> {
    let Job { out, n, cols } = job(ctx)?;
    let mut out = ctx.alloc(DType::Int64, out)?;
    let x = ctx.slice::<T>(0)?;
    let values = out.slice_mut::<i64>()?;
    if !values.is_empty() {
        let group = (CHEAP / (n * cols)).max(1);
        par_chunks_mut(ctx.par(), values, cols, group, &|i, out| {
            let x = &x[i * n * cols..(i + 1) * n * cols];
            match out {
                [out] => *out = arg_row::<T, LARGEST>(x) as i64,
                _ => arg_columns::<T, LARGEST>(x, out),
            }
        });
    }
    let out = narrowed(out, index)?;
    ctx.set_output(0, out)
}

fn arg_row<T: Arg, const LARGEST: bool>(x: &[T]) -> usize {
    let mut lanes = [if LARGEST { T::LEAST } else { T::MOST }; 16];
    for chunk in x.chunks(16) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if beats::<T, LARGEST>(*x, *lane) {
                *x
            } else {
                *lane
            };
        }
    }
    let best = lanes[1..].iter().fold(lanes[0], |best, &x| {
        if beats::<T, LARGEST>(x, best) {
            x
        } else {
            best
        }
    });
    x.iter().position(|x| *x == best).unwrap_or(0)
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
