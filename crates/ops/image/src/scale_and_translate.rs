//! ScaleAndTranslate: resampling with a choice of kernels (TensorFlow:
//! `core/kernels/image/scale_and_translate_op.cc`, `sampling_kernels.h`).

use crate::resize;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::half_conversion::floats;
use ferroflow_functors::indices;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ScaleAndTranslate",
        "images: T, size: int32, scale: float, translation: float -> resized_images: float | T: \
         type {int8,uint8,int16,uint16,int32,int64,bfloat16,half,float,double}; kernel_type: \
         string = 'lanczos3'; antialias: bool = true",
    )
    .shape(resize::shape)
    .cost(Cost::Expensive)
    .kernel(kernel)
    .gradient(|g| {
        let attrs = [g.attr("kernel_type"), g.attr("antialias")];
        let x = g.x(0);
        let grads = [x.cast(DType::Float), g.x(2), g.x(3)];
        let dx = g.dy(0).op_with("ScaleAndTranslateGrad", &grads, &attrs);
        g.set(0, dx)
    }),
    Op::new(
        "ScaleAndTranslateGrad",
        "grads: T, original_image: T, scale: float, translation: float -> output: T | T: type \
         {float}; kernel_type: string = 'lanczos3'; antialias: bool = true",
    )
    .shape(|ctx| {
        ctx.set(0, ctx.input(1));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(gradient),
];

/// A function that weights input positions by their distance.
#[derive(Clone, Copy)]
enum Weighting {
    Lanczos(f32),
    Gaussian,
    Box,
    Triangle,
    KeysCubic,
    MitchellCubic,
}

impl Weighting {
    fn of(name: &str) -> Result<Weighting> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "lanczos1" => Weighting::Lanczos(1.0),
            "lanczos3" => Weighting::Lanczos(3.0),
            "lanczos5" => Weighting::Lanczos(5.0),
            "gaussian" => Weighting::Gaussian,
            "box" => Weighting::Box,
            "triangle" => Weighting::Triangle,
            "keyscubic" => Weighting::KeysCubic,
            "mitchellcubic" => Weighting::MitchellCubic,
            _ => return Err(invalid_argument!("Unrecognized kernel type: {name}")),
        })
    }

    fn radius(self) -> f32 {
        match self {
            Weighting::Lanczos(radius) => radius,
            Weighting::Gaussian => 1.5,
            Weighting::Box | Weighting::Triangle => 1.0,
            Weighting::KeysCubic | Weighting::MitchellCubic => 2.0,
        }
    }

    /// Returns the weight at distance `x`, which is not negative.
    fn at(self, x: f32) -> f32 {
        const PI: f32 = std::f32::consts::PI;
        match self {
            Weighting::Lanczos(radius) if x > radius => 0.0,
            Weighting::Lanczos(_) if x <= 1e-3 => 1.0,
            Weighting::Lanczos(radius) => {
                radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * PI * x * x)
            }
            Weighting::Gaussian if x >= 1.5 => 0.0,
            Weighting::Gaussian => (-f64::from(x * x) / (2.0 * 0.5 * 0.5)).exp() as f32,
            Weighting::Box if x < 0.5 => 1.0,
            Weighting::Box if x == 0.5 => 0.5,
            Weighting::Triangle if x < 1.0 => 1.0 - x,
            Weighting::Box | Weighting::Triangle => 0.0,
            Weighting::KeysCubic | Weighting::MitchellCubic if x >= 2.0 => 0.0,
            Weighting::KeysCubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Weighting::KeysCubic => ((1.5 * x - 2.5) * x) * x + 1.0,
            Weighting::MitchellCubic if x >= 1.0 => {
                (((-7.0 / 18.0) * x + 2.0) * x - 10.0 / 3.0) * x + 16.0 / 9.0
            }
            Weighting::MitchellCubic => (((7.0 / 6.0) * x - 2.0) * x) * x + 8.0 / 9.0,
        }
    }
}

/// The input positions that an output position averages.
#[derive(Clone, Default)]
struct Span {
    start: usize,
    weights: Vec<f32>,
}

