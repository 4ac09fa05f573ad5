//! XlaReduce, XlaVariadicReduce and XlaVariadicReduceV2: reductions by a function of the graph (TensorFlow:
//! `compiler/tf2xla/kernels/xla_reduce_op.cc`).

use crate::function::{Function, dispatch_combined, unfit};
use crate::known::{Reducible, signed};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::conversion::converted;
use ferroflow_functors::reduce::{layout, reduce};
use ferroflow_functors::strided::filled;
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch, dispatch_items,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaReduce",
        "input: T, init_value: T -> output: T | T: type {numbertype,bool}; dimensions_to_reduce: list(int); reducer: \
         func",
    )
    .shape(|ctx| shape(ctx, "XlaReduce"))
    .kernel(build),
    Op::new(
        "XlaVariadicReduce",
        "input: N*T, init_value: N*T -> output: N*T | N: int >= 1; T: type {numbertype,bool}; dimensions_to_reduce: \
         list(int); reducer: func",
    )
    .shape(|ctx| shape(ctx, "XlaVariadicReduce"))
    .kernel(build)
    .not_differentiable(),
    Op::new(
        "XlaVariadicReduceV2",
        "inputs: list(T), init_values: list(T) -> outputs: list(T) | T: list(type) >= 1; dimensions_to_reduce: \
         list(int); reducer: func",
    )
    .shape(|ctx| shape(ctx, "XlaVariadicReduceV2"))
    .kernel(build),
];

/// Returns which of `rank` dimensions are reduced.
fn marked(dims: &[i64], rank: usize, op: &str) -> Result<Vec<bool>> {
    let mut reduced = vec![false; rank];
    for &dim in dims {
        let place = usize::try_from(dim).ok().and_then(|d| reduced.get_mut(d));
        match place {
            Some(place) if !*place => *place = true,
            _ => {
                return Err(invalid_argument!(
                    "Invalid dimensions_to_reduce argument to {op}"
                ));
            }
        }
    }
    Ok(reduced)
}

fn shape(ctx: &mut ShapeCtx, op: &str) -> Result<()> {
    let n = ctx.num_outputs();
    let mut input = ctx.input(0);
    for i in 1..n {
        let other = ctx.input(i);
        let merged = input.merge(&other);
        input = merged.ok_or_else(|| {
            invalid_argument!(
                "All inputs must have the same shape. Input {i} (zero-based) has shape {other} incompatible with the \
                 shape inferred from previous inputs {input}"
            )
        })?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let reduced = marked(&ctx.attrs().ints("dimensions_to_reduce")?, dims.len(), op)?;
    let kept = dims.iter().zip(&reduced).filter(|(_, reduced)| !**reduced);
    let out = PartialShape::of(kept.map(|(d, _)| *d));
    for i in 0..n {
        ctx.set(i, out.clone());
    }
    Ok(())
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = build.attrs.func("reducer")?.name.clone();
    let dims = build.attrs.ints("dimensions_to_reduce")?;
    let op = build.def.name.to_string();
    let n = build.outputs.len();
    for &dtype in build.outputs {
        dispatch_combined!(dtype, T => (), else return Err(build.unsupported(dtype)));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let function = Function::of(ctx, &name)?;
        let reduced = checked(ctx, n, &dims, &op)?;
        if dims.is_empty() {
            // XLA then leaves out the initial value.
            return (0..n).try_for_each(|i| {
                let input = ctx.take_input(i)?;
                ctx.set_output(i, input)
            });
        }
        match function.only_op().filter(|_| n == 1) {
            Some(op) => known(ctx, op, &reduced, &function),
            None => called(ctx, n, &reduced, &function),
        }
    }))
}

/// Returns which dimensions are reduced, after a check of the inputs.
fn checked(ctx: &KernelCtx, n: usize, dims: &[i64], op: &str) -> Result<Vec<bool>> {
    let shape = ctx.shape(0)?;
    for i in 0..n {
        let (other, init) = (ctx.shape(i)?, ctx.shape(n + i)?);
        if other != shape {
            return Err(invalid_argument!(
                "All reduced tensors must have compatible dimension. Tensor at index 0 has shape {shape}, but tensor at \
                 index {i} has shape {other}."
            ));
        }
        if !init.is_scalar() {
            return Err(invalid_argument!(
                "The reduced init value must be a scalar, but has shape {init}"
            ));
        }
    }
    marked(dims, shape.rank(), op)
}

