//! SparseSparseMaximum, SparseSparseMinimum and SparseDenseCwiseAdd, -Mul and -Div (TensorFlow:
//! `core/kernels/sparse_sparse_binary_op_shared.cc`, `sparse_dense_binary_op_shared.cc`).

use crate::sparse_add::{merge, same_shapes};
use crate::sparse_parts::{Rows, checked_shape, narrow_output, wide_input};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::indices::list;
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_functors::sparse::{check_bounds, check_parts};
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

const SPARSE_ONLY: &str = "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, \
     b_values: T, b_shape: int64 -> output_indices: int64, output_values: T | T: realnumbertype";

const WITH_DENSE: &str = "sp_indices: int64, sp_values: T, sp_shape: int64, dense: T -> output: T \
     | T: numbertype";

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("SparseSparseMaximum", SPARSE_ONLY)
        .shape(union_shape)
        .kernel(|build| union_kernel(build, true))
        .gradient(no_gradient),
    Op::new(
        "SparseSparseMinimum",
        "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, b_shape: \
         int64 -> output_indices: int64, output_values: T | T: numbertype",
    )
    .shape(union_shape)
    .kernel(|build| union_kernel(build, false))
    .gradient(no_gradient),
    Op::new("SparseDenseCwiseAdd", WITH_DENSE)
        .shape(values_shape)
        .kernel(|build| dense_kernel(build, Combine::Add))
        .gradient(no_gradient),
    Op::new("SparseDenseCwiseMul", WITH_DENSE)
        .shape(values_shape)
        .kernel(|build| dense_kernel(build, Combine::Mul))
        .gradient(|g| product_gradient(g, true)),
    Op::new("SparseDenseCwiseDiv", WITH_DENSE)
        .shape(values_shape)
        .kernel(|build| dense_kernel(build, Combine::Div))
        .gradient(|g| product_gradient(g, false)),
];

fn union_shape(ctx: &mut ShapeCtx) -> Result<()> {
    for (i, rank) in [2, 1, 1, 2, 1, 1].into_iter().enumerate() {
        ctx.with_rank(i, rank)?;
    }
    ctx.set(0, PartialShape::of([None, None]));
    ctx.set(1, PartialShape::of([None]));
    Ok(())
}

fn values_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let at = ctx.with_rank(0, 2)?;
    ctx.set(0, PartialShape::of([at.dim(0)]));
    Ok(())
}

/// TensorFlow registers gradients for these ops that fail.
fn no_gradient(g: &mut GradientCtx) -> Result<()> {
    Err(unimplemented_error!(
        "Gradient for {} is not implemented.",
        g.op_name()
    ))
}

/// Returns the dtype that `dtype` is computed in.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::Half | DType::Bfloat16 => DType::Float,
        dtype => dtype,
    }
}

fn union_kernel(build: &KernelBuild, larger: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(1)?;
    dispatch!(wide(dtype), T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] => {
        let f: fn(T, T) -> T = if larger { Ordered::larger } else { Ordered::smaller };
        Ok(Box::new(move |ctx: &mut KernelCtx| union::<T>(ctx, f)))
    }, else Err(build.unsupported(dtype)))
}

/// Combines the values of two sparse tensors; one that lacks a position has zero there.
fn union<T: Num>(ctx: &mut KernelCtx, f: fn(T, T) -> T) -> Result<()> {
    for first in [0, 3] {
        let (at, shape) = (ctx.input(first)?, ctx.input(first + 2)?);
        check_parts(at, ctx.input(first + 1)?, shape)?;
        check_bounds(at.slice()?, at.shape()[1], shape.slice()?)?;
    }
    let dtype = ctx.input(1)?.dtype();
    let (a_rows, b_rows) = (Rows::of(ctx.input(0)?)?, Rows::of(ctx.input(3)?)?);
    let rank = a_rows.rank;
    if rank == 0 {
        return Err(invalid_argument!("Tensors must not be empty"));
    }
    same_shapes(ctx.input(2)?, ctx.input(5)?)?;
    let (a, b) = (wide_input(ctx, 1)?, wide_input(ctx, 4)?);
    let (a, b) = (a.slice::<T>()?, b.slice::<T>()?);
    let mut places = Vec::with_capacity((a.len() + b.len()) * rank);
    let mut values = Vec::with_capacity(a.len() + b.len());
    merge((a_rows, a.len()), (b_rows, b.len()), |i, j| {
        let of = |i: Option<usize>, x: &[T]| i.and_then(|i| x.get(i)).copied();
        values.push(f(of(i, a).unwrap_or(T::ZERO), of(j, b).unwrap_or(T::ZERO)));
        let row = i.map(|i| a_rows.row(i)).or(j.map(|j| b_rows.row(j)));
        places.extend_from_slice(row.unwrap_or_default());
    });
    let at = Tensor::from_slice([values.len(), rank], &places)?;
    let values = narrow_output(ctx, Tensor::vector(&values)?, dtype)?;
    ctx.set_output(0, at)?;
    ctx.set_output(1, values)
}

#[derive(Clone, Copy, PartialEq)]
enum Combine {
    Add,
    Mul,
    Div,
}

fn dense_kernel(build: &KernelBuild, how: Combine) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(wide(dtype), T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| with_dense::<T>(ctx, how))),
        else Err(build.unsupported(dtype)))
}

