//! Callbacks that follow training and may stop it.

use ferroflow_base::{Result, not_found};
use indicatif::{ProgressBar, ProgressStyle};

/// A finished step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Index of the epoch, from 0.
    pub epoch: usize,
    /// The global step, counted over all runs of training.
    pub step: i64,
    /// Number of steps per epoch, and of finished steps of this one.
    pub of_epoch: (usize, usize),
    /// The loss of the batch.
    pub loss: f32,
    /// The learning rate of the step.
    pub learning_rate: f32,
    /// Steps per second since training began.
    pub rate: f64,
}

/// A finished pass over the data.
#[derive(Clone, Debug)]
pub struct EpochReport {
    /// Index of the epoch, from 0.
    pub epoch: usize,
    /// The global step.
    pub step: i64,
    /// The mean loss of its batches.
    pub loss: f32,
    /// The network's metrics, over the validation data if there is any.
    pub metrics: Vec<(String, f32)>,
}

/// Whether training continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Continue.
    Continue,
    /// Stop here.
    Stop,
}

/// Follows training and may stop it. An error ends training and is returned from `fit`.
pub trait Callback {
    /// Called before the first step of a call of [`Trainer::fit`](super::Trainer::fit).
    fn begin(&mut self) {}

    /// Called after each step.
    ///
    /// # Errors
    /// Any error; it ends training.
    fn step(&mut self, _step: &StepReport) -> Result<Goal> {
        Ok(Goal::Continue)
    }

    /// Called after each epoch.
    ///
    /// # Errors
    /// Any error; it ends training.
    fn epoch(&mut self, _epoch: &EpochReport) -> Result<Goal> {
        Ok(Goal::Continue)
    }
}

/// A progress bar on the terminal with loss and steps per second, and a line for each epoch.
#[derive(Default)]
pub struct ProgressLine {
    bar: Option<ProgressBar>,
}

impl Callback for ProgressLine {
    fn step(&mut self, s: &StepReport) -> Result<Goal> {
        let (total, done) = s.of_epoch;
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(total as u64);
            let template = "{prefix:>9} [{bar:24}] {pos}/{len} {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_prefix(format!("epoch {}", s.epoch + 1));
            bar
        });
        bar.set_position(done as u64);
        bar.set_message(format!("loss {:.4}, {:.0} steps/s", s.loss, s.rate));
        Ok(Goal::Continue)
    }

    fn epoch(&mut self, e: &EpochReport) -> Result<Goal> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let mut line = format!(
            "epoch {:>3}  step {:>6}  loss {:.4}",
            e.epoch + 1,
            e.step,
            e.loss
        );
        for (name, value) in &e.metrics {
            line += &format!("  {name} {value:.4}");
        }
        println!("{line}");
        Ok(Goal::Continue)
    }
}

/// Stops training when a metric has not improved for some epochs.
pub struct EarlyStop {
    metric: String,
    patience: usize,
    larger: bool,
    best: Option<f32>,
    worse: usize,
}

impl EarlyStop {
    /// Watches `metric` (or "loss"), which should decrease, or increase if `larger`, and stops
    /// training if it has not improved for `patience` epochs, as in Keras; each call of `fit`
    /// starts anew. An unknown metric is an error after the first epoch.
    pub fn new(metric: &str, larger: bool, patience: usize) -> Self {
        EarlyStop {
            metric: metric.to_string(),
            patience,
            larger,
            best: None,
            worse: 0,
        }
    }
}

impl Callback for EarlyStop {
    fn begin(&mut self) {
        (self.best, self.worse) = (None, 0);
    }

    fn epoch(&mut self, e: &EpochReport) -> Result<Goal> {
        let found = e.metrics.iter().find(|(n, _)| *n == self.metric);
        let value = match found {
            Some((_, value)) => *value,
            None if self.metric == "loss" => e.loss,
            None => {
                let names: Vec<&str> = e.metrics.iter().map(|(n, _)| n.as_str()).collect();
                return Err(not_found!(
                    "Early stopping conditioned on metric `{}` which is not available. Available \
                     metrics are: {}",
                    self.metric,
                    [&["loss"], &names[..]].concat().join(",")
                ));
            }
        };
        let is_better = |best: f32| match self.larger {
            true => value > best,
            false => value < best,
        };
        // NaN is not an improvement.
        if !value.is_nan() && self.best.is_none_or(is_better) {
            self.best = Some(value);
            self.worse = 0;
        } else {
            self.worse += 1;
        }
        Ok(match e.epoch > 0 && self.worse >= self.patience {
            true => Goal::Stop,
            false => Goal::Continue,
        })
    }
}
