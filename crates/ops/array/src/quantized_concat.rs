//! QuantizedConcat and QuantizedReshape (TensorFlow: `core/kernels/quantized_concat_op.cc`,
//! `quantized_reshape_op.cc`).

use crate::concat::{concat_shape, join};
use crate::shape_ops::reshape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Ints, int};
use ferroflow_functors::quantized::{
    Dequantizer, Quantizer, Stored, codes, par_map, scalar_ranges, set_range, stored,
};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Shape, Tensor, dispatch, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedConcat",
        "concat_dim: int32, values: N*T, input_mins: N*float, input_maxes: N*float -> output: T, \
         output_min: float, output_max: float | N: int >= 2; T: type",
    )
    .shape(|ctx| {
        let n = (ctx.num_inputs() - 1) / 3;
        concat_shape(ctx, 0, 1..n + 1)?;
        scalar_ranges(ctx, n + 1..3 * n + 1)
    })
    .kernel(concat),
    Op::new(
        "QuantizedReshape",
        "tensor: T, shape: Tshape, input_min: float, input_max: float -> output: T, output_min: \
         float, output_max: float | T: type; Tshape: type {int32,int64} = int32",
    )
    .shape(|ctx| {
        crate::reshape::reshape_shape(ctx)?;
        scalar_ranges(ctx, 2..4)
    })
    .cost(Cost::Cheap)
    .kernel(reshaped),
];

fn reshaped(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if !matches!(dtype, DType::Quint8 | DType::Qint32) {
        return Err(build.unsupported(dtype));
    }
    let kernel = reshape(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        kernel.compute(ctx)?;
        let mut range = [0.0; 2];
        for (i, name) in ["input_min", "input_max"].into_iter().enumerate() {
            if !matches!(ctx.shape(i + 2)?.dims(), [] | [1]) {
                return Err(invalid_argument!(
                    "{name} must be a scalar or a vector of 1 element"
                ));
            }
            range[i] = ctx.slice::<f32>(i + 2)?[0];
        }
        set_range(ctx, 1, range)
    }))
}

fn concat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if !matches!(dtype, DType::Quint8 | DType::Qint32) {
        return Err(build.unsupported(dtype));
    }
    let n = (build.inputs.len() - 1) / 3;
    dispatch!(stored(dtype), T in [u8, i32] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| concatenated::<T>(ctx, n, dtype))),
        else Err(build.unsupported(dtype)))
}

/// Returns the range of each input, and that of the output.
fn ranges<T: Stored>(ctx: &KernelCtx, n: usize) -> Result<(Vec<[f32; 2]>, [f32; 2])> {
    let (mut all, mut out) = (Vec::with_capacity(n), [f32::MAX, f32::MIN]);
    for i in 0..n {
        let mut range = [0.0; 2];
        for (side, name) in ["input_mins", "input_maxes"].into_iter().enumerate() {
            range[side] = match ctx.slice::<f32>(1 + n * (side + 1) + i)? {
                [end] => *end,
                ends => {
                    return Err(invalid_argument!(
                        "{name} each tensor's num elements must be 1, given num elements {} in \
                         index {i}",
                        ends.len()
                    ));
                }
            };
        }
        out = [out[0].min(range[0]), out[1].max(range[1])];
        all.push(range);
    }
    out[0] = out[0].min(0.0);
    if T::LOWEST < 0 {
        let most = out[0].abs().max(out[1].abs());
        out = [-most, most];
    }
    Ok((all, out))
}

/// Returns the position of the dimension to concatenate along.
fn axis_of(ctx: &KernelCtx) -> Result<usize> {
    let dim = ctx.input(0)?;
    let (true, Some(at)) = (dim.shape().is_scalar(), int(dim)) else {
        return Err(invalid_argument!(
            "Concat dim tensor should be a scalar integer, but got shape {}",
            dim.shape()
        ));
    };
    let rank = ctx.shape(1)?.rank();
    let axis = usize::try_from(at).ok().filter(|&a| a < rank);
    axis.ok_or_else(|| {
        invalid_argument!(
            "ConcatOp : Expected concatenating dimensions in the range [0, {rank}), but got {at}"
        )
    })
}

/// Returns the output's shape.
fn joined_shape(ctx: &KernelCtx, n: usize, axis: usize) -> Result<Shape> {
    let first = ctx.shape(1)?;
    let rank = first.rank();
    let mut dims: Ints = first.iter().map(|&d| d as i64).collect();
    dims[axis] = 0;
    for i in 0..n {
        let shape = ctx.shape(i + 1)?;
        let differs = match shape.rank() == rank {
            false => Some("Ranks of all input tensors"),
            true => (0..rank)
                .any(|j| j != axis && shape[j] != first[j])
                .then_some("Dimensions of inputs"),
        };
        if let Some(what) = differs {
            return Err(invalid_argument!(
                "ConcatOp : {what} should match: shape[0] = {first} vs. shape[{i}] = {shape}"
            ));
        }
        dims[axis] = dims[axis].saturating_add(shape[axis] as i64);
    }
    Shape::checked(&dims)
}

fn concatenated<T: Stored>(ctx: &mut KernelCtx, n: usize, dtype: DType) -> Result<()> {
    let axis = axis_of(ctx)?;
    let (ranges, range) = ranges::<T>(ctx, n)?;
    let shape = joined_shape(ctx, n, axis)?;
    let to = Quantizer::new::<T>(range[0], range[1]);
    let mut parts: Vec<(Tensor, usize)> = Vec::with_capacity(n);
    for (i, own) in ranges.iter().enumerate() {
        let part = codes(ctx, i + 1)?;
        let width = part.shape()[axis..].iter().product();
        if *own == range {
            parts.push((part, width));
            continue;
        }
        let of = Dequantizer::new::<T>(own[0], own[1]);
        let mut moved = ctx.alloc(T::DTYPE, part.shape().clone())?;
        let (from, into) = (part.slice::<T>()?, moved.slice_mut::<T>()?);
        par_map(ctx.par(), from, into, |code| to.code(of.value(code)));
        parts.push((moved, width));
    }
    let outer = shape[..axis].iter().product();
    let mut out = ctx.alloc(dtype, shape)?;
    if out.num_elements() > 0 {
        dispatch_items!(dtype, I => {
            let parts = parts.iter().map(|(t, width)| Ok((t.items::<I>()?, *width)));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            join(ctx, &parts, outer, out.items_mut::<I>()?);
        });
    }
    ctx.set_output(0, out)?;
    set_range(ctx, 1, range)
}
