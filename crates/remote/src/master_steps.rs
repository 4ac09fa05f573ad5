//! The steps of a [`Master`]: `RunStep`.

use crate::master::Master;
use crate::master_session::{MasterSession, StepObserver};
use crate::tensors::{decode_feeds, response};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_model::proto::{
    NamedTensorProto, RunOptions as RunOptionsProto, RunStepRequest, RunStepResponse, TensorProto,
};
use ferroflow_rpc::CancelOnDrop;
use ferroflow_runtime::{Callable, CancelToken, RunOptions, Signature};
use ferroflow_tensor::Tensor;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Most bytes of the feeds of a short step.
const SHORT_FEEDS: usize = 1 << 14;
/// Most bytes of the feeds of a brief step.
const BRIEF_FEEDS: usize = 1 << 18;

/// A step that is ready to run.
pub struct Step {
    session: Arc<MasterSession>,
    signature: Signature,
    feeds: Vec<TensorProto>,
    options: RunOptionsProto,
    /// `None` in the first run of the signature.
    callable: Option<Arc<Callable>>,
    /// The handle of the partial run, if any.
    partial: String,
}

impl Step {
    /// Returns whether the step is expected to end too soon to be worth a switch of threads.
    pub(crate) fn is_short(&self) -> bool {
        let bytes: usize = self.feeds.iter().map(|f| f.tensor_content.len()).sum();
        bytes <= SHORT_FEEDS && self.callable.as_ref().is_some_and(|c| c.is_short())
    }

    /// Returns whether the step is expected to occupy a thread for a moment only, though it may wait for other
    /// tasks.
    pub(crate) fn is_brief(&self) -> bool {
        let bytes: usize = self.feeds.iter().map(|f| f.tensor_content.len()).sum();
        let session = &self.session.session;
        let callable = self.callable.as_ref().filter(|c| session.is_brief(c));
        let keys = self.session.graph_keys.as_ref();
        bytes <= BRIEF_FEEDS
            && self.partial.is_empty()
            && callable.is_some_and(|c| {
                // The number of a step with collectives is asked for.
                keys.is_none_or(|keys| keys.get(c.signature(), &self.options).is_none())
            })
    }

    /// Returns what runs, its feeds, and what observes it.
    fn begin(&mut self) -> Result<(Arc<Callable>, Vec<Tensor>, StepObserver)> {
        let callable = match self.callable.take() {
            Some(callable) => callable,
            None => self.session.session.callable(&self.signature)?,
        };
        let feeds = decode_feeds(&self.signature.feeds, std::mem::take(&mut self.feeds))?;
        let observer = StepObserver::new(&self.session, &self.options, &self.signature)?;
        Ok((callable, feeds, observer))
    }

    fn answer(&self, observer: &StepObserver, results: &[Tensor]) -> Result<RunStepResponse> {
        let mut answer = response(&self.signature.fetches, results)?;
        answer.metadata = self.session.metadata(observer, &self.signature)?;
        Ok(answer)
    }
}

/// Fails if a tensor is fed twice.
fn check_distinct(feeds: &[NamedTensorProto]) -> Result<()> {
    let mut seen = HashSet::with_capacity(feeds.len());
    match feeds.iter().find(|feed| !seen.insert(&feed.name)) {
        Some(feed) => Err(invalid_argument!(
            "Endpoint \"{}\" fed more than once.",
            feed.name
        )),
        None => Ok(()),
    }
}

impl Master {
    /// The first half of `RunStep`: finds the session and the compiled signature.
    ///
    /// # Errors
    /// ABORTED if the session does not exist or the request is a retry; INVALID_ARGUMENT if a tensor is fed
    /// twice, or fed and fetched.
    pub fn prepare(&self, request: RunStepRequest) -> Result<Step> {
        self.counted(self.prepared(request))
    }

