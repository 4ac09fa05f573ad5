//! Images as feeds.

use ferroflow_base::{Result, internal, invalid_argument, not_found};
use ferroflow_runtime::eager::{AttrValue, Attrs, Eager, TensorHandle};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::path::Path;

/// The extensions of files that are decoded as images.
pub const EXTENSIONS: [&str; 6] = [".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"];

/// Decodes an image for a placeholder of shape `[H,W]`, `[H,W,C]` or `[N,H,W,C]`. Unknown heights
/// and widths are those of the image; unknown channels mean RGB. Values of float placeholders are
/// scaled to `range`.
///
/// # Errors
/// NOT_FOUND for unreadable files; INVALID_ARGUMENT for other formats and placeholders of other shapes or dtypes.
pub fn read(path: &Path, dtype: DType, shape: &PartialShape, range: (f32, f32)) -> Result<Tensor> {
    let bytes = std::fs::read(path).map_err(|e| not_found!("{}: {e}", path.display()))?;
    let rank = shape.rank().unwrap_or(4);
    let (h, w, c) = match rank {
        2 => (shape.dim(0), shape.dim(1), Some(1)),
        3 => (shape.dim(0), shape.dim(1), shape.dim(2)),
        4 => (shape.dim(1), shape.dim(2), shape.dim(3)),
        _ => {
            return Err(invalid_argument!(
                "an image cannot be fed to a placeholder of shape {shape}; expected [N,H,W,C], [H,W,C] or [H,W]"
            ));
        }
    };
    let channels = c.unwrap_or(3);
    if !matches!(channels, 1 | 3 | 4) {
        return Err(invalid_argument!(
            "the placeholder has {channels} channels; images have 1, 3 or 4"
        ));
    }
    let decoded = decode(bytes, channels).map_err(|e| {
        invalid_argument!(
            "{} is not a readable image: {}",
            path.display(),
            e.message()
        )
    })?;
    let &[height, width, _] = decoded.shape().dims() else {
        return Err(internal!("decoded an image of shape {}", decoded.shape()));
    };
    let (h, w) = (h.unwrap_or(height), w.unwrap_or(width));
    let pixels = match (h, w) == (height, width) {
        true => decoded,
        false => resize(&decoded, [h, w])?,
    };
    let shape = match rank {
        2 => Shape::from([h, w]),
        3 => Shape::from([h, w, channels]),
        _ => Shape::from([1, h, w, channels]),
    };
    let pixels = pixels.slice::<u8>()?;
    match dtype {
        DType::Uint8 => Tensor::from_slice(shape, pixels),
        // Floats become bfloat16, as in feeds from files.
        DType::Float | DType::Bfloat16 => {
            let (lo, hi) = range;
            let value = |&p: &u8| lo + f32::from(p) / 255.0 * (hi - lo);
            Tensor::from_slice(shape, &pixels.iter().map(value).collect::<Vec<f32>>())
        }
        other => Err(invalid_argument!(
            "an image cannot be fed to a {other} placeholder"
        )),
    }
}

/// Returns the first frame as uint8 `[height, width, channels]`.
fn decode(bytes: Vec<u8>, channels: usize) -> Result<Tensor> {
    let attrs = Attrs::default()
        .with("channels", AttrValue::Int(channels as i64))
        .with("dtype", AttrValue::Type(DType::Uint8))
        .with("expand_animations", AttrValue::Bool(false));
    one("DecodeImage", vec![Tensor::string(bytes)], &attrs)
}

/// Resizes with a triangle filter, which covers all pixels where it shrinks.
fn resize(image: &Tensor, to: [usize; 2]) -> Result<Tensor> {
    let from = image.shape().dims();
    let batch: Shape = [1].iter().chain(from).copied().collect();
    let scale: Vec<f32> = to
        .iter()
        .zip(from)
        .map(|(t, f)| *t as f32 / *f as f32)
        .collect();
    let inputs = vec![
        image.clone().with_shape(batch)?,
        Tensor::from_slice([2], &to.map(|n| n as i32))?,
        Tensor::from_slice([2], &scale)?,
        Tensor::from_slice([2], &[0.0f32; 2])?,
    ];
    let attrs = Attrs::default().with("kernel_type", AttrValue::str("triangle"));
    let resized = one("ScaleAndTranslate", inputs, &attrs)?;
    let rounded = |v: &f32| v.round().clamp(0.0, 255.0) as u8;
    let pixels: Vec<u8> = resized.slice::<f32>()?.iter().map(rounded).collect();
    Tensor::from_slice([to[0], to[1], from[2]], &pixels)
}

fn one(op: &str, inputs: Vec<Tensor>, attrs: &Attrs) -> Result<Tensor> {
    let inputs = inputs.into_iter().map(TensorHandle::from);
    let outputs = Eager::new(1).execute(op, inputs, attrs)?;
    let output = outputs.first();
    output
        .ok_or_else(|| internal!("op {op} has no output"))?
        .get()
}
