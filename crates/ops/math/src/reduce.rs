//! Reductions over axes: Sum, Mean, Prod, Max, Min, EuclideanNorm, All, Any (TensorFlow:
//! `core/kernels/reduction_ops_common.h`).

use ferroflow_base::Result;
use ferroflow_functors::half_conversion::widened;
use ferroflow_functors::numeric::{Half, Num};
use ferroflow_functors::reduce::{
    All, Any, FastMax, FastMin, FastProd, FastSum, FastSumSquares, Layout, Max, Min, Prod, Reduce,
    Reducer, Sum, SumSquares, layout, reduce,
};
use ferroflow_functors::shapes::{self, marked};
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, bf16, dispatch, f16};
use smallvec::SmallVec;
use std::any::TypeId;

/// The factory of a reduction: by `$fast` for `f32` and the 16-bit floats, by `$slow` for the
/// others.
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

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("Sum", NUMBERS)
        .shape(shapes::reduced)
        .kernel(number_reduction!(FastSum, Sum, as_is))
        .gradient(sum_gradient),
    Op::new("Mean", NUMBERS)
        .shape(shapes::reduced)
        .kernel(mean_kernel)
        .gradient(mean_gradient),
    Op::new("Prod", NUMBERS)
        .shape(shapes::reduced)
        .kernel(number_reduction!(FastProd, Prod, as_is))
        .gradient(prod_gradient),
    Op::new("EuclideanNorm", NUMBERS)
        .shape(shapes::reduced)
        .kernel(number_reduction!(FastSumSquares, SumSquares, root))
        .gradient(norm_gradient),
    Op::new("Max", ORDERED)
        .shape(shapes::reduced)
        .kernel(reduction!(
            FastMax,
            Max,
            as_is,
            [f64, i8, i16, i32, i64, u8, u16, u32, u64]
        ))
        .gradient(extreme_gradient),
    Op::new("Min", ORDERED)
        .shape(shapes::reduced)
        .kernel(reduction!(
            FastMin,
            Min,
            as_is,
            [f64, i8, i16, i32, i64, u8, u16, u32, u64]
        ))
        .gradient(extreme_gradient),
    Op::new("All", BOOLS)
        .shape(shapes::reduced)
        .kernel(bool_kernel::<All>)
        .not_differentiable(),
    Op::new("Any", BOOLS)
        .shape(shapes::reduced)
        .kernel(bool_kernel::<Any>)
        .not_differentiable(),
];

const NUMBERS: &str = "input: T, reduction_indices: Tidx -> output: T | keep_dims: bool = false; T: \
         numbertype; Tidx: type {int32,int64} = int32 |";

const ORDERED: &str = "input: T, reduction_indices: Tidx -> output: T | keep_dims: bool = false; T: \
         type {realnumbertype,qint8,quint8,qint32,qint16,quint16}; Tidx: type \
         {int32,int64} = int32";

const BOOLS: &str = "input: bool, reduction_indices: Tidx -> output: bool | keep_dims: bool = \
         false; Tidx: type {int32,int64} = int32";

/// The sum of narrow integers may need more digits than their type has.
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
        reduce(
            ctx.par(),
            &Reducer::of::<Sum>(),
            &job.layout,
            wide.slice()?,
            &mut sums,
        )?;
        let mut out = ctx.alloc(T::DTYPE, job.out)?;
        for (out, sum) in out.slice_mut::<T>()?.iter_mut().zip(sums) {
            // An average is within the range of its terms.
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

/// A reduction of input 0 over the axes in input 1.
struct Job {
    layout: Layout,
    out: Shape,
    /// Elements reduced to one.
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

pub(crate) fn kernel<T: Element, R: Reduce<T>>(
    build: &KernelBuild,
    finish: fn(T, usize) -> T,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Reduction {
        reducer: Reducer::of::<R>(),
        finish,
        keeps_one: TypeId::of::<R>() == TypeId::of::<R::Then>(),
        keep_dims: build.attrs.bool("keep_dims")?,
    }))
}

/// The kernel of a reduction.
struct Reduction<T> {
    reducer: Reducer<T>,
    /// What becomes of a result, by the number of elements that were reduced to it.
    finish: fn(T, usize) -> T,
    /// Whether the reduction of one element is that element.
    keeps_one: bool,
    keep_dims: bool,
}

impl<T: Element> OpKernel for Reduction<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let job = job(ctx, self.keep_dims)?;
        if self.keeps_one && job.count == 1 {
            let x = ctx.take_input(0)?.with_shape(job.out)?;
            return ctx.set_output(0, x);
        }
        let mut out = ctx.alloc(T::DTYPE, job.out)?;
        let values = out.slice_mut::<T>()?;
        reduce(
            ctx.par(),
            &self.reducer,
            &job.layout,
            ctx.slice::<T>(0)?,
            values,
        )?;
        for x in values {
            *x = (self.finish)(*x, job.count);
        }
        ctx.set_output(0, out)
    }
}

fn bool_kernel<R: Reduce<bool>>(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    kernel::<bool, R>(build, as_is)
}

/// Reduces 16-bit floats in `f32`.
fn half_kernel<H: Half, R: Reduce<f32>>(
    build: &KernelBuild,
    finish: fn(f32, usize) -> f32,
) -> Result<Box<dyn OpKernel>> {
    half_reduction::<H>(build, Reducer::of::<R>(), finish)
}

