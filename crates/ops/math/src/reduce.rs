//! Reductions over axes: Sum, Mean, Prod, Max, Min, EuclideanNorm, All, Any, L2Loss.

use crate::reduce_gradient;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::reduce::{
    All, Any, FastMax, FastMin, FastSum, FastSumSquares, Layout, Max, Min, Prod, Reduce, Sum,
    SumSquares, layout, reduce,
};
use ferroflow_functors::shapes;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, Tensor, bf16, dispatch, f16,
};
use smallvec::SmallVec;
use std::any::TypeId;

const NUMBERS: &str = "input: T, reduction_indices: Tidx -> output: T | keep_dims: bool = false; T: type {float,double,int32,uint8,int16,int8,complex64,int64,qint8,quint8,qint32,bfloat16,qint16,quint16,uint16,complex128,half,uint32,uint64}; Tidx: type {int32,int64} = int32 |";
const ORDERED: &str = "input: T, reduction_indices: Tidx -> output: T | keep_dims: bool = false; T: type {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64,qint8,quint8,qint32,qint16,quint16}; Tidx: type {int32,int64} = int32 |";
const BOOLS: &str = "input: bool, reduction_indices: Tidx -> output: bool | keep_dims: bool = false; Tidx: type {int32,int64} = int32 |";

const fn row(
    name: &'static str,
    signature: &'static str,
    kernel: fn(&KernelBuild) -> Result<Box<dyn OpKernel>>,
) -> Op {
    Op::new(name, signature).shape(reduced_shape).kernel(kernel)
}

/// The factory of a reduction: by `$fast` for `f32` and the 16-bit floats, by `$slow` for the rest.
macro_rules! reduction {
    ($fast:ty, $slow:ty, $finish:ident, [$($ty:ty),+]) => {
        |build| match build.input(0)? {
            DType::Float => kernel::<f32, $fast>(build, $finish),
            DType::Half => half_kernel::<f16, $fast>(build, $finish),
            DType::Bfloat16 => half_kernel::<bf16, $fast>(build, $finish),
            dtype => dispatch!(dtype, T in [$($ty),+] => kernel::<T, $slow>(build, $finish),
                else Err(build.unsupported(dtype))),
        }
    };
}
macro_rules! number_reduction {
    ($fast:ty, $slow:ty, $finish:ident) => {
        reduction!(
            $fast,
            $slow,
            $finish,
            [
                f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64
            ]
        )
    };
}

/// Sum, Mean, Prod, Max, Min, EuclideanNorm, All, Any, L2Loss.
pub(crate) const OPS: &[Op] = &[
    row("Sum", NUMBERS, number_reduction!(FastSum, Sum, as_is)).gradient(reduce_gradient::sum),
    row("Mean", NUMBERS, mean_kernel).gradient(reduce_gradient::mean),
    row("Prod", NUMBERS, number_reduction!(Prod, Prod, as_is)).gradient(reduce_gradient::prod),
    row(
        "EuclideanNorm",
        NUMBERS,
        number_reduction!(FastSumSquares, SumSquares, root),
    )
    .gradient(reduce_gradient::norm),
    row(
        "Max",
        ORDERED,
        reduction!(
            FastMax,
            Max,
            as_is,
            [f64, i8, i16, i32, i64, u8, u16, u32, u64]
        ),
    )
    .gradient(reduce_gradient::extreme),
    row(
        "Min",
        ORDERED,
        reduction!(
            FastMin,
            Min,
            as_is,
            [f64, i8, i16, i32, i64, u8, u16, u32, u64]
        ),
    )
    .gradient(reduce_gradient::extreme),
    row("All", BOOLS, bool_kernel::<All>).not_differentiable(),
    row("Any", BOOLS, bool_kernel::<Any>).not_differentiable(),
    Op::new(
        "L2Loss",
        "t: T -> output: T | T: type {half,bfloat16,float,double} |",
    )
    .shape(shapes::scalar)
    .kernel(|build| match build.input(0)? {
        DType::Float => Ok(Box::new(Loss::<f32, FastSumSquares>::new())),
        DType::Double => Ok(Box::new(Loss::<f64, SumSquares>::new())),
        DType::Half => Ok(Box::new(half_loss::<f16>)),
        DType::Bfloat16 => Ok(Box::new(half_loss::<bf16>)),
        dtype => Err(build.unsupported(dtype)),
    })
    .gradient(reduce_gradient::l2_loss),
];

