//! Decoding of images (TensorFlow: `core/kernels/image/decode_image_op.cc`).

use crate::{animated, jpeg, jxl, png};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::indices::{int_vector, shape_of};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DecodePng",
        "contents: string -> image: dtype | channels: int = 0; dtype: type \
         {uint8,uint16} = uint8",
    )
    .shape(image_shape)
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "DecodeJpeg",
        "contents: string -> image: uint8 | channels: int = 0; ratio: int = 1; \
         fancy_upscaling: bool = true; try_recover_truncated: bool = false; \
         acceptable_fraction: float = 1.0; dct_method: string = '' |",
    )
    .shape(image_shape)
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "DecodeAndCropJpeg",
        "contents: string, crop_window: int32 -> image: uint8 | channels: int = 0; \
         ratio: int = 1; fancy_upscaling: bool = true; try_recover_truncated: bool = \
         false; acceptable_fraction: float = 1.0; dct_method: string = ''",
    )
    .shape(|ctx| {
        image_shape(ctx)?;
        ctx.with_rank(1, 1)?;
        let window = ferroflow_functors::indices::constant(ctx, 1);
        if let Some(&[_, _, height, width]) = window.as_deref() {
            let [height, width] = [height, width].map(|n| usize::try_from(n).ok());
            let channels = usize::try_from(ctx.attrs().int("channels")?).ok();
            ctx.set(
                0,
                PartialShape::of([height, width, channels.filter(|&c| c > 0)]),
            );
        }
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "ExtractJpegShape",
        "contents: string -> image_shape: output_type | output_type: type \
         {int32,int64} = int32",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.set(0, PartialShape::of([Some(3)]));
        Ok(())
    })
    .kernel(jpeg_shape),
    Op::new(
        "DecodeImage",
        "contents: string -> image: dtype | channels: int = 0; dtype: type \
         {uint8,uint16,float} = uint8; expand_animations: bool = true",
    )
    .shape(|_| Ok(()))
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "DecodeBmp",
        "contents: string -> image: uint8 | channels: int = 0",
    )
    .shape(image_shape)
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new("DecodeGif", "contents: string -> image: uint8")
        .shape(|ctx| {
            ctx.with_rank(0, 0)?;
            ctx.set(0, PartialShape::of([None, None, None, Some(3)]));
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(decode),
    Op::new(
        "DecodeJxl",
        "contents: string -> image: dtype | channels: int = 0; dtype: type {uint8} = uint8",
    )
    .shape(image_shape)
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "DecodeWebP",
        "contents: string -> image: dtype | channels: int = 0; dtype: type {uint8} = uint8",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        let channels = usize::try_from(ctx.attrs().int("channels")?).ok();
        let channels = channels.filter(|&c| c > 0);
        ctx.set(0, PartialShape::of([None, None, None, channels]));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(decode),
];

fn image_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 0)?;
    let channels = usize::try_from(ctx.attrs().int("channels")?).ok();
    ctx.set(
        0,
        PartialShape::of([None, None, channels.filter(|&c| c > 0)]),
    );
    Ok(())
}

struct Decode {
    op: String,
    /// 0 means as many as the file has.
    channels: usize,
    /// How JPEG files are decoded.
    jpeg: jpeg::Options,
    /// Whether animations have all their frames.
    expand: bool,
    dtype: DType,
}

fn decode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let channels = match build.def.name.as_ref() {
        "DecodeGif" => 3,
        _ => attrs.int("channels")?,
    };
    let crops = build.def.name == "DecodeAndCropJpeg";
    let is_jpeg = crops || build.def.name == "DecodeJpeg";
    if !matches!(channels, 0 | 1 | 3 | 4) {
        return Err(invalid_argument!(
            "`channels` must be 0, 1, 3 or 4 but got {channels}"
        ));
    }
    if build.def.name == "DecodeJxl" {
        jxl::check_built()?;
    }
    let decode = Decode {
        op: build.def.name.to_string(),
        channels: channels as usize,
        jpeg: jpeg_options(build, is_jpeg, channels as usize)?,
        expand: attrs.bool("expand_animations").unwrap_or(true),
        dtype: build.output(0)?,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let contents = ctx.input(0)?;
        let Some(file) = scalar_string(contents)? else {
            return Err(invalid_argument!(
                "`contents` must be scalar but got shape{}",
                contents.shape()
            ));
        };
        let window = if crops { Some(ctx.input(1)?) } else { None };
        let out = decode.run(file, window)?;
        ctx.set_output(0, out)
    }))
}

