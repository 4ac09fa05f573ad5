//! DynamicPartition and DynamicStitch: distribution of rows to several tensors, and the reverse
//! (TensorFlow: `core/kernels/dynamic_stitch_op.cc` and `dynamic_partition_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{list, shape_of};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};

/// DynamicPartition, DynamicStitch, ParallelDynamicStitch.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DynamicPartition",
        "data: T, partitions: int32 -> outputs: num_partitions*T | num_partitions: int \
         >= 1; T: type",
    )
    .shape(partition_shape)
    .kernel(partition)
    .gradient(partition_gradient),
    Op::new(
        "DynamicStitch",
        "indices: N*int32, data: N*T -> merged: T | N: int >= 1; T: type |",
    )
    .shape(stitch_shape)
    .kernel(stitch)
    .gradient(stitch_gradient),
    Op::new(
        "ParallelDynamicStitch",
        "indices: N*int32, data: N*T -> merged: T | N: int >= 1; T: type |",
    )
    .shape(stitch_shape)
    .kernel(stitch)
    .gradient(stitch_gradient),
];

fn partition_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (data, parts) = (ctx.input(0), ctx.input(1));
    let Some(rank) = parts.rank() else {
        return Ok(());
    };
    if let Some(dims) = data.dims() {
        if dims.len() < rank {
            return Err(invalid_argument!(
                "Shape must be at least rank {rank} but is rank {}",
                dims.len()
            ));
        }
        let (front, rest) = dims.split_at(rank);
        ctx.merge(&PartialShape::of(front.iter().copied()), &parts)?;
        let out = PartialShape::of(std::iter::once(None).chain(rest.iter().copied()));
        for i in 0..ctx.num_outputs() {
            ctx.set(i, out.clone());
        }
    }
    Ok(())
}

fn partition(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (n, dtype) = (build.outputs.len(), build.input(0)?);
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let (data, parts) = (ctx.input(0)?, ctx.input(1)?);
            if !data.shape().starts_with(parts.shape()) {
                return Err(invalid_argument!(
                    "data.shape must start with partitions.shape, got data.shape = {}, \
                     partitions.shape = {}",
                    data.shape(),
                    parts.shape()
                ));
            }
            let rest = &data.shape()[parts.shape().rank()..];
            let width: usize = rest.iter().product();
            let mut rows = vec![Vec::new(); n];
            for (i, part) in parts.slice::<i32>()?.iter().enumerate() {
                let of = usize::try_from(*part).ok().and_then(|p| rows.get_mut(p));
                let of = of.ok_or_else(|| {
                    invalid_argument!("partitions{} = {part} is not in [0, {n})", at(parts.shape(), i))
                })?;
                of.push(i);
            }
            let from = data.items::<T>()?;
            let mut outputs = Vec::with_capacity(n);
            for rows in &rows {
                let dims = std::iter::once(rows.len()).chain(rest.iter().copied());
                let mut out = ctx.alloc(dtype, shape_of(dims)?)?;
                let to = out.items_mut::<T>()?;
                for (to, row) in to.chunks_mut(width.max(1)).zip(rows) {
                    to.clone_from_slice(&from[row * width..][..width]);
                }
                outputs.push(out);
            }
            for (i, out) in outputs.into_iter().enumerate() {
                ctx.set_output(i, out)?;
            }
            Ok(())
        })),
    )
}

/// Formats the coordinates of element `i` as `[1,2]`; empty for a scalar.
fn at(shape: &Shape, i: usize) -> String {
    if shape.is_scalar() {
        return String::new();
    }
    let mut coordinates = vec![0; shape.rank()];
    ferroflow_functors::strided::unravel(i, shape.dims(), &mut coordinates);
    list(coordinates)
}

