//! UniformQuantize, UniformDequantize, UniformRequantize and UniformQuantizedClipByValue
//! (TensorFlow: `core/kernels/uniform_quant_ops`).

use crate::scales::{Multiplier, Scales, check_positive, multipliers};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{Stored, codes, map_slices, set_codes, stored, to_i32};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Element, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "UniformQuantize",
        "input: Tin, scales: float, zero_points: int32 -> output: Tout | Tin: type {float}; Tout: \
         type {qint8,quint8,qint32}; quantization_axis: int = -1; quantization_min_val: int; \
         quantization_max_val: int",
    )
    .shape(unchanged)
    .kernel(quantize),
    Op::new(
        "UniformDequantize",
        "input: Tin, scales: float, zero_points: int32 -> output: Tout | Tin: type \
         {qint8,quint8,qint32}; Tout: type {float}; quantization_axis: int = -1; \
         quantization_min_val: int; quantization_max_val: int",
    )
    .shape(unchanged)
    .kernel(dequantize),
    Op::new(
        "UniformRequantize",
        "input: Tin, input_scales: float, input_zero_points: int32, output_scales: float, \
         output_zero_points: int32 -> output: Tout | Tin: type {qint8,qint32}; Tout: type \
         {qint8,qint32}; input_quantization_axis: int = -1; input_quantization_min_val: int; \
         input_quantization_max_val: int; output_quantization_axis: int = -1; \
         output_quantization_min_val: int; output_quantization_max_val: int",
    )
    .shape(unchanged)
    .kernel(requantize),
    Op::new(
        "UniformQuantizedClipByValue",
        "operand: T, min: T, max: T, scales: float, zero_points: int32 -> output: T | T: type \
         {qint32}; quantization_axis: int = -1; quantization_min_val: int; quantization_max_val: \
         int",
    )
    .shape(unchanged)
    .kernel(clip),
];

fn unchanged(ctx: &mut ferroflow_opdef::ShapeCtx) -> Result<()> {
    shapes::unchanged(ctx)
}

/// Returns the limits in two attrs.
pub(crate) fn limits(build: &KernelBuild, prefix: &str) -> Result<[i32; 2]> {
    let limit = |name: &str| -> Result<i32> {
        let value = build
            .attrs
            .int(&format!("{prefix}quantization_{name}_val"))?;
        i32::try_from(value)
            .map_err(|_| invalid_argument!("quantization_{name}_val must fit 32 bits, got {value}"))
    };
    Ok([limit("min")?, limit("max")?])
}

/// Limits a code, the lower end last.
#[inline(always)]
pub(crate) fn limited(v: i32, [min, max]: [i32; 2]) -> i32 {
    v.min(max).max(min)
}

/// Rounds half up to an integer, without a call of the math library.
#[inline(always)]
fn rounded_up(v: f32) -> i32 {
    let v = v + 0.5;
    let whole = to_i32(v);
    match whole as f32 > v {
        true => whole.wrapping_sub(1),
        false => whole,
    }
}

/// Returns the code of `x`.
#[inline(always)]
pub(crate) fn code(x: f32, inverse: f32, zero: i32, limits: [i32; 2]) -> i32 {
    limited(rounded_up(x * inverse).wrapping_add(zero), limits)
}

fn quantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (axis, limits) = (build.attrs.int("quantization_axis")?, limits(build, "")?);
    if axis < -1 {
        return Err(invalid_argument!(
            "quantization_axis must be >= -1, given: {axis}"
        ));
    }
    let dtype = build.output(0)?;
    dispatch!(stored(dtype), T in [i8, u8, i32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let scales = Scales::of(ctx, &shape, 1, axis)?;
        let params = scales.pairs().map(|(scale, zero)| (1.0 / scale, zero));
        let params: Vec<(f32, i32)> = params.collect();
        let mut out = ctx.alloc(T::DTYPE, shape)?;
        let (from, to) = (ctx.slice::<f32>(0)?, out.slice_mut::<T>()?);
        map_slices(ctx.par(), from, to, &params, scales.post, |x, (inverse, zero)| {
            T::of_i32(code(x, *inverse, *zero, limits))
        });
        set_codes(ctx, 0, out, dtype)
    })), else Err(build.unsupported(dtype)))
}

