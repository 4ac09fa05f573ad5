//! SparseReduceSum, SparseReduceMax and their forms with sparse results (TensorFlow:
//! `core/kernels/sparse_reduce_op.cc`).

use crate::sparse_parts::{Rows, checked_shape, fitting, narrow_output, wide_input};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::indices::constant;
use ferroflow_functors::numeric::{Num, Ordered};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseReduceSum",
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 -> \
         output: T | keep_dims: bool = false; T: numbertype",
    )
    .shape(dense_shape)
    .kernel(sum)
    .gradient(sum_gradient),
    Op::new(
        "SparseReduceSumSparse",
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 -> \
         output_indices: int64, output_values: T, output_shape: int64 | keep_dims: bool = false; \
         T: numbertype",
    )
    .kernel(sum),
    Op::new(
        "SparseReduceMax",
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 -> \
         output: T | keep_dims: bool = false; T: realnumbertype",
    )
    .shape(dense_shape)
    .kernel(max),
    Op::new(
        "SparseReduceMaxSparse",
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 -> \
         output_indices: int64, output_values: T, output_shape: int64 | keep_dims: bool = false; \
         T: realnumbertype",
    )
    .kernel(max),
];

fn dense_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (Some(sizes), Some(axes)) = (constant(ctx, 2), constant(ctx, 3)) else {
        return Ok(());
    };
    if sizes.is_empty() {
        return Err(invalid_argument!(
            "Number of dims in shape tensor must not be 0"
        ));
    }
    let n = sizes.len() as i64;
    let keep = ctx.attrs().bool("keep_dims")?;
    let is_reduced = |d: usize| axes.iter().any(|a| (a + n).rem_euclid(n) == d as i64);
    let dims = sizes.iter().enumerate().filter_map(|(d, &size)| {
        let size = usize::try_from(size).ok();
        match (is_reduced(d), keep) {
            (false, _) => Some(size),
            (true, true) => Some(Some(1)),
            (true, false) => None,
        }
    });
    let shape = PartialShape::of(dims);
    ctx.set(0, shape);
    Ok(())
}

/// How the values of a group become one.
#[derive(Clone, Copy)]
struct Reducer<T>(fn(T, T) -> T);

fn sum(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (keep, sparse) = (build.attrs.bool("keep_dims")?, build.outputs.len() == 3);
    let dtype = build.input(1)?;
    let wide = if dtype.size() == 2 && dtype.is_floating() {
        DType::Float
    } else {
        dtype
    };
    dispatch!(wide, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
        Ok(kernel::<T>(keep, sparse, Reducer(<T as Num>::add))),
        else Err(build.unsupported(dtype)))
}

fn max(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (keep, sparse) = (build.attrs.bool("keep_dims")?, build.outputs.len() == 3);
    let dtype = build.input(1)?;
    let wide = if dtype.size() == 2 && dtype.is_floating() {
        DType::Float
    } else {
        dtype
    };
    dispatch!(wide, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] =>
        Ok(kernel::<T>(keep, sparse, Reducer(<T as Ordered>::larger))),
        else Err(build.unsupported(dtype)))
}

fn kernel<T: Num>(keep: bool, sparse: bool, reducer: Reducer<T>) -> Box<dyn OpKernel> {
    match sparse {
        false => Box::new(move |ctx: &mut KernelCtx| to_dense(ctx, keep, reducer)),
        true => Box::new(move |ctx: &mut KernelCtx| to_sparse(ctx, keep, reducer)),
    }
}

/// The dimensions that stay, those that are reduced, and the shape afterwards.
struct Plan {
    kept: Vec<usize>,
    reduced: Vec<usize>,
    shape: Shape,
    /// Elements from one coordinate of `kept` to the next.
    strides: Vec<i64>,
    n: usize,
}

fn plan(ctx: &KernelCtx, keep: bool) -> Result<Plan> {
    let (at, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, axes) = (ctx.input(2)?, ctx.input(3)?);
    if shape.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Expected input_shape to be a vector; got shape: {}",
            shape.shape()
        ));
    }
    if axes.shape().rank() > 1 {
        return Err(invalid_argument!(
            "Expected reduction_axes to be a scalar or a vector; got shape: {}",
            axes.shape()
        ));
    }
    let sizes = shape.slice::<i64>()?;
    let rank = sizes.len() as i64;
    let axes = axes.slice::<i32>()?;
    if let Some(axis) = axes.iter().find(|&&a| !(-rank..rank).contains(&a.into())) {
        return Err(invalid_argument!(
            "Invalid reduction dimension {axis}, for input with {rank} dimensions."
        ));
    }
    checked_shape(sizes)?;
    let n = fitting(at, values, sizes.len())?;
    let is_reduced = |d: &usize| {
        axes.iter()
            .any(|&a| (i64::from(a) + rank) % rank == *d as i64)
    };
    let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(is_reduced);
    let size = |d: usize| sizes.get(d).copied().unwrap_or(1);
    let after: Vec<i64> = match keep {
        true => (0..sizes.len())
            .map(|d| if is_reduced(&d) { 1 } else { size(d) })
            .collect(),
        false => kept.iter().map(|&d| size(d)).collect(),
    };
    let shape = Shape::checked(&after)?;
    let mut strides = vec![1i64; kept.len()];
    for i in (1..kept.len()).rev() {
        strides[i - 1] = strides[i].wrapping_mul(size(kept[i]));
    }
    Ok(Plan {
        kept,
        reduced,
        shape,
        strides,
        n,
    })
}

