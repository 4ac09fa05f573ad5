//! InplaceUpdate, InplaceAdd, InplaceSub, DeepCopy and ParallelConcat (TensorFlow:
//! `core/kernels/inplace_ops.cc`).
//!
//! TensorFlow's ops overwrite their input even if other nodes read it. Here the result is a new
//! value unless the node is the last reader.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Item, PartialShape, Shape, Tensor, dispatch, dispatch_items,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("InplaceUpdate", "x: T, i: int32, v: T -> y: T | T: type")
        .shape(same_as_first)
        .kernel(|build| dispatch_items!(build.output(0)?, T => Ok(Box::new(update::<T>)))),
    Op::new("InplaceAdd", "x: T, i: int32, v: T -> y: T | T: type")
        .shape(same_as_first)
        .kernel(|build| sums(build, true)),
    Op::new("InplaceSub", "x: T, i: int32, v: T -> y: T | T: type")
        .shape(same_as_first)
        .kernel(|build| sums(build, false)),
    Op::new("DeepCopy", "x: T -> y: T | T: type | stateful")
        .shape(shapes::unchanged)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let x = ctx.input(0)?;
                let mut y = Tensor::zeros(x.dtype(), x.shape().clone())?;
                dispatch_items!(x.dtype(), T => {
                    y.items_mut::<T>()?.clone_from_slice(x.items::<T>()?);
                });
                ctx.set_output(0, y)
            }))
        }),
    Op::new(
        "ParallelConcat",
        "values: N*T -> output: T | N: int >= 1; T: type; shape: shape",
    )
    .shape(shapes::from_shape_attr)
    .kernel(parallel_concat),
    // TensorFlow's masters make these of ParallelConcat; the pass `composite` joins them again.
    Op::new(
        "_ParallelConcatStart",
        "-> output: dtype | shape: shape; dtype: type | stateful",
    )
    .shape(shapes::from_shape_attr),
    Op::new(
        "_ParallelConcatUpdate",
        "value: T, update: T -> output: T | T: type; loc: int",
    )
    .shape(same_as_first),
];

fn same_as_first(ctx: &mut ferroflow_opdef::ShapeCtx) -> Result<()> {
    let shape = ctx.input(0);
    ctx.set(0, shape);
    Ok(())
}

/// Checks the inputs; returns the rows that are written and the elements of a row.
fn rows(ctx: &KernelCtx) -> Result<(Vec<usize>, usize)> {
    let (x, i, v) = (ctx.shape(0)?, ctx.input(1)?, ctx.shape(2)?);
    if i.shape().rank() != 1 {
        return Err(invalid_argument!("i must be a vector. {}", i.shape()));
    }
    if x.rank() != v.rank() {
        return Err(invalid_argument!(
            "x and v shape doesn't match (ranks differ): {x} vs. {v}"
        ));
    }
    let pairs = x.iter().zip(v.iter()).enumerate();
    if let Some((d, _)) = pairs.skip(1).find(|(_, (x, v))| x != v) {
        return Err(invalid_argument!(
            "x and v shape doesn't match at index {d} : {x} vs. {v}"
        ));
    }
    let mismatch = || {
        invalid_argument!(
            "i and x shape doesn't match at index 0: {} vs. {v}",
            i.shape()
        )
    };
    let (&n, inner) = x.split_first().ok_or_else(mismatch)?;
    if i.num_elements() != v[0] {
        return Err(mismatch());
    }
    let width = inner.iter().product();
    if n == 0 || width == 0 {
        return Ok((Vec::new(), 1));
    }
    let place = |&r: &i32| i64::from(r).rem_euclid(n as i64) as usize;
    Ok((i.slice::<i32>()?.iter().map(place).collect(), width))
}

fn update<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (rows, width) = rows(ctx)?;
    let mut y = ctx.take_input(0)?;
    let from = ctx.input(2)?.items::<T>()?.chunks_exact(width);
    let to = y.items_mut::<T>()?;
    for (r, from) in rows.into_iter().zip(from) {
        if let Some(to) = to.get_mut(r * width..(r + 1) * width) {
            to.clone_from_slice(from);
        }
    }
    ctx.set_output(0, y)
}

fn sums(build: &KernelBuild, add: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let wide = match dtype {
        DType::Half | DType::Bfloat16 => DType::Float,
        dtype => dtype,
    };
    dispatch!(wide, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let f = if add { <T as Num>::add } else { <T as Num>::sub };
        combine::<T>(ctx, dtype, f)
    })),
    else Ok(Box::new(move |_: &mut KernelCtx| {
        Err(invalid_argument!("Unsupported data type: {dtype}"))
    })))
}

fn combine<T: Num>(ctx: &mut KernelCtx, dtype: DType, f: fn(T, T) -> T) -> Result<()> {
    let (rows, width) = rows(ctx)?;
    let (mut y, mut v) = (ctx.take_input(0)?, ctx.input(2)?.clone());
    if dtype != T::DTYPE {
        (y, v) = (widened(ctx.par(), &y)?, widened(ctx.par(), &v)?);
    }
    let to = y.slice_mut::<T>()?;
    for (r, from) in rows.into_iter().zip(v.slice::<T>()?.chunks_exact(width)) {
        let to = to.get_mut(r * width..(r + 1) * width).unwrap_or_default();
        for (to, &x) in to.iter_mut().zip(from) {
            *to = f(*to, x);
        }
    }
    if dtype != T::DTYPE {
        y = narrowed(ctx.par(), y, dtype)?;
    }
    ctx.set_output(0, y)
}

fn parallel_concat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let shape: PartialShape = build.attrs.shape("shape")?.clone();
    let Some(shape) = shape.to_full() else {
        return Err(invalid_argument!("shape attr must be fully defined."));
    };
    let dtype = build.output(0)?;
    dispatch_items!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = stack::<T>(ctx, dtype, &shape)?;
        ctx.set_output(0, out)
    })))
}

/// Each input is a row of the result.
fn stack<T: Item>(ctx: &KernelCtx, dtype: DType, shape: &Shape) -> Result<Tensor> {
    let n = ctx.num_inputs();
    let fits = |row: &Shape| {
        let same = row.get(1..) == shape.get(1..);
        row.first() == Some(&1) && same && shape.first() == Some(&n)
    };
    let mut parts = Vec::with_capacity(n);
    for i in 0..n {
        let part = ctx.input(i)?;
        if !fits(part.shape()) {
            return Err(invalid_argument!(
                "All input shapes must be compatible with the shape attr {shape}: input {i} of {n} \
                 has shape {}",
                part.shape()
            ));
        }
        parts.push(part.items::<T>()?);
    }
    let mut out = Tensor::zeros(dtype, shape.clone())?;
    let width = shape.iter().skip(1).product::<usize>().max(1);
    let rows = out.items_mut::<T>()?.chunks_exact_mut(width);
    for (to, from) in rows.zip(parts) {
        to.clone_from_slice(from);
    }
    Ok(out)
}
