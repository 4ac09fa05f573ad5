//! Concat, ConcatV2, ConcatOffset (TensorFlow: `core/kernels/concat_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints, axis_in, constant_int};
use ferroflow_functors::strided::{par_copy, par_rows};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, dispatch_items};
use smallvec::SmallVec;
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Concat",
        "concat_dim: int32, values: N*T -> output: T | N: int >= 2; T: type",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        concat_shape(ctx, 0, 1..ctx.num_inputs())
    })
    .kernel(|b| concat(b, 0, 1..b.inputs.len()))
    .gradient(concat_gradient),
    Op::new(
        "ConcatV2",
        "values: N*T, axis: Tidx -> output: T | N: int >= 2; T: type; Tidx: type \
         {int32,int64} = int32",
    )
    .shape(|ctx| concat_shape(ctx, ctx.num_inputs() - 1, 0..ctx.num_inputs() - 1))
    .kernel(|b| concat(b, b.inputs.len() - 1, 0..b.inputs.len() - 1))
    .gradient(concat_gradient),
    Op::new(
        "ConcatOffset",
        "concat_dim: int32, shape: N*shape_type -> offset: N*shape_type | N: int >= 2; \
         shape_type: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..ctx.num_outputs() {
            // The kernel checks that they are vectors.
            ctx.set(i, ctx.input(i + 1));
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(concat_offset)
    .not_differentiable(),
];

/// Writes `outer` rows, each with the next `lens[i]` elements of every part in turn.
pub(crate) fn join<T: Item>(ctx: &KernelCtx, parts: &[(&[T], usize)], outer: usize, out: &mut [T]) {
    let row: usize = parts.iter().map(|p| p.1).sum();
    if outer == 1 {
        let mut rest = out;
        for (values, n) in parts {
            let (to, tail) = std::mem::take(&mut rest).split_at_mut(*n);
            par_copy(ctx.par(), values, to);
            rest = tail;
        }
        return;
    }
    par_rows(ctx.par(), out, row, &|i, out| {
        let mut at = 0;
        for (values, n) in parts {
            let from = &values[i * n..(i + 1) * n];
            if *n == 1 {
                out[at] = from[0].clone();
            } else {
                out[at..at + n].clone_from_slice(from);
            }
            at += n;
        }
    });
}

fn concat(_: &KernelBuild, axis: usize, values: Range<usize>) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        concat_values(ctx, axis, values.clone())
    }))
}

fn concat_values(ctx: &mut KernelCtx, axis: usize, values: Range<usize>) -> Result<()> {
    let is_scalar = ctx.shape(axis)?.rank() < 2;
    let Some(dim) = indices::int(ctx.input(axis)?).filter(|_| is_scalar) else {
        // The axis of Concat comes first, and has another name.
        let name = if axis == 0 { "concat_dim" } else { "axis" };
        return Err(invalid_argument!(
            "{name} tensor should be a scalar integer, but got shape {}",
            ctx.shape(axis)?
        ));
    };
    let first = ctx.shape(values.start)?;
    let rank = first.rank();
    if rank == 0 && dim == 0 {
        return Err(invalid_argument!(
            "ConcatOp : Can't concatenate scalars (use tf.stack instead)"
        ));
    }
    let Some(at) = axis_in(dim, rank) else {
        return Err(invalid_argument!(
            "ConcatOp : Expected concatenating dimensions in the range [{}, {rank}), but got {dim}",
            -(rank as i64)
        ));
    };
    let mut dims: Ints = first.iter().map(|&d| d as i64).collect();
    let mut non_empty = None;
    let mut n_non_empty = 0;
    for i in values.clone() {
        let shape = ctx.shape(i)?;
        if shape.rank() == 0 {
            return Err(invalid_argument!(
                "ConcatOp : Can't concatenate scalars (use tf.stack instead)"
            ));
        }
        if shape.rank() != rank {
            return Err(invalid_argument!(
                "ConcatOp : Ranks of all input tensors should match: shape[0] = {first} vs. \
                 shape[{}] = {shape}",
                i - values.start
            ));
        }
        if let Some(j) = (0..rank).find(|&j| j != at && shape[j] != first[j]) {
            return Err(invalid_argument!(
                "ConcatOp : Dimension {j} in both shapes must be equal: shape[0] = {first} vs. \
                 shape[{}] = {shape}",
                i - values.start
            ));
        }
        if i > values.start {
            dims[at] = dims[at].saturating_add(shape[at] as i64);
        }
        if shape.num_elements() > 0 {
            non_empty = Some(i);
            n_non_empty += 1;
        }
    }
    let shape = Shape::checked(&dims)?;
    if let (1, Some(i)) = (n_non_empty, non_empty) {
        let only = ctx.take_input(i)?;
        return ctx.set_output(0, only);
    }
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let mut out = ctx.alloc(ctx.input(values.start)?.dtype(), shape)?;
    dispatch_items!(out.dtype(), T => {
        let parts: SmallVec<[(&[T], usize); 8]> = values
            .map(|i| Ok((ctx.input(i)?.items::<T>()?, ctx.shape(i)?[at] * inner)))
            .collect::<Result<_>>()?;
        join(ctx, &parts, outer, out.items_mut::<T>()?);
    });
    ctx.set_output(0, out)
}

