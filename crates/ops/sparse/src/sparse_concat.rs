//! SparseConcat and SparseSplit (TensorFlow: `core/kernels/sparse_concat_op.cc`,
//! `sparse_split_op.cc`).

use crate::sparse_parts::{Rows, fitting};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::sparse::{check_bounds, check_parts};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseConcat",
        "indices: N*int64, values: N*T, shapes: N*int64 -> output_indices: int64, output_values: \
         T, output_shape: int64 | concat_dim: int; N: int >= 2; T: type",
    )
    .shape(concat_shape)
    .kernel(|build| {
        let dim = build.attrs.int("concat_dim")?;
        dispatch_items!(build.output(1)?, T =>
            Ok(Box::new(move |ctx: &mut KernelCtx| concat::<T>(ctx, dim))))
    })
    .not_differentiable(),
    Op::new(
        "SparseSplit",
        "split_dim: int64, indices: int64, values: T, shape: int64 -> output_indices: \
         num_split*int64, output_values: num_split*T, output_shape: num_split*int64 | num_split: \
         int >= 1; T: type",
    )
    .shape(|ctx| {
        let shape = ctx.input(3);
        let n = ctx.num_outputs() / 3;
        for i in 0..n {
            ctx.set(i, PartialShape::of([None, shape.num_elements()]));
            ctx.set(n + i, PartialShape::of([None]));
            ctx.set(2 * n + i, shape.clone());
        }
        Ok(())
    })
    .kernel(split),
];

fn concat_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_inputs() / 3;
    let (mut total, mut width) = (Some(0), PartialShape::of([None]));
    let mut shape = PartialShape::unknown();
    for i in 0..n {
        let (at, values) = (ctx.with_rank(i, 2)?, ctx.with_rank(n + i, 1)?);
        let own = PartialShape::of([at.dim(0)]);
        let own = ctx.merge(&own, &PartialShape::of([values.dim(0)]))?;
        total = total.zip(own.dim(0)).map(|(a, b)| a + b);
        width = ctx.merge(&width, &PartialShape::of([at.dim(1)]))?;
        shape = ctx.merge(&shape, &ctx.with_rank(2 * n + i, 1)?)?;
    }
    ctx.set(0, PartialShape::of([total, width.dim(0)]));
    ctx.set(1, PartialShape::of([total]));
    ctx.set(2, shape);
    Ok(())
}

/// Checks the inputs of SparseConcat; returns the dimension and the shape of the result.
fn check_concat(ctx: &KernelCtx, dim: i64) -> Result<(usize, Vec<i64>)> {
    let n = ctx.num_inputs() / 3;
    for (k, (name, rank)) in [("indices", 2), ("values", 1), ("shapes", 1)]
        .into_iter()
        .enumerate()
    {
        for i in 0..n {
            let shape = ctx.shape(k * n + i)?;
            if shape.rank() != rank {
                let kind = if rank == 2 { "matrix" } else { "vector" };
                return Err(invalid_argument!(
                    "Input {name} should be a {kind} but received shape {shape} at position {i}"
                ));
            }
        }
    }
    let sizes = |i: usize| ctx.slice::<i64>(2 * n + i);
    for i in 0..n {
        let product = sizes(i)?
            .iter()
            .try_fold(1i64, |p, &d| p.checked_mul(d).filter(|&p| p >= 0 && d >= 0));
        if product.is_none() {
            return Err(internal!("Encountered overflow from large input shape."));
        }
    }
    let mut shape = sizes(0)?.to_vec();
    let rank = shape.len() as i64;
    let at = if dim < 0 {
        rank.saturating_add(dim)
    } else {
        dim
    };
    let Some(at) = usize::try_from(at).ok().filter(|&at| at < shape.len()) else {
        return Err(invalid_argument!(
            "Concat dimension must be in range [{}, {rank}), got {dim}",
            -rank
        ));
    };
    for i in 1..n {
        let own = sizes(i)?;
        if own.len() != shape.len() {
            return Err(invalid_argument!(
                "Ranks of all input tensors must match: expected {rank} but got {} at position {i}",
                own.len()
            ));
        }
        for (j, (total, &size)) in shape.iter_mut().zip(own).enumerate() {
            if j == at {
                *total = total
                    .checked_add(size)
                    .ok_or_else(|| internal!("Encountered overflow from large input shape."))?;
            } else if *total != size {
                return Err(invalid_argument!(
                    "Input shapes must match: expected {total} for dimension {j} but got {size} at \
                     position {i}"
                ));
            }
        }
    }
    Ok((at, shape))
}

