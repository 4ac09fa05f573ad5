//! Images as feeds.

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use image::imageops::FilterType;
use std::path::Path;

/// Decodes an image for a placeholder of shape `[H,W]`, `[H,W,C]` or `[N,H,W,C]`. Unknown heights
/// and widths are those of the image; unknown channels mean RGB. Values of float placeholders are
/// scaled to `range`.
pub fn read(path: &Path, dtype: DType, shape: &PartialShape, range: (f32, f32)) -> Result<Tensor> {
    let bytes = std::fs::read(path).map_err(|e| not_found!("{}: {e}", path.display()))?;
    let decoded = image::load_from_memory(&bytes)
        .map_err(|e| invalid_argument!("{} is not a readable image: {e}", path.display()))?;
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
    let width = w.unwrap_or(decoded.width() as usize) as u32;
    let height = h.unwrap_or(decoded.height() as usize) as u32;
    let resized = if (width, height) == (decoded.width(), decoded.height()) {
        decoded
    } else {
        decoded.resize_exact(width, height, FilterType::Triangle)
    };
    let channels = c.unwrap_or(3);
    let pixels: Vec<u8> = match channels {
        1 => resized.to_luma8().into_raw(),
        3 => resized.to_rgb8().into_raw(),
        4 => resized.to_rgba8().into_raw(),
        n => {
            return Err(invalid_argument!(
                "the placeholder has {n} channels; images have 1, 3 or 4"
            ));
        }
    };
    let (h, w) = (height as usize, width as usize);
    let shape = match rank {
        2 => Shape::from([h, w]),
        3 => Shape::from([h, w, channels]),
        _ => Shape::from([1, h, w, channels]),
    };
    match dtype {
        DType::Uint8 => Tensor::from_slice(shape, &pixels),
        // Floats become bfloat16, as in feeds from files.
        DType::Float | DType::Bfloat16 => {
            let (lo, hi) = range;
            let values: Vec<f32> = pixels
                .iter()
                .map(|&p| lo + p as f32 / 255.0 * (hi - lo))
                .collect();
            Tensor::from_slice(shape, &values)
        }
        other => Err(invalid_argument!(
            "an image cannot be fed to a {other} placeholder"
        )),
    }
}
