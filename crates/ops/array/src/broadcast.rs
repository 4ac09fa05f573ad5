//! BroadcastTo, BroadcastArgs, and BroadcastGradientArgs (TensorFlow: `core/kernels/bcast_ops.cc`
//! and `broadcast_to_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::{broadcast_shape, broadcast_tensor};
use ferroflow_functors::indices::{self, Ints};
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "BroadcastTo",
        "input: T, shape: Tidx -> output: T | T: type; Tidx: type {int32,int64} = int32",
    )
    .shape(broadcast_to_shape)
    .kernel(broadcast_to)
    .gradient(broadcast_to_gradient),
    Op::new(
        "BroadcastArgs",
        "s0: T, s1: T -> r0: T | T: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        let (a, b) = (ctx.with_rank(0, 1)?.dim(0), ctx.with_rank(1, 1)?.dim(0));
        ctx.set(0, PartialShape::of([a.zip(b).map(|(a, b)| a.max(b))]));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(broadcast_args),
    Op::new(
        "BroadcastGradientArgs",
        "s0: T, s1: T -> r0: T, r1: T | T: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        for i in 0..2 {
            ctx.with_rank(i, 1)?;
            ctx.set(i, PartialShape::of_rank(1));
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(broadcast_gradient_args)
    .not_differentiable(),
];

fn check_broadcast(input: &[Option<usize>], to: &[Option<usize>]) -> Result<()> {
    let show = |s: &[Option<usize>]| PartialShape::of(s.iter().copied());
    if input.len() > to.len() {
        return Err(invalid_argument!(
            "Rank of input ({}) must be no greater than rank of output shape ({}).",
            input.len(),
            to.len()
        ));
    }
    let fits = |(a, b): (&Option<usize>, &Option<usize>)| match (a, b) {
        (Some(a), Some(b)) => a == b || *a == 1,
        _ => true,
    };
    if !input.iter().rev().zip(to.iter().rev()).all(fits) {
        return Err(invalid_argument!(
            "Incompatible shapes: {} vs. {}",
            show(input),
            show(to)
        ));
    }
    Ok(())
}

fn broadcast_to(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let sizes = ctx.input(1)?;
        let shape = indices::shape_vector(sizes)?;
        if ctx.shape(0)? == &shape {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let (from, to) = (
            PartialShape::from(ctx.shape(0)?),
            PartialShape::from(&shape),
        );
        check_broadcast(from.dims().unwrap_or(&[]), to.dims().unwrap_or(&[]))?;
        let out = if shape.num_elements() == ctx.input(0)?.num_elements() {
            ctx.take_input(0)?.with_shape(shape)?
        } else {
            broadcast_tensor(ctx, ctx.input(0)?, shape)?
        };
        ctx.set_output(0, out)
    }))
}

fn broadcast_to_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let to = indices::shape_input(ctx, 1)?;
    if let (Some(from), Some(to)) = (ctx.input(0).dims(), to.dims()) {
        check_broadcast(from, to)?;
    }
    ctx.set(0, to);
    Ok(())
}

fn shape_input(ctx: &KernelCtx, i: usize) -> Result<Ints> {
    if ctx.shape(i)?.rank() != 1 {
        return Err(invalid_argument!(
            "In[{i}] must be a vector.{}",
            ctx.shape(i)?
        ));
    }
    indices::ints(ctx.input(i)?)
}

fn broadcast_args(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (shape_input(ctx, 0)?, shape_input(ctx, 1)?);
        let out = broadcast_shape(&Shape::checked(&a)?, &Shape::checked(&b)?)?;
        let out = indices::int_vector(dtype, out.iter().map(|&d| d as i64))?;
        ctx.set_output(0, out)
    }))
}

fn broadcast_gradient_args(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (shape_input(ctx, 0)?, shape_input(ctx, 1)?);
        let (mut reduce_a, mut reduce_b) = (Ints::new(), Ints::new());
        let rank = a.len().max(b.len());
        for i in 0..if a == b { 0 } else { rank } {
            let at = |s: &Ints| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
            let (x, y) = (at(&a), at(&b));
            if x != y && x != 1 && y != 1 {
                return Err(invalid_argument!(
                    "Incompatible shapes: {} vs. {}",
                    indices::list(&a),
                    indices::list(&b)
                ));
            }
            if x == 1 {
                reduce_a.push(i as i64);
            }
            if y == 1 {
                reduce_b.push(i as i64);
            }
        }
        ctx.set_output(0, indices::int_vector(dtype, reduce_a.iter().copied())?)?;
        ctx.set_output(1, indices::int_vector(dtype, reduce_b.iter().copied())?)
    }))
}

fn broadcast_to_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).sum_to(g.x(0));
    g.set(0, dx)
}
