//! Writes records, events and checkpoints that `oracle/records.py` and `oracle/read_checkpoint.py`
//! have TensorFlow read: `cargo run -p ferroflow-model --example write_files_for_tensorflow DIR`.

#[path = "../tests/written/checkpoints.rs"]
mod checkpoints;
#[path = "../tests/written/records.rs"]
mod records;

use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::{BundleWriter, CheckpointState, merge_bundles};
use ferroflow_tensor::Tensor;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let folder =
        folder.ok_or_else(|| invalid_argument!("usage: write_files_for_tensorflow DIR"))?;
    write_records(&folder);
    write_checkpoints(&folder)
}

fn write_records(folder: &Path) {
    let (records, _) = records::theirs();
    for (name, compression) in records::KINDS {
        records::write(&folder.join(name), compression, &records);
    }
    records::events(&folder.join("run"));
}

fn write_checkpoints(folder: &Path) -> Result<()> {
    let to = |name: &str| folder.join(name).display().to_string();
    checkpoints::copy(&checkpoints::every(), &to("every"))?;
    checkpoints::write_sliced(&to("sliced"))?;
    for part in 0..3 {
        let mut writer = BundleWriter::create(&to(&format!("tmp/part{part}")))?;
        writer.add(&format!("x{part}"), &Tensor::scalar(part as f32))?;
        writer.finish()?;
    }
    let parts: Vec<String> = (0..3).map(|p| to(&format!("tmp/part{p}"))).collect();
    merge_bundles(&parts, &to("merged"), true)?;
    let mut writer = BundleWriter::create(&to("many"))?;
    for i in 0..20_000 {
        let name = format!("layer/{i}/weights_{}", i % 7);
        writer.add(&name, &Tensor::vector(&[i, -i])?)?;
    }
    writer.finish()?;
    checkpoints::write_old(&folder.join("old"))?;
    let state = CheckpointState {
        paths: vec!["every".into(), "merged".into()],
        timestamps: vec![],
    };
    state.write(folder)
}
