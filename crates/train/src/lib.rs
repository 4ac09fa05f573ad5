//! Training: networks of variables, optimizers, checkpoints, the loop over a dataset.
//!
//! [`Network`] builds a graph with variables and [minimizes](Network::minimize) a loss with an
//! [`Optimizer`]; [`Trainer`] runs it over a [`Dataset`] or [`Records`] of files, tells
//! [`Callback`]s the progress, saves and restores checkpoints, and writes a SavedModel.
//!
//! ```
//! use ferroflow_train::{Dataset, FitOptions, Network, Optimizer, Trainer};
//! use ferroflow_runtime::{DType, SessionOptions, Tensor};
//! // y = 3x - 1, learned from eight points.
//! let mut net = Network::new(7);
//! let x = net.input("x", DType::Float, &[None, Some(1)])?;
//! let y = net.input("y", DType::Float, &[None, Some(1)])?;
//! let guess = net.dense("line", x, 1, None)?;
//! let loss = net.mean_squared_error(guess, y)?;
//! net.minimize(loss, &Optimizer::gradient_descent(0.1))?;
//! net.name("guess", guess)?;
//! let mut trainer = Trainer::new(net, SessionOptions::default())?;
//!
//! let points: Vec<f32> = (0..8).map(|i| i as f32 / 4.0 - 1.0).collect();
//! let answers: Vec<f32> = points.iter().map(|x| 3.0 * x - 1.0).collect();
//! let data = Dataset::new(vec![
//!     ("x", Tensor::from_slice([8, 1], &points)?),
//!     ("y", Tensor::from_slice([8, 1], &answers)?),
//! ])?;
//! let options = FitOptions { epochs: 200, batch: 8, ..Default::default() };
//! let history = trainer.fit(&data, &options, &mut [])?;
//! assert!(history.last().unwrap().loss < 1e-4);
//! let out = trainer.session().run(&[("x:0", Tensor::from_slice([1, 1], &[2f32])?)], &["guess:0"], &[])?;
//! assert!((out[0].slice::<f32>()?[0] - 5.0).abs() < 0.1);
//! # Ok::<(), ferroflow_runtime::Status>(())
//! ```

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod callbacks;
mod clip;
mod dataset;
mod export;
mod layers;
mod learning_rate;
mod network;
mod optimizer;
mod records;
mod recurrent;
mod replicas;
mod saver;
mod tasks;
mod tensorboard;
mod trainer;
mod update;

pub use callbacks::{Callback, EarlyStop, EpochReport, Goal, ProgressLine, StepReport};
pub use dataset::{Batches, Dataset, Examples};
pub use export::Signature;
pub use layers::{Activation, Conv};
pub use learning_rate::LearningRateSchedule;
pub use network::{Network, Variable};
pub use optimizer::{Clip, Optimizer, Rule};
pub use records::Records;
pub use recurrent::Recurrent;
pub use tasks::{Tasks, Updates};
pub use tensorboard::TensorBoard;
pub use trainer::{FitOptions, Trainer};

/// Runs the Rust examples of README.md and the book.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/book/src/run.md")]
    struct Run;
    #[doc = include_str!("../../../docs/book/src/compile.md")]
    struct Compile;
    #[doc = include_str!("../../../docs/book/src/train.md")]
    struct Train;
    #[doc = include_str!("../../../docs/book/src/host_programs.md")]
    struct HostPrograms;
    #[doc = include_str!("../../../docs/book/src/extend.md")]
    struct Extend;
}
