//! Batch and BatchFunction: calls that arrive at about the same time become one batch. TensorFlow:
//! `core/kernels/batch_kernels.cc`, `core/kernels/batching_util/batch_resource_base.cc`.
//!
//! A batch ends when it is full or its time is over; then it leaves the queue and runs on the
//! session's pool. No thread waits for a batch.

use crate::batch_options::Options;
use ferroflow_base::{Code, Result, Status, failed_precondition, invalid_argument};
use ferroflow_opdef::{
    AsyncCall, Callable, Cost, KernelBuild, KernelCtx, Op, OpKernel, Resources, StepServices,
};
use ferroflow_resources::queue::only_async;
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_sync::{CancelToken, Inline, Parallelism, Registration, Spawner};
use ferroflow_tensor::rows::{joined, prepended, split_first};
use ferroflow_tensor::{DType, Shape, Tensor};
use rustc_hash::FxHashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Batch, BatchFunction.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Batch",
        "in_tensors: list(T) -> batched_tensors: list(T), batch_index: int64, id: int64 | \
         num_batch_threads: int; max_batch_size: int; max_enqueued_batches: int = 10; \
         batch_timeout_micros: int; allowed_batch_sizes: list(int) = []; \
         grad_timeout_micros: int; container: string = ''; shared_name: string = ''; \
         batching_queue: string = ''; T: list(type) >= 1 | distributed",
    )
    .cost(Cost::Async)
    .kernel(|b| batching(b, None)),
    Op::new(
        "BatchFunction",
        "in_tensors: list(Tin), captured_tensors: list(Tcaptured) -> out_tensors: \
         list(Tout) | f: func; num_batch_threads: int; max_batch_size: int; \
         batch_timeout_micros: int; max_enqueued_batches: int = 10; allowed_batch_sizes: \
         list(int) = []; container: string = ''; shared_name: string = ''; \
         batching_queue: string = ''; low_priority_max_batch_size: int = 0; \
         low_priority_batch_timeout_micros: int = 0; low_priority_allowed_batch_sizes: \
         list(int) = []; low_priority_max_enqueued_batches: int = 0; \
         mixed_priority_policy: string \
         {'low_priority_padding_with_max_batch_size','low_priority_padding_with_next_allowed_batch_size','priority_isolation','priority_merge'} \
         = 'low_priority_padding_with_max_batch_size'; batch_padding_policy: string \
         {'PAD_UP','BATCH_DOWN','MINIMIZE_TPU_COST_PER_REQUEST'} = 'PAD_UP'; Tin: \
         list(type) >= 1; Tcaptured: list(type) >= 0; Tout: list(type) >= 1; \
         enable_large_batch_splitting: bool = false | distributed",
    )
    .cost(Cost::Async)
    .kernel(|b| {
    let function = b.attrs.func("f")?.name.to_string();
    batching(b, Some(function))
    }),
];

/// What a batch needs once its steps may be over.
#[derive(Clone)]
struct Context {
    function: Option<Arc<dyn Callable>>,
    resources: Resources,
    spawner: Option<Spawner>,
    options: Options,
}

/// A call's rows in a batch.
struct Task {
    id: i64,
    inputs: Vec<Tensor>,
    captured: Vec<Tensor>,
    size: usize,
    answer: Answer,
}

/// Where the results of a task go.
enum Answer {
    Call(AsyncCall),
    /// A part of a call that was split.
    Part(Arc<Mutex<Split>>, usize),
}

/// A call whose rows went to several batches.
struct Split {
    call: Option<AsyncCall>,
    parts: Vec<Option<Vec<Tensor>>>,
}

#[derive(Default)]
struct OpenBatch {
    number: u64,
    tasks: Vec<Task>,
    size: usize,
    /// The registration ends with its token.
    timer: Option<(CancelToken, Registration)>,
}

/// The queues of one name, by `batching_queue`.
struct Batcher {
    open: Mutex<FxHashMap<String, OpenBatch>>,
    n_running: AtomicU64,
    next: AtomicU64,
    first_id: u64,
}

