//! NthElement (TensorFlow: `core/kernels/nth_element_op.cc`).

use crate::wide::{dispatch_wide, is_real, narrowed, widened};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::constant_int;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Shape};
use std::cmp::Ordering;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "NthElement",
    "input: T, n: int32 -> values: T | reverse: bool = false; T: realnumbertype",
)
.shape(|ctx| {
    let input = ctx.with_rank_at_least(0, 1)?;
    ctx.with_rank(1, 0)?;
    let Some((last, rows)) = input.dims().and_then(<[_]>::split_last) else {
        return Ok(());
    };
    let n = constant_int(ctx, 1).and_then(|n| usize::try_from(n).ok());
    if let (Some(n), Some(last)) = (n, last)
        && *last <= n
    {
        return Err(invalid_argument!(
            "Input must have last dimension > n = {n} but is {last}"
        ));
    }
    let shape = PartialShape::of(rows.iter().copied());
    ctx.set(0, shape);
    Ok(())
})
.kernel(|build| {
    let reverse = build.attrs.bool("reverse")?;
    let dtype = build.output(0)?;
    match is_real(dtype) {
        true => Ok(Box::new(move |ctx: &mut KernelCtx| select(ctx, reverse))),
        false => Err(build.unsupported(dtype)),
    }
})
.gradient(gradient)];

fn select(ctx: &mut KernelCtx, reverse: bool) -> Result<()> {
    let (x, n) = (ctx.input(0)?, ctx.input(1)?);
    if !n.shape().is_scalar() {
        return Err(invalid_argument!(
            "N must be scalar but has rank {}",
            n.shape().rank()
        ));
    }
    let n = n.to_scalar::<i32>()?;
    let Ok(n) = usize::try_from(n) else {
        return Err(invalid_argument!("n must be non-negative but is {n}"));
    };
    let Some((&last, rows)) = x.shape().split_last() else {
        return Err(invalid_argument!(
            "Input must be at least rank 1 but is rank 0"
        ));
    };
    if last <= n {
        return Err(invalid_argument!(
            "Input must have last dimension > n = {n}"
        ));
    }
    let n = if reverse { last - n - 1 } else { n };
    let wide = widened(ctx.par(), x)?;
    let mut out = ctx.alloc(wide.dtype(), Shape::from(rows))?;
    dispatch_wide!(wide.dtype(), T => {
        select_each(ctx.par(), wide.slice::<T>()?, [last, n], out.slice_mut()?);
    }, else {});
    let out = narrowed(ctx.par(), out, x.dtype())?;
    ctx.set_output(0, out)
}

/// Sets each of `out` to the element with number `n` of the sorted row.
fn select_each<T: Element + PartialOrd>(
    par: &dyn Parallelism,
    x: &[T],
    [last, n]: [usize; 2],
    out: &mut [T],
) {
    let chunk = (16 * 1024 / last).max(1);
    par_chunks_mut(par, out, chunk, 1, &|i, out| {
        let mut row = Vec::with_capacity(last);
        for (j, out) in out.iter_mut().enumerate() {
            let start = (i * chunk + j) * last;
            row.clear();
            row.extend_from_slice(x.get(start..start + last).unwrap_or_default());
            let order = |a: &T, b: &T| a.partial_cmp(b).unwrap_or(Ordering::Equal);
            if n < row.len() {
                *out = *row.select_nth_unstable_by(n, order).1;
            }
        }
    });
}

/// Elements equal to the result share its gradient.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, dy) = (g.x(0), g.dy(0));
    let last = x.int(-1);
    let y = g.y(0).op("ExpandDims", &[last]);
    let is_it = y.op("Equal", &[x]).cast(match dy.dtype() {
        dtype if dtype.is_floating() => dtype,
        _ => DType::Float,
    });
    let n = is_it.sum(last, true);
    g.set(0, is_it / n * dy.op("ExpandDims", &[last]))
}
