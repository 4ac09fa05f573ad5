//! [`Trainer`]: a session over a network, the loop, checkpoints.

use super::network::Variable;
use super::observe::{Epoch, Goal, Observer, Step};
use super::{Dataset, Examples, Network, saver};
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_model::{CheckpointState, TensorBundle, make_folder};
use ferroflow_runtime::{Session, SessionOptions};
use ferroflow_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How the loop goes.
#[derive(Clone)]
pub struct FitOptions {
    /// Passes over the data.
    pub epochs: usize,
    /// Examples to a step.
    pub batch: usize,
    /// Where the order of examples comes from; without it they are not shuffled.
    pub shuffle: Option<u64>,
    /// What metrics are measured on after each epoch; without it on all of the training data. An
    /// epoch's loss is always that of training: the mean over its batches, each before its step.
    pub validation: Option<Dataset>,
}

impl Default for FitOptions {
    fn default() -> Self {
        FitOptions {
            epochs: 1,
            batch: 32,
            shuffle: Some(1),
            validation: None,
        }
    }
}

/// A network in training: its session, with all variables initialized.
pub struct Trainer {
    pub(super) session: Session,
    pub(super) variables: Vec<Variable>,
    metrics: Vec<(String, String)>,
    inputs: Vec<String>,
    pub(super) assets: Vec<(String, PathBuf)>,
    pub(super) has_tables: bool,
    has_modes: bool,
    can_train: bool,
    epochs_done: usize,
}

impl Trainer {
    /// Opens a session and initializes all variables.
    pub fn new(mut net: Network, options: SessionOptions) -> Result<Trainer> {
        net.global_step()?;
        saver::add(&mut net)?;
        let graph = net.builder.graph();
        let metrics = net.metrics.iter();
        let metrics = metrics.map(|(name, value)| (name.clone(), graph.output_name(*value)));
        let metrics = metrics.collect();
        let assets = net.assets.iter();
        let assets =
            assets.map(|(path, file)| (super::export::tensor_name(graph, *path), file.clone()));
        let assets = assets.collect();
        let session = Session::new(net.builder.finish()?, options);
        session.run(&[], &[], &[saver::INIT])?;
        Ok(Trainer {
            session,
            variables: net.variables,
            metrics,
            inputs: net.inputs,
            assets,
            has_tables: !net.tables.is_empty(),
            has_modes: net.training.is_some(),
            can_train: net.train_op.is_some(),
            epochs_done: 0,
        })
    }

    /// Returns the session, for running anything by its name.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the steps made so far, those before the last restored checkpoint included.
    pub fn global_step(&self) -> Result<i64> {
        let value = self
            .session
            .run(&[], &["global_step/Read/ReadVariableOp:0"], &[])?;
        value[0].to_scalar()
    }

