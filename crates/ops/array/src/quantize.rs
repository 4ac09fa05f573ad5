//! QuantizeV2 and Dequantize (TensorFlow: `core/kernels/quantize_op.cc`, `dequantize_op.cc`).

use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::half_conversion::narrowed;
use ferroflow_functors::quantized::{
    Dequantizer, Quantizer, Stored, codes, map_slices, rounded, rounded_even, set_codes, stored,
    to_i32,
};
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizeV2",
        "input: float, min_range: float, max_range: float -> output: T, output_min: float, \
         output_max: float | T: type {qint8,quint8,qint32,qint16,quint16}; mode: string \
         {'MIN_COMBINED','MIN_FIRST','SCALED'} = 'MIN_COMBINED'; round_mode: string \
         {'HALF_AWAY_FROM_ZERO','HALF_TO_EVEN'} = 'HALF_AWAY_FROM_ZERO'; narrow_range: bool = \
         false; axis: int = -1; ensure_minimum_range: float = 0.01",
    )
    .shape(|ctx| {
        let minmax = shape(ctx)?;
        ctx.set(1, minmax.clone());
        ctx.set(2, minmax);
        Ok(())
    })
    .kernel(quantize),
    Op::new(
        "Dequantize",
        "input: T, min_range: float, max_range: float -> output: dtype | T: type \
         {qint8,quint8,qint32,qint16,quint16}; mode: string \
         {'MIN_COMBINED','MIN_FIRST','SCALED'} = 'MIN_COMBINED'; narrow_range: bool = false; \
         axis: int = -1; dtype: type {bfloat16,float} = float",
    )
    .shape(|ctx| shape(ctx).map(|_| ()))
    .kernel(dequantize),
];

/// Sets output 0 to the shape of input 0; returns the shape of the ranges.
fn shape(ctx: &mut ShapeCtx) -> Result<PartialShape> {
    let axis = ctx.attrs().int("axis")?;
    if axis < -1 {
        return Err(invalid_argument!("axis should be at least -1, got {axis}"));
    }
    ctx.set(0, ctx.input(0));
    let Ok(axis) = usize::try_from(axis) else {
        ctx.with_rank(1, 0)?;
        return ctx.with_rank(2, 0);
    };
    let minmax = ctx.with_rank(1, 1)?;
    let minmax = ctx.merge(&minmax, &ctx.with_rank(2, 1)?)?;
    if i32::try_from(axis).is_err() {
        return Err(invalid_argument!(
            "Axis cannot be >= kint32max value, got {axis}"
        ));
    }
    let input = ctx.with_rank_at_least(0, axis + 1)?;
    let along = PartialShape::of([input.dim(axis as isize)]);
    let ends = ctx.merge(&minmax, &along)?;
    // The range of one slice is a scalar.
    Ok(match ends.dim(0) {
        None => PartialShape::unknown(),
        Some(1) => PartialShape::scalar(),
        _ => ends,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    MinCombined,
    MinFirst,
    Scaled,
}

impl Mode {
    fn of(attrs: &Attrs) -> Result<Mode> {
        Ok(match attrs.str("mode")? {
            "MIN_COMBINED" => Mode::MinCombined,
            "MIN_FIRST" => Mode::MinFirst,
            _ => Mode::Scaled,
        })
    }
}

#[derive(Clone, Copy)]
struct Spec {
    mode: Mode,
    half_to_even: bool,
    narrow: i64,
    axis: Option<usize>,
    least_range: f32,
}

fn axis_of(attrs: &Attrs) -> Result<Option<usize>> {
    Ok(usize::try_from(attrs.int("axis")?).ok())
}

fn quantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let spec = Spec {
        mode: Mode::of(attrs)?,
        half_to_even: attrs.str("round_mode")? == "HALF_TO_EVEN",
        narrow: i64::from(attrs.bool("narrow_range")?),
        axis: axis_of(attrs)?,
        least_range: attrs.float("ensure_minimum_range")?,
    };
    if spec.half_to_even && spec.mode != Mode::Scaled {
        return Err(invalid_argument!(
            "Round mode 'HALF_TO_EVEN' only supported for mode 'SCALED', but mode is '{}'.",
            attrs.str("mode")?
        ));
    }
    let dtype = build.output(0)?;
    dispatch!(stored(dtype), T in [i8, u8, i16, u16, i32] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| quantized::<T>(ctx, spec, dtype))),
        else Err(build.unsupported(dtype)))
}

/// Returns the number of slices along the axis, and how many elements of one lie together.
fn slices(shape: &Shape, axis: Option<usize>) -> [usize; 2] {
    match axis {
        None => [1, shape.num_elements()],
        Some(axis) => [shape[axis], shape[axis + 1..].iter().product()],
    }
}