fn half_reduction<H: Half>(
    build: &KernelBuild,
    reducer: Reducer<f32>,
    finish: fn(f32, usize) -> f32,
) -> Result<Box<dyn OpKernel>> {
    let keep_dims = build.attrs.bool("keep_dims")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let job = job(ctx, keep_dims)?;
        let wide = widened(ctx.par(), ctx.input(0)?)?;
        let mut sums = ctx.alloc(DType::Float, job.out.clone())?;
        let values = sums.slice_mut::<f32>()?;
        reduce(ctx.par(), &reducer, &job.layout, wide.slice()?, values)?;
        for x in values.iter_mut() {
            *x = finish(*x, job.count);
        }
        let mut out = ctx.alloc(H::DTYPE, job.out)?;
        H::narrow_all(values, out.slice_mut()?);
        ctx.set_output(0, out)
    }))
}

/// Returns `y`, an output of the node or its gradient, with the reduced axes kept as 1.
fn kept<'g>(g: &GradientCtx<'g>, y: Expr<'g>) -> Result<Expr<'g>> {
    if g.attrs().bool("keep_dims")? {
        return Ok(y);
    }
    let (x, axes) = (g.x(0), g.x(1));
    if let (Some(rank), Some(axes)) = (x.rank(), axes.constant_ints()) {
        let mut is_reduced = vec![false; rank];
        for axis in axes {
            let axis = if axis < 0 { axis + rank as i64 } else { axis };
            if let Some(reduced) = usize::try_from(axis)
                .ok()
                .and_then(|a| is_reduced.get_mut(a))
            {
                *reduced = true;
            }
        }
        let dims = x.shape();
        let dims: Option<Vec<i64>> = dims.dims().and_then(|dims| {
            let both = dims.iter().zip(&is_reduced);
            both.map(|(d, reduced)| {
                if *reduced {
                    Some(1)
                } else {
                    d.map(|d| d as i64)
                }
            })
            .collect()
        });
        return Ok(match dims {
            Some(dims) => y.reshape(y.ints(dims)),
            None => (0..rank)
                .filter(|&a| is_reduced[a])
                .fold(y, |y, a| y.op("ExpandDims", &[y.int(a as i32)])),
        });
    }
    let shape = x.op("Shape", &[]);
    let axes = positions(x, axes);
    let index = axes.op("ExpandDims", &[x.int(1)]);
    let ones = axes.op("OnesLike", &[]);
    Ok(y.reshape(shape.op("TensorScatterUpdate", &[index, ones])))
}

/// Returns the axes as a vector of non-negative int32.
fn positions<'g>(x: Expr<'g>, axes: Expr<'g>) -> Expr<'g> {
    let axes = axes.cast(DType::Int32).reshape(axes.ints([-1]));
    let rank = x.op("Rank", &[]);
    (axes + rank).op("FloorMod", &[rank])
}

/// Returns `value` broadcast to the shape of the input.
fn spread<'g>(g: &GradientCtx<'g>, value: Expr<'g>) -> Expr<'g> {
    value.op("BroadcastTo", &[g.x(0).shape_of()])
}

/// Returns the gradient of Sum.
fn sum_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = spread(g, kept(g, g.dy(0))?);
    g.set(0, dx)
}

/// Returns the gradient of Mean.
fn mean_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), kept(g, g.dy(0))?);
    let n = match (x.shape().num_elements(), y.shape().num_elements()) {
        (Some(all), Some(left)) => d.number(all as f64 / left.max(1) as f64),
        _ => {
            let (all, left) = (x.op("Size", &[]), y.op("Size", &[]));
            all.op("FloorDiv", &[left.op("Maximum", &[left.int(1)])])
                .cast(d.dtype())
        }
    };
    let dx = spread(g, d / n);
    g.set(0, dx)
}

/// Returns the gradient of Max and Min: elements equal to the result share it.
fn extreme_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), kept(g, g.y(0))?, kept(g, g.dy(0))?);
    let is_it = x.op("Equal", &[y]).cast(d.dtype());
    let axes = positions(x, g.x(1));
    let n = is_it.sum(axes, true);
    g.set(0, is_it / n * d)
}

/// Returns the gradient of Prod: each element gets the product of all others, computed without
/// division.
fn prod_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, axes) = (g.x(0), positions(g.x(0), g.x(1)));
    let shape = x.op("Shape", &[]);
    let all = x.int(0).op("Range", &[x.op("Rank", &[]), x.int(1)]);
    let others = all.op("ListDiff", &[axes]);
    let order = x.make("ConcatV2", &[axes, others, x.int(0)], &[]);
    let product = |axes: Expr<'_>| {
        let sizes = shape.op("GatherV2", &[shape.at(axes.output()), shape.int(0)]);
        sizes.op("Prod", &[sizes.int(0)]).output()
    };
    let sizes = [axes, others].map(|a| shape.at(product(a)));
    let turned = x.op("Transpose", &[order]);
    let turned_shape = turned.op("Shape", &[]);
    let columns = turned.reshape(x.make("Pack", &sizes, &[]));
    let scan = |reverse: bool| {
        let attrs = [("exclusive", true.into()), ("reverse", reverse.into())];
        columns.op_with("Cumprod", &[x.int(0)], &attrs)
    };
    let rest = (scan(false) * scan(true)).conj().reshape(turned_shape);
    let rest = rest.op("Transpose", &[order.op("InvertPermutation", &[])]);
    let dx = rest * kept(g, g.dy(0))?;
    g.set(0, dx.reshape(shape))
}

/// Returns the gradient of EuclideanNorm.
fn norm_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), kept(g, g.y(0))?, kept(g, g.dy(0))?);
    g.set(0, x / (y / d))
}
