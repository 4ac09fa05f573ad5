//! Datasets that pass elements on: PrefetchDataset, OptionsDataset, ModelDataset, OptimizeDataset,
//! FinalizeDataset, statistics, thread pools, IgnoreErrorsDataset, SleepDataset
//! (TensorFlow: `core/kernels/data/*_dataset_op.cc`).
//!
//! How a pipeline runs is this engine's matter: optimizations, thread pools and statistics are
//! accepted and change no element.

use crate::common::{Input, Made, dataset, make, next_of, number};
use crate::seeds::set_anonymous;
use ferroflow_base::{Code, Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Prefetch, Source, State};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource, handle, resource};
use ferroflow_tensor::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "PrefetchDataset",
        "input_dataset: variant, buffer_size: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; slack_period: int = 0; \
         legacy_autotune: bool = true; buffer_size_min: int = 0; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(prefetch),
    Op::new(
        "OptionsDataset",
        "input_dataset: variant -> handle: variant | serialized_options: string; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         ''",
    )
    .shape(shapes::scalar)
    .kernel(options),
    Op::new(
        "GetOptions",
        "input_dataset: variant -> serialized_options: string",
    )
    .shape(shapes::scalar)
    .kernel(get_options),
    Op::new(
        "ModelDataset",
        "input_dataset: variant -> handle: variant | algorithm: int = 0; cpu_budget: int = 0; \
         ram_budget: int = 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "OptimizeDataset",
        "input_dataset: variant, optimizations: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; optimization_configs: list(string) \
         = []",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "OptimizeDatasetV2",
        "input_dataset: variant, optimizations_enabled: string, optimizations_disabled: \
         string, optimizations_default: string -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; optimization_configs: list(string) = []",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "FinalizeDataset",
        "input_dataset: variant -> handle: variant | has_captured_ref: bool = false; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "RewriteDataset",
        "input_dataset: variant, rewrite_name: string -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "NonSerializableDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalNonSerializableDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "MaxIntraOpParallelismDataset",
        "input_dataset: variant, max_intra_op_parallelism: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(max_intra_op),
    Op::new(
        "ExperimentalMaxIntraOpParallelismDataset",
        "input_dataset: variant, max_intra_op_parallelism: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(max_intra_op),
    Op::new(
        "PrivateThreadPoolDataset",
        "input_dataset: variant, num_threads: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(private_threads),
    Op::new(
        "ExperimentalPrivateThreadPoolDataset",
        "input_dataset: variant, num_threads: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(private_threads),
    Op::new(
        "ThreadPoolDataset",
        "input_dataset: variant, thread_pool: resource -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalThreadPoolDataset",
        "input_dataset: variant, thread_pool: resource -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ThreadPoolHandle",
        "-> handle: resource | num_threads: int; max_intra_op_parallelism: int = 1; \
         display_name: string; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(thread_pool),
    Op::new(
        "ExperimentalThreadPoolHandle",
        "-> handle: resource | num_threads: int; max_intra_op_parallelism: int = 1; \
         display_name: string; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(thread_pool),
    Op::new(
        "BytesProducedStatsDataset",
        "input_dataset: variant, tag: string -> handle: variant | output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalBytesProducedStatsDataset",
        "input_dataset: variant, tag: string -> handle: variant | output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "LatencyStatsDataset",
        "input_dataset: variant, tag: string -> handle: variant | output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalLatencyStatsDataset",
        "input_dataset: variant, tag: string -> handle: variant | output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "SetStatsAggregatorDataset",
        "input_dataset: variant, stats_aggregator: resource, tag: string, counter_prefix: \
         string -> handle: variant | output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalSetStatsAggregatorDataset",
        "input_dataset: variant, stats_aggregator: resource, tag: string, counter_prefix: \
         string -> handle: variant | output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "StatsAggregatorHandle",
        "-> handle: resource | container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(stats),
    Op::new(
        "ExperimentalStatsAggregatorHandle",
        "-> handle: resource | container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(stats),
    Op::new(
        "StatsAggregatorHandleV2",
        "-> handle: resource | container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(stats),
    Op::new(
        "StatsAggregatorSummary",
        "iterator: resource -> summary: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(summary),
    Op::new(
        "ExperimentalStatsAggregatorSummary",
        "iterator: resource -> summary: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(summary),
    Op::new(
        "StatsAggregatorSetSummaryWriter",
        "stats_aggregator: resource, summary: resource -> | | stateful",
    )
    .kernel(set_writer),
    Op::new(
        "ChooseFastestDataset",
        "input_datasets: N*variant -> handle: variant | N: int >= 2; num_experiments: int; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "ExperimentalChooseFastestDataset",
        "input_datasets: N*variant -> handle: variant | N: int >= 2; num_experiments: int; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(through),
    Op::new(
        "IgnoreErrorsDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; log_warning: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(ignore_errors),
    Op::new(
        "ExperimentalIgnoreErrorsDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; log_warning: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(ignore_errors),
    Op::new(
        "SleepDataset",
        "input_dataset: variant, sleep_microseconds: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(sleep),
    Op::new(
        "ExperimentalSleepDataset",
        "input_dataset: variant, sleep_microseconds: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(sleep),
    Op::new("DummyIterationCounter", "-> handle: resource | | stateful")
        .shape(shapes::scalar)
        .kernel(counter),
];

/// What may refuse an iterator of a dataset.
type Check = Box<dyn Fn(&Arc<Dataset>) -> Result<()> + Send + Sync>;

/// A dataset with the elements of another one.
struct Through {
    input: Arc<Dataset>,
    check: Option<Check>,
}

impl Source for Through {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        if let Some(check) = &self.check {
            check(&self.input)?;
        }
        self.input.iterator()
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        self.input.source.get(index, services)
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

/// Returns the elements of a dataset.
pub(crate) fn through_of(input: Arc<Dataset>) -> Arc<dyn Source> {
    Arc::new(Through { input, check: None })
}

/// Returns the elements of a dataset, whose iterators `check` may refuse.
pub(crate) fn checked(
    input: Arc<Dataset>,
    check: impl Fn(&Arc<Dataset>) -> Result<()> + Send + Sync + 'static,
) -> Arc<dyn Source> {
    let check: Option<Check> = Some(Box::new(check));
    Arc::new(Through { input, check })
}

fn passed(ctx: &KernelCtx) -> Made {
    Ok(through_of(dataset(ctx, 0)?))
}

fn through(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| passed(ctx))
}

fn max_intra_op(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        if number(ctx, 1, "max_intra_op_parallelism")? < 0 {
            return Err(invalid_argument!("`max_intra_op_parallelism` must be >= 0"));
        }
        passed(ctx)
    })
}

fn private_threads(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        if number(ctx, 1, "num_threads")? < 0 {
            return Err(invalid_argument!("`num_threads` must be >= 0"));
        }
        passed(ctx)
    })
}

/// The options of a dataset: a serialized message.
const OPTIONS: &str = "serialized_options";

fn options(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    build.attrs.bytes(OPTIONS)?;
    through(build)
}

/// Appends the options set on a dataset and its inputs; the message merges by concatenation.
pub(crate) fn collect_options(dataset: &Dataset, out: &mut Vec<u8>) {
    for input in dataset.source.inputs() {
        collect_options(&input, out);
    }
    if let Ok(own) = dataset.node.attrs.bytes(OPTIONS) {
        out.extend_from_slice(own);
    }
}

fn get_options(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let mut all = Vec::new();
        collect_options(&*dataset(ctx, 0)?, &mut all);
        ctx.set_output(0, Tensor::string(all))
    }))
}

/// What a handle of a thread pool or of statistics names: nothing that a session needs.
struct Unused;

impl Resource for Unused {
    const TYPE: &'static str = "tensorflow::data::StatsAggregatorResource";

    fn is_gone(&self) -> bool {
        false
    }
}

fn stats(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let info = ContainerInfo::of_node(build)?;
    Ok(Box::new(HandleKernel::new(info, |_: &KernelCtx| {
        Ok(Unused)
    })))
}

fn thread_pool(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    if build.attrs.int("num_threads")? <= 0 {
        return Err(invalid_argument!(
            "`num_threads` must be greater than zero."
        ));
    }
    stats(build)
}

fn counter(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| set_anonymous(ctx, Unused)))
}

/// Checks the handles: no statistics exist that it could write.
fn set_writer(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        resource::<Unused>(ctx, 0)?;
        handle(ctx, 1).map(drop)
    }))
}

/// An empty Summary message: nothing is counted.
fn summary(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        ctx.set_output(0, Tensor::string(Vec::new()))
    }))
}