fn concat<T: Item>(ctx: &mut KernelCtx, dim: i64) -> Result<()> {
    let (dim, shape) = check_concat(ctx, dim)?;
    let (n, rank) = (ctx.num_inputs() / 3, shape.len());
    let mut total = 0;
    let mut is_empty = true;
    for i in 0..n {
        is_empty &= ctx.shape(i)?[0] == 0;
    }
    for i in (0..n).filter(|_| !is_empty) {
        total += fitting(ctx.input(i)?, ctx.input(n + i)?, rank)?;
    }
    let mut places = Vec::with_capacity(total * rank);
    let mut offset = 0i64;
    for i in 0..n {
        let from = places.len();
        places.extend_from_slice(ctx.slice::<i64>(i)?);
        let moved = places.get_mut(from..).unwrap_or_default();
        for x in moved.iter_mut().skip(dim).step_by(rank.max(1)) {
            *x = x.wrapping_add(offset);
        }
        let size = ctx.slice::<i64>(2 * n + i)?.get(dim);
        offset = offset.wrapping_add(size.copied().unwrap_or(0));
    }
    let rows = Rows { at: &places, rank };
    // The result is in order; the inputs need not be.
    let all: Vec<usize> = (0..rank).collect();
    let order = rows.order(total, &all);
    let mut at = ctx.alloc(DType::Int64, Shape::from([total, rank]))?;
    let cells = at.slice_mut::<i64>()?.chunks_exact_mut(rank.max(1));
    for (to, &i) in cells.zip(&order) {
        to.copy_from_slice(rows.row(i));
    }
    let mut parts = Vec::with_capacity(total);
    for i in 0..n {
        parts.extend(ctx.input(n + i)?.items::<T>()?);
    }
    let mut values = Tensor::zeros(ctx.input(n)?.dtype(), Shape::from([total]))?;
    for (to, &i) in values.items_mut::<T>()?.iter_mut().zip(&order) {
        if let Some(from) = parts.get(i) {
            to.clone_from(from);
        }
    }
    ctx.set_output(0, at)?;
    ctx.set_output(1, values)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}

fn split(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = build.outputs.len() / 3;
    let dtype = build.input(2)?;
    dispatch_items!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| split_up::<T>(ctx, n))))
}

/// Checks the inputs of SparseSplit; returns the dimension.
fn check_split(ctx: &KernelCtx, n: usize) -> Result<usize> {
    let (dim, at) = (ctx.input(0)?, ctx.input(1)?);
    let (values, shape) = (ctx.input(2)?, ctx.input(3)?);
    // TensorFlow's message about the values shows the shape of the indices.
    let checks = [
        ("axis", "scalar", 0, dim, dim),
        ("indices", "matrix", 2, at, at),
        ("values", "vector", 1, values, at),
        ("shape", "vector", 1, shape, shape),
    ];
    for (name, kind, rank, t, shown) in checks {
        if t.shape().rank() != rank {
            let article = "should be a";
            return Err(invalid_argument!(
                "Input {name} {article} {kind} but received shape {}",
                shown.shape()
            ));
        }
    }
    check_parts(at, values, shape)?;
    let sizes = shape.slice::<i64>()?;
    check_bounds(at.slice()?, sizes.len(), sizes)?;
    let (rank, wanted) = (sizes.len() as i64, dim.to_scalar::<i64>()?);
    let dim = if wanted < 0 { rank + wanted } else { wanted };
    let found = usize::try_from(dim).ok();
    let Some((dim, &size)) = found.and_then(|d| Some((d, sizes.get(d)?))) else {
        return Err(invalid_argument!(
            "Input axis should be in range [{}, {rank}), got {wanted}",
            -rank
        ));
    };
    if n < 1 || n as i64 > size {
        return Err(invalid_argument!(
            "Input num_split should be between 1 and the splitting dimension size ({size}), got {n}"
        ));
    }
    Shape::checked(sizes)?;
    Ok(dim)
}

/// The first parts are larger by one if the size is not a multiple of their number.
fn split_up<T: Item>(ctx: &mut KernelCtx, n: usize) -> Result<()> {
    let dim = check_split(ctx, n)?;
    let (values, shape) = (ctx.input(2)?, ctx.input(3)?);
    let (rows, sizes) = (Rows::of(ctx.input(1)?)?, shape.slice::<i64>()?);
    let rank = rows.rank;
    let size = sizes.get(dim).copied().unwrap_or(0);
    let (each, larger) = (size / n as i64, size % n as i64);
    let edge = larger * (each + 1);
    let part_of = |x: i64| match x < edge {
        true => (x / (each + 1), x % (each + 1)),
        false => (larger + (x - edge) / each, (x - edge) % each),
    };
    let mut places = vec![Vec::new(); n];
    let mut taken = vec![Vec::new(); n];
    for i in 0..values.num_elements() {
        let (part, inside) = part_of(rows.get(i, dim));
        let part = part as usize;
        if let (Some(places), Some(taken)) = (places.get_mut(part), taken.get_mut(part)) {
            let from = places.len();
            places.extend_from_slice(rows.row(i));
            if let Some(x) = places.get_mut(from + dim) {
                *x = inside;
            }
            taken.push(i);
        }
    }
    let from = values.items::<T>()?;
    let mut outputs = Vec::with_capacity(n);
    for (part, (places, taken)) in places.iter().zip(&taken).enumerate() {
        let mut own = Tensor::zeros(values.dtype(), Shape::from([taken.len()]))?;
        for (to, &i) in own.items_mut::<T>()?.iter_mut().zip(taken) {
            if let Some(from) = from.get(i) {
                to.clone_from(from);
            }
        }
        let mut sizes = sizes.to_vec();
        if let Some(size) = sizes.get_mut(dim) {
            *size = each + i64::from((part as i64) < larger);
        }
        let at = Tensor::from_slice([taken.len(), rank], places)?;
        outputs.push((at, own, Tensor::vector(&sizes)?));
    }
    for (i, (at, values, shape)) in outputs.into_iter().enumerate() {
        ctx.set_output(i, at)?;
        ctx.set_output(n + i, values)?;
        ctx.set_output(2 * n + i, shape)?;
    }
    Ok(())
}