impl Batcher {
    fn new() -> Batcher {
        Batcher {
            open: Mutex::default(),
            n_running: AtomicU64::new(0),
            next: AtomicU64::new(0),
            first_id: RandomState::new().hash_one("batcher") >> 2,
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, OpenBatch>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task to the open batch of a queue, which ends if it is full.
    fn add(self: &Arc<Self>, queue: &str, task: Task, context: &Context) {
        let limit = context.options.largest();
        let mut ended = Vec::new();
        let mut started = None;
        {
            let mut all = self.lock();
            let batch = all.entry(queue.to_string()).or_default();
            if batch.size + task.size > limit && !batch.tasks.is_empty() {
                ended.push(std::mem::take(batch));
            }
            if batch.tasks.is_empty() {
                batch.number = self.number();
                started = Some(batch.number);
            }
            batch.size += task.size;
            batch.tasks.push(task);
            if batch.size >= limit || context.options.timeout.is_zero() {
                ended.push(std::mem::take(batch));
                started = None;
            }
        }
        for batch in ended {
            self.run(batch, context.clone());
        }
        if let Some(number) = started {
            self.end_later(queue, number, context);
        }
    }

    /// Ends a batch when its time is over.
    fn end_later(self: &Arc<Self>, queue: &str, number: u64, context: &Context) {
        let token = CancelToken::default().with_timeout(context.options.timeout);
        let (this, name, after) = (self.clone(), queue.to_string(), context.clone());
        let timer = token.on_cancel(move || {
            let ended = {
                let mut all = this.lock();
                let batch = all.get_mut(&name).filter(|b| b.number == number);
                batch.filter(|b| !b.tasks.is_empty()).map(std::mem::take)
            };
            if let Some(batch) = ended {
                this.run(batch, after);
            }
        });
        let mut all = self.lock();
        let batch = all.get_mut(queue);
        let open = batch.filter(|b| b.number == number && !b.tasks.is_empty());
        let unused = match open {
            Some(batch) => batch.timer.replace((token, timer)),
            None => Some((token, timer)),
        };
        drop(all);
        drop(unused);
    }

    /// Runs a batch on the pool.
    fn run(self: &Arc<Self>, mut batch: OpenBatch, context: Context) {
        drop(batch.timer.take());
        let n = self.n_running.fetch_add(1, Ordering::AcqRel);
        let this = self.clone();
        if n >= context.options.max_waiting as u64 {
            self.n_running.fetch_sub(1, Ordering::AcqRel);
            let max = context.options.max_waiting;
            let error = format!(
                "The batch scheduling queue to which this task was submitted is full; currently \
                 {n} batches enqueued and max_enqueued_batches is {max}"
            );
            return fail(batch.tasks, &Status::new(Code::Unavailable, error));
        }
        let spawner = context.spawner.clone();
        let work = move || {
            process(batch.tasks, &context);
            this.n_running.fetch_sub(1, Ordering::AcqRel);
        };
        match spawner {
            Some(spawner) => _ = spawner.spawn(work),
            None => _ = std::thread::spawn(work),
        }
    }
}

fn fail(tasks: Vec<Task>, error: &Status) {
    for task in tasks {
        finish(task.answer, Err(error.clone()));
    }
}

fn finish(answer: Answer, result: Result<Vec<Tensor>>) {
    let (split, at) = match answer {
        Answer::Call(call) => return call.finish(result),
        Answer::Part(split, at) => (split, at),
    };
    let mut state = split.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = match result {
        Err(error) => Some(Err(error)),
        Ok(tensors) => {
            if let Some(slot) = state.parts.get_mut(at) {
                *slot = Some(tensors);
            }
            let is_done = state.parts.iter().all(Option::is_some);
            is_done.then(|| whole(&state.parts))
        }
    };
    let call = whole.and_then(|whole| Some((state.call.take()?, whole)));
    drop(state);
    if let Some((call, whole)) = call {
        call.finish(whole);
    }
}

/// Joins the results of a call that was split.
fn whole(parts: &[Option<Vec<Tensor>>]) -> Result<Vec<Tensor>> {
    let n = parts
        .first()
        .and_then(|p| Some(p.as_ref()?.len()))
        .unwrap_or(0);
    let of =
        |i: usize| -> Vec<&Tensor> { parts.iter().flatten().filter_map(|p| p.get(i)).collect() };
    (0..n).map(|i| concatenated(&of(i))).collect()
}

/// Concatenates tensors along the first dimension.
pub(crate) fn concatenated(parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        return Err(invalid_argument!("there are no tensors to concatenate"));
    };
    let (_, row) = split_first(first.shape())?;
    let mut n = 0usize;
    for part in parts {
        let (rows, other) = split_first(part.shape())?;
        if other != row || part.dtype() != first.dtype() {
            return Err(invalid_argument!(
                "Tensors of one batch have different shapes: {} and {}",
                first.shape(),
                part.shape()
            ));
        }
        n = n.saturating_add(rows);
    }
    let pieces: Vec<_> = parts.iter().map(|&t| (Some(t), t.num_elements())).collect();
    joined(first.dtype(), prepended(n, &row)?, &pieces)
}

/// Returns rows `start` to `end`.
pub(crate) fn rows_of(t: &Tensor, start: usize, end: usize) -> Result<Tensor> {
    let (n, row) = split_first(t.shape())?;
    if start > end || end > n {
        return Err(invalid_argument!(
            "rows {start} to {end} of {n} do not exist"
        ));
    }
    t.view(start * row.num_elements(), prepended(end - start, &row)?)
}

fn process(tasks: Vec<Task>, context: &Context) {
    let results = match &context.function {
        Some(function) => call(&tasks, &**function, context),
        None => batched(&tasks, context),
    };
    match results {
        Ok(results) => {
            for (task, result) in tasks.into_iter().zip(results) {
                finish(task.answer, Ok(result));
            }
        }
        Err(error) => fail(tasks, &error),
    }
}

/// Returns each input of all tasks, padded with its first row.
fn joined_inputs(tasks: &[Task], padded: usize) -> Result<Vec<Tensor>> {
    let size: usize = tasks.iter().map(|t| t.size).sum();
    let n = tasks.first().map_or(0, |t| t.inputs.len());
    let input = |i: usize| -> Result<Tensor> {
        let mut parts: Vec<&Tensor> = tasks.iter().filter_map(|t| t.inputs.get(i)).collect();
        let padding = match parts.first() {
            Some(first) if padded > size => Some(rows_of(first, 0, 1)?),
            _ => None,
        };
        for _ in size..padded {
            parts.extend(padding.as_ref());
        }
        concatenated(&parts)
    };
    (0..n).map(input).collect()
}

/// The results of Batch: all of the batch for the first task, nothing for the others.
fn batched(tasks: &[Task], context: &Context) -> Result<Vec<Vec<Tensor>>> {
    let size: usize = tasks.iter().map(|t| t.size).sum();
    let inputs = joined_inputs(tasks, context.options.padded(size))?;
    let mut index = Vec::with_capacity(3 * tasks.len());
    let mut start = 0i64;
    for task in tasks {
        let end = start + task.size as i64;
        index.extend([task.id, start, end]);
        start = end;
    }
    let mut results = Vec::with_capacity(tasks.len());
    for (i, task) in tasks.iter().enumerate() {
        let mut outputs = Vec::with_capacity(inputs.len() + 2);
        if i == 0 {
            outputs.extend(inputs.iter().cloned());
            outputs.push(Tensor::from_slice([tasks.len(), 3], &index)?);
        } else {
            for input in &inputs {
                let (_, row) = split_first(input.shape())?;
                outputs.push(Tensor::zeros(input.dtype(), prepended(0, &row)?)?);
            }
            outputs.push(Tensor::zeros(DType::Int64, Shape::from([0, 3]))?);
        }
        outputs.push(Tensor::scalar(task.id));
        results.push(outputs);
    }
    Ok(results)
}

/// The results of BatchFunction: the rows of each task.
fn call(tasks: &[Task], function: &dyn Callable, context: &Context) -> Result<Vec<Vec<Tensor>>> {
    let size: usize = tasks.iter().map(|t| t.size).sum();
    let padded = context.options.padded(size);
    let mut args = joined_inputs(tasks, padded)?;
    args.extend(
        tasks
            .first()
            .into_iter()
            .flat_map(|t| t.captured.iter().cloned()),
    );
    let cancel = CancelToken::default();
    let par: &dyn Parallelism = match &context.spawner {
        Some(spawner) => spawner,
        None => &Inline,
    };
    let services = StepServices {
        par,
        cancel: &cancel,
        resources: &context.resources,
        functions: &(),
        step_id: 0,
    };
    let outputs = function.call(args, &services)?;
    for t in &outputs {
        match t.shape().first() {
            None => {
                return Err(failed_precondition!(
                    "Batched output tensor has 0 dimensions"
                ));
            }
            Some(&n) if n != padded => {
                return Err(failed_precondition!(
                    "Batched output tensor's 0th dimension does not equal the sum of the 0th \
                     dimension sizes of the input tensors"
                ));
            }
            _ => {}
        }
    }
    let mut start = 0;
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        let rows = outputs.iter().map(|t| rows_of(t, start, start + task.size));
        results.push(rows.collect::<Result<_>>()?);
        start += task.size;
    }
    Ok(results)
}

