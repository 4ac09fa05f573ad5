//! ImageSummary, AudioSummary and AudioSummaryV2 (TensorFlow: `core/kernels/summary_image_op.cc` and
//! `summary_audio_op.cc`).

use crate::summaries::set;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::{shapes, wav};
use ferroflow_model::proto::summary::{Audio, Image, Value, value};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, Tensor, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ImageSummary",
        "tag: string, tensor: T -> summary: string | max_images: int >= 1 = 3; T: type \
         {uint8,float,half,double} = float; bad_color: tensor = tensor(uint8,[4],[255,0,0,255])",
    )
    .shape(shapes::scalar)
    .kernel(image_summary)
    .not_differentiable(),
    Op::new(
        "AudioSummaryV2",
        "tag: string, tensor: float, sample_rate: float -> summary: string | max_outputs: int >= 1 \
         = 3",
    )
    .shape(shapes::scalar)
    .kernel(audio_summary)
    .not_differentiable(),
    Op::new(
        "AudioSummary",
        "tag: string, tensor: float -> summary: string | sample_rate: float; max_outputs: int >= 1 \
         = 3",
    )
    .shape(shapes::scalar)
    .kernel(audio_summary)
    .not_differentiable(),
];

fn tag_of(ctx: &KernelCtx, name: &str) -> Result<Bytes> {
    match ctx.input(0)?.strings()? {
        [tag] if ctx.shape(0)?.is_scalar() => Ok(tag.clone()),
        _ => Err(invalid_argument!("{name} must be a scalar")),
    }
}

fn image_summary(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let most = build.attrs.int("max_images")?.max(0) as usize;
    let bad_color = build.attrs.tensor("bad_color")?.get()?;
    if bad_color.dtype() != DType::Uint8 {
        return Err(invalid_argument!(
            "bad_color must be uint8, got {}",
            bad_color.dtype()
        ));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let tag = tag_of(ctx, "Tags")?;
        let values = images(ctx.input(1)?, "", most, &bad_color)?;
        set(ctx, values.into_iter().map(|value| (&tag[..], value)))
    }))
}

fn audio_summary(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let most = build.attrs.int("max_outputs")?.max(0) as usize;
    let fixed = build.attrs.float("sample_rate").ok();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let tag = tag_of(ctx, "Tag")?;
        let rank = ctx.shape(1)?.rank();
        if !matches!(rank, 2 | 3) {
            return Err(invalid_argument!(
                "Tensor must be 3-D or 2-D, got: {}",
                ctx.shape(1)?
            ));
        }
        let rate = match fixed {
            Some(rate) => rate,
            None => match ctx.slice::<f32>(2)? {
                [rate] => *rate,
                _ => {
                    return Err(invalid_argument!(
                        "sample_rate must be rank-0 or contain a single value"
                    ));
                }
            },
        };
        let values = sounds(ctx.input(1)?, "", most, rate)?;
        set(ctx, values.into_iter().map(|value| (&tag[..], value)))
    }))
}

/// Returns the tag of element `i`: the number is left out if there can only be one.
fn tag_at(tag: &str, kind: &str, most: usize, i: usize) -> String {
    match most {
        0 | 1 => format!("{tag}/{kind}"),
        _ => format!("{tag}/{kind}/{i}"),
    }
}

/// Returns summaries of the first `most` sounds of a batch.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a batch of sounds.
pub(crate) fn sounds(batch: &Tensor, tag: &str, most: usize, rate: f32) -> Result<Vec<Value>> {
    // Not a number fails too.
    if rate.is_nan() || rate <= 0.0 {
        return Err(invalid_argument!("sample_rate must be > 0"));
    }
    let (n, frames, channels) = match *batch.shape().dims() {
        [n, frames] => (n, frames, 1),
        [n, frames, channels] => (n, frames, channels),
        _ => {
            return Err(invalid_argument!(
                "Tensor must be 3-D or 2-D, got: {}",
                batch.shape()
            ));
        }
    };
    let samples = batch.slice::<f32>()?;
    let whole = (rate.round_ties_even() as u32).max(1);
    let size = frames * channels;
    (0..n.min(most))
        .map(|i| {
            let own = samples.get(i * size..(i + 1) * size).unwrap_or_default();
            let audio = Audio {
                sample_rate: rate,
                num_channels: channels as i64,
                length_frames: frames as i64,
                encoded_audio_string: wav::encode(own, whole, channels)?.into(),
                content_type: "audio/wav".to_string(),
            };
            Ok(Value {
                tag: tag_at(tag, "audio", most, i),
                value: Some(value::Value::Audio(audio)),
                ..Default::default()
            })
        })
        .collect()
}