    /// Returns the feeds of a batch that the network has inputs for.
    fn feeds<'b>(&self, batch: &'b [(String, Tensor)]) -> Vec<(&'b str, Tensor)> {
        let wanted = batch.iter().filter(|(name, _)| self.inputs.contains(name));
        wanted.map(|(name, t)| (name.as_str(), t.clone())).collect()
    }

    /// One step of training; the loss of the batch before it.
    pub fn step(&self, batch: &[(String, Tensor)]) -> Result<f32> {
        self.step_at(batch).map(|[loss, _]| loss)
    }

    /// Returns a step's loss and learning rate.
    fn step_at(&self, batch: &[(String, Tensor)]) -> Result<[f32; 2]> {
        if !self.can_train {
            return Err(failed_precondition!(
                "the network has no loss to train: call minimize before the trainer is made"
            ));
        }
        let mut feeds = self.feeds(batch);
        if self.has_modes {
            feeds.push(("training:0", Tensor::scalar(true)));
        }
        let fetches = ["loss:0", "learning_rate:0"];
        let values = self.session.run(&feeds, &fetches, &["train"])?;
        Ok([values[0].to_scalar()?, values[1].to_scalar()?])
    }

    /// Returns the metrics over a dataset that is not empty, each averaged over its examples.
    pub fn evaluate(
        &self,
        data: &(impl Examples + ?Sized),
        batch: usize,
    ) -> Result<Vec<(String, f32)>> {
        measurable(data)?;
        let fetches: Vec<&str> = self.metrics.iter().map(|(_, v)| v.as_str()).collect();
        let mut sums = vec![0f64; fetches.len()];
        for (i, examples) in data.batches(batch, None).enumerate() {
            let n = batch.max(1).min(data.len() - i * batch.max(1)) as f64;
            let values = self.session.run(&self.feeds(&examples?), &fetches, &[])?;
            for (sum, value) in sums.iter_mut().zip(&values) {
                *sum += n * f64::from(value.to_scalar::<f32>()?);
            }
        }
        let names = self.metrics.iter().map(|(name, _)| name.clone());
        let n = data.len() as f64;
        Ok(names.zip(sums.iter().map(|s| (s / n) as f32)).collect())
    }

    /// Trains over all of `data`, `options.epochs` times or until an observer has enough; what each
    /// epoch gave.
    ///
    /// A loss that is not a number is an error: the variables are as after that step.
    pub fn fit(
        &mut self,
        data: &(impl Examples + ?Sized),
        options: &FitOptions,
        observers: &mut [&mut dyn Observer],
    ) -> Result<Vec<Epoch>> {
        if data.is_empty() {
            return Err(invalid_argument!("there are no examples to train on"));
        }
        if let (Some(data), false) = (&options.validation, self.metrics.is_empty()) {
            measurable(data)?;
        }
        observers.iter_mut().for_each(|o| o.begin());
        let start = Instant::now();
        let of_epoch = data.len().div_ceil(options.batch.max(1));
        let mut step = self.global_step()?;
        let (mut history, mut done) = (Vec::new(), 0);
        for _ in 0..options.epochs {
            let epoch = self.epochs_done;
            // Another order in every epoch, the same in every run.
            let seed = options
                .shuffle
                .map(|s| s.wrapping_add(epoch as u64 * 0x9e37_79b9));
            let mut losses = 0f64;
            for (i, batch) in data.batches(options.batch, seed).enumerate() {
                let [loss, learning_rate] = self.step_at(&batch?)?;
                step += 1;
                done += 1;
                if !loss.is_finite() {
                    return Err(invalid_argument!(
                        "the loss of step {step} is {loss}: a smaller learning rate or clipped \
                         gradients may help"
                    ));
                }
                losses += f64::from(loss);
                let now = Step {
                    epoch,
                    step,
                    of_epoch: (of_epoch, i + 1),
                    loss,
                    learning_rate,
                    rate: f64::from(done) / start.elapsed().as_secs_f64(),
                };
                if tell(observers, |o| o.step(&now))? == Goal::Stop {
                    return Ok(history);
                }
            }
            self.epochs_done += 1;
            let now = Epoch {
                epoch,
                step,
                loss: (losses / of_epoch as f64) as f32,
                metrics: match (&options.validation, self.metrics.is_empty()) {
                    (_, true) => Vec::new(),
                    (Some(other), _) => self.evaluate(other, options.batch.max(256))?,
                    (None, _) => self.evaluate(data, options.batch.max(256))?,
                },
            };
            let goal = tell(observers, |o| o.epoch(&now))?;
            history.push(now);
            if goal == Goal::Stop {
                break;
            }
        }
        Ok(history)
    }

    /// Writes a checkpoint of all variables into `folder`, which is made if need be, and removes
    /// all but the last `keep`, of which there is one at least.
    ///
    /// A checkpoint counts when it is complete: an interruption leaves the former one the latest.
    pub fn save(&self, folder: &Path, keep: usize) -> Result<()> {
        let name = format!("model.ckpt-{}", self.global_step()?);
        self.save_as(&folder.join(&name))?;
        CheckpointState::record(folder, &name, keep)?;
        Ok(())
    }

    /// Writes a checkpoint; SaveV2 makes one folder, this all that are missing.
    pub(super) fn save_as(&self, prefix: &Path) -> Result<()> {
        if let Some(folder) = prefix.parent() {
            make_folder(folder)?;
        }
        let prefix = Tensor::string(prefix.display().to_string().into_bytes());
        self.session
            .run(&[(saver::FILENAME, prefix)], &[saver::SAVED], &[])?;
        Ok(())
    }

    /// Restores the latest checkpoint of `folder`; the global step it was made at, or `None` when
    /// there is none. After an error all variables are as before.
    pub fn restore(&mut self, folder: &Path) -> Result<Option<i64>> {
        let Some(state) = CheckpointState::read(folder)? else {
            return Ok(None);
        };
        let Some(latest) = state.latest() else {
            return Ok(None);
        };
        let prefix = folder.join(latest).display().to_string();
        self.check_shapes(&prefix)?;
        let prefix = Tensor::string(prefix.into_bytes());
        self.session
            .run(&[(saver::FILENAME, prefix)], &[], &[saver::RESTORE])?;
        self.global_step().map(Some)
    }

    /// That no variable would refuse its value once others have theirs; what else may be wrong is
    /// seen before any is assigned.
    fn check_shapes(&self, prefix: &str) -> Result<()> {
        let bundle = TensorBundle::open(prefix)?;
        for variable in &self.variables {
            let saved = bundle.dtype_and_shape(&variable.name);
            if let Ok((_, saved)) = saved
                && saved != variable.shape
            {
                return Err(invalid_argument!(
                    "Trying to assign to variable with tensor with wrong shape. Expected {} got {saved}: \
                     '{}' of checkpoint {prefix}",
                    variable.shape,
                    variable.name
                ));
            }
        }
        Ok(())
    }

    /// Where the count of epochs goes on, so that a resumed run shuffles as an uninterrupted one.
    pub fn set_epoch(&mut self, epoch: usize) {
        self.epochs_done = epoch;
    }
}

fn measurable(data: &(impl Examples + ?Sized)) -> Result<()> {
    match data.is_empty() {
        true => Err(invalid_argument!("there are no examples to measure on")),
        false => Ok(()),
    }
}

/// Everybody is told; one who has enough ends it.
fn tell(
    observers: &mut [&mut dyn Observer],
    mut say: impl FnMut(&mut dyn Observer) -> Result<Goal>,
) -> Result<Goal> {
    let mut goal = Goal::Continue;
    for observer in observers {
        if say(&mut **observer)? == Goal::Stop {
            goal = Goal::Stop;
        }
    }
    Ok(goal)
}
