//! XlaReduceWindow and XlaSelectAndScatter: functions of the elements in sliding windows (TensorFlow:
//! `compiler/tf2xla/kernels/{reduce_window,xla_select_and_scatter}_op.cc`).

use crate::axis::{Axis, Places, paddings, vector, window_size};
use crate::function::{Combined, Function, dispatch_combined, unfit};
use crate::known::{Reducible, signed};
use crate::passes::{self, Order};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::strided::{filled, unravel};
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, Element, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaReduceWindow",
        "input: T, init_value: T, window_dimensions: Tindices, window_strides: Tindices, base_dilations: Tindices, \
         window_dilations: Tindices, padding: Tindices -> output: T | T: type {numbertype,bool}; Tindices: type \
         {int32,int64}; computation: func",
    )
    .shape(same_rank)
    .cost(Cost::Expensive)
    .kernel(reduce_window),
    Op::new(
        "XlaSelectAndScatter",
        "operand: T, window_dimensions: Tindices, window_strides: Tindices, padding: Tindices, source: T, init_value: T \
         -> output: T | T: numbertype; Tindices: type {int32,int64}; select: func; scatter: func",
    )
    .shape(same_rank)
    .cost(Cost::Expensive)
    .kernel(select_and_scatter),
];

/// Infers an output with the rank of the first input.
pub(crate) fn same_rank(ctx: &mut ShapeCtx) -> Result<()> {
    if let Some(rank) = ctx.input(0).rank() {
        ctx.set(0, PartialShape::of_rank(rank));
    }
    Ok(())
}

/// Elements of the result that are computed together.
const BLOCK: usize = 256;

fn scalar<T: Element>(t: &Tensor) -> Result<T> {
    match t.shape().is_scalar() {
        true => t.to_scalar(),
        false => Err(invalid_argument!(
            "init_value must be a scalar, but has shape {}",
            t.shape()
        )),
    }
}

/// Returns the axes of a window, of whose numbers the inputs from `first` on are sizes, strides and, if `dilates`,
/// dilations; then the paddings.
fn axes(ctx: &KernelCtx, first: usize, dilates: bool) -> Result<Vec<Axis>> {
    let shape = ctx.shape(0)?;
    let rank = shape.rank();
    let sizes = vector(ctx.input(first)?, rank, "window_dimensions")?;
    let strides = vector(ctx.input(first + 1)?, rank, "window_strides")?;
    let mut dilations = [vec![1; rank], vec![1; rank]];
    if dilates {
        for (i, name) in ["base_dilations", "window_dilations"].iter().enumerate() {
            dilations[i] = vector(ctx.input(first + 2 + i)?, rank, name)?.to_vec();
        }
    }
    let paddings = paddings(ctx.input(first + if dilates { 4 } else { 2 })?, rank)?;
    let axis = |i: usize| {
        Ok(Axis {
            size: shape[i],
            window: window_size(sizes[i])?,
            stride: strides[i],
            padding: paddings[i],
            base_dilation: dilations[0][i],
            window_dilation: dilations[1][i],
        })
    };
    (0..rank).map(axis).collect()
}

