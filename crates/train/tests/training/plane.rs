//! A network that learns a plane, and folders for its output.

use ferroflow_runtime::{DType, Result, SessionOptions, Tensor};
use ferroflow_train::{Dataset, FitOptions, Network, Optimizer, Trainer};
use std::path::PathBuf;

const N: usize = 64;

/// Points of a plane: `y = 2a - b + 0.5`.
pub fn plane() -> Dataset {
    let points: Vec<f32> = (0..2 * N)
        .map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0)
        .collect();
    let answers: Vec<f32> = points.chunks(2).map(|p| 2.0 * p[0] - p[1] + 0.5).collect();
    Dataset::new(vec![
        ("x", Tensor::from_slice([N, 2], &points).unwrap()),
        ("y", Tensor::from_slice([N, 1], &answers).unwrap()),
    ])
    .unwrap()
}

pub fn line(optimizer: &Optimizer) -> Result<Trainer> {
    let mut net = Network::new(11);
    let x = net.input("x", DType::Float, &[None, Some(2)])?;
    let y = net.input("y", DType::Float, &[None, Some(1)])?;
    let guess = net.dense("line", x, 1, None)?;
    net.name("guess", guess)?;
    let loss = net.mean_squared_error(guess, y)?;
    net.metric("error", loss)?;
    net.minimize(loss, optimizer)?;
    Trainer::new(net, SessionOptions::default())
}

pub fn fit(trainer: &mut Trainer, epochs: usize) -> f32 {
    let options = FitOptions {
        epochs,
        batch: 16,
        ..Default::default()
    };
    let history = trainer.fit(&plane(), &options, &mut []).unwrap();
    history.last().unwrap().metrics[0].1
}

/// A temporary folder, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("ferroflow-train-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