struct Batching {
    place: ContainerInfo,
    options: Options,
    queue: String,
    function: Option<String>,
    n_inputs: usize,
    outputs: Vec<DType>,
}

fn batching(build: &KernelBuild, function: Option<String>) -> Result<Box<dyn OpKernel>> {
    let attr = if function.is_some() { "Tin" } else { "T" };
    Ok(Box::new(Batching {
        place: ContainerInfo::of_node(build)?,
        options: Options::of(build)?,
        queue: build.attrs.str("batching_queue")?.to_string(),
        function,
        n_inputs: build.attrs.dtypes(attr)?.len(),
        outputs: build.outputs.to_vec(),
    }))
}

impl OpKernel for Batching {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let inputs = std::mem::take(&mut call.inputs);
        match self.prepared(inputs, services) {
            Ok(prepared) => self.enqueue(prepared, call),
            Err(error) => call.finish(Err(error)),
        }
    }
}

/// A call with what it needs.
struct Prepared {
    batcher: Arc<Batcher>,
    context: Context,
    inputs: Vec<Tensor>,
    captured: Vec<Tensor>,
    size: usize,
}

impl Batching {
    fn prepared(&self, mut inputs: Vec<Tensor>, services: &StepServices) -> Result<Prepared> {
        let captured = inputs.split_off(self.n_inputs.min(inputs.len()));
        let shapes = || -> String {
            let lines = inputs.iter().enumerate();
            lines
                .map(|(i, t)| format!(" - {i} has shape {}\n", t.shape()))
                .collect()
        };
        let mut size = None;
        for t in &inputs {
            let Some(&n) = t.shape().first() else {
                return Err(invalid_argument!(
                    "Batching input tensors must have at least one dimension.\nBelow are the input \
                     tensors: \n{}",
                    shapes()
                ));
            };
            if *size.get_or_insert(n) != n {
                return Err(invalid_argument!(
                    "Batching input tensors supplied in a given op invocation must have equal \
                     0th-dimension size.\nBelow are the input tensors: \n{}",
                    shapes()
                ));
            }
        }
        let size = size.unwrap_or(0);
        let limit = self.options.max_size;
        if size > limit && !self.options.splits {
            return Err(invalid_argument!(
                "Task size {size} is larger than maximum input batch size {limit}"
            ));
        }
        let function =
            match &self.function {
                Some(name) => {
                    let found = services.functions.get(name);
                    Some(found.ok_or_else(|| {
                        failed_precondition!("function '{name}' is not available")
                    })?)
                }
                None => None,
            };
        let context = Context {
            function,
            resources: services.resources.clone(),
            spawner: services.par.spawner(),
            options: self.options.clone(),
        };
        let batcher = self
            .place
            .find(services.resources, |_| Ok(Arc::new(Batcher::new())))?
            .1;
        Ok(Prepared {
            batcher: Arc::clone(&batcher),
            context,
            inputs,
            captured,
            size,
        })
    }

