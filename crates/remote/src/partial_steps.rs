//! [`PartialSteps`]: steps of other masters whose feeds come in several RunGraph calls.

use crate::master_session::lock;
use crate::rendezvous::StepRendezvous;
use crate::worker_session::WorkerGraph;
use ferroflow_base::{Result, resource_exhausted};
use ferroflow_runtime::{CancelToken, Rendezvous, RunOptions};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The steps in progress, by the handle of their graph and their number.
#[derive(Default)]
pub(crate) struct PartialSteps(Mutex<HashMap<(String, u64), Arc<PartialStep>>>);

/// One step, which a thread runs.
#[derive(Default)]
pub(crate) struct PartialStep {
    cancel: CancelToken,
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl PartialSteps {
    /// Returns the step, begun if this is its first call.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if its thread cannot start.
    pub(crate) fn begin(
        &self,
        handle: &str,
        id: u64,
        graph: &Arc<WorkerGraph>,
        rendezvous: &Arc<StepRendezvous>,
    ) -> Result<Arc<PartialStep>> {
        let mut steps = lock(&self.0);
        let key = (handle.to_string(), id);
        if let Some(step) = steps.get(&key) {
            return Ok(step.clone());
        }
        let step = Arc::<PartialStep>::default();
        let (running, graph, rendezvous) = (step.clone(), graph.clone(), rendezvous.clone());
        let run = move || {
            let options = RunOptions {
                cancel: Some(running.cancel.clone()),
                rendezvous: Some(rendezvous.clone()),
                step_id: Some(id),
                ..Default::default()
            };
            let ran = graph
                .session
                .run_callable(&graph.callable, Vec::new(), &options);
            let ran = ran.map(drop).inspect_err(|e| rendezvous.abort(e.clone()));
            *lock(&running.outcome) = Some(ran);
            running.ended.notify_all();
        };
        let thread = std::thread::Builder::new().name("partial-run".to_string());
        thread
            .spawn(run)
            .map_err(|e| resource_exhausted!("no thread for a partial run: {e}"))?;
        steps.insert(key, step.clone());
        Ok(step)
    }

    /// Ends what is left of a step.
    pub(crate) fn cleanup(&self, id: u64) {
        lock(&self.0).retain(|(_, step), state| {
            let stays = *step != id;
            if !stays {
                state.cancel.cancel();
            }
            stays
        });
    }
}

impl PartialStep {
    /// Waits for the end of the step.
    ///
    /// # Errors
    /// That of the step.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            let waited = self.ended.wait(outcome);
            outcome = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