    fn prepared(&self, request: RunStepRequest) -> Result<Step> {
        self.recent
            .reject_duplicate(request.request_id, "RunStep (Master)")?;
        let session = self.find(&request.session_handle)?;
        let mut feeds = Vec::with_capacity(request.feed.len());
        let mut names: Vec<String> = Vec::with_capacity(request.feed.len());
        check_distinct(&request.feed)?;
        for feed in request.feed {
            feeds.push(feed.tensor.unwrap_or_default());
            names.push(feed.name);
        }
        let signature = Signature {
            feeds: names,
            fetches: request.fetch,
            targets: request.target,
        };
        let callable = match request.partial_run_handle.as_str() {
            "" => session.session.cached(&signature),
            _ => None,
        };
        // A compiled signature was checked before.
        if callable.is_none() {
            signature.check_ends()?;
        }
        Ok(Step {
            callable,
            partial: request.partial_run_handle,
            session,
            signature,
            feeds,
            options: request.options.unwrap_or_default(),
        })
    }

    /// The second half of `RunStep`: runs the step.
    ///
    /// # Errors
    /// Those of [`Session::run_callable`] and of decoding the feeds.
    pub fn run_step(&self, step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        self.counted(match step.partial.is_empty() {
            true => self.whole_run(step, cancel),
            false => self.partial_run(step, cancel),
        })
    }

    fn whole_run(&self, mut step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        let (callable, feeds, observer) = step.begin()?;
        let options = observer.run_options(&step.session, &step.options, cancel);
        let results = self.call(&step.session, &callable, feeds, options, &step.options)?;
        step.answer(&observer, &results)
    }

    /// As [`Master::run_step`] for a step that is brief; the caller's thread runs what does not wait. The step is
    /// cancelled if the future is dropped.
    pub(crate) async fn run_brief(&self, step: Step) -> Result<RunStepResponse> {
        self.counted(self.brief_run(step).await)
    }

    async fn brief_run(&self, mut step: Step) -> Result<RunStepResponse> {
        let (callable, feeds, observer) = step.begin()?;
        let session = &step.session;
        let hung_up = CancelOnDrop(CancelToken::new());
        let options = observer.run_options(session, &step.options, &hung_up.0);
        let (sender, receiver) = oneshot::channel();
        let started = Instant::now();
        let done = move |results| {
            // The client may have hung up.
            let _ = sender.send(results);
        };
        session
            .session
            .start_callable(&callable, feeds, &options, done);
        let results = receiver.await;
        let results = results.unwrap_or_else(|_| Err(internal!("the step was lost")));
        callable.note_time(started.elapsed());
        self.metrics.step(started.elapsed());
        let results = results.map_err(|e| session.to_client_status(e))?;
        step.answer(&observer, &results)
    }

    /// A `RunStep` of a partial run.
    fn partial_run(&self, step: Step, cancel: &CancelToken) -> Result<RunStepResponse> {
        let feeds = decode_feeds(&step.signature.feeds, step.feeds)?;
        let observer = StepObserver::new(&step.session, &step.options, &step.signature)?;
        let feeds = step.signature.feeds.into_iter().zip(feeds).collect();
        let options = observer.run_options(&step.session, &step.options, cancel);
        let fetches = &step.signature.fetches;
        let session = &step.session.session;
        let results = session.partial_run(&step.partial, feeds, fetches, &options);
        response(
            fetches,
            &results.map_err(|e| step.session.to_client_status(e))?,
        )
    }

    /// Counts a step that failed.
    pub(crate) fn counted<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.metrics.failed();
        }
        result
    }

    pub(crate) fn call(
        &self,
        session: &MasterSession,
        callable: &Callable,
        feeds: Vec<Tensor>,
        options: RunOptions,
        asked: &RunOptionsProto,
    ) -> Result<Vec<Tensor>> {
        let started = Instant::now();
        let run = |options: &RunOptions| session.session.run_callable(callable, feeds, options);
        let keys = session.graph_keys.as_ref();
        let results = match keys.and_then(|keys| keys.get(callable.signature(), asked)) {
            Some(key) => self.task.run_collectives(key, options, run),
            None => run(&options),
        };
        callable.note_time(started.elapsed());
        self.metrics.step(started.elapsed());
        results.map_err(|e| session.to_client_status(e))
    }
}
