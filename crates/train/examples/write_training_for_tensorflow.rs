//! Writes a TensorBoard run and SavedModels that `oracle/read_training.py` has TensorFlow read:
//! `cargo run -p ferroflow-train --example write_training_for_tensorflow DIR`.

#[path = "../tests/training/plane.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod plane;
#[path = "../tests/training/written.rs"]
mod written;

use ferroflow_runtime::{Code, Result, Status, Tensor};
use ferroflow_train::{Dataset, FitOptions};
use std::path::PathBuf;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let usage = || {
        Status::new(
            Code::InvalidArgument,
            "usage: write_training_for_tensorflow DIR",
        )
    };
    let folder = folder.ok_or_else(usage)?;
    written::board(&folder.join("run"));
    written::write_vocabulary(&folder);
    let mut trainer = written::dropping();
    let data = Dataset::new(vec![("x", Tensor::from_slice([8, 4], &[1f32; 32])?)])?;
    trainer.fit(&data, &FitOptions::default(), &mut [])?;
    let (inputs, outputs) = ([("x", "x:0")], [("y", "dropped:0")]);
    trainer.export(&folder.join("dropping"), &inputs, &outputs)
}
