//! [`Engine`]: what runs a compiled signature.

use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_executor::{Executor, RunArgs};
use ferroflow_program::Plan;
use ferroflow_resources::rendezvous::Rendezvous;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::{ResourceHandle, Shape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// One plan, or one for each device.
pub(crate) enum Engine {
    One(Executor),
    Parts(Vec<Part>),
}

/// What one device runs of a signature.
pub(crate) struct Part {
    /// The device, by position.
    pub device: usize,
    pub executor: Executor,
    /// Which of the signature's feeds its arguments after the first are.
    pub feeds: Vec<usize>,
    /// Which of the signature's fetches its results are.
    pub fetches: Vec<usize>,
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
            Engine::Parts(parts) => {
                let step = Step {
                    with,
                    table: Arc::default(),
                    first_error: Mutex::new(None),
                };
                step.run(parts)
            }
        }
    }
}

/// A step of several parts, which meet at `table`.
struct Step<'a> {
    with: RunArgs<'a>,
    table: Arc<Rendezvous>,
    first_error: Mutex<Option<Status>>,
}

impl Step<'_> {
    fn run(&self, parts: &[Part]) -> Result<Vec<Tensor>> {
        // What fails in one part ends the others.
        let token = CancelToken::new();
        let outer = token.clone();
        let _registration = self.with.cancel.on_cancel(move || outer.cancel());
        let outcomes: Vec<Result<Vec<Tensor>>> = std::thread::scope(|scope| {
            let (first, others) = match parts.split_first() {
                Some(split) => split,
                None => return Vec::new(),
            };
            let token = &token;
            let others: Vec<_> = others
                .iter()
                .map(|part| {
                    let builder = std::thread::Builder::new();
                    builder.spawn_scoped(scope, || self.run_part(part, token))
                })
                .collect();
            if let Some(Err(e)) = others.iter().find(|o| o.is_err()) {
                self.give_up(internal!("no thread for a device: {e}"), token);
            }
            let mut all = vec![self.run_part(first, token)];
            all.extend(others.into_iter().map(|other| {
                match other {
                    Ok(other) => other
                        .join()
                        .unwrap_or_else(|_| Err(internal!("a device's thread panicked"))),
                    Err(e) => Err(internal!("no thread for a device: {e}")),
                }
            }));
            all
        });
        self.with.cancel.check()?;
        let error = self.first_error.lock();
        if let Some(error) = error.unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let mut results: Vec<Option<Tensor>> = Vec::new();
        for (part, outcome) in parts.iter().zip(outcomes) {
            for (&fetch, tensor) in part.fetches.iter().zip(outcome?) {
                results.resize(results.len().max(fetch + 1), None);
                results[fetch] = Some(tensor);
            }
        }
        results
            .into_iter()
            .map(|r| r.ok_or_else(|| internal!("a fetch belongs to no device")))
            .collect()
    }

    fn run_part(&self, part: &Part, token: &CancelToken) -> Result<Vec<Tensor>> {
        let outcome = self.args_of(part).and_then(|args| {
            part.executor.run(RunArgs {
                args,
                cancel: token,
                ..self.with
            })
        });
        if let Err(error) = &outcome {
            self.give_up(error.clone(), token);
        }
        outcome
    }

    fn args_of(&self, part: &Part) -> Result<Vec<Tensor>> {
        let table = ResourceHandle {
            value: Some(self.table.clone()),
            ..Default::default()
        };
        let mut args = vec![Tensor::from_resources(Shape::scalar(), vec![table])?];
        for &feed in &part.feeds {
            let arg = self.with.args.get(feed);
            args.push(arg.cloned().ok_or_else(|| internal!("no feed {feed}"))?);
        }
        Ok(args)
    }

    /// Keeps the first error that is no consequence of another, and ends all parts.
    fn give_up(&self, error: Status, token: &CancelToken) {
        let mut first = self
            .first_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let replaces = match &*first {
            None => true,
            Some(kept) => kept.code() == Code::Cancelled && error.code() != Code::Cancelled,
        };
        if replaces {
            *first = Some(error.clone());
        }
        drop(first);
        self.table.abort(error);
        token.cancel();
    }
}