/// Checks the inputs; returns the dense tensor's strides, one for each dimension of the sparse
/// one, and the latter's shape.
fn dense_strides(ctx: &KernelCtx) -> Result<(Vec<usize>, Shape)> {
    let (at, values) = (ctx.input(0)?.shape(), ctx.input(1)?.shape());
    let (shape, dense) = (ctx.input(2)?, ctx.input(3)?.shape());
    if at.rank() != 2 {
        return Err(invalid_argument!(
            "Input sp_indices should be a matrix but received shape: {at}"
        ));
    }
    if values.rank() != 1 || shape.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Inputs sp_values and sp_shape should be vectors but received shapes: {values} and {}",
            shape.shape()
        ));
    }
    if values[0] != at[0] {
        return Err(invalid_argument!(
            "The first dimension of values and indices should match. ({} vs. {})",
            values[0],
            at[0]
        ));
    }
    let rank = shape.num_elements();
    if rank != at[1] {
        return Err(invalid_argument!(
            "Number of dimensions must match second dimension of indices. Got {rank} dimensions, \
             indices shape: {at}"
        ));
    }
    if rank == 0 {
        return Err(invalid_argument!(
            "The shape argument requires at least one element."
        ));
    }
    let sparse = checked_shape(shape.slice()?)?;
    let missing = rank.checked_sub(dense.rank());
    let fits = |missing: usize| {
        let pairs = dense.iter().zip(sparse.iter().skip(missing));
        pairs.into_iter().all(|(&d, &s)| d == s || d == 1 && s >= 1)
    };
    let Some(missing) = missing.filter(|&m| fits(m)) else {
        return Err(invalid_argument!(
            "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: \
             {} vs. {}",
            list(sparse.iter()),
            list(dense.iter())
        ));
    };
    if rank > 5 {
        return Err(invalid_argument!(
            "Only tensors with ranks between 1 and 5 are currently supported.  Tensor rank: {rank}"
        ));
    }
    let own = dense.strides();
    let mut strides = vec![0; missing];
    let repeated = |(&stride, &d): (&usize, &usize)| if d == 1 { 0 } else { stride };
    strides.extend(own.iter().zip(dense.iter()).map(repeated));
    Ok((strides, sparse))
}

fn with_dense<T: Num>(ctx: &mut KernelCtx, how: Combine) -> Result<()> {
    let (strides, shape) = dense_strides(ctx)?;
    let dtype = ctx.input(1)?.dtype();
    let (values, dense) = (wide_input(ctx, 1)?, wide_input(ctx, 3)?);
    let dense = dense.slice::<T>()?;
    let rows = Rows::of(ctx.input(0)?)?;
    let mut out = ctx.alloc(T::DTYPE, values.shape().clone())?;
    let pairs = out.slice_mut::<T>()?.iter_mut().zip(values.slice::<T>()?);
    for (i, (to, &value)) in pairs.enumerate() {
        let mut place = 0;
        let mut is_inside = true;
        for ((&x, &size), &stride) in rows.row(i).iter().zip(shape.dims()).zip(&strides) {
            match usize::try_from(x).ok().filter(|&x| x < size) {
                Some(x) => place += x * stride,
                None => is_inside = false,
            }
        }
        let Some(&other) = dense.get(place).filter(|_| is_inside) else {
            return Err(invalid_argument!(
                "Provided indices are out-of-bounds w.r.t. dense side with broadcasted shape"
            ));
        };
        *to = match how {
            Combine::Add => value.add(other),
            Combine::Mul => value.mul(other),
            Combine::Div if other.is_zero() => {
                return Err(invalid_argument!(
                    "SparseDenseCwiseDiv cannot divide by zero,but input dense tensor contains zero "
                ));
            }
            Combine::Div => value.div(other),
        };
    }
    let out = narrow_output(ctx, out, dtype)?;
    ctx.set_output(0, out)
}

/// The dense tensor's elements are shared by positions, so their gradients are summed.
fn product_gradient(g: &mut GradientCtx, is_product: bool) -> Result<()> {
    let (at, x, shape, dense, dy) = (g.x(0), g.x(1), g.x(2), g.x(3), g.dy(0));
    let long = |e: Expr<'_>| e.cast(DType::Int64).output();
    let one = at.constant(Ok(Tensor::scalar(1i64)));
    let (zero, ints) = (at.int(0), at.ints([1]));
    let own = dense.op("Shape", &[]);
    let own = own.at(long(own));
    let missing = (shape.op("Size", &[]) - own.op("Size", &[])).reshape(ints);
    let ones = missing.op("Fill", &[one]);
    let padded = ones.make("ConcatV2", &[ones, own, zero], &[]);
    let places = at.op("FloorDiv", &[shape.op("FloorDiv", &[padded])]);
    let start = zero.make("ConcatV2", &[at.ints([0]), missing, zero], &[]);
    let places = places.op("Slice", &[start, at.ints([-1, -1])]);
    let other = dense.op("GatherNd", &[places]);
    let (dx, share) = match is_product {
        true => (dy * other, dy * x),
        false => (dy / other, dy * (-x / (other * other))),
    };
    g.set(1, dx)?;
    let zeros = dense.zeros_like();
    g.set(
        3,
        places.make("SparseTensorDenseAdd", &[places, share, own, zeros], &[]),
    )
}
