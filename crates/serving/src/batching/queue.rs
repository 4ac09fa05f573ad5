//! Queues of requests, and the threads that run their batches.

use super::merge::{are_alike, divide, merge, num_bytes, num_rows, pad_alike, rows_at_once, split};
use crate::config::read_batching;
use crate::manager::lock;
use crate::metrics::Metrics;
use crate::share::Share;
use crate::step::{Step, contained};
use crate::trace::{self, Traced};
use ferroflow_base::{Result, Status, internal, invalid_argument, resource_exhausted};
use ferroflow_model::proto::serving::BatchingParameters;
use ferroflow_rpc::{CancelOnDrop, MAX_STEPS};
use ferroflow_runtime::{CancelToken, Pool, RunOptions, Tensor};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;

/// How requests are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Most rows of a batch.
    pub max_batch_size: usize,
    /// How long the first request of a batch waits for others.
    pub timeout: Duration,
    /// Most batches that wait; further requests fail at once.
    pub max_enqueued_batches: usize,
    /// Threads that run batches.
    pub threads: usize,
    /// Sizes to which batches are padded; none if empty.
    pub allowed_sizes: Vec<usize>,
    /// Pads inputs to the largest dimensions of their batch.
    pub pads_inputs: bool,
    /// Splits requests that are larger than a batch.
    pub splits: bool,
    /// Closes a batch as soon as a thread is free, instead of after the timeout.
    pub adaptive: bool,
}

impl Parameters {
    /// The parameters of adaptive mode.
    pub fn adaptive(threads: usize) -> Parameters {
        Parameters {
            max_batch_size: 64,
            timeout: Duration::ZERO,
            // A request that is not merged is a batch.
            max_enqueued_batches: MAX_STEPS,
            threads: threads.max(1),
            allowed_sizes: Vec::new(),
            pads_inputs: false,
            splits: false,
            adaptive: true,
        }
    }

    /// TensorFlow Serving's parameters, with its defaults.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a value is out of range or the allowed sizes do not fit.
    pub fn from_proto(proto: &BatchingParameters, threads: usize) -> Result<Parameters> {
        let value = |v: &Option<ferroflow_model::proto::serving::Int64Value>, default: i64, min| {
            let value = v.as_ref().map_or(default, |v| v.value);
            match value >= min {
                true => Ok(value as usize),
                false => Err(invalid_argument!(
                    "batching parameters must be at least {min}; was {value}"
                )),
            }
        };
        let splits = proto
            .enable_large_batch_splitting
            .as_ref()
            .is_some_and(|s| s.value);
        let mut max_batch_size = value(&proto.max_batch_size, 1000, 1)?;
        let allowed: Vec<usize> = proto
            .allowed_batch_sizes
            .iter()
            .map(|&s| usize::try_from(s).unwrap_or(0))
            .collect();
        if allowed.windows(2).any(|w| w[0] >= w[1]) || allowed.first() == Some(&0) {
            return Err(invalid_argument!(
                "allowed_batch_sizes entries must be monotonically increasing"
            ));
        }
        if splits {
            max_batch_size = value(&proto.max_execution_batch_size, max_batch_size as i64, 1)?;
        }
        if let Some(last) = allowed.last().filter(|l| **l != max_batch_size) {
            return Err(invalid_argument!(
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was {last}; \
                 expected {max_batch_size}"
            ));
        }
        Ok(Parameters {
            max_batch_size,
            timeout: Duration::from_micros(value(&proto.batch_timeout_micros, 0, 0)? as u64),
            max_enqueued_batches: value(&proto.max_enqueued_batches, 10, 1)?,
            threads: value(&proto.num_batch_threads, threads as i64, 1)?,
            allowed_sizes: allowed,
            pads_inputs: proto.pad_variable_length_inputs,
            splits,
            adaptive: false,
        })
    }

    /// Most rows of a batch of requests like this one.
    fn most_rows(&self, args: &[Tensor], rows: usize) -> usize {
        match self.adaptive {
            true => rows_at_once(rows, num_bytes(args)).min(self.max_batch_size),
            false => self.max_batch_size,
        }
    }

    /// The size to which a batch of `rows` rows is padded.
    fn padded_size(&self, rows: usize) -> usize {
        let mut sizes = self.allowed_sizes.iter();
        sizes.find(|s| **s >= rows).copied().unwrap_or(rows)
    }
}

/// A request that waits for its batch.
struct Task {
    step: Step,
    rows: usize,
    arrived: Instant,
    /// The span of the request, if it is sampled, and when it arrived.
    span: Option<(Traced, SystemTime)>,
    cancel: CancelToken,
    done: oneshot::Sender<Result<Vec<Tensor>>>,
}