/// Reduces by a function that is one known op.
fn known(ctx: &mut KernelCtx, op: &str, reduced: &[bool], function: &Function) -> Result<()> {
    let (mut x, mut init) = (ctx.input(0)?.clone(), ctx.input(1)?.clone());
    let dtype = x.dtype();
    if matches!(dtype, DType::Half | DType::Bfloat16) {
        (x, init) = (
            converted(&x, DType::Float)?,
            converted(&init, DType::Float)?,
        );
    }
    let of = signed(op, dtype);
    if of != dtype {
        (x, init) = (x.bitcast(of)?, init.bitcast(of)?);
    }
    let kept = x
        .shape()
        .iter()
        .zip(reduced)
        .filter(|(_, reduced)| !**reduced);
    let mut out = ctx.alloc(x.dtype(), kept.map(|(d, _)| *d).collect())?;
    let layout = layout(x.shape(), reduced);
    dispatch!(x.dtype(), T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32, Complex64] => {
        let Some(reducer) = T::reducer(op) else {
            return called(ctx, 1, reduced, function);
        };
        reduce(ctx.par(), &reducer, &layout, x.slice::<T>()?, out.slice_mut::<T>()?)?;
        if let Some(windows) = T::windows(op) {
            let init = init.to_scalar::<T>()?;
            out.slice_mut::<T>()?.iter_mut().for_each(|out| *out = (windows.step)(init, *out));
        }
    }, else return Err(unfit()));
    if of != dtype {
        out = out.bitcast(dtype)?;
    }
    ctx.set_output(0, converted(&out, dtype)?)
}

/// Reduces by calls of the function.
fn called(ctx: &mut KernelCtx, n: usize, reduced: &[bool], function: &Function) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let axes = |which: bool| (0..shape.rank()).filter(move |&i| reduced[i] == which);
    let kept: Shape = axes(false).map(|i| shape[i]).collect();
    let (outer, inner) = (
        kept.num_elements(),
        axes(true).map(|i| shape[i]).product::<usize>(),
    );
    let perm: Vec<usize> = axes(true).chain(axes(false)).collect();
    // Rows of what is reduced together: each has one element for each of the result.
    let mut inputs = Vec::new();
    for i in 0..n {
        let input = transposed(ctx, ctx.input(i)?.clone(), &perm)?;
        inputs.push(input.with_shape(Shape::from([inner, outer]))?);
    }
    let inits: Vec<Tensor> = (n..2 * n)
        .map(|i| ctx.input(i).cloned())
        .collect::<Result<_>>()?;
    let outs = match function.is_elementwise() {
        true => by_rows(ctx, function, &inputs, &inits)?,
        false => by_elements(ctx, function, &inputs, &inits)?,
    };
    for (i, out) in outs.into_iter().enumerate() {
        ctx.set_output(i, out.with_shape(kept.clone())?)?;
    }
    Ok(())
}

/// Calls the function once for each row.
fn by_rows(
    ctx: &KernelCtx,
    function: &Function,
    inputs: &[Tensor],
    inits: &[Tensor],
) -> Result<Vec<Tensor>> {
    let [rows, n] = [inputs[0].shape()[0], inputs[0].shape()[1]];
    let whole = |t: Tensor| match t.shape().is_scalar() {
        true => filled(ctx, &t, Shape::from([n])),
        false if t.num_elements() == n => Ok(t),
        false => Err(unfit()),
    };
    let spread = |all: Vec<Tensor>| all.into_iter().map(whole).collect::<Result<Vec<_>>>();
    let mut acc = spread(inits.to_vec())?;
    for row in 0..rows {
        let mut args = acc;
        for input in inputs {
            args.push(input.view(row * n, Shape::from([n]))?);
        }
        acc = spread(function.call(args)?)?;
        check_results(&acc, inits)?;
    }
    Ok(acc)
}

/// Calls the function once for each element.
fn by_elements(
    ctx: &KernelCtx,
    function: &Function,
    inputs: &[Tensor],
    inits: &[Tensor],
) -> Result<Vec<Tensor>> {
    let [rows, n] = [inputs[0].shape()[0], inputs[0].shape()[1]];
    let alloc = |t: &Tensor| ctx.alloc(t.dtype(), Shape::from([n]));
    let mut outs: Vec<Tensor> = inits.iter().map(alloc).collect::<Result<_>>()?;
    for i in 0..n {
        let mut acc = inits.to_vec();
        for row in 0..rows {
            let mut args = acc;
            for input in inputs {
                args.push(input.view(row * n + i, Shape::scalar())?);
            }
            acc = function.call(args)?;
            check_results(&acc, inits)?;
        }
        for (out, value) in outs.iter_mut().zip(&acc) {
            dispatch_items!(out.dtype(), T => match value.items::<T>()? {
                [value] => out.items_mut::<T>()?[i].clone_from(value),
                _ => return Err(unfit()),
            });
        }
    }
    Ok(outs)
}

fn check_results(results: &[Tensor], inits: &[Tensor]) -> Result<()> {
    let dtypes = |all: &[Tensor]| all.iter().map(Tensor::dtype).collect::<Vec<_>>();
    match dtypes(results) == dtypes(inits) {
        true => Ok(()),
        false => Err(unfit()),
    }
}
