//! [`Engine`]: runs a compiled signature, on one device or on several.

use super::captures::Captures;
use crate::cluster::{Cluster, ClusterStep, RegisteredGraph};
use crate::devices::{CopyingRendezvous, StreamDevices, StreamRunner, TensorDone, gather};
use ferroflow_base::{Code, Result, Status, internal};
use ferroflow_device::Timeline;
use ferroflow_executor::{Executor, NodeRunner, RunArgs, TraceSink};
use ferroflow_opdef::{RecvDone, Rendezvous, Resources};
use ferroflow_program::Plan;
use ferroflow_resources::rendezvous::LocalRendezvous;
use ferroflow_sync::{CancelToken, Parallelism, Pool, Registration};
use ferroflow_tensor::Tensor;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// One plan, or one for each device.
pub(crate) enum Engine {
    One(Arc<Executor>),
    Parts(Arc<Parts>),
}

/// The parts of a signature that exchange tensors.
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    /// The cluster, if other tasks have some of the parts.
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    /// The numbers of those tasks.
    pub(crate) tasks: Vec<usize>,
    /// The devices whose nodes run on streams.
    pub(crate) streams: StreamDevices,
}

/// What one device, or one other task, runs of a signature.
pub(crate) struct Part {
    pub(crate) runner: Runner,
    /// The signature's feeds that are its arguments.
    pub(crate) feeds: Vec<usize>,
    /// The rendezvous keys of its arguments behind these.
    pub(crate) recvs: Vec<String>,
    /// The signature's fetches that are its results.
    pub(crate) fetches: Vec<usize>,
}

/// Where a part runs.
pub(crate) enum Runner {
    Local {
        executor: Arc<Executor>,
        /// The device, by position.
        device: usize,
        /// Its stream, if its nodes run on one.
        stream: Option<Arc<StreamRunner>>,
        /// Its graphs of operations, if the steps of the stream can be such.
        captures: Option<Arc<Captures>>,
        /// What runs behind these.
        tail: Option<Tail>,
    },
    /// Another task has the part; `feeds` and `fetches` are their rendezvous keys.
    Remote {
        graph: Arc<dyn RegisteredGraph>,
        feeds: Vec<String>,
        fetches: Vec<String>,
        /// The devices of the nodes that compute the fetches.
        devices: Vec<String>,
    },
}

/// Nodes of a part that depend on shapes that only a step knows, and so cannot be captured.
#[derive(Clone)]
pub(crate) struct Tail {
    /// Its arguments are the last results of the part's main graph.
    pub(crate) executor: Arc<Executor>,
    /// The other results.
    pub(crate) n_results: usize,
}

impl Engine {
    /// What runs in this process.
    pub(crate) fn executors(&self) -> impl Iterator<Item = &Executor> {
        let one = match self {
            Engine::One(executor) => Some(&**executor),
            Engine::Parts(_) => None,
        };
        let parts = self.local_parts().map(|(_, executor)| executor);
        one.into_iter().chain(parts)
    }