/// The result of a request that was merged with others.
pub struct Waiting {
    result: oneshot::Receiver<Result<Vec<Tensor>>>,
    /// Removes the request from its batch when the client hangs up.
    hung_up: CancelOnDrop,
}

impl Waiting {
    /// Waits for the outputs.
    ///
    /// # Errors
    /// Those of the step.
    pub async fn wait(self) -> Result<Vec<Tensor>> {
        let result = self.result.await;
        drop(self.hung_up);
        result.unwrap_or_else(|_| Err(dropped()))
    }

    /// As [`wait`](Self::wait) on a thread that may block.
    ///
    /// # Errors
    /// Those of the step.
    pub fn block(self) -> Result<Vec<Tensor>> {
        self.result
            .blocking_recv()
            .unwrap_or_else(|_| Err(dropped()))
    }
}

#[cold]
fn dropped() -> Status {
    internal!("a batch was dropped (please report this)")
}

/// What requests must share to be merged: the version, by its address, the signature and the outputs.
type Key = (usize, String, Vec<usize>);

struct Batch {
    tasks: Vec<Task>,
    rows: usize,
    opened: Instant,
    is_closed: bool,
}

struct Queue {
    parameters: Arc<Parameters>,
    batches: VecDeque<Batch>,
}

impl Queue {
    /// When the first batch may run.
    fn ready_at(&self) -> Option<Instant> {
        let first = self.batches.front()?;
        match first.is_closed || self.parameters.adaptive {
            true => Some(first.opened),
            false => Some(first.opened + self.parameters.timeout),
        }
    }
}

#[derive(Default)]
struct State {
    queues: HashMap<Key, Queue>,
    is_stopping: bool,
}

/// Merges requests into batches.
pub struct Batcher {
    default: Arc<Parameters>,
    /// Whether models have parameters of their own.
    per_model: bool,
    state: Mutex<State>,
    arrived: Condvar,
    metrics: Arc<Metrics>,
    share: Arc<Share>,
}

/// The file of a model's own parameters.
const OWN_PARAMETERS: &str = "batching_params.pbtxt";

impl Batcher {
    /// Starts the threads.
    pub fn start(default: Parameters, per_model: bool, metrics: Arc<Metrics>) -> Arc<Batcher> {
        let share = Arc::new(Share::new(Pool::available_threads()));
        Self::start_sharing(default, per_model, metrics, share)
    }

    /// As [`start`](Self::start), next to the steps of others.
    pub(crate) fn start_sharing(
        default: Parameters,
        per_model: bool,
        metrics: Arc<Metrics>,
        share: Arc<Share>,
    ) -> Arc<Batcher> {
        let threads = default.threads;
        let batcher = Arc::new(Batcher {
            default: Arc::new(default),
            per_model,
            state: Mutex::default(),
            arrived: Condvar::new(),
            metrics,
            share,
        });
        for _ in 0..threads {
            let batcher = batcher.clone();
            let run = move || batcher.run();
            if let Err(e) = std::thread::Builder::new()
                .name("ferroflow-batch".into())
                .spawn(run)
            {
                tracing::error!("cannot start a thread: {e}");
            }
        }
        batcher
    }

    /// Ends the threads when their batches have run.
    pub(crate) fn stop(&self) {
        lock(&self.state).is_stopping = true;
        self.arrived.notify_all();
    }

    /// Returns whether a step is merged with others: its inputs have rows and, in adaptive mode, all threads are busy
    /// and the step is long enough to matter. Others run alone.
    pub fn accepts(&self, step: &Step) -> bool {
        let is_busy = || self.metrics.running() > self.default.threads as i64 && !step.is_short();
        num_rows(&step.args).is_ok_and(|n| n > 0) && (!self.default.adaptive || is_busy())
    }

    fn parameters(&self, step: &Step) -> Arc<Parameters> {
        if !self.per_model {
            return self.default.clone();
        }
        let own = step.servable.batching.get_or_init(|| {
            let path = step.servable.path().join(OWN_PARAMETERS);
            if !path.is_file() {
                return None;
            }
            let own = read_batching(&path);
            let own = own.and_then(|own| Parameters::from_proto(&own, self.default.threads));
            own.inspect_err(|e| tracing::error!("{e}"))
                .ok()
                .map(Arc::new)
        });
        own.clone().unwrap_or_else(|| self.default.clone())
    }

    /// Adds a request to the last open batch, or to a new one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if too many batches wait; INVALID_ARGUMENT if the request is larger than a batch.
    pub fn submit(&self, step: Step) -> Result<Waiting> {
        self.submit_in(step, None)
    }

