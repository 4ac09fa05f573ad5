//! FakeQuantWithMinMaxArgs and related ops: numbers rounded to quantization steps, for
//! quantization-aware training (TensorFlow: `core/kernels/fake_quant_ops.cc`).

use ferroflow_base::{Result, general, invalid_argument};
use ferroflow_functors::agreement::{Agreement, without_broadcast};
use ferroflow_opdef::{Attrs, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::cmp::Ordering;

/// FakeQuantWithMinMaxArgs, FakeQuantWithMinMaxVars, FakeQuantWithMinMaxVarsPerChannel, and for
/// each its Gradient.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FakeQuantWithMinMaxArgs",
        "inputs: float -> outputs: float | min: float = -6.0; max: float = 6.0; \
         num_bits: int = 8; narrow_range: bool = false",
    )
    .shape(|ctx| {
        ctx.set(0, ctx.input(0));
        Ok(())
    })
    .kernel(|build| {
        let steps = Steps::of_attrs(build.attrs)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            quantize(ctx, &round_all::<false>(steps))
        }))
    })
    .gradient(|g| {
        let attrs = [
            g.attr("min"),
            g.attr("max"),
            g.attr("num_bits"),
            g.attr("narrow_range"),
        ];
        let dx = g.dy(0).make(
            "FakeQuantWithMinMaxArgsGradient",
            &[g.dy(0), g.x(0)],
            &attrs,
        );
        g.set(0, dx)
    }),
    Op::new(
        "FakeQuantWithMinMaxArgsGradient",
        "gradients: float, inputs: float -> backprops: float | min: float = -6.0; max: \
         float = 6.0; num_bits: int = 8; narrow_range: bool = false",
    )
    .shape(|ctx| {
        let shape = ctx.merge(&ctx.input(0), &ctx.input(1))?;
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(|build| {
        let steps = Steps::of_attrs(build.attrs)?;
        let kernel = Box::new(move |ctx: &mut KernelCtx| {
            let [inside, ..] = gradient(ctx, &[steps])?;
            ctx.set_output(0, inside)
        });
        without_broadcast(build, Agreement::Shape, kernel)
    })
    .not_differentiable(),
    Op::new(
        "FakeQuantWithMinMaxVars",
        "inputs: float, min: float, max: float -> outputs: float | num_bits: int = 8; \
         narrow_range: bool = false",
    )
    .shape(|ctx| limited(ctx, 0, 1))
    .kernel(|build| by_inputs(build, LimitScope::Scalar))
    .gradient(|g| by_inputs_gradient(g, "FakeQuantWithMinMaxVarsGradient")),
    Op::new(
        "FakeQuantWithMinMaxVarsGradient",
        "gradients: float, inputs: float, min: float, max: float -> \
         backprops_wrt_input: float, backprop_wrt_min: float, backprop_wrt_max: float \
         | num_bits: int = 8; narrow_range: bool = false",
    )
    .shape(|ctx| limited(ctx, 0, 3))
    .kernel(|build| backprops(build, LimitScope::Scalar))
    .not_differentiable(),
    Op::new(
        "FakeQuantWithMinMaxVarsPerChannel",
        "inputs: float, min: float, max: float -> outputs: float | num_bits: int = 8; \
         narrow_range: bool = false",
    )
    .shape(|ctx| limited(ctx, 1, 1))
    .kernel(|build| by_inputs(build, LimitScope::Channels))
    .gradient(|g| by_inputs_gradient(g, "FakeQuantWithMinMaxVarsPerChannelGradient")),
    Op::new(
        "FakeQuantWithMinMaxVarsPerChannelGradient",
        "gradients: float, inputs: float, min: float, max: float -> \
         backprops_wrt_input: float, backprop_wrt_min: float, backprop_wrt_max: float \
         | num_bits: int = 8; narrow_range: bool = false",
    )
    .shape(|ctx| limited(ctx, 1, 3))
    .kernel(|build| backprops(build, LimitScope::Channels))
    .not_differentiable(),
];

/// Numbers below which a task is not worth dispatching.
const CHUNK: usize = 16 * 1024;

/// Numbers below which the steps of a row are repeated.
const SHORT_ROW: usize = 128;

/// The scope of the limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitScope {
    /// All numbers.
    Scalar,
    /// The numbers of a channel, which is the last dimension.
    Channels,
}

