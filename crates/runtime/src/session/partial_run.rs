//! Partial runs: steps whose feeds and fetches come in several calls.

use super::steps::RunningSteps;
use super::{Engine, RunOptions, Session, registry};
use crate::callable::other_dtype;
use ferroflow_base::{Result, Status, internal, invalid_argument, resource_exhausted};
use ferroflow_compile::expand;
use ferroflow_executor::RunArgs;
use ferroflow_graph::{ClientDevice, NodeClass, PrunedGraph, Signature, args_to_send_recv};
use ferroflow_opdef::Rendezvous;
use ferroflow_resources::rendezvous::LocalRendezvous;
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The steps that were set up and have feeds or fetches left.
#[derive(Default)]
pub(super) struct PartialRuns {
    next_id: u64,
    runs: FxHashMap<String, Arc<PartialRun>>,
}

impl Session {
    /// Begins a step whose feeds come in later calls of [`partial_run`](Self::partial_run); returns its
    /// handle.
    ///
    /// # Errors
    /// As [`Session::callable`].
    pub fn partial_run_setup(&self, signature: &Signature) -> Result<String> {
        let step = RunningSteps::begin(self.steps.clone(), None)?;
        let pruned = self.prune(signature, &[])?;
        let mut run = PartialRun::new(signature.clone(), &pruned, &self.pool)?;
        let engine = match self.across_tasks(&pruned, signature)? {
            Some((engine, client)) => {
                run.client = client;
                engine
            }
            None => {
                let (feeds, fetches) = (&signature.feeds, &signature.fetches);
                let pruned = args_to_send_recv(pruned, feeds, fetches, &run.client, registry())?;
                let expanded = expand(pruned, registry())?;
                // One plan runs it all, but the devices that nodes ask for must exist.
                self.place_nodes(expanded.graph())?;
                let graph = self.on_one_device(expanded)?;
                Engine::One(self.executor(graph, &self.options.compile)?)
            }
        };
        let run = Arc::new(run);
        let rendezvous: Arc<dyn Rendezvous> = run.rendezvous.clone();
        let handle = {
            let mut partial = lock(&self.partial_runs);
            partial.next_id += 1;
            let handle = format!("partial_run_{}", partial.next_id);
            partial.runs.insert(handle.clone(), run.clone());
            handle
        };
        let ended = run.clone();
        let end = move |outcome: Result<Vec<Tensor>>| {
            ended.end(outcome.map(drop).map_err(|e| step.cause(e)));
            drop(step);
        };
        match engine {
            Engine::One(executor) => {
                let with = RunArgs {
                    args: Vec::new(),
                    step_id: None,
                    pool: &self.pool,
                    resources: &self.options.resources,
                    rendezvous: Some(&rendezvous),
                    cancel: self.steps.closing(),
                    trace: None,
                    runner: None,
                };
                executor.run_async(with, end);
            }
            parts => {
                // The parts of other tasks occupy a thread while they run.
                let (pool, resources) = (self.pool.clone(), self.options.resources.clone());
                let closing = self.steps.closing().clone();
                let thread = std::thread::Builder::new().name("partial-run".to_string());
                let spawned = thread.spawn(move || {
                    let with = RunArgs {
                        args: Vec::new(),
                        step_id: None,
                        pool: &pool,
                        resources: &resources,
                        rendezvous: Some(&rendezvous),
                        cancel: &closing,
                        trace: None,
                        runner: None,
                    };
                    end(parts.run(with));
                });
                if let Err(e) = spawned {
                    lock(&self.partial_runs).runs.remove(&handle);
                    return Err(resource_exhausted!("no thread for a partial run: {e}"));
                }
            }
        }
        Ok(handle)
    }