    fn enqueue(&self, prepared: Prepared, call: AsyncCall) {
        let Prepared {
            batcher,
            context,
            inputs,
            captured,
            size,
        } = prepared;
        if size == 0 {
            let empty = |&dtype: &DType| Tensor::zeros(dtype, Shape::from([0]));
            return call.finish(self.outputs.iter().map(empty).collect());
        }
        let id = (batcher.first_id + batcher.number()) as i64;
        let limit = context.options.largest();
        if size <= limit {
            let answer = Answer::Call(call);
            let task = Task {
                id,
                inputs,
                captured,
                size,
                answer,
            };
            return batcher.add(&self.queue, task, &context);
        }
        let n = size.div_ceil(limit);
        let split = Arc::new(Mutex::new(Split {
            call: Some(call),
            parts: vec![None; n],
        }));
        for at in 0..n {
            let (start, end) = (at * limit, size.min((at + 1) * limit));
            let rows = inputs.iter().map(|t| rows_of(t, start, end));
            let answer = Answer::Part(split.clone(), at);
            match rows.collect::<Result<Vec<Tensor>>>() {
                Ok(inputs) => {
                    let captured = captured.clone();
                    let size = end - start;
                    let task = Task {
                        id,
                        inputs,
                        captured,
                        size,
                        answer,
                    };
                    batcher.add(&self.queue, task, &context);
                }
                Err(error) => return finish(answer, Err(error)),
            }
        }
    }
}
