//! Trains a small convolutional network on handwritten digits, from random weights.
//!
//! `cargo run --release --example train_digits [FOLDER]`
//!
//! A checkpoint is written into FOLDER (`target/train_digits`) after every epoch: after ^C, the
//! next run continues from there. At the end a SavedModel is written to FOLDER/model, or
//! FOLDER/model-2 and so on if that exists.

use ferroflow_runtime::{DType, Result, SavedModel, SessionOptions};
use ferroflow_train::{
    Activation, Callback, Conv, Dataset, FitOptions, LearningRateSchedule, Network, Optimizer,
    ProgressLine, Trainer,
};
use std::path::{Path, PathBuf};

#[path = "data/digits.rs"]
mod digits;

const SIDE: usize = 8;
const EPOCHS: usize = 30;
const BATCH: usize = 32;
const STEPS_PER_EPOCH: usize = 1437_usize.div_ceil(BATCH);

#[allow(dead_code, reason = "the test of the examples calls `train`")]
fn main() -> Result<()> {
    let folder = std::env::args()
        .nth(1)
        .map_or_else(|| PathBuf::from("target/train_digits"), PathBuf::from);
    let start = std::time::Instant::now();
    let trained = train(&folder, EPOCHS, &mut [&mut ProgressLine::default()])?;
    println!(
        "{:.1} % of {} held-out digits read correctly after {:.1} s",
        100.0 * trained.accuracy,
        trained.held_out.len(),
        start.elapsed().as_secs_f64()
    );
    let served = SavedModel::open(&trained.model, &["serve"], SessionOptions::default())?;
    let images = trained.held_out.gather(&[0])?.swap_remove(0).1;
    let out = served.run("serving_default", &[("images", images)])?;
    let model = trained.model.display();
    println!("the SavedModel {model} answers: {}", out[0].1);
    Ok(())
}

/// The outcome of training.
pub struct Trained {
    /// The fraction of held-out digits that are classified correctly.
    pub accuracy: f32,
    /// The step at which an earlier run stopped.
    pub resumed_at: Option<i64>,
    /// The folder of the SavedModel.
    pub model: PathBuf,
    /// The digits that are not trained on.
    pub held_out: Dataset,
}

/// Trains until `epochs` are done, including those of earlier runs in `folder`.
pub fn train(folder: &Path, epochs: usize, callbacks: &mut [&mut dyn Callback]) -> Result<Trained> {
    let (data, held_out) = digits::read(&[SIDE, SIDE, 1])?;
    let mut trainer = Trainer::new(network()?, SessionOptions::default())?;
    let resumed_at = trainer.restore(folder)?;
    let mut first = 0;
    if let Some(step) = resumed_at {
        first = step as usize / STEPS_PER_EPOCH;
        trainer.set_epoch(first);
        println!("going on from step {step}");
    }
    for _ in first..epochs {
        let options = FitOptions {
            epochs: 1,
            batch: BATCH,
            shuffle: Some(5),
            validation: Some(held_out.clone()),
        };
        trainer.fit(&data, &options, callbacks)?;
        trainer.save(folder, 3)?;
    }
    let accuracy = trainer.evaluate(&held_out, 360)?[0].1;
    let model = free(folder);
    trainer.export(
        &model,
        &[("images", "images:0")],
        &[("probabilities", "probabilities:0")],
    )?;
    Ok(Trained {
        accuracy,
        resumed_at,
        model,
        held_out,
    })
}

/// Returns a folder for the model that does not exist yet.
fn free(folder: &Path) -> PathBuf {
    let mut model = folder.join("model");
    let mut n = 2;
    while model.exists() {
        model = folder.join(format!("model-{n}"));
        n += 1;
    }
    model
}

/// Builds two convolutions, pooling, and two dense layers.
fn network() -> Result<Network> {
    let mut net = Network::new(3);
    let images = net.input(
        "images",
        DType::Float,
        &[None, Some(SIDE), Some(SIDE), Some(1)],
    )?;
    let labels = net.input("labels", DType::Int64, &[None])?;
    let conv = |filters| Conv {
        filters,
        size: 3,
        stride: 1,
        same: true,
    };
    let relu = Some(Activation::Relu);
    let mut x = net.conv2d("conv1", images, conv(16), relu)?;
    x = net.conv2d("conv2", x, conv(32), relu)?;
    x = net.max_pool(x, 2)?;
    x = net.flatten(x)?;
    x = net.dense("dense", x, 64, relu)?;
    let logits = net.dense("logits", x, 10, None)?;
    let probabilities = net.op("Softmax").input(logits).output()?;
    net.name("probabilities", probabilities)?;

    let accuracy = net.accuracy(logits, labels)?;
    net.metric("accuracy", accuracy)?;
    let loss = net.softmax_cross_entropy(logits, labels)?;
    let rate = LearningRateSchedule::Cosine {
        initial: 2e-3,
        steps: (EPOCHS * STEPS_PER_EPOCH) as f32,
        alpha: 0.05,
    };
    net.minimize(loss, &Optimizer::adam(rate))?;
    Ok(net)
}
