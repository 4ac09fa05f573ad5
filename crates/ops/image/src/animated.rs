//! BMP, GIF and WebP images (TensorFlow: `core/kernels/image/decode_image_op.cc`,
//! `core/lib/gif/gif_io.cc`, `core/lib/webp/webp_io.cc`).

use crate::codecs::not_bmp;
use ferroflow_base::{Result, Status, invalid_argument, resource_exhausted};
use ferroflow_functors::indices::shape_of;
use ferroflow_tensor::{DType, Tensor};
use image_webp::WebPDecoder;
use std::io::Cursor;

/// The formats of this file, from the first bytes of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Bmp,
    Gif,
    WebP,
}

impl Format {
    pub(crate) fn of(contents: &[u8]) -> Option<Format> {
        match contents {
            [b'B', b'M', ..] => Some(Format::Bmp),
            [b'G', b'I', b'F', b'8', ..] => Some(Format::Gif),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Some(Format::WebP),
            _ => None,
        }
    }
}

/// How to decode: the attrs of the op.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub op: &'a str,
    /// 0 means as many as the file has.
    pub channels: usize,
    /// Whether all frames are wanted.
    pub expand: bool,
    pub dtype: DType,
}

/// Returns the image: height, width and channels, after the number of frames if there are several
/// by nature.
pub(crate) fn decode(format: Format, contents: &[u8], options: Options) -> Result<Tensor> {
    match format {
        Format::Bmp => bmp(contents, options),
        Format::Gif => gif(contents, options),
        Format::WebP => webp(contents, options),
    }
}

/// Converts bytes; wider numbers are multiples of the bytes.
fn finish(dims: &[usize], bytes: &[u8], dtype: DType) -> Result<Tensor> {
    let shape = shape_of(dims.iter().copied())?;
    match dtype {
        DType::Uint8 => Tensor::from_slice(shape, bytes),
        DType::Uint16 => {
            let wide: Vec<u16> = bytes.iter().map(|b| u16::from(*b) * 256).collect();
            Tensor::from_slice(shape, &wide)
        }
        _ => {
            let scale = (1.0 / 255.0f64) as f32;
            let floats: Vec<f32> = bytes.iter().map(|b| f32::from(*b) * scale).collect();
            Tensor::from_slice(shape, &floats)
        }
    }
}

/// Returns zeros for an image, unless the file is too small to ask for so much.
fn canvas(contents: &[u8], dims: &[usize]) -> Result<Vec<u8>> {
    let size = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let most = contents.len().saturating_mul(4096).saturating_add(1 << 26);
    match size.filter(|n| *n <= most) {
        Some(size) => Ok(vec![0; size]),
        None => Err(resource_exhausted!(
            "an image of {dims:?} elements is too large for a file of {} bytes",
            contents.len()
        )),
    }
}

#[cold]
fn wrong_op(op: &str, format: &str, other: &str) -> Status {
    match op {
        "DecodeAndCropJpeg" => invalid_argument!(
            "DecodeAndCropJpeg operation can run on JPEG only, but detected {format}."
        ),
        _ => invalid_argument!(
            "Trying to decode {format} format using a wrong op. Use `{other}` or `decode_image` \
             instead. Op used: {op}"
        ),
    }
}

/// What the header of a BMP file says.
struct BmpHeader {
    len: usize,
    columns: usize,
    rows: usize,
    /// Whether the last row comes first.
    is_upward: bool,
    channels: usize,
    /// The bytes of a row.
    line: usize,
}

impl BmpHeader {
    fn read(contents: &[u8]) -> Result<BmpHeader> {
        if contents.len() < 32 {
            return Err(invalid_argument!(
                "Incomplete bmp content, requires at least 32 bytes to find the header size, width, \
                 height, and bpp, got {} bytes",
                contents.len()
            ));
        }
        let number = |at: usize| {
            let bytes = contents.get(at..at + 4).unwrap_or_default();
            i32::from_le_bytes(bytes.try_into().unwrap_or_default())
        };
        let (header, width, height) = (number(10), number(18), number(22));
        let channels = (number(28) as i16 / 8) as isize;
        if !matches!(channels, 1 | 3 | 4) {
            return Err(invalid_argument!(
                "Number of channels inherent in the image must be 1, 3 or 4, was {channels}"
            ));
        }
        if width <= 0 {
            return Err(invalid_argument!("Width must be positive"));
        }
        if height == 0 {
            return Err(invalid_argument!("Height must be nonzero"));
        }
        let Ok(len) = usize::try_from(header) else {
            return Err(invalid_argument!("header size must be nonnegative"));
        };
        let (columns, rows) = (width as usize, height.unsigned_abs() as usize);
        if columns.saturating_mul(rows) >= i32::MAX as usize / 8 {
            return Err(invalid_argument!(
                "Total possible pixel bytes must be less than 2^30"
            ));
        }
        let channels = channels as usize;
        let line = (channels * columns).div_ceil(4) * 4;
        let expected = len as i64 + (line * rows) as i64;
        if contents.len() as i64 != expected {
            return Err(invalid_argument!(
                "Input size should match (header_size + row_size * abs_height) but they differ by {}",
                contents.len() as i64 - expected
            ));
        }
        Ok(BmpHeader {
            len,
            columns,
            rows,
            is_upward: height > 0,
            channels,
            line,
        })
    }
}