fn check_ranges(ctx: &KernelCtx, axis: Option<usize>) -> Result<()> {
    let input = ctx.shape(0)?;
    let Some(axis) = axis else {
        for (i, name) in [(1, "min_range"), (2, "max_range")] {
            let n = ctx.shape(i)?.num_elements();
            if n != 1 {
                return Err(invalid_argument!(
                    "If axis is not specified, {name} must contain a single float element, but \
                     it contains {n} elements"
                ));
            }
        }
        return Ok(());
    };
    if axis >= input.rank() {
        return Err(invalid_argument!(
            "Axis is on a zero-based index, so its value must always be less than number of \
             input's dims, but given axis value was {axis} and input's dims was {}",
            input.rank()
        ));
    }
    for (i, name) in [(1, "min_range"), (2, "max_range")] {
        let range = ctx.shape(i)?;
        let must = format!(
            "If axis is specified, {name} must be a 1-D tensor whose size matches the axis \
             dimension of the input and output tensors, but {name}"
        );
        if range.rank() != 1 {
            return Err(invalid_argument!("{must} dims are {}", range.rank()));
        }
        if range[0] != input[axis] {
            return Err(invalid_argument!(
                "{must} is a 1-D tensor of size {} and input's axis dimension is of size {}",
                range[0],
                input[axis]
            ));
        }
    }
    Ok(())
}

/// The conversion of one slice: floats are limited, shifted, scaled, shifted again.
#[derive(Clone, Copy)]
struct Steps {
    min: f32,
    max: f32,
    from: f32,
    scale: f32,
    add: f32,
    /// The range that the codes stand for.
    range: [f32; 2],
}

/// Returns the range to use for a requested one: it holds zero and is not too small.
fn widened([min, max]: [f32; 2], least: f32) -> Result<[f32; 2]> {
    if max < min {
        return Err(invalid_argument!(
            "input_max_range must be larger than input_min_range."
        ));
    }
    let epsilon = 1f32.max(min.abs().max(max.abs())) * least;
    let low = min.min(0.0);
    Ok([low, 0f32.max(max.max(low + epsilon))])
}

impl Steps {
    fn new<T: Stored>(range: [f32; 2], spec: Spec) -> Result<Steps> {
        let [min, max] = widened(range, spec.least_range)?;
        if spec.mode == Mode::MinCombined {
            let width = (T::HIGHEST - T::LOWEST) as f64;
            return Ok(Steps {
                min,
                max,
                from: min,
                scale: (width / f64::from(max - min)) as f32,
                add: match T::LOWEST {
                    0 => 0.5,
                    _ => -(((width + 1.0) / 2.0) as f32),
                },
                range: [min, max],
            });
        }
        let (lowest, highest) = ((T::LOWEST + spec.narrow) as f32, T::HIGHEST as f32);
        let side = |code: f32, end: f32| match code * end > 0.0 {
            true => code / end,
            false => f32::MAX,
        };
        let scale = side(lowest, min).min(side(highest, max));
        // TensorFlow's threads flush denormal numbers.
        let (min, max) = (lowest / scale, highest / scale);
        let min = if min.is_subnormal() { 0.0 } else { min };
        Ok(Steps {
            min,
            max,
            from: 0.0,
            scale,
            add: 0.0,
            range: [min, max],
        })
    }

    #[inline(always)]
    fn limited(&self, x: f32) -> f32 {
        let x = if self.max < x { self.max } else { x };
        if x < self.min { self.min } else { x }
    }
}

fn quantized<T: Stored>(ctx: &mut KernelCtx, spec: Spec, dtype: DType) -> Result<()> {
    check_ranges(ctx, spec.axis)?;
    let shape = ctx.shape(0)?.clone();
    let [n, post] = slices(&shape, spec.axis);
    let (mins, maxes) = (ctx.slice::<f32>(1)?, ctx.slice::<f32>(2)?);
    let ranges = mins.iter().zip(maxes).map(|(min, max)| [*min, *max]);
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let (par, from, to) = (ctx.par(), ctx.slice::<f32>(0)?, out.slice_mut::<T>()?);
    let ranges: Vec<[f32; 2]> = match (spec.mode, n) {
        (Mode::MinFirst, 1) => {
            let ranges = ranges.map(|range| widened(range, spec.least_range));
            let ranges = ranges.collect::<Result<Vec<_>>>()?;
            let steps: Vec<_> = ranges
                .iter()
                .map(|r| Quantizer::new::<T>(r[0], r[1]))
                .collect();
            map_slices(par, from, to, &steps, post, |x, q| q.code(x));
            ranges
        }
        (Mode::MinFirst, _) => {
            return Err(unimplemented_error!(
                "MIN_FIRST mode is not implemented for Quantize with axis != -1."
            ));
        }
        _ => {
            let steps = ranges.map(|range| Steps::new::<T>(range, spec));
            let steps = steps.collect::<Result<Vec<_>>>()?;
            let rounds = T::LOWEST != 0 || spec.mode == Mode::Scaled;
            match (spec.half_to_even, rounds) {
                (true, _) => map_slices(par, from, to, &steps, post, |x, s| {
                    T::of_i32(to_i32(rounded_even(s.limited(x) * s.scale)))
                }),
                (_, true) => map_slices(par, from, to, &steps, post, |x, s| {
                    T::of_i32(to_i32(rounded((s.limited(x) - s.from) * s.scale + s.add)))
                }),
                _ => map_slices(par, from, to, &steps, post, |x, s| {
                    T::of_i32(to_i32((s.limited(x) - s.from) * s.scale + s.add))
                }),
            }
            steps.iter().map(|s| s.range).collect()
        }
    };
    set_codes(ctx, 0, out, dtype)?;
    let shape = match n {
        1 => Shape::default(),
        _ => Shape::from([n]),
    };
    for i in 0..2 {
        let ends: Vec<f32> = ranges.iter().map(|range| range[i]).collect();
        ctx.set_output(i + 1, Tensor::from_slice(shape.clone(), &ends)?)?;
    }
    Ok(())
}

