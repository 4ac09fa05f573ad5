//! The handwritten digits that the examples train on.

use ferroflow_runtime::{Result, Shape, Tensor, arrays};
use ferroflow_train::Dataset;
use std::path::Path;

/// Largest pixel value.
const MAX_PIXEL: f32 = 16.0;

/// Returns the digits to train on and the held-out digits; `image` is the shape of an image.
pub fn read(image: &[usize]) -> Result<(Dataset, Dataset)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.npz");
    let images = arrays::read_npz_key(&path, "images")?;
    let labels = arrays::read_npz_key(&path, "labels")?;
    let test = arrays::read_npz_key(&path, "test")?;
    let pixels = images.slice::<u8>()?.iter();
    let pixels: Vec<f32> = pixels.map(|&p| f32::from(p) / MAX_PIXEL).collect();
    let classes = labels.slice::<u8>()?.iter();
    let classes: Vec<i64> = classes.map(|&l| i64::from(l)).collect();
    let n = classes.len();
    let shape = Shape::from(&[&[n], image].concat()[..]);
    let all = Dataset::new(vec![
        ("images", Tensor::from_slice(shape, &pixels)?),
        ("labels", Tensor::from_slice(Shape::from([n]), &classes)?),
    ])?;
    let held_out: Vec<usize> = test.slice::<i32>()?.iter().map(|&i| i as usize).collect();
    let rest: Vec<usize> = (0..n).filter(|i| !held_out.contains(i)).collect();
    Ok((part(&all, &rest)?, part(&all, &held_out)?))
}

fn part(all: &Dataset, rows: &[usize]) -> Result<Dataset> {
    let columns = all.gather(rows)?;
    let columns = columns.iter().map(|(n, t)| (n.as_str(), t.clone()));
    Dataset::new(columns.collect())
}
