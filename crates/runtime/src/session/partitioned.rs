//! [`Engine`]: runs a compiled signature, on one device or on several.

use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_executor::{Executor, RunArgs, TraceSink};
use ferroflow_opdef::Resources;
use ferroflow_program::Plan;
use ferroflow_resources::rendezvous::Rendezvous;
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::{ResourceHandle, Shape, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One plan, or one for each device.
pub(crate) enum Engine {
    One(Arc<Executor>),
    Parts(Arc<[Part]>),
}

/// What one device runs of a signature.
pub(crate) struct Part {
    /// The device, by position.
    pub(crate) device: usize,
    pub(crate) executor: Arc<Executor>,
    /// The signature's feeds that are its arguments after the first, the rendezvous.
    pub(crate) feeds: Vec<usize>,
    /// The signature's fetches that are its results.
    pub(crate) fetches: Vec<usize>,
}

impl Engine {
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> {
        let (one, parts) = match self {
            Engine::One(executor) => (Some(executor.plan()), &[][..]),
            Engine::Parts(parts) => (None, &parts[..]),
        };
        one.into_iter()
            .chain(parts.iter().map(|p| p.executor.plan()))
    }

    /// Runs one step; as [`Executor::run`].
    pub(crate) fn run(&self, with: RunArgs) -> Result<Vec<Tensor>> {
        match self {
            Engine::One(executor) => executor.run(with),
            Engine::Parts(parts) => run_parts(parts, with),
        }
    }
}

/// The argument through which a graph receives its rendezvous.
pub(super) fn rendezvous_arg(rendezvous: &Arc<Rendezvous>) -> Result<Tensor> {
    let handle = ResourceHandle {
        value: Some(rendezvous.clone()),
        ..Default::default()
    };
    Tensor::from_resources(Shape::scalar(), vec![handle])
}

/// A step of several parts, which exchange tensors through `rendezvous`.
struct PartitionedStep {
    parts: Arc<[Part]>,
    pool: Arc<Pool>,
    resources: Resources,
    trace: Option<Arc<dyn TraceSink>>,
    /// Cancels all parts when one fails.
    cancel: CancelToken,
    rendezvous: Arc<Rendezvous>,
    outcome: Mutex<Outcome>,
    /// Parts that have not ended.
    n_running: AtomicUsize,
}

#[derive(Default)]
struct Outcome {
    fetches: Vec<Option<Tensor>>,
    /// The first error that is not the consequence of another.
    error: Option<Status>,
}

/// Runs each part as a task of the pool, the first on the calling thread.
fn run_parts(parts: &Arc<[Part]>, with: RunArgs) -> Result<Vec<Tensor>> {
    let step = Arc::new(PartitionedStep {
        parts: parts.clone(),
        pool: with.pool.clone(),
        resources: with.resources.clone(),
        trace: with.trace.cloned(),
        cancel: CancelToken::new(),
        rendezvous: Arc::default(),
        outcome: Mutex::default(),
        n_running: AtomicUsize::new(parts.len()),
    });
    let token = step.cancel.clone();
    let _registration = with.cancel.on_cancel(move || token.cancel());
    let args: Vec<Result<Vec<Tensor>>> = parts
        .iter()
        .map(|part| step.args(part, &with.args))
        .collect();
    drop(with.args);
    let mut args = args.into_iter().enumerate();
    let first = args.next();
    for (i, args) in args {
        let step = step.clone();
        with.pool.spawn(Box::new(move || step.start(i, args)));
    }
    if let Some((i, args)) = first {
        step.clone().start(i, args);
    }
    with.pool
        .help_until(&|| step.n_running.load(Ordering::Acquire) == 0);
    let outcome = std::mem::take(&mut *step.outcome());
    if let Some(error) = outcome.error {
        if error.code() == Code::Cancelled {
            with.cancel.check()?;
        }
        return Err(error);
    }
    let fetches = outcome.fetches.into_iter();
    fetches
        .map(|f| f.ok_or_else(|| internal!("a fetch belongs to no device")))
        .collect()
}

impl PartitionedStep {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn args(&self, part: &Part, feeds: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut args = vec![rendezvous_arg(&self.rendezvous)?];
        for &feed in &part.feeds {
            let arg = feeds.get(feed).cloned();
            args.push(arg.ok_or_else(|| internal!("no feed {feed}"))?);
        }
        Ok(args)
    }

    fn start(self: Arc<Self>, part: usize, args: Result<Vec<Tensor>>) {
        let args = match args {
            Ok(args) => args,
            Err(e) => return self.end(part, Err(e)),
        };
        let step = self.clone();
        let with = RunArgs {
            args,
            pool: &self.pool,
            resources: &self.resources,
            cancel: &self.cancel,
            trace: self.trace.as_ref(),
        };
        let executor = &self.parts[part].executor;
        executor.run_async(with, move |results| step.end(part, results));
    }

    fn end(&self, part: usize, results: Result<Vec<Tensor>>) {
        match results {
            Ok(results) => {
                let mut outcome = self.outcome();
                for (&fetch, tensor) in self.parts[part].fetches.iter().zip(results) {
                    let len = outcome.fetches.len().max(fetch + 1);
                    outcome.fetches.resize(len, None);
                    outcome.fetches[fetch] = Some(tensor);
                }
            }
            Err(error) => self.fail(error),
        }
        self.n_running.fetch_sub(1, Ordering::AcqRel);
        self.pool.notify();
    }

    fn fail(&self, error: Status) {
        let mut outcome = self.outcome();
        let is_cause = match &outcome.error {
            None => true,
            Some(kept) => kept.code() == Code::Cancelled && error.code() != Code::Cancelled,
        };
        if is_cause {
            outcome.error = Some(error.clone());
        }
        drop(outcome);
        self.rendezvous.abort(error);
        self.cancel.cancel();
    }
}
