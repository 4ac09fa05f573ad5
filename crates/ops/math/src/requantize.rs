//! Requantize and related ops: codes of one range as codes of another (TensorFlow:
//! `core/kernels/requantize.cc`, `requantization_range_op.cc`, `quantize_down_and_shrink_range.cc`,
//! `mkl/mkl_requantize_per_channel_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{
    Stored, codes, map_slices, range_of, requantize, rounded_even, scalar_ranges, set_codes,
    set_range, stored, value,
};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Element, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizeDownAndShrinkRange",
        "input: Tinput, input_min: float, input_max: float -> output: out_type, output_min: \
         float, output_max: float | Tinput: type {qint8,quint8,qint32,qint16,quint16}; out_type: \
         type {qint8,quint8,qint32,qint16,quint16}",
    )
    .shape(|ctx| unchanged(ctx, 3))
    .kernel(quantize_down),
    Op::new(
        "Requantize",
        "input: Tinput, input_min: float, input_max: float, requested_output_min: float, \
         requested_output_max: float -> output: out_type, output_min: float, output_max: float | \
         Tinput: type {qint8,quint8,qint32,qint16,quint16}; out_type: type \
         {qint8,quint8,qint32,qint16,quint16}",
    )
    .shape(|ctx| unchanged(ctx, 5))
    .kernel(requantized),
    Op::new(
        "RequantizationRange",
        "input: Tinput, input_min: float, input_max: float -> output_min: float, output_max: \
         float | Tinput: type {qint8,quint8,qint32,qint16,quint16}",
    )
    .shape(|ctx| scalar_ranges(ctx, 1..3))
    .kernel(used_range),
    Op::new(
        "RequantizePerChannel",
        "input: T, input_min: float, input_max: float, requested_output_min: float, \
         requested_output_max: float -> output: out_type, output_min: float, output_max: float | \
         T: type {qint8,quint8,qint32,qint16,quint16} = qint32; out_type: type \
         {qint8,quint8,qint32,qint16,quint16} = quint8",
    )
    .shape(|ctx| {
        ctx.set(0, ctx.input(0));
        ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 1)?;
        scalar_ranges(ctx, 3..5)
    })
    .kernel(per_channel),
    Op::new(
        "RequantizationRangePerChannel",
        "input: T, input_min: float, input_max: float -> output_min: float, output_max: float | \
         T: type {qint8,quint8,qint32,qint16,quint16} = qint32; clip_value_max: float",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 1)?;
        scalar_ranges(ctx, 0..0)
    })
    .kernel(channel_range),
];

fn unchanged(ctx: &mut ShapeCtx, n: usize) -> Result<()> {
    ctx.set(0, ctx.input(0));
    scalar_ranges(ctx, 1..n)
}

/// Returns the dtype of the output; fails unless the input is qint32 and the output one of `to`.
fn from_qint32(build: &KernelBuild, to: &[DType]) -> Result<DType> {
    let (from, out) = (build.input(0)?, build.output(0)?);
    match from {
        DType::Qint32 if to.contains(&out) => Ok(out),
        DType::Qint32 => Err(build.unsupported(out)),
        _ => Err(build.unsupported(from)),
    }
}

/// Returns the lowest and the highest value; the limits of the type if there is none.
fn ends(values: &[i32]) -> [i32; 2] {
    let none = [i32::MAX, i32::MIN];
    values
        .iter()
        .fold(none, |[low, high], v| [low.min(*v), high.max(*v)])
}

/// Returns the floats of the lowest and the highest code, the lowest at most zero.
fn used(values: &[i32], [min, max]: [f32; 2]) -> [f32; 2] {
    let [low, high] = ends(values);
    [value(low, min, max).min(0.0), value(high, min, max)]
}

fn convert<T: Stored>(
    ctx: &mut KernelCtx,
    from: [f32; 2],
    to: [f32; 2],
    dtype: DType,
) -> Result<()> {
    let input = codes(ctx, 0)?;
    let mut out = ctx.alloc(T::DTYPE, input.shape().clone())?;
    requantize(
        ctx.par(),
        input.slice::<i32>()?,
        from,
        to,
        out.slice_mut::<T>()?,
    );
    set_codes(ctx, 0, out, dtype)?;
    set_range(ctx, 1, to)
}

fn quantize_down(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = from_qint32(build, &[DType::Quint8])?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let range = range_of(ctx, 1, ["input_min", "input_max"])?;
        let shrunk = used(codes(ctx, 0)?.slice::<i32>()?, range);
        convert::<u8>(ctx, range, shrunk, dtype)
    }))
}

fn requantized(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = from_qint32(build, &[DType::Quint8, DType::Qint8])?;
    dispatch!(stored(dtype), T in [u8, i8] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let from = range_of(ctx, 1, ["input_min", "input_max"])?;
        let to = range_of(ctx, 3, ["requested_output_min", "requested_output_max"])?;
        if to[0] > 0.0 {
            return Err(invalid_argument!(
                "requested_output_min must be <= 0, but got {}",
                to[0]
            ));
        }
        if to[1] < to[0] {
            return Err(invalid_argument!(
                "requested_output_max must be >= requested_output_min, but got {} and {}",
                to[1],
                to[0]
            ));
        }
        convert::<T>(ctx, from, to, dtype)
    })), else Err(build.unsupported(dtype)))
}