fn to_dense<T: Num>(ctx: &mut KernelCtx, keep: bool, reducer: Reducer<T>) -> Result<()> {
    let plan = plan(ctx, keep)?;
    let values = wide_input(ctx, 1)?;
    let (values, rows) = (values.slice::<T>()?, Rows::of(ctx.input(0)?)?);
    let mut out = Tensor::zeros(T::DTYPE, plan.shape.clone())?;
    let cells = out.slice_mut::<T>()?;
    let mut seen = vec![false; cells.len()];
    let n_cells = cells.len();
    for (i, &value) in values.iter().enumerate().take(plan.n) {
        let terms = plan.kept.iter().zip(&plan.strides);
        let place = terms.fold(0i64, |p, (&d, s)| {
            p.wrapping_add(rows.get(i, d).wrapping_mul(*s))
        });
        let found = usize::try_from(place).ok().filter(|&p| p < n_cells);
        let Some((cell, seen)) = found.and_then(|p| cells.get_mut(p).zip(seen.get_mut(p))) else {
            return Err(internal!(
                "Obtained a write index of {place} which is outside of bounds of [0, {n_cells})"
            ));
        };
        *cell = if *seen {
            reducer.0(*cell, value)
        } else {
            value
        };
        *seen = true;
    }
    let out = narrow_output(ctx, out, ctx.input(1)?.dtype())?;
    ctx.set_output(0, out)
}

fn to_sparse<T: Num>(ctx: &mut KernelCtx, keep: bool, reducer: Reducer<T>) -> Result<()> {
    let plan = plan(ctx, keep)?;
    let values = wide_input(ctx, 1)?;
    let (values, rows) = (values.slice::<T>()?, Rows::of(ctx.input(0)?)?);
    let dims: Vec<usize> = plan.kept.iter().chain(&plan.reduced).copied().collect();
    let order = rows.order(plan.n, &dims);
    let value = |k: usize| order.get(k).and_then(|&i| values.get(i)).copied();
    let rank = plan.shape.rank();
    let (mut places, mut results) = (Vec::new(), Vec::new());
    let mut start = 0;
    while start < order.len() {
        let end = rows.run_end(&order, start, &plan.kept).max(start + 1);
        let group = (start..end).filter_map(value);
        results.push(group.reduce(reducer.0).unwrap_or(T::ZERO));
        let first = order.get(start).copied().unwrap_or(0);
        let from = places.len();
        places.resize(from + rank, 0i64);
        for (j, &d) in plan.kept.iter().enumerate() {
            if let Some(place) = places.get_mut(from + if keep { d } else { j }) {
                *place = rows.get(first, d);
            }
        }
        start = end;
    }
    let at = Tensor::from_slice([results.len(), rank], &places)?;
    let results = narrow_output(ctx, Tensor::vector(&results)?, ctx.input(1)?.dtype())?;
    ctx.set_output(0, at)?;
    ctx.set_output(1, results)?;
    ctx.set_output(2, Tensor::vector(&plan.shape.to_i64())?)
}

/// Each value gets the gradient of the sum that it is part of.
fn sum_gradient(g: &mut GradientCtx) -> Result<()> {
    let (at, shape, axes, dy) = (g.x(0), g.x(2), g.x(3), g.dy(0));
    let rank = shape.op("Size", &[]);
    let axes = (axes + rank).op("FloorMod", &[rank]);
    let ones = axes
        .op("Shape", &[])
        .op("Fill", &[at.constant(Ok(Tensor::scalar(1i64)))]);
    let all = rank.int(0).op("Range", &[rank, rank.int(1)]);
    let attrs = [("N", 2.into()), ("T", DType::Int64.into())];
    let kept = all.make("DynamicStitch", &[all, axes, shape, ones], &attrs);
    let scale = shape.op("FloorDiv", &[kept]);
    let places = at.op("FloorDiv", &[scale]);
    g.set(1, dy.reshape(kept).op("GatherNd", &[places]))
}
