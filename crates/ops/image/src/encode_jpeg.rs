//! Encoding of JPEG images (TensorFlow: `core/kernels/image/encode_jpeg_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::int;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{PartialShape, Tensor};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

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
        encode(ctx, quality, None)
    }))
}

fn encode_jpeg(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (quality, format) = (build.attrs.int("quality")?, build.attrs.str("format")?);
    let quality = check_quality(quality)?;
    let wanted = match format {
        "grayscale" => Some(1),
        "rgb" => Some(3),
        _ => None,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        encode(ctx, quality, wanted)
    }))
}

fn encode(ctx: &mut KernelCtx, quality: u8, wanted: Option<usize>) -> Result<()> {
    let image = ctx.input(0)?;
    let &[height, width, channels] = image.shape().dims() else {
        return Err(invalid_argument!(
            "image must be 3-dimensional{}",
            image.shape()
        ));
    };
    if wanted.is_some_and(|w| w != channels) {
        return Err(invalid_argument!(
            "format expects {} channels, got {channels}",
            wanted.unwrap_or(0)
        ));
    }
    let color = match channels {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        _ => {
            return Err(invalid_argument!(
                "image must have 1 or 3 channels, got {}",
                image.shape()
            ));
        }
    };
    let sizes = u16::try_from(height).ok().zip(u16::try_from(width).ok());
    let sizes = sizes.filter(|(h, w)| *h > 0 && *w > 0);
    let (h, w) = sizes
        .ok_or_else(|| invalid_argument!("cannot encode an image of {height} by {width} pixels"))?;
    let mut out = Vec::new();
    JpegEncoder::new_with_quality(&mut out, quality.max(1))
        .encode(image.slice::<u8>()?, w.into(), h.into(), color)
        .map_err(|e| invalid_argument!("JPEG encoding failed: {e}"))?;
    ctx.set_output(0, Tensor::string(out))
}