/// Returns the shapes of an op whose last two inputs are limits of this rank.
fn limited(ctx: &mut ShapeCtx, rank: usize, outputs: usize) -> Result<()> {
    let inputs = outputs.min(2);
    let (min, max) = (
        ctx.with_rank(inputs, rank)?,
        ctx.with_rank(inputs + 1, rank)?,
    );
    let mut limits = ctx.merge(&min, &max)?;
    let mut shape = ctx.input(0);
    if inputs == 2 {
        shape = ctx.merge(&shape, &ctx.input(1))?;
    }
    if rank == 1 {
        let channels = shape.dims().and_then(|d| d.last().copied());
        limits = ctx.merge(&limits, &PartialShape::of([channels.flatten()]))?;
    }
    ctx.set(0, shape);
    for i in 1..outputs {
        ctx.set(i, limits.clone());
    }
    Ok(())
}

fn by_inputs_gradient(g: &mut GradientCtx, op: &'static str) -> Result<()> {
    let attrs = [g.attr("num_bits"), g.attr("narrow_range")];
    let inputs = [g.dy(0), g.x(0), g.x(1), g.x(2)];
    for (i, part) in g.dy(0).node(op, &inputs, &attrs).into_iter().enumerate() {
        g.set(i, part)?;
    }
    Ok(())
}

/// The lowest and the highest number of the quantized type.
#[derive(Clone, Copy)]
struct Range(f32, f32);

impl Range {
    fn of(attrs: &Attrs) -> Result<Range> {
        let bits = attrs.int("num_bits")?;
        if !(2..=16).contains(&bits) {
            return Err(invalid_argument!(
                "num_bits must be between 2 and 16, inclusive"
            ));
        }
        let lowest = f32::from(u8::from(attrs.bool("narrow_range")?));
        Ok(Range(lowest, ((1u32 << bits) - 1) as f32))
    }
}

/// Steps between limits, nudged so that zero is one of them.
#[derive(Clone, Copy)]
struct Steps {
    min: f32,
    max: f32,
    scale: f32,
    /// As TensorFlow computes it, which is not always `1.0 / scale`.
    inverse: f32,
    /// The step of zero.
    zero: f32,
    /// Whether both limits are zero, so that zero is the only step.
    none: bool,
}

impl Steps {
    fn new(min: f32, max: f32, Range(lowest, highest): Range) -> Steps {
        // TensorFlow's threads flush denormal numbers.
        let [min, max] = [min, max].map(|v| if v.is_subnormal() { 0.0 } else { v });
        let scale = (max - min) / (highest - lowest);
        let zero = lowest - min / scale;
        let zero = match () {
            () if zero < lowest => lowest,
            () if zero > highest => highest,
            () => zero.round(),
        };
        let inverse = (highest - lowest) / (max - min);
        let low = (lowest - zero) * scale;
        Steps {
            min: low,
            max: (highest - zero) * scale,
            scale,
            inverse,
            zero: (-low * inverse + 0.5).floor(),
            none: min == 0.0 && max == 0.0,
        }
    }

    fn of_attrs(attrs: &Attrs) -> Result<Steps> {
        let (min, max) = (attrs.float("min")?, attrs.float("max")?);
        if min.partial_cmp(&max) != Some(Ordering::Less) {
            let [min, max] = [min, max].map(|v| general(v.into(), 6));
            return Err(invalid_argument!(
                "min has to be smaller than max, was: {min} >= {max}"
            ));
        }
        Ok(Steps::new(min, max, Range::of(attrs)?))
    }