pub(crate) fn concat_shape(ctx: &mut ShapeCtx, axis: usize, values: Range<usize>) -> Result<()> {
    let rank = values.clone().find_map(|i| ctx.input(i).rank());
    let Some(rank) = rank else { return Ok(()) };
    if rank == 0 {
        return Err(invalid_argument!(
            "Can't concatenate scalars (use tf.stack instead) for input {}",
            values.start
        ));
    }
    let mut at = None;
    if let Some(dim) = constant_int(ctx, axis) {
        at = Some(axis_in(dim, rank).ok_or_else(|| {
            invalid_argument!(
                "ConcatOp : Expected concatenating dimensions in the range [-{rank}, {rank}), but \
                 got {dim}"
            )
        })?);
    }
    let mut out = PartialShape::of_rank(rank);
    let mut sum = Some(0usize);
    for i in values {
        let shape = ctx.with_rank(i, rank)?;
        let Some(at) = at else { continue };
        sum = sum.and_then(|s| s.checked_add(shape.dim(at as isize)?));
        let others = indices::partial(rank, |j| shape.dim(j as isize).filter(|_| j != at));
        out = ctx.merge(&out, &others)?;
    }
    if let Some(at) = at {
        out = indices::partial(rank, |j| if j == at { sum } else { out.dim(j as isize) });
    }
    ctx.set(0, out);
    Ok(())
}

fn concat_offset(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let Some(dim) = indices::scalar(ctx.input(0)?) else {
            return Err(invalid_argument!(
                "Concat dim tensor should be a scalar integer, but got shape {}",
                ctx.shape(0)?
            ));
        };
        for i in 1..ctx.num_inputs() {
            if ctx.shape(i)?.rank() != 1 {
                return Err(invalid_argument!(
                    "input {i} should be a vector, but got shape {}",
                    ctx.shape(i)?
                ));
            }
        }
        let first = indices::ints(ctx.input(1)?)?;
        let Some(at) = axis_in(dim, first.len()) else {
            let n = first.len() as i64;
            return Err(invalid_argument!(
                "Concat dim is out of range: {dim} vs. {n}"
            ));
        };
        let mut offset = 0i64;
        for i in 1..ctx.num_inputs() {
            let shape = indices::ints(ctx.input(i)?)?;
            if shape.len() != first.len() {
                return Err(invalid_argument!(
                    "input {} should contain {} elements, but got {}",
                    i - 1,
                    first.len(),
                    shape.len()
                ));
            }
            if (0..first.len()).any(|j| j != at && shape[j] != first[j]) {
                return Err(invalid_argument!(
                    "All dimensions except {at} must match. Input {} has shape {} and doesn't match \
                     input 0 with shape {}.",
                    i - 1,
                    vector(&shape),
                    vector(&first)
                ));
            }
            let dtype = ctx.input(i)?.dtype();
            let values = (0..shape.len()).map(|j| if j == at { offset } else { 0 });
            let out = indices::int_vector(dtype, values)?;
            offset = offset.wrapping_add(shape[at]);
            ctx.set_output(i - 1, out)?;
        }
        Ok(())
    }))
}

/// Formats a vector's values like TensorFlow.
#[cold]
fn vector(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(i64::to_string).collect();
    format!("[{}]", texts.join(" "))
}

/// Returns the gradient of Concat, whose axis comes first, and ConcatV2, whose axis comes last.
fn concat_gradient(g: &mut GradientCtx) -> Result<()> {
    let mut values = g.xs();
    let first = g.op_name() == "Concat";
    let axis = if first {
        values.remove(0)
    } else {
        g.x(values.len() - 1)
    };
    if !first {
        values.pop();
    }
    let shift = usize::from(first);
    let d = g.dy(0);
    if values.len() == 1 {
        return g.set(shift, d);
    }
    let sizes: Option<Vec<i64>> = axis.constant_ints().and_then(|axis| {
        let size = |v: &Expr| {
            let shape = v.shape();
            let rank = shape.rank()? as i64;
            let axis = axis.first().copied()?;
            let axis = if axis < 0 { axis + rank } else { axis };
            Some(shape.dim(axis as isize)? as i64)
        };
        values.iter().map(size).collect()
    });
    let parts = match sizes {
        Some(sizes) => {
            let n = sizes.len() as i64;
            d.node(
                "SplitV",
                &[d, d.ints(sizes), axis.cast(DType::Int32)],
                &[("num_split", n.into())],
            )
        }
        None => {
            let shapes = d.node("ShapeN", &values, &[]);
            let mut inputs = vec![axis.cast(DType::Int32)];
            inputs.extend_from_slice(&shapes);
            let offsets = d.node("ConcatOffset", &inputs, &[]);
            let both = offsets.into_iter().zip(shapes);
            both.map(|(offset, shape)| d.op("Slice", &[offset, shape]))
                .collect()
        }
    };
    for (i, part) in parts.into_iter().enumerate() {
        g.set(i + shift, part)?;
    }
    Ok(())
}