/// Returns summaries of the first `most` images of a batch; pixels that are not finite have the bad
/// color.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a batch of images.
pub(crate) fn images(batch: &Tensor, tag: &str, most: usize, bad: &Tensor) -> Result<Vec<Value>> {
    let shape = batch.shape();
    let &[n, height, width, depth @ (1 | 3 | 4)] = shape.dims() else {
        return Err(invalid_argument!(
            "Tensor must be 4-D with last dim 1, 3, or 4, not {shape}"
        ));
    };
    let pixels = height.checked_mul(width).filter(|&p| p < 1 << 29);
    let Some(pixels) = pixels.filter(|_| n.max(height).max(width) < 1 << 31) else {
        return Err(invalid_argument!("Tensor too large for summary {shape}"));
    };
    if pixels == 0 {
        return Err(invalid_argument!(
            "input tensor must have non-zero dims. Found: [{n}, {height}, {width}, {depth}]."
        ));
    }
    let size = pixels * depth;
    let bad = bad.slice::<u8>()?;
    if bad.len() < depth && batch.dtype() != DType::Uint8 {
        return Err(invalid_argument!(
            "expected depth <= bad_color.size, got depth = {depth}, bad_color.size = {}",
            bad.len()
        ));
    }
    let mut out = Vec::new();
    for i in 0..n.min(most) {
        let range = i * size..(i + 1) * size;
        let bytes = match batch.dtype() {
            DType::Uint8 => batch.slice::<u8>()?.get(range).unwrap_or_default().to_vec(),
            DType::Double => normalized(part(batch.slice::<f64>()?, range), depth, bad, affine_f64),
            DType::Half => normalized(part(batch.slice::<f16>()?, range), depth, bad, affine_f16),
            _ => normalized(part(batch.slice::<f32>()?, range), depth, bad, affine_f32),
        };
        let image = Image {
            height: height as i32,
            width: width as i32,
            colorspace: depth as i32,
            encoded_image_string: encoded(&bytes, width, height, depth)?.into(),
        };
        out.push(Value {
            tag: tag_at(tag, "image", most, i),
            value: Some(value::Value::Image(image)),
            ..Default::default()
        });
    }
    Ok(out)
}

fn part<T>(all: &[T], range: std::ops::Range<usize>) -> &[T] {
    all.get(range).unwrap_or_default()
}

fn affine_f64(x: f64, scale: f32, offset: f32) -> u8 {
    (x * f64::from(scale) + f64::from(offset)) as u8
}

fn affine_f32(x: f32, scale: f32, offset: f32) -> u8 {
    (x * scale + offset) as u8
}

/// Rounds after each operation, as arithmetic in half precision does.
fn affine_f16(x: f16, scale: f32, offset: f32) -> u8 {
    let scaled = f16::from_f32(x.to_f32() * f16::from_f32(scale).to_f32());
    f16::from_f32(scaled.to_f32() + offset).to_f32() as u8
}

/// Maps the finite numbers of an image to bytes: from zero to the largest one, or centered if some
/// are negative.
fn normalized<T: Copy + Into<f64>>(
    values: &[T],
    depth: usize,
    bad: &[u8],
    affine: fn(T, f32, f32) -> u8,
) -> Vec<u8> {
    let is_finite = |pixel: &&[T]| pixel.iter().all(|&x| x.into().is_finite());
    let (mut least, mut largest) = (f32::INFINITY, f32::NEG_INFINITY);
    for x in values.chunks_exact(depth).filter(is_finite).flatten() {
        let x = (*x).into() as f32;
        (least, largest) = (least.min(x), largest.max(x));
    }
    const ZERO: f32 = 1e-6;
    let (reach, steps, offset) = match least < 0.0 {
        true => (least.abs().max(largest.abs()), 127.0, 128.0),
        false => (largest, 255.0, 0.0),
    };
    let scale = if reach < ZERO { 0.0 } else { steps / reach };
    let mut out = Vec::with_capacity(values.len());
    for pixel in values.chunks_exact(depth) {
        match is_finite(&pixel) {
            true => out.extend(pixel.iter().map(|&x| affine(x, scale, offset))),
            false => out.extend(bad.iter().take(depth)),
        }
    }
    out
}

fn encoded(pixels: &[u8], width: usize, height: usize, depth: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(match depth {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(pixels)?;
        writer.finish()
    });
    written.map_err(|e| internal!("PNG encoding failed: {e}"))?;
    Ok(out)
}
