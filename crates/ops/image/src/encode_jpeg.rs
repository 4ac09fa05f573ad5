//! Encoding of JPEG images (TensorFlow: `core/kernels/image/encode_jpeg_op.cc`).

use crate::jpeg_writer::{self, MOST};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::int;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "EncodeJpeg",
        "image: uint8 -> contents: string | format: string {'','grayscale','rgb'} = \
         ''; quality: int = 95; progressive: bool = false; optimize_size: bool = \
         false; chroma_downsampling: bool = true; density_unit: string {'in','cm'} = \
         'in'; x_density: int = 300; y_density: int = 300; xmp_metadata: string = ''",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 3)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(encode_jpeg),
    Op::new(
        "EncodeJpegVariableQuality",
        "images: uint8, quality: int32 -> contents: string",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 3)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(variable_quality),
];

/// What precedes XMP metadata in its segment.
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// Most bytes of a segment of metadata.
const MAX_METADATA: usize = 65533;

/// How to encode an image.
struct Options {
    /// The number of channels, where the format demands one.
    channels: Option<usize>,
    file: jpeg_writer::Options,
}

impl Options {
    fn of(build: &KernelBuild) -> Result<Options> {
        let attrs = build.attrs;
        let unit = match attrs.str("density_unit")? {
            "cm" => 2,
            _ => 1,
        };
        // The file's fields have 16 bits.
        let [x, y] = [attrs.int("x_density")?, attrs.int("y_density")?].map(|n| n as u16);
        let metadata = attrs.bytes("xmp_metadata")?;
        let xmp = match metadata.is_empty() {
            true => Vec::new(),
            false => [XMP, metadata].concat(),
        };
        if xmp.len() > MAX_METADATA {
            return Err(invalid_argument!(
                "JPEG encoding failed: XMP metadata of {} bytes, more than {MAX_METADATA} with its header",
                metadata.len()
            ));
        }
        Ok(Options {
            channels: match attrs.str("format")? {
                "grayscale" => Some(1),
                "rgb" => Some(3),
                _ => None,
            },
            file: jpeg_writer::Options {
                quality: check_quality(attrs.int("quality")?)?,
                progressive: attrs.bool("progressive")?,
                optimized: attrs.bool("optimize_size")?,
                smaller_chroma: attrs.bool("chroma_downsampling")?,
                unit,
                density: [x, y],
                metadata: xmp,
            },
        })
    }
}

fn check_quality(quality: i64) -> Result<u8> {
    let checked = u8::try_from(quality).ok().filter(|q| *q <= 100);
    checked.ok_or_else(|| invalid_argument!("quality must be in [0,100], got {quality}"))
}

fn variable_quality(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let quality = ctx.input(1)?;
        if !quality.shape().is_scalar() {
            return Err(invalid_argument!(
                "quality must be scalar: {}",
                quality.shape()
            ));
        }
        let quality = check_quality(int(quality).unwrap_or(-1))?;
        let options = Options {
            channels: None,
            file: jpeg_writer::Options {
                quality,
                progressive: false,
                optimized: false,
                smaller_chroma: true,
                unit: 1,
                density: [300, 300],
                metadata: Vec::new(),
            },
        };
        encode(ctx, &options)
    }))
}

fn encode_jpeg(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let options = Options::of(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| encode(ctx, &options)))
}

fn encode(ctx: &mut KernelCtx, options: &Options) -> Result<()> {
    let image = ctx.input(0)?;
    let &[height, width, channels] = image.shape().dims() else {
        return Err(invalid_argument!(
            "image must be 3-dimensional{}",
            image.shape()
        ));
    };
    if let Some(expected) = options.channels.filter(|&n| n != channels) {
        let format = if expected == 1 { "grayscale" } else { "rgb" };
        return Err(invalid_argument!(
            "format {format} expects {expected} channels, got {}",
            image.shape()
        ));
    }
    if !matches!(channels, 1 | 3) {
        return Err(invalid_argument!(
            "image must have 1 or 3 channels, got {}",
            image.shape()
        ));
    }
    let fits = |n: usize| (1..=MOST).contains(&n);
    if !fits(height) || !fits(width) || height * width >= 1 << 29 {
        return Err(invalid_argument!(
            "cannot encode an image of {height} by {width} pixels"
        ));
    }
    let out = jpeg_writer::encode(
        image.slice::<u8>()?,
        [height, width],
        channels,
        &options.file,
    );
    ctx.set_output(0, Tensor::string(out))
}
