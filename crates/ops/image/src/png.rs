//! PNG images: decoding for the ops of `codecs.rs`, EncodePng (TensorFlow: `core/lib/png/png_io.cc`,
//! `core/kernels/image/encode_png_op.cc`).

use crate::codecs::Image16;
use ::png::{
    BitDepth, ColorType, Compression, Decoder, DeflateCompression, Encoder, EncodingError, Filter,
    Limits, Transformations,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};
use std::io::Cursor;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "EncodePng",
    "image: T -> contents: string | compression: int = -1; T: type {uint8,uint16} \
         = uint8",
)
.shape(|ctx| {
    let image = ctx.with_rank_at_least(0, 3)?;
    let dims = image.dims().map(|d| d.split_at(d.len() - 3).0.to_vec());
    ctx.set(0, dims.map_or_else(PartialShape::unknown, PartialShape::of));
    Ok(())
})
.cost(Cost::Expensive)
.kernel(encode_png)];

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Most bytes of an image and its metadata.
const MAX_BYTES: usize = 2 << 30;
/// Most bytes that one byte of a file stands for, by the format of its compressed data.
const MAX_RATIO: usize = 1032;

/// Returns whether a file begins as PNG files do.
pub(crate) fn is_png(contents: &[u8]) -> bool {
    contents.starts_with(&SIGNATURE)
}

/// Decodes an image with palettes and small samples expanded, and a transparent color as an alpha channel. Samples of
/// 8 bits are replicated in the upper and the lower byte; returns whether the file has samples of 16 bits.
///
/// # Errors
/// INVALID_ARGUMENT for damaged files, for images of more than 2 GiB, or of more bytes than a file
/// of this size can hold.
pub(crate) fn decode(contents: &[u8]) -> Result<(Image16, bool)> {
    let limits = Limits { bytes: MAX_BYTES };
    let mut decoder = Decoder::new_with_limits(Cursor::new(contents), limits);
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder
        .read_info()
        .map_err(|_| invalid_argument!("Invalid PNG. Failed to initialize decoder."))?;
    let invalid = || invalid_argument!("Invalid PNG data, size {}", contents.len());
    let most = contents.len().saturating_mul(MAX_RATIO);
    let is_possible = reader.info().raw_bytes() <= most;
    let size = reader.output_buffer_size();
    let size = size.filter(|n| is_possible && *n <= MAX_BYTES);
    let mut bytes = vec![0; size.ok_or_else(invalid)?];
    let info = reader.next_frame(&mut bytes).map_err(|_| invalid())?;
    bytes.truncate(info.buffer_size());
    let is_deep = info.bit_depth == BitDepth::Sixteen;
    let samples = match is_deep {
        true => {
            let (pairs, _) = bytes.as_chunks::<2>();
            pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect()
        }
        false => bytes
            .iter()
            .map(|&v| u16::from(v) << 8 | u16::from(v))
            .collect(),
    };
    let image = Image16 {
        width: info.width as usize,
        height: info.height as usize,
        channels: info.color_type.samples(),
        samples,
    };
    Ok((image, is_deep))
}

/// Encodes an image with zlib's level or, without one, its default.
fn write(
    pixels: &[u8],
    [width, height]: [u32; 2],
    color: ColorType,
    is_deep: bool,
    level: Option<u8>,
) -> std::result::Result<Vec<u8>, EncodingError> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    match level {
        None => encoder.set_compression(Compression::Balanced),
        Some(0) => encoder.set_compression(Compression::NoCompression),
        Some(level) => encoder.set_deflate_compression(DeflateCompression::Level(level)),
    }
    encoder.set_filter(Filter::Adaptive);
    encoder.set_depth(if is_deep {
        BitDepth::Sixteen
    } else {
        BitDepth::Eight
    });
    let mut writer = encoder.write_header()?;
    if is_deep {
        let (pairs, _) = pixels.as_chunks::<2>();
        let swapped = pairs
            .iter()
            .map(|pair| u16::from_ne_bytes(*pair).to_be_bytes());
        writer.write_image_data(swapped.collect::<Vec<_>>().as_flattened())?;
    } else {
        writer.write_image_data(pixels)?;
    }
    writer.finish()?;
    Ok(out)
}

fn encode_png(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let level = build.attrs.int("compression")?;
    let compression = match level {
        -1 => None,
        0..=9 => Some(level as u8),
        _ => {
            return Err(invalid_argument!(
                "compression should be in [-1,9], got {level}"
            ));
        }
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let image = ctx.input(0)?;
        let dims = image.shape().dims();
        let Some((batch, &[height, width, channels])) = dims.split_last_chunk::<3>() else {
            return Err(invalid_argument!(
                "images must be at least rank 3{}",
                image.shape()
            ));
        };
        let color = match channels {
            1 => ColorType::Grayscale,
            2 => ColorType::GrayscaleAlpha,
            3 => ColorType::Rgb,
            4 => ColorType::Rgba,
            _ => {
                return Err(invalid_argument!(
                    "image must have 1, 2, 3, or 4 channels, got {channels}"
                ));
            }
        };
        let sizes = u32::try_from(height).ok().zip(u32::try_from(width).ok());
        let sizes = sizes.filter(|(h, w)| *h > 0 && *w > 0);
        let (h, w) = sizes.ok_or_else(|| {
            invalid_argument!("cannot encode an image of {height} by {width} pixels")
        })?;
        let size = height * width * channels * image.dtype().size();
        let pictures = image.bytes()?.chunks_exact(size);
        let is_deep = image.dtype() == DType::Uint16;
        let encode = |pixels: &[u8]| {
            let out = write(pixels, [w, h], color, is_deep, compression);
            let out = out.map_err(|e| invalid_argument!("Failed to encode PNG: {e}"))?;
            Ok(Bytes::from(out))
        };
        let out = pictures.map(encode).collect::<Result<Vec<_>>>()?;
        let batch: Shape = batch.iter().copied().collect();
        let out = Tensor::from_strings(batch, out)?;
        ctx.set_output(0, out)
    }))
}