/// How an axis is resampled.
#[derive(Clone, Copy)]
struct Resample {
    weighting: Weighting,
    antialias: bool,
}

impl Resample {
    /// Returns the spans of the output positions.
    fn spans(self, output: usize, input: usize, scale: f32, translate: f32) -> Result<Vec<Span>> {
        let inverse = (1.0 / f64::from(scale)) as f32;
        let shift = -inverse * translate;
        let widening = if self.antialias {
            inverse.max(1.0)
        } else {
            1.0
        };
        let reach = self.weighting.radius() * widening;
        let most = (2 * reach.ceil() as i64 + 1).min(input as i64);
        let mut spans = Vec::with_capacity(output);
        for x in 0..output {
            let at = (x as f32 + 0.5) * inverse + shift;
            // Also for NaN.
            if !(at >= 0.0 && at <= input as f32) {
                spans.push(Span::default());
                continue;
            }
            let last = input as i64 - 1;
            let start = ((at - reach - 0.5).ceil() as i64).clamp(0, last);
            let end = ((at + reach - 0.5).floor() as i64).clamp(0, last) + 1;
            if end - start > most {
                return Err(internal!("Span is too large: {} vs {most}.", end - start));
            }
            let distance = |i: i64| ((i as f32 + 0.5 - at) * (1.0 / widening)).abs();
            let weights = (start..end).map(|i| self.weighting.at(distance(i)));
            let mut weights: Vec<f32> = weights.collect();
            let total: f32 = weights.iter().sum();
            match total.abs() >= 1000.0 * f32::MIN_POSITIVE {
                true => {
                    let factor = 1.0 / total;
                    weights.iter_mut().for_each(|w| *w *= factor);
                }
                false => weights.fill(0.0),
            }
            spans.push(Span {
                start: start as usize,
                weights,
            });
        }
        Ok(spans)
    }
}

/// Returns the spans of the transposed resampling: for each input position, the outputs it is in.
fn transposed(spans: &[Span], input: usize) -> Vec<Span> {
    let mut of_input: Vec<Span> = vec![Span::default(); input];
    for (output, span) in spans.iter().enumerate() {
        for (weight, to) in span.weights.iter().zip(&mut of_input[span.start..]) {
            if *weight == 0.0 {
                continue;
            }
            if to.weights.is_empty() {
                to.start = output;
            }
            to.weights.resize(output - to.start, 0.0);
            to.weights.push(*weight);
        }
    }
    of_input
}

/// The sizes of images.
struct Sizes {
    batch: usize,
    from: [usize; 2],
    to: [usize; 2],
    channels: usize,
}

/// Resamples columns of rows, then rows of columns.
fn resample(
    par: &dyn Parallelism,
    s: &Sizes,
    [rows, columns]: [&[Span]; 2],
    x: &[f32],
    out: &mut [f32],
) {
    let line = s.from[1] * s.channels;
    let out_line = s.to[1] * s.channels;
    par_chunks_mut(par, out, out_line, 1, &|i, out| {
        let (image, y) = (i / s.to[0], i % s.to[0]);
        let mut sums = vec![0f32; line];
        let span = &rows[y];
        let first = (image * s.from[0] + span.start) * line;
        for (weight, row) in span.weights.iter().zip(x[first..].chunks_exact(line)) {
            for (sum, v) in sums.iter_mut().zip(row) {
                *sum += weight * v;
            }
        }
        for (pixel, span) in out.chunks_exact_mut(s.channels).zip(columns) {
            pixel.fill(0.0);
            let from = sums[span.start * s.channels..].chunks_exact(s.channels);
            for (weight, from) in span.weights.iter().zip(from) {
                for (to, v) in pixel.iter_mut().zip(from) {
                    *to += weight * v;
                }
            }
        }
    });
}

fn resampling(build: &KernelBuild) -> Result<Resample> {
    Ok(Resample {
        weighting: Weighting::of(build.attrs.str("kernel_type")?)?,
        antialias: build.attrs.bool("antialias")?,
    })
}