fn used_range(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if dtype != DType::Qint32 {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let mut range = [0.0; 2];
        for (i, name) in ["min", "max"].into_iter().enumerate() {
            let first = ctx.slice::<f32>(i + 1)?.first();
            range[i] =
                *first.ok_or_else(|| invalid_argument!("Input {name} must not be empty."))?;
        }
        let used = used(codes(ctx, 0)?.slice::<i32>()?, range);
        set_range(ctx, 0, used)
    }))
}

/// The factor of 32-bit codes: their largest stands for the end of the range.
const HIGHEST: f32 = 2_147_483_648.0;

fn per_channel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = from_qint32(build, &[DType::Quint8, DType::Qint8])?;
    let (factor, low, high) = match dtype {
        DType::Qint8 => (127.0, -128.0, 127.0),
        _ => (255.0, 0.0, 255.0),
    };
    dispatch!(stored(dtype), T in [u8, i8] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        if shape.rank() != 4 {
            return Err(invalid_argument!(
                "Current RequantizePerChannel operatorsupports 4D tensors only."
            ));
        }
        let (mins, maxes) = (ctx.slice::<f32>(1)?, ctx.slice::<f32>(2)?);
        size("input_max", mins.len(), maxes.len())?;
        const REQUESTED: [&str; 2] = ["requested_output_min", "requested_output_max"];
        for (i, name) in REQUESTED.into_iter().enumerate() {
            if ctx.input(3 + i)?.num_elements() != 1 {
                return Err(invalid_argument!("{name} must be a scalar"));
            }
        }
        let [min, max] = range_of(ctx, 3, REQUESTED)?;
        if dtype == DType::Qint8 && min >= 0.0 {
            return Err(invalid_argument!(
                "If out_type is QINT8, requested_output_max must be non negative, got {min}"
            ));
        }
        size("input_min", shape[3], mins.len())?;
        let most = min.abs().max(max.abs());
        let ends = mins.iter().zip(maxes);
        let scales: Vec<f32> = ends
            .map(|(a, b)| factor * (a.abs().max(b.abs()) / most / HIGHEST))
            .collect();
        let input = codes(ctx, 0)?;
        let mut out = ctx.alloc(T::DTYPE, shape)?;
        let (from, to) = (input.slice::<i32>()?, out.slice_mut::<T>()?);
        map_slices(ctx.par(), from, to, &scales, 1, |code, scale| {
            T::of_i32(rounded_even(code as f32 * scale).clamp(low, high) as i32)
        });
        set_codes(ctx, 0, out, dtype)?;
        set_range(ctx, 1, [min, max])
    })), else Err(build.unsupported(dtype)))
}

fn size(name: &str, expected: usize, was: usize) -> Result<()> {
    match expected == was {
        true => Ok(()),
        false => Err(invalid_argument!(
            "{name} has incorrect size, expected {expected} was {was}"
        )),
    }
}

fn channel_range(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if dtype != DType::Qint32 {
        return Err(build.unsupported(dtype));
    }
    let clip = build.attrs.float("clip_value_max")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?;
        let (mins, maxes) = (ctx.slice::<f32>(1)?, ctx.slice::<f32>(2)?);
        for (i, name) in [(1, "input_min"), (2, "input_max")] {
            size(
                name,
                maxes.len(),
                ctx.shape(i)?.first().copied().unwrap_or(1),
            )?;
        }
        size("input_min", maxes.len(), mins.len())?;
        if shape.num_elements() == 0 {
            return Err(invalid_argument!("input must not be empty"));
        }
        if shape.rank() != 4 {
            return Err(invalid_argument!("input must be in NHWC format"));
        }
        if shape[3] != maxes.len() {
            return Err(invalid_argument!(
                "input must have same number of channels as length of input_min: {} vs {}",
                shape[3],
                maxes.len()
            ));
        }
        let input = codes(ctx, 0)?;
        let mut found = vec![[i32::MAX, i32::MIN]; shape[3]];
        for pixel in input.slice::<i32>()?.chunks_exact(shape[3]) {
            for ([low, high], v) in found.iter_mut().zip(pixel) {
                *low = (*low).min(*v);
                *high = (*high).max(*v);
            }
        }
        let ends = mins.iter().zip(maxes).zip(&found);
        let most = ends.fold(f32::MIN_POSITIVE, |most, ((min, max), [low, high])| {
            let widest = low.wrapping_abs().max(high.wrapping_abs()) as f32;
            most.max(min.abs().max(max.abs()) * widest / HIGHEST)
        });
        let most = if most > clip { clip } else { most };
        let low = match found.iter().any(|[low, _]| *low < 0) {
            true => -most,
            false => 0.0,
        };
        set_range(ctx, 0, [low, most])
    }))
}
