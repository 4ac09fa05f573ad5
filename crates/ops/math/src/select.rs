//! Select and SelectV2: elementwise choice between tensors (TensorFlow:
//! `core/kernels/cwise_op_select.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::binary::checked_broadcast;
use ferroflow_functors::broadcast::broadcast_partial;
use ferroflow_functors::strided::Strided;
use ferroflow_functors::unary::CHEAP;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};
use std::borrow::Cow;

/// Select, SelectV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Select",
        "condition: bool, t: T, e: T -> output: T | T: type |",
    )
    .shape(select_shape)
    .kernel(|_| Ok(Box::new(select)))
    .gradient(select_gradient),
    Op::new(
        "SelectV2",
        "condition: bool, t: T, e: T -> output: T | T: type |",
    )
    .shape(|ctx| {
        let branches = broadcast_partial(&ctx.input(1), &ctx.input(2))?;
        let shape = broadcast_partial(&ctx.input(0), &branches)?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(select_v2_factory)
    .gradient(select_gradient),
];

fn select_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.merge(&ctx.input(1), &ctx.input(2))?;
    let cond = ctx.input(0);
    let shape = match (cond.rank(), shape.rank()) {
        (Some(1), Some(rank)) if rank > 1 => {
            let rows = PartialShape::of((0..rank).map(|i| if i == 0 { cond.dim(0) } else { None }));
            ctx.merge(&shape, &rows)?
        }
        (Some(1..), Some(_)) => ctx.merge(&shape, &cond)?,
        _ => shape,
    };
    ctx.set(0, shape);
    Ok(())
}

fn check_branches(t: &Shape, e: &Shape) -> Result<()> {
    if t == e {
        return Ok(());
    }
    Err(invalid_argument!(
        "'then' and 'else' must have the same size.  but received: {t} vs. {e}"
    ))
}

fn select(ctx: &mut KernelCtx) -> Result<()> {
    let (cond, t, e) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let by_row = cond.shape().rank() == 1 && t.shape().rank() != 1;
    let is_whole = cond.shape().is_scalar();
    if is_whole {
        check_branches(t.shape(), e.shape())?;
        let chosen = if cond.to_scalar::<bool>()? { 1 } else { 2 };
        let chosen = ctx.take_input(chosen)?;
        return ctx.set_output(0, chosen);
    }
    let shape = t.shape().clone();
    if !by_row {
        let others = [(1, t), (2, e)];
        if let Some((i, other)) = others.iter().find(|o| o.1.shape() != cond.shape()) {
            return Err(invalid_argument!(
                "Inputs to operation {} of type Select must have the same size and shape.  \
                 Input 0: {} != input {i}: {}",
                ctx.node(),
                cond.shape(),
                other.shape()
            ));
        }
        let out = choose_tensors(ctx.par(), shape, cond, t, e)?;
        return ctx.set_output(0, out);
    }
    let Some(&rows) = shape.first() else {
        return Err(invalid_argument!(
            "'then' must be at least a vector, but saw shape: {shape}"
        ));
    };
    if rows != cond.num_elements() {
        return Err(invalid_argument!(
            "Number of batches of 'then' must match size of 'cond', but saw: {rows} vs. {}",
            cond.num_elements()
        ));
    }
    check_branches(&shape, e.shape())?;
    let row_len: usize = shape[1..].iter().product();
    let cond = cond.slice::<bool>()?;
    let mut out = ctx.alloc(t.dtype(), shape)?;
    dispatch_items!(t.dtype(), T => {
        let (t, e) = (t.items::<T>()?, e.items::<T>()?);
        let group = (CHEAP / row_len.max(1)).max(1);
        par_chunks_mut(ctx.par(), out.items_mut::<T>()?, row_len, group, &|i, row| {
            let from = if cond[i] { t } else { e };
            row.clone_from_slice(&from[i * row_len..(i + 1) * row_len]);
        });
    });
    ctx.set_output(0, out)
}

fn select_v2_factory(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(select_v2))
}