    /// The plans that run in this process.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.executors().map(Executor::plan)
    }

    /// The parts that run in this process, with their devices, if there are several parts.
    pub(crate) fn local_parts(&self) -> impl Iterator<Item = (usize, &Executor)> {
        let parts = match self {
            Engine::One(_) => &[][..],
            Engine::Parts(parts) => &parts.parts[..],
        };
        parts.iter().flat_map(|part| {
            let (main, tail) = match &part.runner {
                Runner::Local {
                    executor,
                    device,
                    tail,
                    ..
                } => {
                    let tail = tail.as_ref().map(|t| (*device, &*t.executor));
                    (Some((*device, &**executor)), tail)
                }
                Runner::Remote { .. } => (None, None),
            };
            main.into_iter().chain(tail)
        })
    }

    /// The signature's fetches that other tasks compute, with their devices.
    pub(crate) fn remote_fetches(&self) -> Vec<(usize, String)> {
        let Engine::Parts(parts) = self else {
            return Vec::new();
        };
        let of_part = |part: &Part| match &part.runner {
            Runner::Local { .. } => Vec::new(),
            Runner::Remote { devices, .. } => {
                let fetches = part.fetches.iter().copied();
                fetches.zip(devices.iter().cloned()).collect()
            }
        };
        parts.parts.iter().flat_map(of_part).collect()
    }

    /// Whether other tasks run parts of it.
    pub(crate) fn is_distributed(&self) -> bool {
        matches!(self, Engine::Parts(parts) if parts.cluster.is_some())
    }

    /// Runs one step; as [`Executor::run`].
    pub(crate) fn run(&self, with: RunArgs) -> Result<Vec<Tensor>> {
        match self {
            Engine::One(executor) if executor.has_transfers() && with.rendezvous.is_none() => {
                let rendezvous: Arc<dyn Rendezvous> = Arc::new(LocalRendezvous::default());
                executor.run(RunArgs {
                    rendezvous: Some(&rendezvous),
                    ..with
                })
            }
            _ if self.waits_for_tasks(&with) => {
                let (sender, receiver) = mpsc::channel();
                let done = move |results| {
                    // The receiver waits for it.
                    let _ = sender.send(results);
                };
                self.start(with, Box::new(done));
                let results = receiver.recv();
                results.unwrap_or_else(|_| Err(internal!("the step was lost")))
            }
            Engine::One(executor) => executor.run(with),
            Engine::Parts(parts) => run_parts(parts, with),
        }
    }

    /// Whether a step waits for other tasks, for which the calling thread should sleep: one that looks for work
    /// of the pool meanwhile takes the processor from them if they are on this machine. A pool of width 1 has no
    /// other thread.
    fn waits_for_tasks(&self, with: &RunArgs) -> bool {
        let waits = match self {
            Engine::One(executor) => executor.has_transfers() && with.rendezvous.is_some(),
            Engine::Parts(parts) => parts.cluster.is_some() || with.rendezvous.is_some(),
        };
        waits && with.pool.width() > 1
    }

    /// Runs one step without waiting for its end; the thread that ends it calls `done`. The pool has threads of its
    /// own: its width is above 1.
    pub(crate) fn start(&self, with: RunArgs, done: StepDone) {
        match self {
            Engine::One(executor) if executor.has_transfers() && with.rendezvous.is_none() => {
                let rendezvous: Arc<dyn Rendezvous> = Arc::new(LocalRendezvous::default());
                let rendezvous = Some(&rendezvous);
                executor.run_async(RunArgs { rendezvous, ..with }, done);
            }
            Engine::One(executor) => executor.run_async(with, done),
            Engine::Parts(parts) => match new_step(parts, &with) {
                Ok(step) => {
                    *locked(&step.on_done) = Some(done);
                    start_parts(&step, with);
                }
                Err(e) => done(Err(e)),
            },
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives the results of a step.
pub(crate) type StepDone = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// A step of several parts, which exchange tensors through `rendezvous`.
struct PartitionedStep {
    parts: Arc<Parts>,
    id: u64,
    pool: Arc<Pool>,
    resources: Resources,
    trace: Option<Arc<dyn TraceSink>>,
    /// Of each part whose device is traced.
    timelines: Mutex<HashMap<usize, Arc<Timeline>>>,
    /// Cancels all parts when one fails.
    cancel: CancelToken,
    /// The token of the step's caller, which cancels `cancel`.
    asked: CancelToken,
    registration: Mutex<Option<Registration>>,
    /// What the end of the last part calls, if no thread waits for it.
    on_done: Mutex<Option<StepDone>>,
    rendezvous: Arc<dyn Rendezvous>,
    /// The step of the cluster, until all parts have ended.
    step: Option<Arc<dyn ClusterStep>>,
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

/// The rendezvous of a step of several tasks whose feeds and fetches come and go while it runs.
struct ClientRendezvous {
    /// Has the feeds and fetches: what one device sends to itself.
    client: Arc<dyn Rendezvous>,
    step: Arc<dyn Rendezvous>,
}

impl ClientRendezvous {
    fn of(&self, key: &str) -> &Arc<dyn Rendezvous> {
        let mut parts = key.split(';');
        let (from, to) = (parts.next(), parts.nth(1));
        match from == to {
            true => &self.client,
            false => &self.step,
        }
    }
}

impl Rendezvous for ClientRendezvous {
    fn send(&self, key: &str, tensor: Option<Tensor>) -> Result<()> {
        self.of(key).send(key, tensor)
    }

    fn recv(&self, key: &str, done: RecvDone) {
        self.of(key).recv(key, done);
    }

    fn abort(&self, reason: Status) {
        self.client.abort(reason.clone());
        self.step.abort(reason);
    }
}

/// Begins a step of the cluster, if other tasks run some of the parts.
fn new_step(parts: &Arc<Parts>, with: &RunArgs) -> Result<Arc<PartitionedStep>> {
    let begun = parts.cluster.as_ref();
    let begun = begun.map(|c| c.begin_step(&parts.tasks, with.step_id, with.trace));
    let begun = begun.transpose()?;
    let rendezvous = match (&begun, with.rendezvous) {
        (Some(begun), None) => begun.rendezvous(),
        (Some(begun), Some(client)) => Arc::new(ClientRendezvous {
            client: client.clone(),
            step: begun.rendezvous(),
        }),
        (None, Some(given)) => given.clone(),
        (None, None) => Arc::new(LocalRendezvous::default()),
    };
    let rendezvous = match parts.streams.is_empty() {
        true => rendezvous,
        false => Arc::new(CopyingRendezvous {
            inner: rendezvous,
            devices: parts.streams.clone(),
        }),
    };
    let step = Arc::new(PartitionedStep {
        parts: parts.clone(),
        id: match (&begun, with.step_id) {
            (Some(begun), _) => begun.id(),
            (None, given) => given.unwrap_or_else(Executor::next_step_id),
        },
        pool: with.pool.clone(),
        resources: with.resources.clone(),
        trace: with.trace.cloned(),
        timelines: Mutex::default(),
        cancel: CancelToken::new(),
        asked: with.cancel.clone(),
        registration: Mutex::default(),
        on_done: Mutex::default(),
        rendezvous,
        step: begun,
        outcome: Mutex::default(),
        n_running: AtomicUsize::new(parts.parts.len()),
    });
    let token = step.cancel.clone();
    let registration = with.cancel.on_cancel(move || token.cancel());
    *locked(&step.registration) = Some(registration);
    Ok(step)
}

/// Runs each part as a task of the pool, the first on the calling thread.
fn run_parts(parts: &Arc<Parts>, with: RunArgs) -> Result<Vec<Tensor>> {
    let step = new_step(parts, &with)?;
    let pool = with.pool.clone();
    start_parts(&step, with);
    pool.help_until(&|| step.n_running.load(Ordering::Acquire) == 0);
    step.result()
}

/// Starts all parts, the first of this task on the calling thread.
fn start_parts(step: &Arc<PartitionedStep>, with: RunArgs) {
    let parts = &step.parts;
    let args: Vec<Result<Vec<Tensor>>> = parts
        .parts
        .iter()
        .map(|part| step.args(part, &with.args))
        .collect();
    drop(with.args);
    // Other tasks first: they compute while this thread does.
    let is_remote = |i: &usize| matches!(parts.parts[*i].runner, Runner::Remote { .. });
    let (remote, local): (Vec<_>, Vec<_>) = args
        .into_iter()
        .enumerate()
        .partition(|(i, _)| is_remote(i));
    for (i, args) in remote {
        step.clone().start(i, args);
    }
    let mut local = local.into_iter();
    let first = local.next();
    for (i, args) in local {
        let step = step.clone();
        with.pool.spawn(Box::new(move || step.start(i, args)));
    }
    if let Some((i, args)) = first {
        step.clone().start(i, args);
    }
}

impl PartitionedStep {
    /// The results of a step whose parts have all ended.
    fn result(&self) -> Result<Vec<Tensor>> {
        drop(locked(&self.registration).take());
        // Those of parts that did not run.
        for (part, timeline) in std::mem::take(&mut *locked(&self.timelines)) {
            if let Runner::Local {
                stream: Some(stream),
                ..
            } = &self.parts.parts[part].runner
            {
                stream.memory().end_timeline(&timeline);
            }
        }
        let outcome = std::mem::take(&mut *locked(&self.outcome));
        if let Some(error) = outcome.error {
            if error.code() == Code::Cancelled {
                self.asked.check()?;
            }
            return Err(error);
        }
        let fetches = outcome.fetches.into_iter();
        fetches
            .map(|f| f.ok_or_else(|| internal!("a fetch belongs to no device")))
            .collect()
    }

    fn args(&self, part: &Part, feeds: &[Tensor]) -> Result<Vec<Tensor>> {
        let arg = |feed: &usize| {
            let arg = feeds.get(*feed).cloned();
            arg.ok_or_else(|| internal!("no feed {feed}"))
        };
        part.feeds.iter().map(arg).collect()
    }

    fn start(self: Arc<Self>, part: usize, args: Result<Vec<Tensor>>) {
        let args = match args {
            Ok(args) => args,
            Err(e) => return self.end(part, Err(e)),
        };
        let step = self.clone();
        let done = move |results| step.end(part, results);
        match (&self.parts.parts[part].runner, &self.step) {
            (
                Runner::Local {
                    stream: Some(stream),
                    ..
                },
                _,
            ) => {
                if let Some(timeline) = self.trace.as_ref().and_then(|_| stream.start_timeline()) {
                    locked(&self.timelines).insert(part, timeline);
                }
                let step = self.clone();
                let run = move |args| match args {
                    Ok(args) => step.receive(part, args),
                    Err(e) => step.end(part, Err(e)),
                };
                stream.to_device(args, Box::new(run));
            }
            (Runner::Local { executor, .. }, _) => {
                executor.run_async(self.run_args(args, None), done);
            }
            (
                Runner::Remote {
                    graph,
                    feeds,
                    fetches,
                    ..
                },
                Some(begun),
            ) => {
                let feeds = feeds.iter().cloned().zip(args).collect();
                graph.run(begun, feeds, fetches.clone(), &self.cancel, Box::new(done));
            }
            (Runner::Remote { .. }, None) => done(Err(internal!("the step has no cluster"))),
        }
    }

    fn run_args<'a>(
        &'a self,
        args: Vec<Tensor>,
        runner: Option<&'a Arc<dyn NodeRunner>>,
    ) -> RunArgs<'a> {
        RunArgs {
            args,
            step_id: Some(self.id),
            pool: &self.pool,
            resources: &self.resources,
            rendezvous: Some(&self.rendezvous),
            cancel: &self.cancel,
            trace: self.trace.as_ref(),
            runner,
        }
    }

    /// Receives the arguments of a part that come from others, and runs it.
    fn receive(self: Arc<Self>, part: usize, mut args: Vec<Tensor>) {
        let keys = self.parts.parts[part].recvs.clone();
        let rendezvous = self.rendezvous.clone();
        let recv = move |key: String, arrived: TensorDone| {
            let dead = || internal!("a dead tensor arrived where there are no branches");
            let done = move |tensor: Result<Option<Tensor>>| {
                arrived(tensor.and_then(|tensor| tensor.ok_or_else(dead)));
            };
            rendezvous.recv(&key, Box::new(done));
        };
        let run = move |received: Result<Vec<Tensor>>| match received {
            Ok(received) => {
                args.extend(received);
                self.run_on_stream(part, args);
            }
            Err(e) => self.end(part, Err(e)),
        };
        gather(keys, recv, Box::new(run));
    }

    /// Runs a part on its stream; `args` are on the device.
    fn run_on_stream(self: Arc<Self>, part: usize, args: Vec<Tensor>) {
        let Runner::Local {
            executor,
            stream: Some(stream),
            captures,
            tail,
            ..
        } = &self.parts.parts[part].runner
        else {
            return self.end(part, Err(internal!("the part has no stream")));
        };
        let (step, to_host) = (self.clone(), stream.clone());
        let done = move |results: Result<Vec<Tensor>>| {
            let timeline = locked(&step.timelines).remove(&part);
            match (results, timeline.zip(step.trace.clone())) {
                (Ok(results), None) => {
                    to_host.to_host(results, Box::new(move |r| step.end(part, r)));
                }
                (Ok(results), Some((timeline, trace))) => {
                    let (arrived, results_arrived) = mpsc::channel();
                    let send = move |results| {
                        // The receiver waits for it.
                        let _ = arrived.send(results);
                    };
                    to_host.to_host(results, Box::new(send));
                    // Not in a call of the stream, in which the device cannot be asked.
                    let results = results_arrived.recv();
                    to_host.report(&timeline, &*trace);
                    let lost = |_| Err(internal!("the results were lost"));
                    step.end(part, results.unwrap_or_else(lost));
                }
                (Err(e), timeline) => {
                    if let Some((timeline, trace)) = timeline {
                        to_host.report(&timeline, &*trace);
                    }
                    step.end(part, Err(e));
                }
            }
        };
        if let Some(captures) = captures {
            let (step, on) = (self.clone(), stream.clone());
            let parts = (executor.clone(), captures.clone(), tail.clone());
            return stream.spawn(Box::new(move || done(step.run_captured(&on, args, &parts))));
        }
        let runner: Arc<dyn NodeRunner> = stream.clone();
        executor.run_async(self.run_args(args, Some(&runner)), done);
    }

    /// Runs a part on the thread that enqueues, by replaying it if that is possible, then its tail. What is traced is not
    /// replayed.
    fn run_captured(
        &self,
        stream: &Arc<StreamRunner>,
        args: Vec<Tensor>,
        (executor, captures, tail): &(Arc<Executor>, Arc<Captures>, Option<Tail>),
    ) -> Result<Vec<Tensor>> {
        let runner: Arc<dyn NodeRunner> = stream.clone();
        let run = |args| executor.run(self.run_args(args, Some(&runner)));
        let mut results = match self.trace {
            None => captures.run(stream.memory(), args, run)?,
            Some(_) => run(args)?,
        };
        if let Some(tail) = tail {
            let args = results.split_off(tail.n_results);
            results.extend(tail.executor.run(self.run_args(args, Some(&runner)))?);
        }
        Ok(results)
    }

    fn end(&self, part: usize, results: Result<Vec<Tensor>>) {
        match results {
            Ok(results) => {
                let mut outcome = locked(&self.outcome);
                for (&fetch, tensor) in self.parts.parts[part].fetches.iter().zip(results) {
                    let len = outcome.fetches.len().max(fetch + 1);
                    outcome.fetches.resize(len, None);
                    outcome.fetches[fetch] = Some(tensor);
                }
            }
            Err(error) => self.fail(error),
        }
        if self.n_running.fetch_sub(1, Ordering::AcqRel) == 1 {
            let done = locked(&self.on_done).take();
            if let Some(done) = done {
                done(self.result());
            }
        }
        self.pool.notify();
    }

    fn fail(&self, error: Status) {
        let mut outcome = locked(&self.outcome);
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
