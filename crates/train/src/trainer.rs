//! [`Trainer`]: a session over a network, the training loop, checkpoints.

use super::callbacks::{Callback, EpochReport, Goal, StepReport};
use super::network::{TrainStep, Variable};
use super::tasks::Tasks;
use super::{Batches, Dataset, Examples, Network, saver};
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_model::{CheckpointState, TensorBundle, make_folder};
use ferroflow_runtime::{Session, SessionOptions};
use ferroflow_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Options of the training loop.
#[derive(Clone)]
pub struct FitOptions {
    /// Passes over the data.
    pub epochs: usize,
    /// Examples per step, of each worker if there are several (see [`Tasks`](super::Tasks)).
    pub batch: usize,
    /// Seed of the order of examples; without it they are not shuffled.
    pub shuffle: Option<u64>,
    /// The data for metrics after each epoch; by default all training data. The loss of an epoch is
    /// always the mean over its training batches, each before its step.
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
    /// The steps that train; several are of workers that train each alone.
    steps: Vec<TrainStep>,
    /// The number of workers that share a batch.
    parts: usize,
    /// Whether nodes are placed on tasks of a cluster.
    pub(super) is_spread: bool,
    epochs_done: usize,
}

impl Trainer {
    /// Opens a session and initializes all variables. For a network that several tasks train, the
    /// options are those of a session of their cluster.
    ///
    /// # Errors
    /// Those of compiling and running the initializers; INVALID_ARGUMENT if the session does not have
    /// a device that a variable is placed on.
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
            steps: net.steps,
            parts: net.tasks.as_ref().map_or(1, Tasks::parts),
            is_spread: net.tasks.is_some(),
            epochs_done: 0,
        })
    }

    /// Returns the session, for running any node by name.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the number of steps so far, including those before the last restored checkpoint.
    ///
    /// # Errors
    /// Those of running the session.
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

    /// Runs one training step, of the first worker if each trains alone; returns the loss of the batch
    /// before it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the network does not minimize a loss; INVALID_ARGUMENT if feeds are
    /// missing or do not fit; those of kernels.
    pub fn step(&self, batch: &[(String, Tensor)]) -> Result<f32> {
        self.run_step(0, batch).map(|[loss, _]| loss)
    }

    /// Runs a step of a worker; returns its loss and learning rate.
    fn run_step(&self, worker: usize, batch: &[(String, Tensor)]) -> Result<[f32; 2]> {
        let step = self.steps.get(worker).ok_or_else(|| {
            failed_precondition!(
                "the network has no loss to minimize: call minimize before creating the trainer"
            )
        })?;
        let mut feeds = self.feeds(batch);
        if self.has_modes {
            feeds.push(("training:0", Tensor::scalar(true)));
        }
        let fetches = [step.loss.as_str(), "learning_rate:0"];
        let values = self.session.run(&feeds, &fetches, &[&step.train])?;
        Ok([values[0].to_scalar()?, values[1].to_scalar()?])
    }

    /// Runs a step for each batch, and `each` with its loss and learning rate after it, until that
    /// stops; returns what it returned last. Workers that train alone take batches in turn.
    fn run_steps(
        &self,
        mut batches: Batches,
        mut each: impl FnMut([f32; 2]) -> Result<Goal>,
    ) -> Result<Goal> {
        if self.steps.len() < 2 {
            for batch in batches {
                if each(self.run_step(0, &batch?)?)? == Goal::Stop {
                    return Ok(Goal::Stop);
                }
            }
            return Ok(Goal::Continue);
        }
        let is_over = AtomicBool::new(false);
        let (batches, is_over) = (&Mutex::new(&mut batches), &is_over);
        let next = move || match is_over.load(Ordering::Relaxed) {
            true => None,
            false => batches
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next(),
        };
        std::thread::scope(|scope| {
            let (sender, results) = channel();
            for worker in 0..self.steps.len() {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some(batch) = next() {
                        let result = batch.and_then(|batch| self.run_step(worker, &batch));
                        let is_last = result.is_err();
                        if sender.send(result).is_err() || is_last {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut goal = Ok(Goal::Continue);
            for result in results {
                goal = result.and_then(&mut each);
                if !matches!(goal, Ok(Goal::Continue)) {
                    is_over.store(true, Ordering::Relaxed);
                    break;
                }
            }
            goal
        })
    }

    /// Returns the metrics over a dataset that is not empty, each averaged over its examples.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are no examples, or feeds are missing or do not fit.
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

    /// Trains over all of `data`, `options.epochs` times or until a callback stops; returns the
    /// result of each epoch.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are no examples, feeds do not fit, or the loss is not finite; then
    /// the variables are as after that step. Those of callbacks and of reading data. UNAVAILABLE or
    /// ABORTED if a task that takes part was lost.
    pub fn fit(
        &mut self,
        data: &(impl Examples + ?Sized),
        options: &FitOptions,
        callbacks: &mut [&mut dyn Callback],
    ) -> Result<Vec<EpochReport>> {
        if data.is_empty() {
            return Err(invalid_argument!("there are no examples to train on"));
        }
        if let (Some(data), false) = (&options.validation, self.metrics.is_empty()) {
            measurable(data)?;
        }
        callbacks.iter_mut().for_each(|c| c.begin());
        let batch = options.batch.max(1).saturating_mul(self.parts);
        let mut progress = Progress {
            start: Instant::now(),
            epoch: 0,
            of_epoch: data.len().div_ceil(batch),
            step: self.global_step()?,
            n_done: 0,
        };
        let mut history = Vec::new();
        for _ in 0..options.epochs {
            progress.epoch = self.epochs_done;
            // Another order in every epoch, the same in every run.
            let seed = options
                .shuffle
                .map(|s| s.wrapping_add(progress.epoch as u64 * 0x9e37_79b9));
            let (mut losses, mut n_steps) = (0f64, 0);
            let goal = self.run_steps(data.batches(batch, seed), |[loss, learning_rate]| {
                n_steps += 1;
                let now = progress.report(n_steps, loss, learning_rate)?;
                losses += f64::from(loss);
                notify(callbacks, |c| c.step(&now))
            })?;
            if goal == Goal::Stop {
                return Ok(history);
            }
            self.epochs_done += 1;
            let now = EpochReport {
                epoch: progress.epoch,
                step: progress.step,
                loss: (losses / progress.of_epoch as f64) as f32,
                metrics: match (&options.validation, self.metrics.is_empty()) {
                    (_, true) => Vec::new(),
                    (Some(other), _) => self.evaluate(other, options.batch.max(256))?,
                    (None, _) => self.evaluate(data, options.batch.max(256))?,
                },
            };
            let goal = notify(callbacks, |c| c.epoch(&now))?;
            history.push(now);
            if goal == Goal::Stop {
                break;
            }
        }
        Ok(history)
    }

    /// Writes a checkpoint of all variables into `folder`, which is created if needed, and removes
    /// all but the last `keep` (at least one).
    ///
    /// An interruption leaves the previous checkpoint the latest.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn save(&self, folder: &Path, keep: usize) -> Result<()> {
        let name = format!("model.ckpt-{}", self.global_step()?);
        self.save_as(&folder.join(&name))?;
        CheckpointState::record(folder, &name, keep)?;
        Ok(())
    }

    /// Writes a checkpoint; creates all missing folders, whereas SaveV2 creates only one.
    pub(super) fn save_as(&self, prefix: &Path) -> Result<()> {
        if let Some(folder) = prefix.parent() {
            make_folder(folder)?;
        }
        let prefix = Tensor::string(prefix.display().to_string().into_bytes());
        self.session
            .run(&[(saver::FILENAME, prefix)], &[saver::SAVED], &[])?;
        Ok(())
    }

    /// Restores the latest checkpoint of `folder`; returns its global step, or `None` if there is
    /// none. After an error all variables are unchanged.
    ///
    /// # Errors
    /// NOT_FOUND if a variable is missing in the checkpoint; INVALID_ARGUMENT if a shape differs;
    /// DATA_LOSS if it is damaged.
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

    /// Checks that every variable accepts its value, so that an assignment cannot fail after others
    /// were made; other errors occur before any assignment.
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

    /// Sets the index of the next epoch, so that a resumed run shuffles like an uninterrupted one.
    pub fn set_epoch(&mut self, epoch: usize) {
        self.epochs_done = epoch;
    }
}

/// What the steps of a call of [`Trainer::fit`] report.
struct Progress {
    start: Instant,
    epoch: usize,
    /// The number of steps of an epoch.
    of_epoch: usize,
    step: i64,
    n_done: u32,
}

impl Progress {
    /// Counts step `n` of the epoch.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if its loss is not finite.
    fn report(&mut self, n: usize, loss: f32, learning_rate: f32) -> Result<StepReport> {
        self.step += 1;
        self.n_done += 1;
        if !loss.is_finite() {
            return Err(invalid_argument!(
                "the loss of step {} is {loss}: a smaller learning rate or clipped gradients may help",
                self.step
            ));
        }
        Ok(StepReport {
            epoch: self.epoch,
            step: self.step,
            of_epoch: (self.of_epoch, n),
            loss,
            learning_rate,
            rate: f64::from(self.n_done) / self.start.elapsed().as_secs_f64(),
        })
    }
}

fn measurable(data: &(impl Examples + ?Sized)) -> Result<()> {
    match data.is_empty() {
        true => Err(invalid_argument!("there are no examples to evaluate")),
        false => Ok(()),
    }
}

/// Notifies all callbacks; returns `Stop` if one of them does.
fn notify(
    callbacks: &mut [&mut dyn Callback],
    mut say: impl FnMut(&mut dyn Callback) -> Result<Goal>,
) -> Result<Goal> {
    let mut goal = Goal::Continue;
    for callback in callbacks {
        if say(&mut **callback)? == Goal::Stop {
            goal = Goal::Stop;
        }
    }
    Ok(goal)
}