fn select_v2(ctx: &mut KernelCtx) -> Result<()> {
    let (cond, t, e) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let shape = if t.shape() == e.shape() && (cond.shape().is_scalar() || cond.shape() == t.shape())
    {
        t.shape().clone()
    } else {
        checked_broadcast(t.shape(), e.shape())
            .and_then(|branches| checked_broadcast(cond.shape(), &branches))
            .map_err(|_| {
                invalid_argument!(
                    "condition {}, then {}, and else {} must be broadcastable",
                    cond.shape(),
                    t.shape(),
                    e.shape()
                )
            })?
    };
    if let [cond] = cond.slice::<bool>()? {
        let (i, chosen) = if *cond { (1, t) } else { (2, e) };
        if chosen.num_elements() == shape.num_elements() {
            let chosen = ctx.take_input(i)?.with_shape(shape)?;
            return ctx.set_output(0, chosen);
        }
    }
    let out = choose_tensors(ctx.par(), shape, cond, t, e)?;
    ctx.set_output(0, out)
}

/// Returns the elements of `t` expanded to `shape`; one element stays one.
fn spread<'a, T: Item>(
    par: &dyn Parallelism,
    t: &'a Tensor,
    values: &'a [T],
    shape: &Shape,
) -> Result<Cow<'a, [T]>> {
    if values.len() == 1 || values.len() == shape.num_elements() {
        return Ok(Cow::Borrowed(values));
    }
    let skipped = shape.rank() - t.shape().rank();
    let strides = t.shape().strides();
    let dims = shape.iter().enumerate().map(|(i, &n)| {
        let own = i.checked_sub(skipped).filter(|&j| t.shape()[j] == n);
        (n, own.map_or(0, |j| strides[j] as isize))
    });
    let mut out = vec![T::default(); shape.num_elements()];
    Strided::new(0, dims).copy_to(par, values, &mut out)?;
    Ok(Cow::Owned(out))
}

fn choose_tensors(
    par: &dyn Parallelism,
    shape: Shape,
    cond: &Tensor,
    t: &Tensor,
    e: &Tensor,
) -> Result<Tensor> {
    let mut out = Tensor::for_overwrite(t.dtype(), shape.clone())?;
    if shape.num_elements() == 0 {
        return Ok(out);
    }
    let cond = spread(par, cond, cond.slice::<bool>()?, &shape)?;
    dispatch_items!(t.dtype(), T => {
        let t = spread(par, t, t.items::<T>()?, &shape)?;
        let e = spread(par, e, e.items::<T>()?, &shape)?;
        par_chunks_mut(par, out.items_mut::<T>()?, CHEAP, 1, &|i, out| {
            let part = |n: usize| if n == 1 { 0..1 } else { i * CHEAP..i * CHEAP + out.len() };
            choose(&cond[part(cond.len())], &t[part(t.len())], &e[part(e.len())], out);
        });
    });
    Ok(out)
}

/// Returns one of two elements; without a branch where both can be read at no cost.
#[inline(always)]
fn pick<T: Item>(cond: bool, t: &T, e: &T) -> T {
    match std::mem::needs_drop::<T>() {
        true => if cond { t } else { e }.clone(),
        false => std::hint::select_unpredictable(cond, t.clone(), e.clone()),
    }
}

/// Computes `out[i] = cond[i] ? t[i] : e[i]`; an operand of one element is broadcast.
fn choose<T: Item>(cond: &[bool], t: &[T], e: &[T], out: &mut [T]) {
    match (cond, t, e) {
        ([cond], t, e) => match if *cond { t } else { e } {
            [value] => out.fill(value.clone()),
            values => out.clone_from_slice(values),
        },
        (cond, [t], [e]) => {
            for (out, c) in out.iter_mut().zip(cond) {
                *out = pick(*c, t, e);
            }
        }
        (cond, t, [e]) => {
            for ((out, c), t) in out.iter_mut().zip(cond).zip(t) {
                *out = pick(*c, t, e);
            }
        }
        (cond, [t], e) => {
            for ((out, c), e) in out.iter_mut().zip(cond).zip(e) {
                *out = pick(*c, t, e);
            }
        }
        (cond, t, e) => {
            for (((out, c), t), e) in out.iter_mut().zip(cond).zip(t).zip(e) {
                *out = pick(*c, t, e);
            }
        }
    }
}

fn select_gradient(g: &mut GradientCtx) -> Result<()> {
    let (condition, d) = (g.x(0), g.dy(0));
    let zeros = d.zeros_like();
    for (i, parts) in [(1, [d, zeros]), (2, [zeros, d])] {
        if g.needs(i) {
            let x = g.x(i);
            let picked = condition.op(g.op_name(), &parts);
            // Select broadcasts only a vector of conditions.
            let dx = if g.op_name() == "Select" {
                picked
            } else {
                d.at(picked.output()).sum_to(x)
            };
            g.set(i, dx)?;
        }
    }
    Ok(())
}