fn jpeg_options(build: &KernelBuild, is_jpeg: bool, channels: usize) -> Result<jpeg::Options> {
    let mut options = jpeg::Options {
        channels,
        ratio: 1,
        fancy: true,
        accurate: false,
        recovers: false,
        fraction: 1.0,
        window: None,
    };
    if !is_jpeg {
        return Ok(options);
    }
    let attrs = build.attrs;
    options.ratio = match attrs.int("ratio")? {
        ratio @ (1 | 2 | 4 | 8) => ratio as usize,
        ratio => {
            return Err(invalid_argument!(
                "ratio must be 1, 2, 4, or 8, got {ratio}"
            ));
        }
    };
    options.accurate = match attrs.str("dct_method")? {
        "" | "INTEGER_FAST" => false,
        "INTEGER_ACCURATE" => true,
        _ => {
            return Err(invalid_argument!(
                "dct_method must be one of {{'', 'INTEGER_FAST', 'INTEGER_ACCURATE'}}"
            ));
        }
    };
    options.fancy = attrs.bool("fancy_upscaling")?;
    options.recovers = attrs.bool("try_recover_truncated")?;
    options.fraction = attrs.float("acceptable_fraction")?;
    Ok(options)
}

fn scalar_string(contents: &Tensor) -> Result<Option<&Bytes>> {
    Ok(match (contents.shape().rank(), contents.strings()?) {
        (0, [contents]) => Some(contents),
        _ => None,
    })
}

/// Returns first row and column, height and width.
fn crop_window(window: &Tensor) -> Result<[usize; 4]> {
    if window.shape().rank() != 1 {
        return Err(invalid_argument!(
            "crop_window must be 1-D, got shape {}",
            window.shape()
        ));
    }
    let &[y, x, height, width] = window.slice::<i32>()? else {
        return Err(invalid_argument!(
            "crop_size must have four elements {}",
            window.shape()
        ));
    };
    let [y, x, height, width] = [y, x, height, width].map(usize::try_from);
    match (y, x, height, width) {
        (Ok(y), Ok(x), Ok(height @ 1..), Ok(width @ 1..)) => Ok([y, x, height, width]),
        _ => Err(invalid_jpeg("the window is empty or begins outside")),
    }
}

fn jpeg_shape(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let contents = ctx.input(0)?;
        let Some(file) = scalar_string(contents)? else {
            return Err(invalid_argument!(
                "contents must be scalar, got shape {}",
                contents.shape()
            ));
        };
        let shape = jpeg::shape(file)
            .map_err(|_| invalid_argument!("Invalid JPEG data, size {}", file.len()))?;
        let shape = shape.map(|n| n as i64);
        ctx.set_output(0, int_vector(dtype, shape.into_iter())?)
    }))
}

/// An image with 16 bits per sample.
pub(crate) struct Image16 {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
    pub(crate) samples: Vec<u16>,
}

/// The error of DecodeBmp for a file of another format.
#[cold]
pub(crate) fn not_bmp(format: &str, other: &str) -> Status {
    invalid_argument!(
        "Trying to decode {format} format using DecodeBmp op. Use `{other}` or \
         `decode_image` instead."
    )
}

impl Decode {
    /// Returns the shape of a picture; DecodeGif adds an axis of frames.
    fn shape(&self, dims: [usize; 3]) -> Result<Shape> {
        let frames = (self.op == "DecodeGif").then_some(1);
        shape_of(frames.into_iter().chain(dims))
    }

    /// Returns the image, or the part of it in a window.
    fn run(&self, contents: &[u8], window: Option<&Tensor>) -> Result<Tensor> {
        if contents.is_empty() {
            return Err(invalid_argument!("Input is empty."));
        }
        if let Some(format) = animated::Format::of(contents) {
            let options = animated::Options {
                op: &self.op,
                channels: self.channels,
                expand: self.expand,
                dtype: self.dtype,
            };
            return animated::decode(format, contents, options);
        }
        if contents.starts_with(&[0xff, 0xd8, 0xff]) {
            return self.jpeg(contents, window);
        }
        if jxl::is_jxl(contents) {
            if self.dtype != DType::Uint8 {
                return Err(invalid_argument!("JXL only supports uint8 for dtype"));
            }
            let picture = jxl::decode(contents, self.channels)?;
            return Tensor::from_slice(shape_of(picture.dims)?, &picture.samples);
        }
        if !png::is_png(contents) {
            return Err(invalid_argument!(
                "Unknown image file format. One of JPEG, JPEG XL, PNG, GIF, BMP, WebP required."
            ));
        }
        if self.op == "DecodeBmp" {
            return Err(not_bmp("PNG", "decode_png"));
        }
        if window.is_some() {
            return Err(invalid_argument!(
                "DecodeAndCropJpeg operation can run on JPEG only, but detected PNG."
            ));
        }
        let (mut picture, is_deep) = png::decode(contents)?;
        let has_opacity = picture.channels.is_multiple_of(2);
        if self.channels == 0 && has_opacity && has_transparent_color(contents) {
            let colors = picture.channels - 1;
            picture = picture.with_channels(colors, Gray::default());
        }
        let channels = match self.channels {
            0 => picture.channels,
            n => n,
        };
        let shape = self.shape([picture.height, picture.width, channels])?;
        let gray = Gray {
            deep: is_deep,
            rounded: is_deep,
        };
        let picture = picture.with_channels(channels, gray);
        // 8-bit samples are replicated in the upper and the lower byte.
        match self.dtype {
            DType::Uint8 => {
                let bytes: Vec<u8> = picture.samples.iter().map(|s| (s >> 8) as u8).collect();
                Tensor::from_slice(shape, &bytes)
            }
            DType::Uint16 => Tensor::from_slice(shape, &picture.samples),
            _ => {
                let (shift, top) = if is_deep { (0, 65535.0) } else { (8, 255.0) };
                let unit = |s: &u16| (s >> shift) as f32 / top;
                let floats: Vec<f32> = picture.samples.iter().map(unit).collect();
                Tensor::from_slice(shape, &floats)
            }
        }
    }
}

