//! NthElement (TensorFlow: `core/kernels/nth_element_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::constant_int;
use ferroflow_opdef::{GradientCtx, KernelCtx, Op};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, bf16, dispatch, f16};
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
    dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| select::<T>(ctx, reverse))),
        else Err(build.unsupported(dtype)))
})
.gradient(gradient)];

fn select<T: Element + PartialOrd>(ctx: &mut KernelCtx, reverse: bool) -> Result<()> {
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
    let x = x.slice::<T>()?;
    let mut out = ctx.alloc(T::DTYPE, Shape::from(rows))?;
    let chunk = (16 * 1024 / last).max(1);
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, chunk, 1, &|i, out| {
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
    ctx.set_output(0, out)
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
