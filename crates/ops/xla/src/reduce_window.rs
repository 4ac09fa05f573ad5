//! XlaReduceWindow and XlaSelectAndScatter: functions of the elements in sliding windows (TensorFlow:
//! `compiler/tf2xla/kernels/{reduce_window,xla_select_and_scatter}_op.cc`).

use crate::axis::{Axis, Places, paddings, vector, window_size};
use crate::function::{Combined, Function, dispatch_combined};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::strided::unravel;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Element, PartialShape, Shape, Tensor};

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
        let out = reduced::<T>(ctx, &places, &function)?;
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
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