fn reduce_window(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = build.attrs.func("computation")?.name.clone();
    let dtype = build.input(0)?;
    dispatch_combined!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let function = Function::of(ctx, &name)?;
        let places = Places::of(&axes(ctx, 2, true)?, ctx.shape(0)?)?;
        let out = match fast(ctx, &places, &function)? {
            Some(out) => out,
            None => reduced::<T>(ctx, &places, &function)?,
        };
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

/// Reduces along one dimension after another, or scans by calls of the function with all elements; `None` if neither can.
fn fast(ctx: &KernelCtx, places: &Places, function: &Function) -> Result<Option<Tensor>> {
    let (x, init) = (ctx.input(0)?, ctx.input(1)?);
    let Some(op) = function.only_op() else {
        return match function.is_elementwise() {
            true => scanned(ctx, places, function),
            false => Ok(None),
        };
    };
    let (dtype, of) = (x.dtype(), signed(op, x.dtype()));
    if of != dtype {
        let (x, init) = (x.bitcast(of)?, init.bitcast(of)?);
        let out = by_passes(ctx.par(), &x, &init, places, op)?;
        return out.map(|out| out.bitcast(dtype)).transpose();
    }
    by_passes(ctx.par(), x, init, places, op)
}

fn by_passes(
    par: &dyn Parallelism,
    x: &Tensor,
    init: &Tensor,
    places: &Places,
    op: &str,
) -> Result<Option<Tensor>> {
    dispatch!(x.dtype(), T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32, Complex64] => {
        let Some(mut windows) = T::windows(op) else {
            return Ok(None);
        };
        windows.row = T::known_rows(op).unwrap_or(windows.row);
        let out = passes::reduced(par, x.slice::<T>()?, x.shape(), places, &windows)?;
        let Some(mut out) = out else {
            return Ok(None);
        };
        let init = scalar::<T>(init)?;
        out.slice_mut::<T>()?.iter_mut().for_each(|out| *out = (windows.step)(init, *out));
        Ok(Some(out))
    }, else Ok(None))
}

/// Reduces windows that each continue the one next to them, along one dimension: each call of the function doubles what
/// has been combined (Hillis and Steele, "Data Parallel Algorithms", 1986).
fn scanned(ctx: &KernelCtx, places: &Places, function: &Function) -> Result<Option<Tensor>> {
    let shape = ctx.shape(0)?.clone();
    let orders: Option<Vec<Order>> = places
        .covered
        .iter()
        .zip(shape.iter())
        .map(|(covered, n)| Order::of(covered, *n))
        .collect();
    let Some(orders) = orders.filter(|o| o.len() == shape.rank() && places.shape == shape) else {
        return Ok(None);
    };
    let mut long = (0..shape.rank()).filter(|d| orders[*d] != Order::Same);
    let (Some(axis), None) = (long.next(), long.next()) else {
        return Ok(None);
    };
    let n = shape[axis];
    let covered = &places.covered[axis];
    let is_scan = match orders[axis] {
        Order::Forward => (covered[0].first, covered[0].n, covered[n - 1].n) == (0, 1, n),
        Order::Backward => (covered[n - 1].n, covered[0].n) == (1, n),
        _ => false,
    };
    let grows = covered.windows(2).all(|p| p[0].n.abs_diff(p[1].n) == 1);
    if !is_scan || !grows {
        return Ok(None);
    }
    let mut perm: Vec<usize> = (0..shape.rank()).collect();
    perm.remove(axis);
    perm.insert(0, axis);
    let mut back = vec![0; perm.len()];
    for (i, p) in perm.iter().enumerate() {
        back[*p] = i;
    }
    let turned = transposed(ctx, ctx.input(0)?.clone(), &perm)?;
    let turned_shape = turned.shape().clone();
    let flat = Shape::from([shape.num_elements()]);
    let y = doubled(ctx, turned.with_shape(flat)?, n, orders[axis], function)?;
    let y = transposed(ctx, y.with_shape(turned_shape)?, &back)?;
    Ok(Some(y))
}

/// Scans `n` rows of elements.
fn doubled(
    ctx: &KernelCtx,
    x: Tensor,
    n: usize,
    order: Order,
    function: &Function,
) -> Result<Tensor> {
    let total = x.num_elements();
    let call = |a: Tensor, b: Tensor| {
        let (shape, dtype) = (a.shape().clone(), a.dtype());
        match function.call(vec![a, b])?.pop() {
            Some(y) if *y.shape() == shape && y.dtype() == dtype => Ok(y),
            _ => Err(unfit()),
        }
    };
    let init = filled(ctx, ctx.input(1)?, x.shape().clone())?;
    let mut y = x;
    let mut by = 1;
    while by < n {
        let (skipped, rest) = (total / n * by, total / n * (n - by));
        let rest_shape = Shape::from([rest]);
        let (low, high) = (y.view(0, rest_shape.clone())?, y.view(skipped, rest_shape)?);
        let both = match order {
            Order::Forward => call(low, high)?,
            _ => call(high, low)?,
        };
        let mut next = ctx.alloc(y.dtype(), y.shape().clone())?;
        dispatch_combined!(y.dtype(), T => {
            let (out, both, y) = (next.slice_mut::<T>()?, both.slice::<T>()?, y.slice::<T>()?);
            match order {
                Order::Forward => {
                    out[..skipped].copy_from_slice(&y[..skipped]);
                    out[skipped..].copy_from_slice(both);
                }
                _ => {
                    out[..rest].copy_from_slice(both);
                    out[rest..].copy_from_slice(&y[rest..]);
                }
            }
        }, else return Err(unfit()));
        y = next;
        by *= 2;
    }
    call(init, y)
}