    /// As [`submit`](Self::submit); the request's spans belong to `span`.
    pub(crate) fn submit_in(&self, step: Step, span: Option<Traced>) -> Result<Waiting> {
        let rows = num_rows(&step.args)?;
        let address = Arc::as_ptr(&step.servable) as usize;
        let key = (address, step.signature.clone(), step.outputs.clone());
        let (done, result) = oneshot::channel();
        let cancel = CancelToken::new();
        let mut state = lock(&self.state);
        let queue = state.queues.entry(key).or_insert_with(|| Queue {
            parameters: self.parameters(&step),
            batches: VecDeque::new(),
        });
        let parameters = &queue.parameters;
        if rows > parameters.max_batch_size && !parameters.splits && !parameters.adaptive {
            return Err(invalid_argument!(
                "Task size {rows} is larger than maximum input batch size {}",
                parameters.max_batch_size
            ));
        }
        // A thread is needed for a batch's timer, and for the batch.
        let mut wakes = parameters.adaptive;
        let program = step.servable.program(&step.signature);
        let most = match program.is_some_and(|p| !parameters.adaptive || p.gain.merges()) {
            true => parameters.most_rows(&step.args, rows),
            false => rows,
        };
        let fits = |b: &Batch| !b.is_closed && b.rows + rows <= most;
        if !queue.batches.back().is_some_and(fits) {
            if queue.batches.len() >= parameters.max_enqueued_batches {
                return Err(resource_exhausted!(
                    "The batch scheduling queue to which this task was submitted is full; currently \
                     {} batches enqueued and max_enqueued_batches={}",
                    queue.batches.len(),
                    parameters.max_enqueued_batches
                ));
            }
            if let Some(last) = queue.batches.back_mut() {
                last.is_closed = true;
            }
            wakes = true;
            queue.batches.push_back(Batch {
                tasks: Vec::new(),
                rows: 0,
                opened: Instant::now(),
                is_closed: false,
            });
        }
        if let Some(batch) = queue.batches.back_mut() {
            batch.rows += rows;
            batch.is_closed = batch.rows >= most;
            wakes |= batch.is_closed;
            batch.tasks.push(Task {
                step,
                rows,
                arrived: Instant::now(),
                span: span.map(|span| (span, SystemTime::now())),
                cancel: cancel.clone(),
                done,
            });
        }
        drop(state);
        if wakes {
            self.arrived.notify_one();
        }
        let hung_up = CancelOnDrop(cancel);
        Ok(Waiting { result, hung_up })
    }

