//! Checkpoints that both the tests and `examples/write_files_for_tensorflow.rs` write.

use ferroflow_base::Result;
use ferroflow_model::{
    BundleWriter, SavedPart, SliceReader, TensorBundle, TensorSlice, write_slices,
};
use ferroflow_tensor::Tensor;
use std::path::Path;

/// Returns the prefix of TensorFlow's checkpoint with a tensor of every dtype.
pub fn every() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles");
    folder.join("every").display().to_string()
}

/// Copies a checkpoint.
pub fn copy(from: &str, to: &str) -> Result<()> {
    let (bundle, mut writer) = (TensorBundle::open(from)?, BundleWriter::create(to)?);
    for name in bundle.names() {
        writer.add(name, &bundle.read(name)?)?;
    }
    writer.finish()
}

/// Writes those tensors of [`every`] that the V1 format can hold; returns how many.
pub fn write_old(path: &Path) -> Result<usize> {
    let bundle = TensorBundle::open(&every())?;
    let mut values = Vec::new();
    for name in bundle.names() {
        let value = bundle.read(name)?;
        let part = SavedPart {
            name: name.to_string(),
            whole: value.shape().clone(),
            slice: TensorSlice::all(value.shape()),
            value: &value,
        };
        match write_slices(path, &[part]) {
            Ok(()) => values.push((name.to_string(), value)),
            Err(e) => assert!(e.message().contains("not yet supported"), "{e}"),
        }
    }
    let parts = values.iter().map(|(name, value)| SavedPart {
        name: name.clone(),
        whole: value.shape().clone(),
        slice: TensorSlice::all(value.shape()),
        value,
    });
    write_slices(path, &parts.collect::<Vec<_>>())?;
    let reader = SliceReader::open(&[path.to_path_buf()])?;
    for (name, value) in &values {
        assert!(reader.read(name, None)?.same_value(value), "{name}");
    }
    Ok(values.len())
}

pub fn write_sliced(prefix: &str) -> Result<()> {
    let parts = [
        ("4 3 0,2:-", vec![0f32, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ("4 3 2,2:0,1", vec![6.0, 9.0]),
        ("4 3 2,2:1,2", vec![7.0, 8.0, 10.0, 11.0]),
    ];
    write_parts(prefix, &parts)
}

pub fn write_parts(prefix: &str, parts: &[(&str, Vec<f32>)]) -> Result<()> {
    let mut writer = BundleWriter::create(prefix)?;
    for (spec, values) in parts {
        let (whole, slice) = TensorSlice::parse_spec(spec)?;
        let part = Tensor::from_slice(slice.shape(&whole)?, values)?;
        writer.add_slice("grid", &whole, &slice, &part)?;
    }
    writer.finish()
}
