//! Conversions of colors and the ops that adjust them (TensorFlow:
//! `core/kernels/image/colorspace_op.h`, `adjust_contrast_op.cc`, `adjust_hue_op.cc` and
//! `adjust_saturation_op.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Tensor, dispatch};
use num_traits::{AsPrimitive, Float};

const CONVERSION: &str = "images: T -> output: T | T: type {half,bfloat16,float,double} = float";

/// AdjustContrast, AdjustContrastv2, AdjustHue, AdjustSaturation, RGBToHSV, HSVToRGB.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AdjustContrast",
        "images: T, contrast_factor: float, min_value: float, max_value: float -> output: float | \
         T: type {uint8,int8,int16,int32,int64,float,double} |",
    )
    .shape(adjusted_shape)
    .kernel(limited_contrast),
    Op::new(
        "AdjustContrastv2",
        "images: T, contrast_factor: float -> output: T | T: type {half,float} = float",
    )
    .shape(adjusted_shape)
    .kernel(|build| adjust(build, contrast)),
    Op::new(
        "AdjustHue",
        "images: T, delta: float -> output: T | T: type {half,float} = float",
    )
    .shape(adjusted_shape)
    .kernel(|build| adjust(build, hue)),
    Op::new(
        "AdjustSaturation",
        "images: T, scale: float -> output: T | T: type {half,float} = float",
    )
    .shape(adjusted_shape)
    .kernel(|build| adjust(build, saturation)),
    Op::new("RGBToHSV", CONVERSION)
        .shape(color_shape)
        .cost(Cost::Expensive)
        .kernel(|build| convert(build, to_hsv, to_hsv))
        .gradient(to_hsv_gradient),
    Op::new("HSVToRGB", CONVERSION)
        .shape(color_shape)
        .cost(Cost::Expensive)
        .kernel(|build| convert(build, to_rgb, to_rgb))
        .not_differentiable(),
];

fn adjusted_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank_at_least(0, 3)?;
    ctx.set(0, shape);
    Ok(())
}

fn color_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank_at_least(0, 1)?;
    let shape = match shape.dims() {
        Some([.., Some(n)]) if *n != 3 => {
            return Err(invalid_argument!("Dimension must be 3 but is {n}"));
        }
        Some([outer @ .., _]) => PartialShape::of(outer.iter().copied().chain([Some(3)])),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
}