    /// Rounds a number. Whether that divides makes a difference halfway between two steps.
    #[inline(always)]
    fn round<const DIVIDES: bool>(&self, x: f32) -> f32 {
        if self.none {
            return 0.0;
        }
        let above = above_min(x, self.min, self.max);
        let steps = if DIVIDES {
            above / self.scale
        } else {
            above * self.inverse
        };
        nearest(steps, self.zero, self.scale)
    }
}

/// Returns how far a number, which is limited first, is above the least one.
#[inline(always)]
fn above_min(x: f32, min: f32, max: f32) -> f32 {
    let x = if x > max { max } else { x };
    (if x < min { min } else { x }) - min
}

/// Returns the number of the nearest step to `steps` of `scale`, of which zero is number `zero`.
#[inline(always)]
fn nearest(steps: f32, zero: f32, scale: f32) -> f32 {
    (steps - zero + 0.5).floor() * scale
}

/// Returns the steps between the limits at inputs `at` and `at + 1`.
fn steps(
    ctx: &KernelCtx,
    input: usize,
    at: usize,
    limits: LimitScope,
    range: Range,
) -> Result<Vec<Steps>> {
    let n = match limits {
        LimitScope::Scalar => None,
        LimitScope::Channels => {
            let shape = ctx.shape(input)?;
            let last = shape.dims().last().copied();
            let last = last.ok_or_else(|| invalid_argument!("a scalar has no channels"))?;
            Some(last)
        }
    };
    let limit = |i: usize, name: &str| {
        let t = ctx.input(i)?;
        let shape = t.shape();
        match n {
            None if !shape.is_scalar() => Err(invalid_argument!(
                "`{name}` must be rank 0 but is rank {}",
                shape.rank()
            )),
            Some(_) if shape.rank() != 1 => Err(invalid_argument!(
                "`{name}` must be rank 1 but is rank {}",
                shape.rank()
            )),
            Some(n) if shape.num_elements() != n => Err(invalid_argument!(
                "{name} has incorrect size, expected {n} was {}",
                shape.num_elements()
            )),
            _ => t.slice::<f32>(),
        }
    };
    let (min, max) = (limit(at, "min")?, limit(at + 1, "max")?);
    let both = min.iter().zip(max);
    Ok(both
        .map(|(min, max)| Steps::new(*min, *max, range))
        .collect())
}

fn by_inputs(build: &KernelBuild, limits: LimitScope) -> Result<Box<dyn OpKernel>> {
    let range = Range::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let steps = steps(ctx, 0, 1, limits, range)?;
        match (limits, steps.as_slice()) {
            (LimitScope::Scalar, &[steps]) => quantize(ctx, &round_all::<true>(steps)),
            _ => quantize(ctx, &round_channels(&steps)),
        }
    }))
}

fn backprops(build: &KernelBuild, limits: LimitScope) -> Result<Box<dyn OpKernel>> {
    let range = Range::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if ctx.shape(0)? != ctx.shape(1)? {
            return Err(invalid_argument!(
                "gradient and input must be the same size"
            ));
        }
        let steps = steps(ctx, 1, 2, limits, range)?;
        for (i, part) in gradient(ctx, &steps)?.into_iter().enumerate() {
            // The gradients of the limits have the limits' shape.
            let part = match (i, limits) {
                (1.., LimitScope::Scalar) => part.with_shape(Shape::scalar())?,
                _ => part,
            };
            ctx.set_output(i, part)?;
        }
        Ok(())
    }))
}

/// Rounds numbers, the first of which is at a multiple of `period`, to `out`.
struct Rounding<F> {
    period: usize,
    round: F,
}

