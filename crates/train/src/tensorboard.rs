//! [`TensorBoard`]: writes the events of a run.

use super::{Callback, EpochReport, Goal, StepReport, Trainer};
use ferroflow_base::Result;
use ferroflow_graph::export_graph;
use ferroflow_model::EventWriter;
use std::path::Path;

/// Writes events for TensorBoard: the graph; `loss`, `learning_rate` and `steps_per_second` by
/// step; `epoch_loss` and the metrics by epoch.
///
/// ```
/// # use ferroflow_train::{Dataset, FitOptions, Network, Optimizer, TensorBoard, Trainer};
/// # use ferroflow_runtime::{DType, SessionOptions, Tensor};
/// # let mut net = Network::new(7);
/// # let x = net.input("x", DType::Float, &[None, Some(1)])?;
/// # let guess = net.dense("line", x, 1, None)?;
/// # let loss = net.mean_squared_error(guess, x)?;
/// # net.minimize(loss, &Optimizer::gradient_descent(0.1))?;
/// # let mut trainer = Trainer::new(net, SessionOptions::default())?;
/// # let data = Dataset::new(vec![("x", Tensor::from_slice([2, 1], &[1f32, 2.0])?)])?;
/// # let folder = std::env::temp_dir().join(format!("ferroflow-board-{}", std::process::id()));
/// let mut board = TensorBoard::create(&folder, &trainer)?.every(10);
/// trainer.fit(&data, &FitOptions::default(), &mut [&mut board])?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct TensorBoard {
    events: EventWriter,
    every: i64,
}

impl TensorBoard {
    /// Creates an event file in `folder`, which is created if needed, with the trainer's graph.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn create(folder: &Path, trainer: &Trainer) -> Result<TensorBoard> {
        let mut events = EventWriter::create(folder)?;
        events.graph(0, &export_graph(&trainer.session().graph())?)?;
        events.flush()?;
        Ok(TensorBoard { events, every: 1 })
    }

    /// Writes only every `steps` steps.
    #[must_use]
    pub fn every(mut self, steps: usize) -> Self {
        self.every = i64::try_from(steps).unwrap_or(i64::MAX).max(1);
        self
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        self.events.path()
    }
}

impl Callback for TensorBoard {
    fn step(&mut self, s: &StepReport) -> Result<Goal> {
        if s.step % self.every == 0 {
            let values = [
                ("loss", s.loss),
                ("learning_rate", s.learning_rate),
                ("steps_per_second", s.rate as f32),
            ];
            self.events.scalars(s.step, &values)?;
        }
        Ok(Goal::Continue)
    }

    fn epoch(&mut self, e: &EpochReport) -> Result<Goal> {
        let mut values = vec![("epoch_loss".to_string(), e.loss)];
        let metrics = e.metrics.iter();
        values.extend(metrics.map(|(name, value)| (format!("epoch_{name}"), *value)));
        let values: Vec<(&str, f32)> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        self.events.scalars(e.step, &values)?;
        self.events.flush()?;
        Ok(Goal::Continue)
    }
}