impl Decode {
    fn jpeg(&self, contents: &[u8], window: Option<&Tensor>) -> Result<Tensor> {
        if self.channels == 4 {
            return Err(invalid_argument!("JPEG does not support 4 channels"));
        }
        if self.op == "DecodeBmp" {
            return Err(not_bmp("JPEG", "decode_jpeg"));
        }
        let options = jpeg::Options {
            window: window.map(crop_window).transpose()?,
            ..self.jpeg
        };
        let picture = jpeg::decode(contents, &options).map_err(invalid_jpeg)?;
        let shape = self.shape(picture.dims())?;
        let mut bytes = Tensor::for_overwrite(DType::Uint8, shape.clone())?;
        picture.write(bytes.slice_mut()?);
        let samples = bytes.slice::<u8>()?.iter();
        match self.dtype {
            DType::Uint8 => Ok(bytes),
            DType::Uint16 => {
                let deep: Vec<u16> = samples.map(|&v| u16::from(v) << 8).collect();
                Tensor::from_slice(shape, &deep)
            }
            _ => {
                let floats: Vec<f32> = samples.map(|&v| f32::from(v) * (1.0 / 255.0)).collect();
                Tensor::from_slice(shape, &floats)
            }
        }
    }
}

impl Image16 {
    /// Converts the number of channels: gray, gray and alpha, RGB, RGBA.
    fn with_channels(self, channels: usize, gray: Gray) -> Image16 {
        if channels == self.channels || self.channels == 0 {
            return self;
        }
        let mut samples = Vec::with_capacity(self.samples.len() / self.channels * channels);
        for pixel in self.samples.chunks_exact(self.channels) {
            let opacity = match pixel {
                [_, a] | [_, _, _, a] => *a,
                _ => u16::MAX,
            };
            let color = match pixel {
                [r, g, b, ..] => [*r, *g, *b],
                [gray, ..] => [*gray; 3],
                [] => [0; 3],
            };
            if channels < 3 {
                samples.push(match pixel {
                    [gray] | [gray, _] => *gray,
                    _ => gray.of(color),
                });
            } else {
                samples.extend(color);
            }
            if channels.is_multiple_of(2) {
                samples.push(opacity);
            }
        }
        Image16 {
            channels,
            samples,
            ..self
        }
    }
}

/// TensorFlow does not say why, either.
#[cold]
fn invalid_jpeg<E>(_: E) -> Status {
    invalid_argument!("jpeg::Uncompress failed. Invalid JPEG data or crop window.")
}

/// Returns whether a PNG file without an alpha channel has one transparent color. TensorFlow
/// ignores it unless alpha is requested; the decoder adds a channel.
fn has_transparent_color(contents: &[u8]) -> bool {
    // The header's color type: gray and RGB; then chunks up to the data.
    let mut at = 8;
    while let Some(&[a, b, c, d, ref kind @ ..]) = contents.get(at..at + 8) {
        match kind {
            b"IHDR" if !matches!(contents.get(at + 17), Some(0 | 2)) => return false,
            b"tRNS" => return true,
            b"IDAT" | b"IEND" => return false,
            _ => {}
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        at = at.saturating_add(length).saturating_add(12);
    }
    false
}

/// Conversion of colors to gray.
#[derive(Clone, Copy, Default)]
struct Gray {
    /// Whether samples have 16 bits.
    deep: bool,
    /// Whether to round fractions instead of truncating.
    rounded: bool,
}

impl Gray {
    /// Returns the luminance of a color, in libpng's fixed-point arithmetic.
    fn of(self, color: [u16; 3]) -> u16 {
        let [r, g, b] = color.map(|v| u32::from(if self.deep { v } else { v >> 8 }));
        let half = if self.rounded { 1 << 14 } else { 0 };
        let y = ((9797 * r + 19234 * g + 3737 * b + half) >> 15) as u16;
        if self.deep { y } else { y << 8 | y }
    }
}