/// Rounds all numbers to the same steps.
fn round_all<const DIVIDES: bool>(steps: Steps) -> Rounding<impl Fn(&mut [f32], &[f32]) + Sync> {
    let round = move |out: &mut [f32], input: &[f32]| {
        vectorized(
            #[inline(always)]
            || {
                let numbers = out.iter_mut().zip(input);
                numbers.for_each(|(o, x)| *o = steps.round::<DIVIDES>(*x));
            },
        )
    };
    Rounding { period: 1, round }
}

/// Rounds numbers to the steps of their channels.
fn round_channels(steps: &[Steps]) -> Rounding<impl Fn(&mut [f32], &[f32]) + Sync> {
    // Rows of few channels are too short for vectors.
    let copies = SHORT_ROW.div_ceil(steps.len().max(1));
    let column = |f: fn(&Steps) -> f32| steps.iter().map(f).collect::<Vec<_>>().repeat(copies);
    let (min, max) = (column(|s| s.min), column(|s| s.max));
    let (inverse, zero, scale) = (
        column(|s| s.inverse),
        column(|s| s.zero),
        column(|s| s.scale),
    );
    let none: Vec<usize> = (0..min.len())
        .filter(|i| steps[i % steps.len()].none)
        .collect();
    let period = min.len().max(1);
    let round = move |out: &mut [f32], input: &[f32]| {
        vectorized(
            #[inline(always)]
            || {
                for (out, x) in out.chunks_mut(period).zip(input.chunks(period)) {
                    let limits = min.iter().zip(&max);
                    let steps = limits.zip(inverse.iter().zip(&zero).zip(&scale));
                    let numbers = out.iter_mut().zip(x).zip(steps);
                    for ((o, &x), ((&min, &max), ((inverse, zero), scale))) in numbers {
                        *o = nearest(above_min(x, min, max) * inverse, *zero, *scale);
                    }
                    for &i in &none {
                        if let Some(o) = out.get_mut(i) {
                            *o = 0.0;
                        }
                    }
                }
            },
        )
    };
    Rounding { period, round }
}

/// Rounds the numbers of input 0.
fn quantize(
    ctx: &mut KernelCtx,
    rounding: &Rounding<impl Fn(&mut [f32], &[f32]) + Sync>,
) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let mut out = ctx.alloc(DType::Float, shape)?;
    let input = ctx.slice::<f32>(0)?;
    let chunk = CHUNK.next_multiple_of(rounding.period);
    par_chunks_mut(ctx.par(), out.slice_mut::<f32>()?, chunk, 1, &|i, out| {
        (rounding.round)(out, &input[i * chunk..][..out.len()]);
    });
    ctx.set_output(0, out)
}

/// Returns the gradients at input 0, of the same shape, where the numbers of input 1 are within the
/// limits, and the sums of those below and above.
fn gradient(ctx: &KernelCtx, steps: &[Steps]) -> Result<[Tensor; 3]> {
    let shape = ctx.shape(1)?.clone();
    let mut inside = ctx.alloc(DType::Float, shape)?;
    let (mut below, mut above) = (vec![0f64; steps.len()], vec![0f64; steps.len()]);
    let both = ctx.slice::<f32>(0)?.iter().zip(ctx.slice::<f32>(1)?);
    let out = inside.slice_mut::<f32>()?.iter_mut().zip(both);
    let turns = steps.iter().enumerate().cycle();
    for ((out, (dy, x)), (channel, steps)) in out.zip(turns) {
        *out = 0.0;
        if steps.none || (*x >= steps.min && *x <= steps.max) {
            *out = *dy;
            continue;
        }
        // Both, if the limits are in the wrong order.
        if *x < steps.min {
            below[channel] += f64::from(*dy);
        }
        if *x > steps.max {
            above[channel] += f64::from(*dy);
        }
    }
    let sums = |sums: Vec<f64>| {
        let sums: Vec<f32> = sums.into_iter().map(|s| s as f32).collect();
        Tensor::vector(&sums)
    };
    Ok([inside, sums(below)?, sums(above)?])
}