/// The sum of short integers may need more digits than they have.
fn mean_kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let other: fn(&KernelBuild) -> Result<Box<dyn OpKernel>> =
        number_reduction!(FastSum, Sum, mean);
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [i8, i16, i32, u8, u16, u32] => integer_mean::<T>(build),
        else other(build))
}

fn integer_mean<T: Element + Into<i64> + TryFrom<i64>>(
    build: &KernelBuild,
) -> Result<Box<dyn OpKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, keep_dims)?;
        let x = ctx.slice::<T>(0)?;
        let mut wide = Tensor::for_overwrite(DType::Int64, [x.len()].into())?;
        par_chunks_mut(ctx.par(), wide.slice_mut::<i64>()?, CHEAP, 1, &|i, out| {
            let x = &x[i * CHEAP..][..out.len()];
            out.iter_mut()
                .zip(x)
                .for_each(|(out, x)| *out = (*x).into());
        });
        let mut sums = vec![0; job.out.num_elements()];
        reduce::<i64, Sum>(ctx.par(), &job.layout, wide.slice()?, &mut sums)?;
        let mut out = ctx.alloc(T::DTYPE, job.out)?;
        for (out, sum) in out.slice_mut::<T>()?.iter_mut().zip(sums) {
            // An average lies between what it is the average of.
            *out = T::try_from(mean(sum, job.count)).unwrap_or_default();
        }
        ctx.set_output(0, out)
    }))
}

fn as_is<T>(x: T, _: usize) -> T {
    x
}

fn mean<T: Num>(sum: T, n: usize) -> T {
    sum.average(n)
}

fn root<T: Num>(x: T, _: usize) -> T {
    x.root()
}

/// The output shape of an op that reduces input 0 over the axes in input 1.
pub(crate) fn reduced_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let keep_dims = ctx.attrs().bool("keep_dims")?;
    let shape = match (input.dims(), ctx.constant_ints(1)) {
        (Some(dims), Some(axes)) => {
            let reduced = marked(&axes, dims.len())?;
            let dims = dims.iter().zip(&reduced);
            PartialShape::of(
                dims.filter_map(|(&d, &reduced)| match (reduced, keep_dims) {
                    (false, _) => Some(d),
                    (true, true) => Some(Some(1)),
                    (true, false) => None,
                }),
            )
        }
        (Some(dims), None) if keep_dims => PartialShape::of_rank(dims.len()),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Which of `rank` dimensions the axes name.
fn marked(axes: &[i64], rank: usize) -> Result<SmallVec<[bool; 8]>> {
    let mut reduced = SmallVec::from_elem(false, rank);
    for &axis in axes {
        let at = if axis < 0 {
            axis.saturating_add(rank as i64)
        } else {
            axis
        };
        let slot = usize::try_from(at).ok().and_then(|i| reduced.get_mut(i));
        match slot {
            None => {
                return Err(invalid_argument!(
                    "Invalid reduction dimension ({axis} for input with {rank} dimension(s)"
                ));
            }
            Some(true) => {
                return Err(invalid_argument!(
                    "Invalid reduction arguments: Axes contains duplicate dimension: {at}"
                ));
            }
            Some(slot) => *slot = true,
        }
    }
    Ok(reduced)
}

/// What a reduction of input 0 over the axes in input 1 comes to.
struct Job {
    layout: Layout,
    out: Shape,
    /// Elements that become one.
    count: usize,
}

fn job(ctx: &KernelCtx, keep_dims: bool) -> Result<Job> {
    let (shape, axes) = (ctx.shape(0)?, ctx.input(1)?);
    let axes: SmallVec<[i64; 8]> = match axes.dtype() {
        DType::Int32 => axes.slice::<i32>()?.iter().map(|&a| a.into()).collect(),
        _ => axes.slice::<i64>()?.iter().copied().collect(),
    };
    let reduced = marked(&axes, shape.rank())?;
    let (mut out, mut count) = (Shape::scalar(), 1);
    for (&d, &reduced) in shape.iter().zip(&reduced) {
        match (reduced, keep_dims) {
            (false, _) => out.push(d),
            (true, true) => out.push(1),
            (true, false) => {}
        }
        count = usize::saturating_mul(count, if reduced { d } else { 1 });
    }
    Ok(Job {
        layout: layout(shape, &reduced),
        out,
        count,
    })
}

fn kernel<T: Element, R: Reduce<T>>(
    build: &KernelBuild,
    finish: fn(T, usize) -> T,
) -> Result<Box<dyn OpKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    // The reduction of one element is that element.
    let keeps_one = TypeId::of::<R>() == TypeId::of::<R::Then>();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, keep_dims)?;
        if keeps_one && job.count == 1 {
            let x = ctx.take_input(0)?.with_shape(job.out)?;
            return ctx.set_output(0, x);
        }
        let mut out = ctx.alloc(T::DTYPE, job.out)?;
        let values = out.slice_mut::<T>()?;
        reduce::<T, R>(ctx.par(), &job.layout, ctx.slice::<T>(0)?, values)?;
        values.iter_mut().for_each(|x| *x = finish(*x, job.count));
        ctx.set_output(0, out)
    }))
}

