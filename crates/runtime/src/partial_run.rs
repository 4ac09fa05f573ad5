//! Steps whose feeds come and whose fetches go one by one.

use crate::RunOptions;
use crate::callable::other_dtype;
use ferroflow_base::{Code, Result, Status, internal, invalid_argument};
use ferroflow_graph::{NodeClass, PrunedGraph, Signature};
use ferroflow_resources::rendezvous::Rendezvous;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One step under way.
pub(crate) struct PartialRun {
    signature: Signature,
    /// For each fetch, the feeds that it depends on, by position.
    needs: Vec<Vec<usize>>,
    dtypes: FxHashMap<String, DType>,
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) cancel: CancelToken,
    ends: Mutex<Ends>,
    ended: Condvar,
}

#[derive(Default)]
struct Ends {
    fed: Vec<String>,
    fetched: Vec<String>,
    outcome: Option<Result<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartialRun {
    pub(crate) fn new(signature: Signature, pruned: &PrunedGraph) -> Result<Self> {
        let args = pruned.graph().iter();
        let args = args.filter(|(_, node)| node.class() == NodeClass::Arg);
        let mut dtypes = FxHashMap::default();
        for (_, arg) in args {
            let feed = signature.feeds.get(arg.attrs.int("index")? as usize);
            let feed = feed.ok_or_else(|| internal!("'{}' has no feed", arg.name))?;
            dtypes.insert(feed.clone(), arg.attrs.dtype("T")?);
        }
        Ok(PartialRun {
            needs: pruned.feeds_of_fetches()?,
            signature,
            dtypes,
            rendezvous: Arc::default(),
            cancel: CancelToken::new(),
            ends: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Says how the step ended.
    pub(crate) fn end(&self, outcome: Result<()>) {
        let error = outcome.as_ref().err().cloned();
        // First: whom the rendezvous wakes looks for it.
        lock(&self.ends).outcome = Some(outcome);
        self.ended.notify_all();
        if let Some(e) = error {
            self.rendezvous.abort(e);
        }
    }

    /// Whether the step is over.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.ends).outcome.is_some()
    }

    /// Feeds some tensors and waits for some fetches; the flag says whether this was the last call.
    pub(crate) fn run(
        &self,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        options: &RunOptions,
    ) -> Result<(Vec<Tensor>, bool)> {
        let is_last = self.check(&feeds, fetches)?;
        let token = options.token();
        for (name, tensor) in feeds {
            self.rendezvous
                .send(&name, tensor)
                .map_err(|e| self.cause(e, &token))?;
        }
        let fetched = fetches
            .iter()
            .map(|name| self.rendezvous.wait(name, &token));
        let fetched: Result<Vec<Tensor>> = fetched.collect();
        let fetched = fetched.map_err(|e| self.cause(e, &token))?;
        if is_last {
            self.outcome()?;
        }
        Ok((fetched, is_last))
    }

    /// How the step ends, when it does.
    fn outcome(&self) -> Result<()> {
        let mut ends = lock(&self.ends);
        loop {
            if let Some(outcome) = &ends.outcome {
                return outcome.clone();
            }
            ends = self
                .ended
                .wait(ends)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Checks a call and notes what it feeds and fetches.
    fn check(&self, feeds: &[(String, Tensor)], fetches: &[String]) -> Result<bool> {
        let mut ends = lock(&self.ends);
        for (name, tensor) in feeds {
            let Some(dtype) = self.dtypes.get(name) else {
                return Err(invalid_argument!(
                    "The feed {name} was not specified in partial_run_setup."
                ));
            };
            if ends.fed.contains(name) {
                return Err(invalid_argument!("The feed {name} has already been fed."));
            }
            if tensor.dtype() != *dtype {
                return Err(other_dtype(name, tensor.dtype(), *dtype));
            }
        }
        for name in fetches {
            if !self.signature.fetches.contains(name) {
                return Err(invalid_argument!(
                    "The fetch {name} was not specified in partial_run_setup."
                ));
            }
            if ends.fetched.contains(name) {
                return Err(invalid_argument!(
                    "The fetch {name} has already been fetched."
                ));
            }
        }
        let is_fed = |n: &str| ends.fed.iter().any(|f| f == n) || feeds.iter().any(|(f, _)| f == n);
        let needs = self.signature.fetches.iter().zip(&self.needs);
        for (_, needs) in needs.filter(|(fetch, _)| fetches.contains(fetch)) {
            let feeds = needs.iter().filter_map(|i| self.signature.feeds.get(*i));
            if let Some(missing) = feeds.filter(|feed| !is_fed(feed)).last() {
                return Err(invalid_argument!(
                    "Fetch {missing} can't be computed from the feeds that have been fed so far."
                ));
            }
        }
        ends.fed.extend(feeds.iter().map(|(n, _)| n.clone()));
        ends.fetched.extend(fetches.iter().cloned());
        Ok(ends.fed.len() == self.signature.feeds.len()
            && ends.fetched.len() == self.signature.fetches.len())
    }

    /// The step's own error, where `e` only says that it was given up: a step that fails gives up its
    /// rendezvous first and says why a moment later.
    fn cause(&self, e: Status, token: &CancelToken) -> Status {
        if e.code() != Code::Cancelled || token.check().is_err() {
            return e;
        }
        self.outcome().err().unwrap_or(e)
    }
}