fn bmp(contents: &[u8], options: Options) -> Result<Tensor> {
    if options.channels == 1 {
        return Err(invalid_argument!(
            "`channels` must be 0, 3 or 4 for BMP, but got 1"
        ));
    }
    if !matches!(options.op, "DecodeBmp" | "DecodeImage") {
        return Err(wrong_op(options.op, "BMP", "decode_bmp"));
    }
    let BmpHeader {
        len,
        columns,
        rows,
        is_upward,
        channels: from,
        line,
    } = BmpHeader::read(contents)?;
    let to = if options.channels == 0 {
        from
    } else {
        options.channels
    };
    let mut out = Vec::with_capacity(rows * columns * to);
    for y in 0..rows {
        let stored = if is_upward { rows - 1 - y } else { y };
        let row = contents.get(len + stored * line..).unwrap_or_default();
        for pixel in row.chunks_exact(from).take(columns) {
            match (pixel, to) {
                ([gray], 1) => out.push(*gray),
                ([gray], 3) => out.extend([*gray; 3]),
                ([gray], _) => out.extend([*gray, *gray, *gray, u8::MAX]),
                ([b, g, r, ..], 3) => out.extend([*r, *g, *b]),
                ([b, g, r, a], _) => out.extend([*r, *g, *b, *a]),
                ([b, g, r], _) => out.extend([*r, *g, *b, u8::MAX]),
                _ => {}
            }
        }
    }
    finish(&[rows, columns, to], &out, options.dtype)
}

/// A frame of a GIF file: indices into colors.
struct Frame {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    transparent: Option<u8>,
    colors: Vec<u8>,
    indices: Vec<u8>,
}

/// Returns the frames; those before an error if there are any, as in TensorFlow.
fn gif_frames(contents: &[u8]) -> Result<Vec<Frame>> {
    let invalid =
        |why: String| invalid_argument!("Invalid GIF data (size {}), {why}", contents.len());
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    let decoder = options.read_info(Cursor::new(contents));
    let mut decoder = decoder.map_err(|e| invalid(format!("failed to open gif file: {e}")))?;
    let common = decoder.global_palette().map(<[u8]>::to_vec);
    let (mut frames, mut total) = (Vec::new(), 0usize);
    loop {
        let frame = match decoder.read_next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(e) if frames.is_empty() => {
                return Err(invalid(format!("failed to slurp gif file: {e}")));
            }
            Err(_) => break,
        };
        total = total.saturating_add(frame.buffer.len());
        canvas(contents, &[total])?;
        let colors = frame.palette.clone().or_else(|| common.clone());
        let missing = || invalid(format!("missing color map for frame {}", frames.len()));
        frames.push(Frame {
            left: frame.left.into(),
            top: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
            transparent: frame.transparent,
            colors: colors.ok_or_else(missing)?,
            indices: frame.buffer.to_vec(),
        });
    }
    match frames.is_empty() {
        true => Err(invalid("gif file does not contain any image".into())),
        false => Ok(frames),
    }
}