    /// The parts of a partial run that several tasks run, and the device on this one that has all feeds and
    /// fetches. `None` if this task runs it alone.
    fn across_tasks(
        &self,
        pruned: &PrunedGraph,
        signature: &Signature,
    ) -> Result<Option<(Engine, ClientDevice)>> {
        let Some(cluster) = &self.options.cluster else {
            return Ok(None);
        };
        let devices = &self.options.devices;
        let own = (0..devices.names.len()).find(|d| cluster.task_of(*d) == cluster.own_task());
        let own = own.ok_or_else(|| internal!("the session has no device of its own task"))?;
        let client = ClientDevice {
            name: devices.names[own].clone(),
            incarnation: devices.incarnation(own),
        };
        let (feeds, fetches) = (&signature.feeds, &signature.fetches);
        let pruned = args_to_send_recv(pruned.clone(), feeds, fetches, &client, registry())?;
        let nothing = Signature::default();
        let parts = self.partition_by_task(&pruned, &nothing, &**cluster)?;
        parts
            .map(|parts| Ok((self.distributed(parts, &nothing, cluster)?, client)))
            .transpose()
    }

    /// Returns whether a step in parts of this name is running.
    pub fn has_partial_run(&self, handle: &str) -> bool {
        lock(&self.partial_runs).runs.contains_key(handle)
    }

    /// Feeds some tensors to a step that was set up, and fetches some.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such step, if a feed or fetch was not set up or comes twice, or if a
    /// fetch needs feeds that have not come; the error of the step; CANCELLED or DEADLINE_EXCEEDED as the
    /// options say; FAILED_PRECONDITION if the session is closed.
    pub fn partial_run(
        &self,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        self.steps.check_open()?;
        let run = lock(&self.partial_runs).runs.get(handle).cloned();
        let run = run.ok_or_else(|| {
            invalid_argument!("Must run PartialRunSetup before performing partial runs")
        })?;
        let token = options.token(self.steps.closing());
        let token = token.as_ref().unwrap_or(self.steps.closing());
        run.n_calls.fetch_add(1, Ordering::AcqRel);
        let result = run.run(feeds, fetches, token);
        run.n_calls.fetch_sub(1, Ordering::AcqRel);
        if !matches!(result, Ok((_, false))) && run.has_ended() {
            lock(&self.partial_runs).runs.remove(handle);
        }
        result.map(|(fetched, _)| fetched)
    }

    /// Steps in progress, without those that wait for their next partial run, which may never come.
    pub fn num_running(&self) -> usize {
        let waiting =
            |run: &&Arc<PartialRun>| !run.has_ended() && run.n_calls.load(Ordering::Acquire) == 0;
        let waiting = lock(&self.partial_runs)
            .runs
            .values()
            .filter(waiting)
            .count();
        self.steps.len().saturating_sub(waiting)
    }
}

/// A fetch, once it has arrived.
type Slot = Arc<Mutex<Option<Result<Option<Tensor>>>>>;