/// Returns the dimensions of data `i` after those of its indices.
fn stitch_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_inputs() / 2;
    let (mut rest, mut highest) = (PartialShape::unknown(), Some(-1));
    for i in 0..n {
        let largest = match (ctx.constant_ints(i), ctx.input(i).num_elements()) {
            (Some(values), _) => Some(values.into_iter().max().unwrap_or(-1)),
            (None, Some(0)) => Some(-1),
            _ => None,
        };
        highest = highest.zip(largest).map(|(a, b): (i64, i64)| a.max(b));
        let (indices, data) = (ctx.input(i), ctx.input(n + i));
        let (Some(rank), Some(dims)) = (indices.rank(), data.dims()) else {
            continue;
        };
        if dims.len() < rank {
            return Err(invalid_argument!(
                "Shape must be at least rank {rank} but is rank {}",
                dims.len()
            ));
        }
        let (front, back) = dims.split_at(rank);
        ctx.merge(&PartialShape::of(front.iter().copied()), &indices)?;
        rest = ctx.merge(&rest, &PartialShape::of(back.iter().copied()))?;
    }
    if let Some(dims) = rest.dims() {
        let rows = highest.and_then(|h| usize::try_from(h + 1).ok());
        ctx.set(
            0,
            PartialShape::of(std::iter::once(rows).chain(dims.iter().copied())),
        );
    }
    Ok(())
}

fn stitch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let out = stitched::<T>(ctx)?;
            ctx.set_output(0, out)
        })),
    )
}

fn stitched<T: Item>(ctx: &KernelCtx) -> Result<Tensor> {
    let n = ctx.num_inputs() / 2;
    let mut highest = -1i64;
    for i in 0..n {
        for (at, index) in ctx.slice::<i32>(i)?.iter().enumerate() {
            if *index < 0 {
                return Err(invalid_argument!("indices[{at}] is out of range"));
            }
            highest = highest.max(i64::from(*index));
        }
    }
    let mut rest: Option<&[usize]> = None;
    for i in 0..n {
        let (indices, data) = (ctx.input(i)?, ctx.input(n + i)?);
        if !data.shape().starts_with(indices.shape()) {
            return Err(invalid_argument!(
                "data[{i}].shape = {} does not start with indices[{i}].shape = {}",
                data.shape(),
                indices.shape()
            ));
        }
        let back = &data.shape()[indices.shape().rank()..];
        if let Some(rest) = rest
            && rest != back
        {
            return Err(invalid_argument!(
                "Need data[0].shape[{}:] = data[{i}].shape[{}:], got data[0].shape = {}, \
                 data[{i}].shape = {}, indices[0].shape = {}, indices[{i}].shape = {}",
                ctx.shape(0)?.rank(),
                indices.shape().rank(),
                ctx.shape(n)?,
                data.shape(),
                ctx.shape(0)?,
                indices.shape()
            ));
        }
        rest = Some(back);
    }
    let rest = rest.unwrap_or_default();
    let width: usize = rest.iter().product();
    let dims = std::iter::once((highest + 1) as usize).chain(rest.iter().copied());
    let dtype = ctx.input(n)?.dtype();
    let mut out = Tensor::zeros(dtype, shape_of(dims)?)?;
    let to = out.items_mut::<T>()?;
    for i in 0..n {
        let (indices, data) = (ctx.slice::<i32>(i)?, ctx.input(n + i)?.items::<T>()?);
        for (index, row) in indices.iter().zip(data.chunks(width.max(1))) {
            to[*index as usize * width..][..width].clone_from_slice(row);
        }
    }
    Ok(out)
}

/// Stitches the gradients of the parts.
fn partition_gradient(g: &mut GradientCtx) -> Result<()> {
    let (data, parts) = (g.x(0), g.x(1));
    let n = g.num_outputs();
    let end = parts.op("Size", &[]);
    let all = parts.int(0).op("Range", &[end, parts.int(1)]);
    let all = all.reshape(parts.shape_of());
    let attrs = [("num_partitions", (n as i64).into())];
    let mut inputs = all.node("DynamicPartition", &[all, parts], &attrs);
    inputs.extend((0..n).map(|i| g.dy(i)));
    let rows = data.make(
        "ParallelDynamicStitch",
        &inputs,
        &[("N", (n as i64).into()), ("T", data.dtype().into())],
    );
    g.set(0, rows.reshape(data.shape_of()))
}

fn stitch_gradient(g: &mut GradientCtx) -> Result<()> {
    let (n, d) = (g.num_inputs() / 2, g.dy(0));
    for i in 0..n {
        g.set(n + i, d.op("Gather", &[g.x(i)]))?;
    }
    Ok(())
}