/// Returns the two floats of input `i`.
fn pair(ctx: &KernelCtx, i: usize) -> Result<[f32; 2]> {
    let shape = ctx.shape(i)?;
    if shape.rank() != 1 {
        return Err(invalid_argument!("t must be 1-dimensional{shape}"));
    }
    match ctx.slice::<f32>(i)? {
        &[a, b] => Ok([a, b]),
        _ => Err(invalid_argument!("t must have two elements{shape}")),
    }
}

fn scales(ctx: &KernelCtx) -> Result<[[f32; 2]; 2]> {
    let scale = pair(ctx, 2)?;
    if !scale.iter().all(|s| *s > 0.0) {
        return Err(invalid_argument!("Scale must be greater than zero."));
    }
    Ok([scale, pair(ctx, 3)?])
}

fn check_images(images: &Shape) -> Result<()> {
    if images.rank() != 4 {
        return Err(invalid_argument!("input must be 4-dimensional{images}"));
    }
    if images[1].max(images[2]) > i32::MAX as usize {
        return Err(invalid_argument!(
            "input sizes must be between 0 and max int32"
        ));
    }
    Ok(())
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let how = resampling(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let images = ctx.shape(0)?.clone();
        check_images(&images)?;
        let size = ctx.input(1)?;
        if size.shape().rank() != 1 {
            return Err(invalid_argument!(
                "output_shape_t must be 1-dimensional{}",
                size.shape()
            ));
        }
        let &[height, width] = &indices::ints(size)?[..] else {
            return Err(invalid_argument!(
                "output_shape_t must have two elements{}",
                size.shape()
            ));
        };
        if height <= 0 || width <= 0 {
            return Err(invalid_argument!("output dimensions must be positive"));
        }
        if images[3] == 0 {
            return Err(invalid_argument!("image must have at least one channel"));
        }
        if images[1] == 0 || images[2] == 0 {
            return Err(invalid_argument!("input image must be of non-zero size"));
        }
        let [scale, translation] = scales(ctx)?;
        let s = Sizes {
            batch: images[0],
            from: [images[1], images[2]],
            to: [height as usize, width as usize],
            channels: images[3],
        };
        let dims = shape_of(&[s.batch, s.to[0], s.to[1], s.channels])?;
        let mut out = ctx.alloc(DType::Float, dims)?;
        if out.num_elements() > 0 {
            let rows = how.spans(s.to[0], s.from[0], scale[0], translation[0])?;
            let columns = how.spans(s.to[1], s.from[1], scale[1], translation[1])?;
            let x = floats(ctx.par(), ctx.input(0)?)?;
            let spans = [&rows[..], &columns[..]];
            resample(ctx.par(), &s, spans, x.slice()?, out.slice_mut()?);
        }
        ctx.set_output(0, out)
    }))
}

fn gradient(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let how = resampling(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (grads, original) = (ctx.shape(0)?.clone(), ctx.shape(1)?.clone());
        if grads.rank() != 4 {
            return Err(invalid_argument!("input_grad must be 4-dimensional{grads}"));
        }
        if original.rank() != 4 {
            return Err(invalid_argument!(
                "original_image must be 4-dimensional{original}"
            ));
        }
        check_images(&grads)?;
        if grads[0] != original[0] || grads[3] != original[3] {
            return Err(invalid_argument!(
                "grads and original_image must agree in batch and channels: {grads} vs. {original}"
            ));
        }
        let [scale, translation] = scales(ctx)?;
        let s = Sizes {
            batch: grads[0],
            from: [grads[1], grads[2]],
            to: [original[1], original[2]],
            channels: grads[3],
        };
        let mut out = ctx.alloc(DType::Float, original)?;
        if out.num_elements() > 0 {
            let rows = how.spans(s.from[0], s.to[0], scale[0], translation[0])?;
            let columns = how.spans(s.from[1], s.to[1], scale[1], translation[1])?;
            let (rows, columns) = (transposed(&rows, s.to[0]), transposed(&columns, s.to[1]));
            let x = ctx.slice::<f32>(0)?;
            let spans = [&rows[..], &columns[..]];
            resample(ctx.par(), &s, spans, x, out.slice_mut()?);
        }
        ctx.set_output(0, out)
    }))
}
