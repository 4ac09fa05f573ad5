//! Pack and Unpack (TensorFlow: `core/kernels/pack_op.cc` and `unpack_op.cc`).

use crate::concat::join;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{axis_in, shape_of};
use ferroflow_functors::strided::Strided;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Pack",
        "values: N*T -> output: T | N: int >= 1; T: type; axis: int = 0",
    )
    .shape(pack_shape)
    .kernel(pack)
    .gradient(pack_gradient),
    Op::new(
        "Unpack",
        "value: T -> output: num*T | num: int >= 0; T: type; axis: int = 0",
    )
    .shape(unpack_shape)
    .kernel(unpack)
    .gradient(unpack_gradient),
];

fn pack(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| pack_values(ctx, axis)))
}

fn pack_axis(axis: i64, rank: usize) -> Result<usize> {
    axis_in(axis, rank + 1).ok_or_else(|| {
        invalid_argument!(
            "axis = {axis} not in [{}, {})",
            -(rank as i64 + 1),
            rank + 1
        )
    })
}

fn pack_values(ctx: &mut KernelCtx, axis: i64) -> Result<()> {
    let n = ctx.num_inputs();
    let first = ctx.shape(0)?;
    let at = pack_axis(axis, first.rank())?;
    for i in 1..n {
        if ctx.shape(i)? != first {
            return Err(invalid_argument!(
                "Shapes of all inputs must match: values[0].shape = {first} != values[{i}].shape = {}",
                ctx.shape(i)?
            ));
        }
    }
    let shape = shape_of(first[..at].iter().chain(&[n]).chain(&first[at..]).copied())?;
    if n == 1 {
        let value = ctx.take_input(0)?.with_shape(shape)?;
        return ctx.set_output(0, value);
    }
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let mut out = ctx.alloc(ctx.input(0)?.dtype(), shape)?;
    dispatch_items!(out.dtype(), T => pack_into::<T>(ctx, outer, inner, out.items_mut::<T>()?))?;
    ctx.set_output(0, out)
}

/// Joins `outer` times `inner` elements of each input.
fn pack_into<T: Item>(ctx: &KernelCtx, outer: usize, inner: usize, to: &mut [T]) -> Result<()> {
    if outer == 1 && inner == 1 {
        for (i, to) in to.iter_mut().enumerate() {
            if let [v] = ctx.input(i)?.items::<T>()? {
                *to = v.clone();
            }
        }
        return Ok(());
    }
    let parts: SmallVec<[(&[T], usize); 8]> = (0..ctx.num_inputs())
        .map(|i| Ok((ctx.input(i)?.items::<T>()?, inner)))
        .collect::<Result<_>>()?;
    join(ctx, &parts, outer, to);
    Ok(())
}

fn pack_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = PartialShape::unknown();
    for i in 0..ctx.num_inputs() {
        shape = ctx.merge(&shape, &ctx.input(i))?;
    }
    let Some(dims) = shape.dims() else {
        return Ok(());
    };
    let at = pack_axis(ctx.attrs().int("axis")?, dims.len())?;
    let n = Some(ctx.num_inputs());
    ctx.set(
        0,
        PartialShape::of(dims[..at].iter().chain(&[n]).chain(&dims[at..]).copied()),
    );
    Ok(())
}

/// Outputs `lens.len()` consecutive pieces of `value` along dimension `at`, each reshaped by `f`.
pub(crate) fn split_along(
    ctx: &mut KernelCtx,
    value: &Tensor,
    at: usize,
    lens: impl Iterator<Item = usize>,
    shape_of_piece: impl Fn(usize) -> Shape,
) -> Result<()> {
    let shape = value.shape();
    let outer: usize = shape[..at].iter().product();
    let inner: usize = shape[at + 1..].iter().product();
    let row = (shape[at] * inner) as isize;
    let mut start = 0;
    for (i, len) in lens.enumerate() {
        let piece_shape = shape_of_piece(len);
        let piece = if outer == 1 {
            value.view(start, piece_shape)?
        } else {
            let mut piece = ctx.alloc(value.dtype(), piece_shape)?;
            let view = Strided::new(start as isize, [(outer, row), (len * inner, 1)]);
            view.gather(ctx.par(), value, &mut piece)?;
            piece
        };
        ctx.set_output(i, piece)?;
        start += len * inner;
    }
    Ok(())
}

fn unpack_axis(axis: i64, rank: usize) -> Result<usize> {
    axis_in(axis, rank)
        .ok_or_else(|| invalid_argument!("axis = {axis} not in [{}, {rank})", -(rank as i64)))
}

fn wrong_num(at: usize, n: usize, shape: impl std::fmt::Display) -> ferroflow_base::Status {
    invalid_argument!("Input shape axis {at} must equal {n}, got shape {shape}")
}

fn unpack(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = ctx.num_outputs();
        let value = ctx.take_input(0)?;
        let shape = value.shape();
        let at = unpack_axis(axis, shape.rank())?;
        if shape[at] != n {
            return Err(wrong_num(at, n, shape));
        }
        split_along(ctx, &value, at, std::iter::repeat_n(1, n), |_| {
            shape
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != at)
                .map(|(_, &d)| d)
                .collect()
        })
    }))
}

fn unpack_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let at = unpack_axis(ctx.attrs().int("axis")?, dims.len())?;
    if dims[at].is_some_and(|d| d != n) {
        return Err(wrong_num(at, n, &input));
    }
    for i in 0..n {
        ctx.set(
            i,
            PartialShape::of(dims[..at].iter().chain(&dims[at + 1..]).copied()),
        );
    }
    Ok(())
}

fn pack_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    let n = g.num_inputs();
    let attrs = [("num", (n as i64).into()), g.attr("axis")];
    for (i, part) in d.node("Unpack", &[d], &attrs).into_iter().enumerate() {
        g.set(i, part)?;
    }
    Ok(())
}

fn unpack_gradient(g: &mut GradientCtx) -> Result<()> {
    let parts: Vec<_> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
    let dx = g.x(0).make("Pack", &parts, &[g.attr("axis")]);
    g.set(0, dx)
}