/// One step in progress.
struct PartialRun {
    signature: Signature,
    /// For each fetch, the feeds that it depends on, by position.
    needs: Vec<Vec<usize>>,
    dtypes: FxHashMap<String, DType>,
    /// The device whose keys the feeds and fetches have.
    client: ClientDevice,
    rendezvous: Arc<LocalRendezvous>,
    pool: Arc<Pool>,
    ends: Mutex<Ends>,
    /// Calls in progress.
    n_calls: AtomicUsize,
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
    fn new(signature: Signature, pruned: &PrunedGraph, pool: &Arc<Pool>) -> Result<Self> {
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
            client: ClientDevice::default(),
            rendezvous: Arc::default(),
            pool: pool.clone(),
            ends: Mutex::default(),
            n_calls: AtomicUsize::new(0),
        })
    }

    /// Ends the step.
    fn end(&self, outcome: Result<()>) {
        let error = outcome.as_ref().err().cloned();
        // First: the threads that the rendezvous wakes read it.
        lock(&self.ends).outcome = Some(outcome);
        if let Some(e) = error {
            self.rendezvous.abort(e);
        }
        self.pool.notify();
    }

    /// Whether the step is over.
    fn has_ended(&self) -> bool {
        lock(&self.ends).outcome.is_some()
    }

    /// Feeds some tensors and waits for some fetches; returns whether this was the last call.
    fn run(
        &self,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        cancel: &CancelToken,
    ) -> Result<(Vec<Tensor>, bool)> {
        let is_last = self.check(&feeds, fetches)?;
        for (name, tensor) in feeds {
            let sent = self.rendezvous.send(&self.client.key(&name), Some(tensor));
            sent.map_err(|e| self.cause(e, cancel))?;
        }
        let fetched = self.fetch(fetches, cancel)?;
        if is_last {
            self.outcome(cancel)?;
        }
        Ok((fetched, is_last))
    }

    /// Receives the fetches; the calling thread helps the step's meanwhile.
    fn fetch(&self, names: &[String], cancel: &CancelToken) -> Result<Vec<Tensor>> {
        let received: Vec<Slot> = names
            .iter()
            .map(|name| {
                let slot = Arc::new(Mutex::new(None));
                let (filled, pool) = (slot.clone(), self.pool.clone());
                let done = move |tensor| {
                    *lock(&filled) = Some(tensor);
                    pool.notify();
                };
                let key = self.client.key(name);
                self.rendezvous.recv(&key, Box::new(done));
                slot
            })
            .collect();
        let pool = self.pool.clone();
        let _registration = cancel.on_cancel(move || pool.notify());
        let arrived = || received.iter().all(|slot| lock(slot).is_some());
        self.pool
            .help_until(&|| arrived() || self.has_ended() || cancel.check().is_err());
        let fetch = |(name, slot): (&String, &Slot)| {
            match lock(slot).take() {
                Some(Ok(Some(tensor))) => return Ok(tensor),
                Some(Err(e)) => return Err(self.cause(e, cancel)),
                Some(Ok(None)) => {}
                None => {
                    cancel.check()?;
                    lock(&self.ends).outcome.clone().unwrap_or(Ok(()))?;
                }
            }
            Err(invalid_argument!(
                "The tensor returned for {name} was not valid."
            ))
        };
        names.iter().zip(&received).map(fetch).collect()
    }

    /// Waits for the end of the step.
    fn outcome(&self, cancel: &CancelToken) -> Result<()> {
        let pool = self.pool.clone();
        let _registration = cancel.on_cancel(move || pool.notify());
        self.pool
            .help_until(&|| self.has_ended() || cancel.check().is_err());
        let outcome = lock(&self.ends).outcome.clone();
        outcome.unwrap_or_else(|| cancel.check())
    }

    /// Checks a call and notes what it feeds and fetches.
    fn check(&self, feeds: &[(String, Tensor)], fetches: &[String]) -> Result<bool> {
        let mut ends = lock(&self.ends);
        for (i, (name, tensor)) in feeds.iter().enumerate() {
            let Some(dtype) = self.dtypes.get(name) else {
                return Err(invalid_argument!(
                    "The feed {name} was not specified in partial_run_setup."
                ));
            };
            if ends.fed.contains(name) || feeds[..i].iter().any(|(n, _)| n == name) {
                return Err(invalid_argument!("The feed {name} has already been fed."));
            }
            if tensor.dtype() != *dtype {
                return Err(other_dtype(name, tensor.dtype(), *dtype));
            }
        }
        for (i, name) in fetches.iter().enumerate() {
            if !self.signature.fetches.contains(name) {
                return Err(invalid_argument!(
                    "The fetch {name} was not specified in partial_run_setup."
                ));
            }
            if ends.fetched.contains(name) || fetches[..i].contains(name) {
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
        let (fed, fetched) = (&self.signature.feeds, &self.signature.fetches);
        Ok(fed.iter().all(|n| ends.fed.contains(n))
            && fetched.iter().all(|n| ends.fetched.contains(n)))
    }

    /// The error of the step, whose rendezvous was aborted with `e`: a step that fails aborts it first and
    /// sets its outcome later.
    fn cause(&self, e: Status, cancel: &CancelToken) -> Status {
        self.outcome(cancel).err().unwrap_or(e)
    }
}