struct Prefetched {
    input: Arc<Dataset>,
    /// `None` lets the buffer grow while it runs empty.
    limit: Option<usize>,
}

fn prefetch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let limit = match number(ctx, 1, "buffer_size")? {
            -1 => None,
            n => Some(usize::try_from(n).map_err(|_| {
                invalid_argument!(
                    "buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning"
                )
            })?),
        };
        let input = dataset(ctx, 0)?;
        Ok(Arc::new(Prefetched { input, limit }))
    })
}

impl Source for Prefetched {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let input = self.input.iterator()?;
        Ok(Box::new(match self.limit {
            Some(limit) => Prefetch::new(input, limit),
            None => Prefetch::growing(input),
        }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        self.input.source.get(index, services)
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

struct IgnoreErrors(Arc<Dataset>);

struct IgnoreErrorsIterator {
    source: Arc<IgnoreErrors>,
    inner: Input,
}

fn ignore_errors(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| Ok(Arc::new(IgnoreErrors(dataset(ctx, 0)?))))
}

impl Source for IgnoreErrors {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(IgnoreErrorsIterator {
            inner: Some(self.0.iterator()?),
            source: self,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.0.clone()]
    }
}

impl DatasetIterator for IgnoreErrorsIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            services.cancel.check()?;
            match next_of(&mut self.inner, services) {
                Err(e) if matches!(e.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                    return Err(e);
                }
                Err(_) => {}
                element => return element,
            }
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.0)
    }
}

struct Sleep {
    input: Arc<Dataset>,
    pause: Duration,
}

struct SleepIterator {
    source: Arc<Sleep>,
    inner: Input,
}

fn sleep(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let pause = u64::try_from(number(ctx, 1, "sleep_microseconds")?);
        let pause = pause.map_err(|_| invalid_argument!("`sleep_microseconds` must be >= 0"))?;
        Ok(Arc::new(Sleep {
            input: dataset(ctx, 0)?,
            pause: Duration::from_micros(pause),
        }))
    })
}

impl Source for Sleep {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(SleepIterator {
            inner: Some(self.input.iterator()?),
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for SleepIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let (start, pause) = (Instant::now(), self.source.pause);
        while let Some(left) = pause.checked_sub(start.elapsed()).filter(|d| !d.is_zero()) {
            services.cancel.check()?;
            std::thread::sleep(left.min(Duration::from_millis(10)));
        }
        next_of(&mut self.inner, services)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.input)
    }
}