fn reduced<T: Combined>(ctx: &KernelCtx, places: &Places, function: &Function) -> Result<Tensor> {
    let (x, init) = (ctx.slice::<T>(0)?, scalar::<T>(ctx.input(1)?)?);
    let mut out = ctx.alloc(T::DTYPE, places.shape.clone())?;
    let combine = function.combine::<T>();
    let dims = places.shape.dims();
    let Some(known) = combine.known() else {
        for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
            let mut coords = vec![0; dims.len()];
            unravel(i, dims, &mut coords);
            *out = init;
            places.visit(&coords, &mut |at| {
                *out = combine.apply(*out, x[at])?;
                Ok(())
            })?;
        }
        return Ok(out);
    };
    par_chunks_mut(
        ctx.par(),
        out.slice_mut::<T>()?,
        BLOCK,
        1,
        &|block, outs| {
            let mut coords = vec![0; dims.len()];
            for (i, out) in outs.iter_mut().enumerate() {
                unravel(block * BLOCK + i, dims, &mut coords);
                let mut acc = init;
                let done = places.visit(&coords, &mut |at| {
                    acc = known(acc, x[at]);
                    Ok(())
                });
                // What is known does not fail.
                debug_assert!(done.is_ok());
                *out = acc;
            }
        },
    );
    Ok(out)
}

/// Returns whether the function selects the first of two elements.
fn selects<T: Combined>(function: &Function, a: T, b: T) -> Result<bool> {
    match function.only_op().and_then(|op| T::compared(op, a, b)) {
        Some(is_first) => Ok(is_first),
        None => function.call2(a, b),
    }
}

fn select_and_scatter(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let select = build.attrs.func("select")?.name.clone();
    let scatter = build.attrs.func("scatter")?.name.clone();
    let dtype = build.input(0)?;
    dispatch_combined!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let functions = [Function::of(ctx, &select)?, Function::of(ctx, &scatter)?];
        let places = Places::of(&axes(ctx, 1, false)?, ctx.shape(0)?)?;
        let source: &Shape = ctx.shape(4)?;
        if *source != places.shape {
            return Err(invalid_argument!(
                "Source shape does not match the shape of window-reduced operand: source({source}), window-reduced \
                 operand({}).",
                places.shape
            ));
        }
        let out = scattered::<T>(ctx, &places, &functions)?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

fn scattered<T: Combined>(
    ctx: &KernelCtx,
    places: &Places,
    [select, scatter]: &[Function; 2],
) -> Result<Tensor> {
    let (x, source) = (ctx.slice::<T>(0)?, ctx.slice::<T>(4)?);
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    let out_items = out.slice_mut::<T>()?;
    out_items.fill(scalar::<T>(ctx.input(5)?)?);
    let combine = scatter.combine::<T>();
    let dims = places.shape.dims();
    let mut coords = vec![0; dims.len()];
    for (i, source) in source.iter().enumerate() {
        unravel(i, dims, &mut coords);
        let mut selected: Option<usize> = None;
        places.visit(&coords, &mut |at| {
            let keeps = match selected {
                Some(before) => selects(select, x[before], x[at])?,
                None => false,
            };
            if !keeps {
                selected = Some(at);
            }
            Ok(())
        })?;
        if let Some(at) = selected {
            out_items[at] = combine.apply(out_items[at], *source)?;
        }
    }
    Ok(out)
}