fn gif(contents: &[u8], options: Options) -> Result<Tensor> {
    if !matches!(options.channels, 0 | 3) {
        return Err(invalid_argument!(
            "channels must be 0 or 3 for GIF, got {}",
            options.channels
        ));
    }
    match options.op {
        "DecodeBmp" => {
            return Err(not_bmp("GIF", "decode_gif"));
        }
        "DecodeAndCropJpeg" => return Err(wrong_op(options.op, "GIF", "decode_gif")),
        _ => {}
    }
    let frames = gif_frames(contents)?;
    let width = frames.iter().map(|f| f.width).max().unwrap_or(0);
    let height = frames.iter().map(|f| f.height).max().unwrap_or(0);
    let n = if options.expand { frames.len() } else { 1 };
    let dims = [n, height, width, 3];
    let dims = match options.op {
        "DecodePng" | "DecodeJpeg" if n == 1 => &dims[1..],
        "DecodePng" | "DecodeJpeg" => {
            return Err(invalid_argument!(
                "Got {n} frames, but animated gifs can only be decoded by tf.io.decode_gif or \
                 tf.io.decode_image"
            ));
        }
        "DecodeImage" if !options.expand => &dims[1..],
        "DecodeImage" | "DecodeGif" => &dims[..],
        op => return Err(invalid_argument!("Bad op type {op}")),
    };
    let mut out = canvas(contents, dims)?;
    let size = height * width * 3;
    for (k, frame) in frames.iter().take(n).enumerate() {
        if k > 0 {
            out.copy_within((k - 1) * size..k * size, k * size);
        }
        let picture = out.get_mut(k * size..(k + 1) * size).unwrap_or_default();
        paint(frame, picture, [height, width], contents.len())?;
    }
    finish(dims, &out, options.dtype)
}

/// Paints a frame over the one before.
fn paint(frame: &Frame, out: &mut [u8], [height, width]: [usize; 2], size: usize) -> Result<()> {
    let lines = frame.indices.chunks_exact(frame.width.max(1));
    for (y, line) in lines.enumerate().take(height.saturating_sub(frame.top)) {
        let row = (frame.top + y) * width * 3;
        let row = out.get_mut(row..row + width * 3).unwrap_or_default();
        for (pixel, index) in row.chunks_exact_mut(3).skip(frame.left).zip(line) {
            if Some(*index) == frame.transparent {
                continue;
            }
            let at = usize::from(*index) * 3;
            let color = frame.colors.get(at..at + 3).ok_or_else(|| {
                invalid_argument!(
                    "Invalid GIF data (size {size}), found color index {index} outside of color \
                     map range {}",
                    frame.colors.len() / 3
                )
            })?;
            pixel.copy_from_slice(color);
        }
    }
    Ok(())
}

fn webp(contents: &[u8], options: Options) -> Result<Tensor> {
    if !matches!(options.channels, 0 | 3 | 4) {
        return Err(invalid_argument!("WebP only supports 3 or 4 channels"));
    }
    if options.dtype != DType::Uint8 {
        return Err(invalid_argument!("WebP only supports uint8 for dtype"));
    }
    let decoder = WebPDecoder::new(Cursor::new(contents));
    let mut decoder = decoder.map_err(|_| invalid_argument!("Failed to decode WebP header."))?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    if options.channels != 0 && options.channels != channels {
        return Err(invalid_argument!(
            "Number of channels requested does not match input"
        ));
    }
    if !decoder.is_animated() {
        let dims = [1, height, width, channels];
        let mut out = canvas(contents, &dims)?;
        let failed = |_| invalid_argument!("Failed to decode WebP image.");
        decoder.read_image(&mut out).map_err(failed)?;
        let dims = if options.expand {
            &dims[..]
        } else {
            &dims[1..]
        };
        return finish(dims, &out, options.dtype);
    }
    if options.channels == 3 {
        return Err(invalid_argument!("WebP Animation must be 4 channel RGBA"));
    }
    let n = if options.expand {
        decoder.num_frames() as usize
    } else {
        1
    };
    let dims = [n, height, width, 4];
    let mut out = canvas(contents, &dims)?;
    let failed = |e| invalid_argument!("Failed to decode WebP Animation: {e}");
    if channels == 4 {
        decoder.set_background_color([0; 4]).map_err(failed)?;
    }
    let mut frame = vec![0; height * width * channels];
    for to in out.chunks_exact_mut((height * width * 4).max(1)) {
        decoder.read_frame(&mut frame).map_err(failed)?;
        for (to, from) in to.chunks_exact_mut(4).zip(frame.chunks_exact(channels)) {
            match from {
                [r, g, b] => to.copy_from_slice(&[*r, *g, *b, u8::MAX]),
                _ => to.copy_from_slice(from),
            }
        }
    }
    let dims = if options.expand {
        &dims[..]
    } else {
        &dims[1..]
    };
    finish(dims, &out, options.dtype)
}