fn dequantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("quantization_axis")?;
    let dtype = build.input(0)?;
    dispatch!(stored(dtype), T in [i8, u8, i32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let scales = Scales::of(ctx, &shape, 1, axis)?;
        if !check_positive(&[&scales]) {
            return Err(invalid_argument!(
                "rhs scales elements must be all positive."
            ));
        }
        let params: Vec<(f32, i32)> = scales.pairs().collect();
        let input = codes(ctx, 0)?;
        let mut out = ctx.alloc(DType::Float, shape)?;
        let (from, to) = (input.slice::<T>()?, out.slice_mut::<f32>()?);
        map_slices(ctx.par(), from, to, &params, scales.post, |code, (scale, zero)| {
            (code.wide() as i32).wrapping_sub(*zero) as f32 * scale
        });
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

fn requantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let axes = [
        attrs.int("input_quantization_axis")?,
        attrs.int("output_quantization_axis")?,
    ];
    for (axis, name) in axes.into_iter().zip(["input", "output"]) {
        if axis < -1 {
            return Err(invalid_argument!(
                "{name}_quantization_axis must be >= -1, given: {axis}"
            ));
        }
    }
    if axes[0] >= 0 && axes[1] >= 0 && axes[0] != axes[1] {
        return Err(invalid_argument!(
            "If input and output is both per-axis quantized, the quantization axis must be same."
        ));
    }
    let limits = limits(build, "output_")?;
    let (from, to) = (build.input(0)?, build.output(0)?);
    if to != DType::Qint8 {
        return Err(build.unsupported(to));
    }
    dispatch!(stored(from), T in [i8, i32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let input = Scales::of(ctx, &shape, 1, axes[0])?;
        let output = Scales::of(ctx, &shape, 3, axes[1])?;
        if !check_positive(&[&input, &output]) {
            return Err(invalid_argument!(
                "input/output scales elements must be all positive."
            ));
        }
        let steps = multipliers(&input, &output)?;
        let zeros = input.zeros_with(&output);
        let params: Vec<(Multiplier, [i32; 2])> = steps.into_iter().zip(zeros).collect();
        let post = if axes[0] >= 0 { input.post } else { output.post };
        let input = codes(ctx, 0)?;
        let mut out = ctx.alloc(DType::Int8, shape)?;
        let (from, into) = (input.slice::<T>()?, out.slice_mut::<i8>()?);
        map_slices(ctx.par(), from, into, &params, post, |code, (step, [zero, new])| {
            let code = (code.wide() as i32).wrapping_sub(*zero);
            limited(step.times(code).wrapping_add(*new), limits) as i8
        });
        set_codes(ctx, 0, out, to)
    })), else Err(build.unsupported(from)))
}

fn clip(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let axis = build.attrs.int("quantization_axis")?;
    let dtype = build.input(0)?;
    if dtype != DType::Qint32 {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let scales = Scales::of(ctx, &shape, 3, axis)?;
        let of_scales = ctx.shape(3)?;
        for (i, name) in [(1, "min"), (2, "max")] {
            let got = ctx.shape(i)?;
            if got != of_scales {
                return Err(invalid_argument!(
                    "Input {name} shape must be same as scales/zero_points. Given {name} of shape \
                     {got} and scales/zero_points of shape {of_scales}"
                ));
            }
        }
        let (low, high) = (codes(ctx, 1)?, codes(ctx, 2)?);
        let both = low.slice::<i32>()?.iter().zip(high.slice::<i32>()?);
        let params: Vec<[i32; 2]> = both.map(|(low, high)| [*low, *high]).collect();
        let input = codes(ctx, 0)?;
        let mut out = ctx.alloc(DType::Int32, shape)?;
        let (from, to) = (input.slice::<i32>()?, out.slice_mut::<i32>()?);
        map_slices(
            ctx.par(),
            from,
            to,
            &params,
            scales.post,
            |v, [low, high]| v.max(*low).min(*high),
        );
        set_codes(ctx, 0, out, dtype)
    }))
}
