//! Ops that read or change shapes without moving elements: Shape, ShapeN, Size, Rank, ExpandDims,
//! Squeeze, EnsureShape (TensorFlow: `core/kernels/shape_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, axis_in, constant_int};
use ferroflow_functors::shapes::{self, reshape_to};
use ferroflow_opdef::{
    Cost, GradientCtx, INPUT_NAME, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx,
};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Shape",
        "input: T -> output: out_type | T: type; out_type: type {int32,int64} = int32",
    )
    .shape(shape_of_shapes)
    .cost(Cost::Cheap)
    .kernel(shape_n)
    .not_differentiable(),
    Op::new(
        "ShapeN",
        "input: N*T -> output: N*out_type | N: int >= 1; T: type; out_type: type \
         {int32,int64} = int32",
    )
    .shape(shape_of_shapes)
    .cost(Cost::Cheap)
    .kernel(shape_n)
    .not_differentiable(),
    Op::new(
        "Size",
        "input: T -> output: out_type | T: type; out_type: type {int32,int64} = int32",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size)
    .not_differentiable(),
    Op::new("Rank", "input: T -> output: int32 | T: type")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(rank)
        .not_differentiable(),
    Op::new(
        "ExpandDims",
        "input: T, dim: Tdim -> output: T | T: type; Tdim: type {int32,int64} = int32",
    )
    .shape(expand_dims_shape)
    .cost(Cost::Cheap)
    .kernel(expand_dims)
    .gradient(reshape_gradient),
    Op::new(
        "Squeeze",
        "input: T -> output: T | T: type; squeeze_dims: list(int) >= 0 = []",
    )
    .shape(squeeze_shape)
    .cost(Cost::Cheap)
    .kernel(squeeze)
    .gradient(reshape_gradient),
    Op::new(
        "EnsureShape",
        "input: T -> output: T | shape: shape; T: type",
    )
    .shape(|ctx| {
        let shape = ctx.merge(&ctx.input(0), ctx.attrs().shape("shape")?)?;
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(ensure_shape)
    .gradient(pass_gradient),
];

fn shape_of_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        let rank = ctx.input(i).rank();
        ctx.set(i, PartialShape::of([rank]));
    }
    Ok(())
}

fn shape_n(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for i in 0..ctx.num_outputs() {
            let dims = ctx.shape(i)?.iter().map(|&d| d as i64);
            let out = indices::int_vector(dtype, dims)?;
            ctx.set_output(i, out)?;
        }
        Ok(())
    }))
}

pub(crate) fn size(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = ctx.input(0)?.num_elements();
        ctx.set_output(0, indices::int_scalar(dtype, n as i64)?)
    }))
}

pub(crate) fn rank(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let rank = ctx.shape(0)?.rank();
        ctx.set_output(0, Tensor::scalar(rank as i32))
    }))
}

pub(crate) fn reshape(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let sizes = ctx.input(1)?;
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!(
                "sizes input must be 1-D, not {}",
                sizes.shape()
            ));
        }
        // One less than the maximal rank.
        if sizes.num_elements() >= Shape::MAX_RANK {
            return Err(invalid_argument!(
                "too many dimensions: must be < {}, but received {}",
                Shape::MAX_RANK,
                sizes.num_elements()
            ));
        }
        let from = ctx.input(0)?.shape();
        let shape = reshape_to(&indices::ints(sizes)?, from)?;
        let value = ctx.take_input(0)?.with_shape(shape)?;
        ctx.set_output(0, value)
    }))
}

fn expand_dims(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let Some(dim) = indices::int(ctx.input(1)?) else {
            return Err(invalid_argument!(
                "'dim' must be a tensor with a single value"
            ));
        };
        let shape = ctx.shape(0)?;
        let at = expand_axis(dim, shape.rank())?;
        let dims = shape[..at].iter().chain(&[1]).chain(&shape[at..]).copied();
        let shape: Shape = dims.collect();
        let value = ctx.take_input(0)?.with_shape(shape)?;
        ctx.set_output(0, value)
    }))
}