fn adjust(
    build: &KernelBuild,
    compute: fn(&mut KernelCtx) -> Result<Tensor>,
) -> Result<Box<dyn OpKernel>> {
    match build.input(0)? {
        DType::Float => Ok(Box::new(move |ctx: &mut KernelCtx| {
            if ctx.shape(0)?.rank() < 3 {
                return Err(invalid_argument!(
                    "input must be at least 3-D, got shape{}",
                    ctx.shape(0)?
                ));
            }
            let out = compute(ctx)?;
            ctx.set_output(0, out)
        })),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Returns input 1, a scalar.
fn amount(ctx: &KernelCtx, name: &str) -> Result<f32> {
    amount_at(ctx, 1, name)
}

fn amount_at(ctx: &KernelCtx, i: usize, name: &str) -> Result<f32> {
    let amount = ctx.input(i)?;
    match amount.shape().is_scalar() {
        true => amount.to_scalar::<f32>(),
        false => Err(invalid_argument!(
            "{name} must be scalar: {}",
            amount.shape()
        )),
    }
}

fn contrast(ctx: &mut KernelCtx) -> Result<Tensor> {
    let factor = amount(ctx, "contrast_factor")?;
    let mut image = ctx.take_input(0)?;
    let &[.., height, width, channels] = image.shape().dims() else {
        return Ok(image);
    };
    let size = height * width * channels;
    if image.num_elements() == 0 {
        return Ok(image);
    }
    par_chunks_mut(ctx.par(), image.slice_mut()?, size, 1, &|_, image| {
        vectorized(
            #[inline(always)]
            || match channels {
                1 => contrast_of_image::<16>(image, channels, factor),
                2 => contrast_of_image::<32>(image, channels, factor),
                3 => contrast_of_image::<48>(image, channels, factor),
                4 => contrast_of_image::<64>(image, channels, factor),
                _ => contrast_of_channels(image, channels, factor),
            },
        );
    });
    Ok(image)
}

/// The first version of contrast: of more types, with limits.
fn limited_contrast(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch!(dtype, T in [u8, i8, i16, i32, f32, f64] => Ok(Box::new(|ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let &[.., height, width, channels] = shape.dims() else {
            return Err(invalid_argument!("input must be at least 3-D, got shape{shape}"));
        };
        let factor = amount_at(ctx, 1, "contrast_factor")?;
        let (min, max) = (amount_at(ctx, 2, "min_value")?, amount_at(ctx, 3, "max_value")?);
        let mut out = ctx.alloc(DType::Float, shape.clone())?;
        let images = out.slice_mut::<f32>()?;
        for (to, &from) in images.iter_mut().zip(ctx.slice::<T>(0)?) {
            *to = from.as_();
        }
        for image in images.chunks_exact_mut((height * width * channels).max(1)) {
            contrast_of_channels(image, channels, factor);
            image.iter_mut().for_each(|x| *x = x.min(max).max(min));
        }
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

/// Rows of numbers that are summed in single precision.
const ROWS: usize = 64;

/// Adjusts an image's contrast, `N` numbers at a time: whole pixels.
#[inline(always)]
fn contrast_of_image<const N: usize>(image: &mut [f32], channels: usize, factor: f32) {
    let mut sums = [0f64; N];
    for block in image.chunks(N * ROWS) {
        let mut part = [0f32; N];
        let (rows, rest) = block.as_chunks::<N>();
        for row in rows {
            part.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        part.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
        let parts = sums.iter_mut().zip(part);
        parts.for_each(|(sum, part)| *sum += f64::from(part));
    }
    let n = (image.len() / channels) as f64;
    let means: [f32; N] = std::array::from_fn(|i| {
        let of_channel = sums.iter().skip(i % channels).step_by(channels);
        (of_channel.sum::<f64>() / n) as f32
    });
    let (rows, rest) = image.as_chunks_mut::<N>();
    let adjusted = |(x, mean): (&mut f32, &f32)| *x = mean + factor * (*x - mean);
    rows.iter_mut()
        .for_each(|row| row.iter_mut().zip(&means).for_each(adjusted));
    rest.iter_mut().zip(&means).for_each(adjusted);
}

fn contrast_of_channels(image: &mut [f32], channels: usize, factor: f32) {
    let mut sums = vec![0f64; channels];
    for pixel in image.chunks_exact(channels) {
        for (sum, x) in sums.iter_mut().zip(pixel) {
            *sum += f64::from(*x);
        }
    }
    let n = (image.len() / channels) as f64;
    let means: Vec<f32> = sums.iter().map(|sum| (sum / n) as f32).collect();
    for pixel in image.chunks_exact_mut(channels) {
        for (x, mean) in pixel.iter_mut().zip(&means) {
            *x = mean + factor * (*x - mean);
        }
    }
}

/// Replaces each pixel of input 0.
fn each_pixel(ctx: &mut KernelCtx, f: impl Fn([f32; 3]) -> [f32; 3] + Sync) -> Result<Tensor> {
    let channels = ctx.shape(0)?.dims().last().copied().unwrap_or(0);
    if channels != 3 {
        return Err(invalid_argument!(
            "input must have 3 channels but instead has {channels} channels."
        ));
    }
    mapped(ctx, &f)
}

/// Numbers that a thread computes in a row.
const BLOCK: usize = 3 * 1024;
/// Such parts that are worth a task.
const GROUP: usize = 6;

/// Returns input 0 with other pixels, in its own storage if that is free.
fn mapped<T: Element>(
    ctx: &mut KernelCtx,
    f: &(impl Fn([T; 3]) -> [T; 3] + Sync),
) -> Result<Tensor> {
    let n = ctx.input(0)?.num_elements();
    if ctx.can_forward(0, T::DTYPE, n) {
        let mut image = ctx.take_input(0)?;
        map_pixels(ctx.par(), None, image.slice_mut()?, f);
        return Ok(image);
    }
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(0)?.clone())?;
    map_pixels(ctx.par(), Some(ctx.slice::<T>(0)?), out.slice_mut()?, f);
    Ok(out)
}

/// Sets pixels to what `f` makes of those of `from`, else of their own: in one function, as its loops are compiled
/// for each instruction set.
fn map_pixels<T: Element>(
    par: &dyn Parallelism,
    from: Option<&[T]>,
    to: &mut [T],
    f: &(impl Fn([T; 3]) -> [T; 3] + Sync),
) {
    par_chunks_mut(par, to, BLOCK, GROUP, &|i, to| {
        let from = from.map(|from| from[i * BLOCK..][..to.len()].as_chunks().0);
        vectorized(
            #[inline(always)]
            || {
                for (k, to) in to.as_chunks_mut().0.chunks_mut(N).enumerate() {
                    let mut planes = Planes::read(match from {
                        Some(from) => &from[k * N..][..to.len()],
                        None => to,
                    });
                    planes.map(f);
                    planes.write(to);
                }
            },
        );
    });
}

/// Pixels of a block.
const N: usize = 64;

/// The channels of a block of pixels, one by one: so that loops over them are vectorized.
struct Planes<T>([[T; N]; 3]);

impl<T: Element> Planes<T> {
    #[inline(always)]
    fn read(pixels: &[[T; 3]]) -> Self {
        let mut planes = [[T::default(); N]; 3];
        match pixels.first_chunk::<N>() {
            Some(pixels) => separate(pixels, &mut planes),
            None => {
                let mut whole = [[T::default(); 3]; N];
                whole[..pixels.len()].copy_from_slice(pixels);
                separate(&whole, &mut planes);
            }
        }
        Planes(planes)
    }

    #[inline(always)]
    fn map(&mut self, f: &impl Fn([T; 3]) -> [T; 3]) {
        let [first, second, third] = &mut self.0;
        for ((first, second), third) in first.iter_mut().zip(second).zip(third) {
            [*first, *second, *third] = f([*first, *second, *third]);
        }
    }

    #[inline(always)]
    fn write(&self, pixels: &mut [[T; 3]]) {
        let [first, second, third] = &self.0;
        for (i, pixel) in pixels.iter_mut().enumerate().take(N) {
            *pixel = [first[i], second[i], third[i]];
        }
    }
}

#[inline(always)]
fn separate<T: Copy>(pixels: &[[T; 3]; N], [first, second, third]: &mut [[T; N]; 3]) {
    for (i, pixel) in pixels.iter().enumerate() {
        [first[i], second[i], third[i]] = *pixel;
    }
}

fn hue(ctx: &mut KernelCtx) -> Result<Tensor> {
    let delta = amount(ctx, "delta")?;
    match (-1.0..=1.0).contains(&delta) {
        true => each_pixel(ctx, |pixel| {
            turned(pixel, delta, |hue| {
                let hue = if hue < 0.0 { hue + 6.0 } else { hue };
                let hue = if hue >= 6.0 { hue - 6.0 } else { hue };
                if hue >= 6.0 { hue - 6.0 } else { hue }
            })
        }),
        false => each_pixel(ctx, |pixel| turned(pixel, delta, |hue| hue.rem_euclid(6.0))),
    }
}

#[inline(always)]
fn either(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// Changes a pixel's hue, without branches; `wrapped` returns a hue below six.
///
/// Sectors are floats: loops over conditions of integers are not vectorized.
#[inline(always)]
#[allow(
    clippy::manual_range_contains,
    reason = "both comparisons, without a branch"
)]
fn turned([r, g, b]: [f32; 3], delta: f32, wrapped: impl Fn(f32) -> f32) -> [f32; 3] {
    let (low, high) = (either(r < g, r, g), either(r < g, g, r));
    let (below, above) = (b < low, b > high);
    let (min, max) = (either(below, b, low), either(above, b, high));
    let mid = either(below, low, either(above, high, b));
    let range = max - min;
    // The sector of the hue, of six.
    let upward = either(below, 1.0, either(above, 3.0, 2.0));
    let downward = either(below, 0.0, either(above, 4.0, 5.0));
    let sector = either(r < g, upward, downward);
    let within = |sector: f32, ratio: f32| {
        let half = sector * 0.5;
        either(half == half.trunc(), ratio, 1.0 - ratio)
    };
    let hue = sector + within(sector, (mid - min) / range);
    let hue = wrapped(either(max == min, 0.0, hue) + delta * 6.0);
    let sector = hue.trunc();
    let mid = min + within(sector, hue - sector) * range;
    // A channel is the largest in two sectors and the smallest in two.
    let smallest = |of: bool| either(of, min, mid);
    let red = smallest((sector >= 2.0) & (sector < 4.0));
    let green = smallest(sector >= 4.0);
    let blue = smallest(sector < 2.0);
    [
        either((sector >= 1.0) & (sector < 5.0), red, max),
        either((sector >= 1.0) & (sector < 3.0), max, green),
        either((sector >= 3.0) & (sector < 5.0), max, blue),
    ]
}

fn saturation(ctx: &mut KernelCtx) -> Result<Tensor> {
    let scale = amount(ctx, "scale")?;
    each_pixel(ctx, |pixel| {
        let [h, s, v] = to_hsv(pixel);
        let s = (s * scale).clamp(0.0, 1.0);
        let c = s * v;
        let m = v - c;
        let sector = h * 6.0;
        let within = sector - 2.0 * (sector * 0.5).floor();
        let x = c * (1.0 - (within - 1.0).abs());
        let number = sector as i32;
        // In two sectors each, a channel is the largest or the one in the middle.
        let channel = |largest: [i32; 2], middle: [i32; 2]| {
            let value = if middle.contains(&number) { x } else { 0.0 };
            let value = if largest.contains(&number) { c } else { value };
            value + m
        };
        [
            channel([0, 5], [1, 4]),
            channel([1, 2], [0, 3]),
            channel([3, 4], [2, 5]),
        ]
    })
}

/// Builds the kernel of a conversion in single and double precision.
fn convert(
    build: &KernelBuild,
    single: impl Fn([f32; 3]) -> [f32; 3] + Send + Sync + 'static,
    double: impl Fn([f64; 3]) -> [f64; 3] + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?;
        match shape.dims().last() {
            Some(3) => {}
            Some(channels) => {
                return Err(failed_precondition!(
                    "input must have 3 channels but input only has {channels} channels."
                ));
            }
            None => return Err(invalid_argument!("input must be at least 1D{shape}")),
        }
        let out = match dtype {
            DType::Float => mapped(ctx, &single)?,
            DType::Double => mapped(ctx, &double)?,
            _ => {
                let mut wide = widened(ctx.par(), ctx.input(0)?)?;
                map_pixels(ctx.par(), None, wide.slice_mut()?, &single);
                narrowed(ctx.par(), wide, dtype)?
            }
        };
        ctx.set_output(0, out)
    }))
}

fn number<T: Float>(x: f64) -> T {
    T::from(x).unwrap_or(T::nan())
}

#[inline(always)]
fn to_hsv<T: Float>([r, g, b]: [T; 3]) -> [T; 3] {
    let zero = T::zero();
    let value = r.max(g).max(b);
    let range = value - r.min(g).min(b);
    let saturation = if value > zero { range / value } else { zero };
    if range <= zero || range.is_nan() {
        return [zero, saturation, value];
    }
    let norm = (number::<T>(6.0) * range).recip();
    let hue = if r == value {
        norm * (g - b)
    } else if g == value {
        norm * (b - r) + number(2.0 / 6.0)
    } else {
        norm * (r - g) + number(4.0 / 6.0)
    };
    let hue = if hue < zero { hue + T::one() } else { hue };
    [hue, saturation, value]
}

#[inline(always)]
fn to_rgb<T: Float>([h, s, v]: [T; 3]) -> [T; 3] {
    let (zero, one, two) = (T::zero(), T::one(), number::<T>(2.0));
    let h = h * number(6.0);
    let red = (h - number(3.0)).abs() - one;
    let green = two - (h - two).abs();
    let blue = two - (h - number(4.0)).abs();
    [red, green, blue].map(|x| (one - s + s * x.max(zero).min(one)) * v)
}

/// The gradient of a piecewise function, whose pieces depend on which channel is the largest and
/// which the smallest (TensorFlow: `python/ops/image_grad.py`).
fn to_hsv_gradient(g: &mut GradientCtx) -> Result<()> {
    let x = g.x(0);
    let attrs = [("num_split", 3.into())];
    let &[dh, ds, dv] = &x.node("Split", &[x.int(-1), g.dy(0)], &attrs)[..] else {
        return Ok(());
    };
    // Of equal channels the first is the largest and the last the smallest.
    let index = [("output_type", DType::Int32.into())];
    let largest = one_hot(x, x.op_with("ArgMax", &[x.int(-1)], &index));
    let backwards = x.op("GatherV2", &[x.ints([2, 1, 0]), x.int(-1)]);
    let smallest = x.int(2) - backwards.op_with("ArgMin", &[x.int(-1)], &index);
    let smallest = one_hot(x, smallest);

    let max = total(largest * x);
    let min = total(smallest * x);
    let by_max = inverse(max);
    let saturation = positive(x) * (largest * min * by_max * by_max - smallest * by_max);
    // The hue of a sector is a difference of two channels divided by the range.
    let turned = |by: [i64; 3]| largest.op("GatherV2", &[x.ints(by), x.int(-1)]);
    let direction = turned([2, 0, 1]) - turned([1, 2, 0]);
    let by_range = inverse(max - min);
    let difference = total(direction * x) * by_range * by_range;
    let hue = direction * by_range - difference * (largest - smallest);
    let hue = hue * positive(max) * (1.0 / 6.0);
    g.set(0, dv * largest + ds * saturation + dh * hue)
}

/// Returns vectors of three numbers of `x`'s dtype, with a 1 at each index.
fn one_hot<'g>(x: Expr<'g>, index: Expr<'g>) -> Expr<'g> {
    index.op("OneHot", &[x.int(3), x.number(1.0), x.number(0.0)])
}

/// Returns the sums over the channels.
fn total(e: Expr<'_>) -> Expr<'_> {
    e.sum(e.int(-1), true)
}

/// Returns `1 / e`, or 0 if `e` is.
fn inverse(e: Expr<'_>) -> Expr<'_> {
    e.number(1.0).op("DivNoNan", &[e])
}

/// Returns 1 where `e` is positive and 0 elsewhere.
fn positive(e: Expr<'_>) -> Expr<'_> {
    e.op("Greater", &[e.number(0.0)]).cast(e.dtype())
}