fn dequantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let mode = Mode::of(attrs)?;
    let (narrow, axis) = (i64::from(attrs.bool("narrow_range")?), axis_of(attrs)?);
    let (from, to) = (build.input(0)?, build.output(0)?);
    if to == DType::Bfloat16 && mode != Mode::MinCombined {
        return Err(invalid_argument!(
            "When output type is bfloat16, Mode string must be 'MIN_COMBINED', is '{}'",
            attrs.str("mode")?
        ));
    }
    dispatch!(stored(from), T in [i8, u8, i16, u16, i32] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let out = dequantized::<T>(ctx, mode, narrow, axis)?;
            let out = match to {
                DType::Float => out,
                _ => narrowed(ctx.par(), out, to)?,
            };
            ctx.set_output(0, out)
        })),
        else Err(build.unsupported(from)))
}

fn dequantized<T: Stored>(
    ctx: &mut KernelCtx,
    mode: Mode,
    narrow: i64,
    axis: Option<usize>,
) -> Result<Tensor> {
    let shape = ctx.shape(0)?.clone();
    let shown = axis.map_or(-1, |axis| axis as i64);
    if shown >= shape.rank() as i64 {
        return Err(invalid_argument!(
            "Axis must be less than input dimension({}), got {shown}",
            shape.rank()
        ));
    }
    let [n, post] = slices(&shape, axis);
    for (i, name) in [(1, "input_min_tensor"), (2, "input_max_tensor")] {
        let got = ctx.shape(i)?.num_elements();
        if got != n {
            return Err(invalid_argument!(
                "{name} must have as many elements as input on the dequantization axis ({shown}), \
                 got {got}, expected {n}"
            ));
        }
    }
    let ranges = ctx.slice::<f32>(1)?.iter().zip(ctx.slice::<f32>(2)?);
    let input = codes(ctx, 0)?;
    let mut out = ctx.alloc(DType::Float, shape)?;
    let (par, from, to) = (ctx.par(), input.slice::<T>()?, out.slice_mut::<f32>()?);
    match mode {
        Mode::MinFirst if n != 1 => {
            return Err(unimplemented_error!(
                "MIN_FIRST mode is not implemented for Dequantize with axis != -1."
            ));
        }
        Mode::MinFirst => {
            let steps: Vec<_> = ranges.map(|(a, b)| Dequantizer::new::<T>(*a, *b)).collect();
            map_slices(par, from, to, &steps, post, |code, s| s.value(code));
        }
        Mode::MinCombined => {
            let width = T::HIGHEST as f32 - T::LOWEST as f32;
            let half = match T::LOWEST {
                0 => 0.0,
                _ => (width + 1.0) / 2.0,
            };
            let steps: Vec<_> = ranges.map(|(a, b)| ((b - a) / width, *a)).collect();
            map_slices(par, from, to, &steps, post, |code, (scale, min)| {
                (code.float() + half) * scale + min
            });
        }
        Mode::Scaled => {
            let (lowest, highest) = ((T::LOWEST + narrow) as f32, T::HIGHEST as f32);
            let steps: Vec<f32> = ranges
                .map(|(min, max)| match T::LOWEST {
                    0 => max / highest,
                    _ => (min / lowest).max(max / highest),
                })
                .collect();
            map_slices(par, from, to, &steps, post, |code, scale| match T::BITS {
                // Without an axis, TensorFlow converts to an integer on the way.
                32 if n == 1 => to_i32(code.float()) as f32 * scale,
                _ => code.float() * scale,
            });
        }
    }
    Ok(out)
}
