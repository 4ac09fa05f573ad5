//! OneHot (TensorFlow: `core/kernels/one_hot_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant_int, ints, shape_of};
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Item, PartialShape, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "OneHot",
    "indices: TI, depth: int32, on_value: T, off_value: T -> output: T | axis: int \
         = -1; T: type; TI: type {uint8,int8,int32,int64} = int64",
)
.shape(one_hot_shape)
.kernel(one_hot)
.not_differentiable()];

fn one_hot_axis(axis: i64, rank: usize) -> Result<usize> {
    match axis {
        -1 => Ok(rank),
        a if a >= 0 && a as usize <= rank => Ok(a as usize),
        a => Err(invalid_argument!(
            "Expected axis to be -1 or between [0, {}).  But received: {a}",
            rank + 1
        )),
    }
}

fn one_hot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("axis")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        one_hot_values(ctx, axis)
    }))
}

fn one_hot_values(ctx: &mut KernelCtx, axis: i64) -> Result<()> {
    let indices = ctx.input(0)?;
    let shape = indices.shape();
    let at = one_hot_axis(axis, shape.rank())?;
    let scalar = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "{name} must be a scalar, but got: {}",
                t.shape()
            ));
        }
        Ok(t)
    };
    let depth = scalar(1, "depth")?.to_scalar::<i32>()?;
    let (on, off) = (scalar(2, "on_value")?, scalar(3, "off_value")?);
    let Ok(depth) = usize::try_from(depth) else {
        return Err(invalid_argument!(
            "depth must be non-negative, got: {depth}"
        ));
    };
    let out_shape = shape_of(
        shape[..at]
            .iter()
            .chain(&[depth])
            .chain(&shape[at..])
            .copied(),
    )?;
    let inner: usize = shape[at..].iter().product();
    let mut out = ctx.alloc(ctx.input(2)?.dtype(), out_shape)?;
    let values = ints(indices)?;
    dispatch_items!(out.dtype(), T => {
        let (on, off) = (&on.items::<T>()?[0], &off.items::<T>()?[0]);
        fill_hot(ctx.par(), &values, (depth, inner), on, off, out.items_mut::<T>()?);
    });
    ctx.set_output(0, out)
}

/// Sets element `values[i]` of `depth`, `inner` elements apart, to `on`, all others to `off`.
fn fill_hot<T: Item>(
    par: &dyn Parallelism,
    values: &[i64],
    (depth, inner): (usize, usize),
    on: &T,
    off: &T,
    out: &mut [T],
) {
    let hot = |i: i64| usize::try_from(i).ok().filter(|&i| i < depth);
    par_rows(par, out, depth * inner, &|row, to| {
        to.fill(off.clone());
        for (j, &i) in values[row * inner..(row + 1) * inner].iter().enumerate() {
            if let Some(i) = hot(i) {
                to[i * inner + j] = on.clone();
            }
        }
    });
}

fn one_hot_shape(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 1..4 {
        ctx.with_rank(i, 0)?;
    }
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let at = one_hot_axis(ctx.attrs().int("axis")?, dims.len())?;
    let depth = match constant_int(ctx, 1) {
        Some(d) if d < 0 => {
            return Err(invalid_argument!("depth must be non-negative, got: {d}"));
        }
        d => d.map(|d| d as usize),
    };
    ctx.set(
        0,
        PartialShape::of(
            dims[..at]
                .iter()
                .chain(&[depth])
                .chain(&dims[at..])
                .copied(),
        ),
    );
    Ok(())
}