fn bool_kernel<R: Reduce<bool>>(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    kernel::<bool, R>(build, as_is)
}

/// The elements as `f32`.
fn widened<H: Half>(par: &dyn Parallelism, x: &[H]) -> Result<Tensor> {
    let mut wide = Tensor::for_overwrite(DType::Float, [x.len()].into())?;
    par_chunks_mut(par, wide.slice_mut::<f32>()?, CHEAP, 1, &|i, out| {
        H::widen(&x[i * CHEAP..i * CHEAP + out.len()], out);
    });
    Ok(wide)
}

fn half_kernel<H: Half, R: Reduce<f32>>(
    build: &KernelBuild,
    finish: fn(f32, usize) -> f32,
) -> Result<Box<dyn OpKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, keep_dims)?;
        let wide = widened(ctx.par(), ctx.slice::<H>(0)?)?;
        let mut sums = ctx.alloc(DType::Float, job.out.clone())?;
        let values = sums.slice_mut::<f32>()?;
        reduce::<f32, R>(ctx.par(), &job.layout, wide.slice()?, values)?;
        values.iter_mut().for_each(|x| *x = finish(*x, job.count));
        let mut out = ctx.alloc(H::DTYPE, job.out)?;
        H::narrow_all(values, out.slice_mut()?);
        ctx.set_output(0, out)
    }))
}

/// The kernel of L2Loss.
struct Loss<T, R>(std::marker::PhantomData<fn() -> (T, R)>);

impl<T, R> Loss<T, R> {
    fn new() -> Self {
        Loss(std::marker::PhantomData)
    }
}

fn half_sum_squares<T: Num, R: Reduce<T>>(par: &dyn Parallelism, x: &[T]) -> Result<T> {
    let mut out = [T::ZERO];
    reduce::<T, R>(par, &layout(&[x.len()], &[true]), x, &mut out)?;
    Ok(out[0].div(T::ONE.add(T::ONE)))
}

impl<T: Num, R: Reduce<T>> OpKernel for Loss<T, R> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let loss = half_sum_squares::<T, R>(ctx.par(), ctx.slice::<T>(0)?)?;
        ctx.set_output(0, Tensor::scalar(loss))
    }
}

fn half_loss<H: Half>(ctx: &mut KernelCtx) -> Result<()> {
    let wide = widened(ctx.par(), ctx.slice::<H>(0)?)?;
    let loss = half_sum_squares::<f32, FastSumSquares>(ctx.par(), wide.slice()?)?;
    ctx.set_output(0, Tensor::scalar(H::narrow(loss)))
}