fn expand_axis(dim: i64, rank: usize) -> Result<usize> {
    axis_in(dim, rank + 1).ok_or_else(|| {
        invalid_argument!("Tried to expand dim index {dim} for tensor with {rank} dimensions.")
    })
}

fn expand_dims_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    if ctx.constant(1).is_some_and(|dim| dim.num_elements() != 1) {
        return Err(invalid_argument!(
            "'dim' input must be a tensor with a single value"
        ));
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match constant_int(ctx, 1) {
        None => PartialShape::of_rank(dims.len() + 1),
        Some(dim) => {
            let at = expand_axis(dim, dims.len())?;
            PartialShape::of(
                dims[..at]
                    .iter()
                    .chain(&[Some(1)])
                    .chain(&dims[at..])
                    .copied(),
            )
        }
    };
    ctx.set(0, shape);
    Ok(())
}

/// Returns the dimensions of a tensor of this rank that the attr lists; all of size 1 if it is
/// empty.
fn squeezed(axes: &[i64], rank: usize) -> Result<Vec<bool>> {
    let mut drop = vec![false; rank];
    for &axis in axes {
        let at = axis_in(axis, rank).ok_or_else(|| {
            invalid_argument!(
                "Tried to squeeze dim index {axis} for tensor with {rank} dimensions."
            )
        })?;
        drop[at] = true;
    }
    Ok(drop)
}

fn not_one(i: usize, d: usize) -> ferroflow_base::Status {
    invalid_argument!("Can not squeeze dim[{i}], expected a dimension of 1, got {d}")
}

fn squeeze(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axes = build.attrs.ints("squeeze_dims")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let old = ctx.shape(0)?;
        let shape: Shape = if axes.is_empty() {
            old.iter().copied().filter(|&d| d != 1).collect()
        } else {
            let drop = squeezed(&axes, old.rank())?;
            if let Some(i) = (0..old.rank()).find(|&i| drop[i] && old[i] != 1) {
                return Err(not_one(i, old[i]));
            }
            old.iter()
                .zip(&drop)
                .filter(|(_, drop)| !**drop)
                .map(|(&d, _)| d)
                .collect()
        };
        let value = ctx.take_input(0)?.with_shape(shape)?;
        ctx.set_output(0, value)
    }))
}

fn squeeze_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let axes = ctx.attrs().ints("squeeze_dims")?;
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    if axes.is_empty() {
        if let Some(full) = input.to_full() {
            let kept = full.iter().filter(|&&d| d != 1).map(|&d| Some(d));
            ctx.set(0, PartialShape::of(kept));
        }
        return Ok(());
    }
    let drop = squeezed(&axes, dims.len())?;
    for (i, d) in dims.iter().enumerate() {
        if let Some(d) = d.filter(|&d| drop[i] && d != 1) {
            return Err(not_one(i, d));
        }
    }
    let kept = dims
        .iter()
        .zip(&drop)
        .filter(|(_, drop)| !**drop)
        .map(|(d, _)| *d);
    ctx.set(0, PartialShape::of(kept));
    Ok(())
}

fn ensure_shape(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let expected = build.attrs.shape("shape")?.clone();
    let input = build.attrs.str(INPUT_NAME).unwrap_or(build.node);
    let input = input.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if !expected.matches(ctx.shape(0)?) {
            return Err(invalid_argument!(
                "Shape of tensor {input} {} is not compatible with expected shape {expected}.",
                ctx.shape(0)?
            ));
        }
        let value = ctx.take_input(0)?;
        ctx.set_output(0, value)
    }))
}

pub(crate) fn reshape_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).reshape(g.x(0).shape_of());
    g.set(0, dx)
}

fn pass_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0);
    g.set(0, dx)
}