    /// Takes the batch that has waited longest, once it may run; `None` when the batcher stops.
    fn next(&self) -> Option<(Batch, Arc<Parameters>)> {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let ready = state
                .queues
                .iter()
                .filter_map(|(k, q)| Some((q.ready_at()?, k)));
            let first = ready
                .min_by_key(|(at, _)| *at)
                .map(|(at, key)| (at, key.clone()));
            let Some((at, key)) = first else {
                if state.is_stopping {
                    return None;
                }
                state = self
                    .arrived
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if at > now && !state.is_stopping {
                let waited = self.arrived.wait_timeout(state, at - now);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let queue = state.queues.get_mut(&key)?;
            let parameters = queue.parameters.clone();
            let batch = queue.batches.pop_front();
            if queue.batches.is_empty() {
                // The next request of the version makes a new one.
                state.queues.remove(&key);
            }
            if !state.queues.is_empty() {
                // This thread may have been the one that was to wait for the others' timers.
                self.arrived.notify_one();
            }
            return batch.map(|b| (b, parameters));
        }
    }

    fn run(&self) {
        while let Some((batch, parameters)) = self.next() {
            let mut tasks = batch.tasks;
            tasks.retain(|t| t.cancel.check().is_ok());
            // Requests of other shapes than the first one's are batches of their own.
            while !tasks.is_empty() {
                let like = tasks[0].step.args.clone();
                let (alike, rest) = match parameters.pads_inputs {
                    true => (tasks, Vec::new()),
                    false => tasks
                        .into_iter()
                        .partition(|t| are_alike(&t.step.args, &like)),
                };
                tasks = rest;
                // A model may have shapes for the allowed sizes.
                let steps = match parameters.allowed_sizes.is_empty() {
                    true => divide(alike, |t| (t.rows, num_bytes(&t.step.args))),
                    false => vec![alike],
                };
                for step in steps {
                    // Requests of a step that panics receive an error, as their senders are dropped.
                    let ran = contained(|| {
                        self.run_batch(step, &parameters);
                        Ok(())
                    });
                    if let Err(e) = ran {
                        tracing::error!("{e}");
                    }
                }
            }
        }
    }

    fn run_batch(&self, tasks: Vec<Task>, parameters: &Parameters) {
        let waited: Vec<Duration> = tasks.iter().map(|t| t.arrived.elapsed()).collect();
        let rows: Vec<usize> = tasks.iter().map(|t| t.rows).collect();
        let all: usize = rows.iter().sum();
        let padding = parameters.padded_size(all) - all;
        let Some(first) = tasks.first() else {
            return;
        };
        let spans = batch_spans(&tasks, all, padding);
        self.metrics
            .batch(first.step.servable.name(), &waited, padding);
        // A single request can be cancelled, the others of a batch cannot wait for one client.
        let share = self.share.begin();
        let options = RunOptions {
            cancel: (tasks.len() == 1).then(|| first.cancel.clone()),
            pool: share.pool.clone(),
            ..Default::default()
        };
        let began = Instant::now();
        let results = match all > parameters.max_batch_size && parameters.splits {
            true => run_large(&first.step, all, parameters, &options, &spans).map(|r| vec![r]),
            false => run_merged(&tasks, &rows, padding, parameters, &options, &spans),
        };
        if let Some(program) = first.step.servable.program(&first.step.signature) {
            program.gain.measured(tasks.len(), all, began.elapsed());
        }
        spans.iter().for_each(|s| s.end_with(&results));
        match results {
            Ok(results) => {
                for (task, result) in tasks.into_iter().zip(results) {
                    let _ = task.done.send(Ok(result));
                }
            }
            Err(e) if tasks.len() == 1 => {
                if let Some(task) = tasks.into_iter().next() {
                    let _ = task.done.send(Err(e));
                }
            }
            // The bad requests of a batch fail alone.
            Err(_) => {
                for task in tasks {
                    let result = run_merged(
                        std::slice::from_ref(&task),
                        &[task.rows],
                        parameters.padded_size(task.rows) - task.rows,
                        parameters,
                        &RunOptions::default(),
                        task.span.as_ref().map(|(s, _)| s.clone()).as_slice(),
                    );
                    let result = result.map(|mut r| r.pop().unwrap_or_default());
                    let _ = task.done.send(result);
                }
            }
        }
    }
}

/// Ends the wait of the sampled requests and begins their spans of the batch.
fn batch_spans(tasks: &[Task], rows: usize, padding: usize) -> Vec<Traced> {
    static BATCHES: AtomicI64 = AtomicI64::new(0);
    let sampled = tasks.iter().filter_map(|t| t.span.as_ref());
    let mut id = None;
    let begin = |(span, arrived): &(Traced, SystemTime)| {
        span.waited(*arrived);
        let batch = span.child("batch", SystemTime::now());
        let id = *id.get_or_insert_with(|| BATCHES.fetch_add(1, Ordering::Relaxed));
        batch.set("ferroflow.batch.id", id);
        for (key, n) in [
            ("ferroflow.batch.requests", tasks.len()),
            ("ferroflow.batch.rows", rows),
            ("ferroflow.batch.padding", padding),
        ] {
            batch.set(key, n as i64);
        }
        batch
    };
    sampled.map(begin).collect()
}

/// Runs requests as one batch.
fn run_merged(
    tasks: &[Task],
    rows: &[usize],
    padding: usize,
    parameters: &Parameters,
    options: &RunOptions,
    spans: &[Traced],
) -> Result<Vec<Vec<Tensor>>> {
    let Some(first) = tasks.first().map(|t| &t.step) else {
        return Ok(Vec::new());
    };
    let run = |args| {
        let (servable, outputs) = (&first.servable, &first.outputs);
        trace::step(spans, || {
            servable.run(&first.signature, args, outputs, options)
        })
    };
    if tasks.len() == 1 && padding == 0 {
        return Ok(vec![run(first.args.clone())?]);
    }
    let mut args: Vec<Vec<Tensor>> = tasks.iter().map(|t| t.step.args.clone()).collect();
    if parameters.pads_inputs {
        pad_alike(&mut args)?;
    }
    split(&run(merge(&args, padding)?)?, rows, padding)
}

/// Runs a request that is larger than a batch in several.
fn run_large(
    step: &Step,
    rows: usize,
    parameters: &Parameters,
    options: &RunOptions,
    spans: &[Traced],
) -> Result<Vec<Tensor>> {
    let mut sizes = vec![parameters.max_batch_size; rows / parameters.max_batch_size];
    sizes.extend(Some(rows % parameters.max_batch_size).filter(|n| *n > 0));
    let mut results = Vec::new();
    for (part, size) in split(&step.args, &sizes, 0)?.into_iter().zip(&sizes) {
        let padding = parameters.padded_size(*size) - size;
        let part = merge(&[part], padding)?;
        let outputs = trace::step(spans, || {
            let servable = &step.servable;
            servable.run(&step.signature, part, &step.outputs, options)
        })?;
        results.extend(split(&outputs, &[*size], padding)?);
    }
    merge(&results, 0)
}
