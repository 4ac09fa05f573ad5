//! Trains an LSTM to add two marked numbers of a sequence, far apart.
//!
//! `cargo run --release --example train_lstm`
//!
//! A sequence has a number and a mark at each time; the answer is the sum of the two marked
//! numbers. Guessing the mean has a mean squared error of 0.17.

use ferroflow_runtime::{DType, Result, SessionOptions, Tensor};
use ferroflow_train::{
    Callback, Clip, Dataset, EarlyStop, FitOptions, LearningRateSchedule, Network, Optimizer,
    ProgressLine, Trainer,
};
use std::time::Instant;

const TIME: usize = 20;
const EXAMPLES: usize = 6400;
const BATCH: usize = 64;

/// Trains for `epochs`; returns the mean squared error on held-out sequences.
pub fn train(epochs: usize, callbacks: &mut [&mut dyn Callback]) -> Result<f32> {
    let mut trainer = Trainer::new(network(epochs)?, SessionOptions::default())?;
    let test = sequences(640, 99)?;
    let options = FitOptions {
        epochs,
        batch: BATCH,
        shuffle: Some(1),
        validation: Some(test.clone()),
    };
    trainer.fit(&sequences(EXAMPLES, 1)?, &options, callbacks)?;
    Ok(trainer
        .evaluate(&test, 640)?
        .first()
        .map_or(f32::NAN, |(_, error)| *error))
}

#[allow(dead_code, reason = "the test of the examples calls `train`")]
fn main() -> Result<()> {
    let start = Instant::now();
    let mut stop = EarlyStop::new("error", false, 4);
    let error = train(14, &mut [&mut ProgressLine::default(), &mut stop])?;
    println!(
        "adds the marked two of {TIME} numbers with a squared error of {error:.4} after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn network(epochs: usize) -> Result<Network> {
    let mut net = Network::new(2);
    let x = net.input("sequence", DType::Float, &[None, None, Some(2)])?;
    let y = net.input("sum", DType::Float, &[None, Some(1)])?;
    let states = net.lstm("lstm", x, 32)?;
    let guess = net.dense("answer", states.last, 1, None)?;
    let loss = net.mean_squared_error(guess, y)?;
    net.metric("error", loss)?;
    let rate = LearningRateSchedule::Cosine {
        initial: 1e-2,
        steps: (epochs * EXAMPLES / BATCH) as f32,
        alpha: 0.02,
    };
    let optimizer = Optimizer::adam(rate).with_clip(Clip::GlobalNorm(1.0));
    net.minimize(loss, &optimizer)?;
    Ok(net)
}

/// Generates numbers from 0 to 1, one marked in each half.
fn sequences(n: usize, mut seed: u64) -> Result<Dataset> {
    let mut random = move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 40
    };
    let (mut values, mut sums) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let half = TIME as u64 / 2;
        let marked = [random() % half, half + random() % half];
        let mut sum = 0.0;
        for t in 0..TIME as u64 {
            let value = random() as f32 / (1u32 << 24) as f32;
            let mark = marked.contains(&t);
            sum += if mark { value } else { 0.0 };
            values.extend([value, f32::from(mark)]);
        }
        sums.push(sum);
    }
    Dataset::new(vec![
        ("sequence", Tensor::from_slice([n, TIME, 2], &values)?),
        ("sum", Tensor::from_slice([n, 1], &sums)?),
    ])
}
