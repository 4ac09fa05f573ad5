//! Functions of each element: MapDataset, ParallelMapDataset, MapAndBatchDataset, FilterDataset,
//! ParallelFilterDataset, TakeWhileDataset, ScanDataset (TensorFlow:
//! `core/kernels/data/{map,parallel_map,filter,scan,…}_dataset_op.cc`).

use crate::batch::stacked;
use crate::common::{
    Input, Spec, components, dataset, flag, flag_attr, function, function_name, make, n_of,
    next_of, parallel_calls, positive, some,
};
use ferroflow_base::{Code, Result, Status, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, DatasetNode, Element, InOrder, Source,
    State, UNKNOWN,
};
use ferroflow_tensor::{DType, Tensor};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MapDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | f: \
         func; Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; use_inter_op_parallelism: bool = true; preserve_cardinality: bool \
         = false; force_synchronous: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(map),
    Op::new(
        "ParallelMapDataset",
        "input_dataset: variant, other_arguments: list(Targuments), num_parallel_calls: int32 \
         -> handle: variant | f: func; Targuments: list(type) >= 0; output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; use_inter_op_parallelism: bool = true; \
         sloppy: bool = false; preserve_cardinality: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_map),
    Op::new(
        "ParallelMapDatasetV2",
        "input_dataset: variant, other_arguments: list(Targuments), num_parallel_calls: int64 \
         -> handle: variant | f: func; Targuments: list(type) >= 0; output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; use_inter_op_parallelism: bool = true; \
         deterministic: string = 'default'; preserve_cardinality: bool = false; \
         use_unbounded_threadpool: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_map),
    Op::new(
        "MapAndBatchDataset",
        "input_dataset: variant, other_arguments: list(Targuments), batch_size: int64, \
         num_parallel_calls: int64, drop_remainder: bool -> handle: variant | f: func; \
         Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; preserve_cardinality: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(map_and_batch),
    Op::new(
        "ExperimentalMapAndBatchDataset",
        "input_dataset: variant, other_arguments: list(Targuments), batch_size: int64, \
         num_parallel_calls: int64, drop_remainder: bool -> handle: variant | f: func; \
         Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; preserve_cardinality: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(map_and_batch),
    Op::new(
        "FilterDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | \
         predicate: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(filter),
    Op::new(
        "ParallelFilterDataset",
        "input_dataset: variant, other_arguments: list(Targuments), num_parallel_calls: int64 \
         -> handle: variant | predicate: func; deterministic: string = 'default'; Targuments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_filter),
    Op::new(
        "TakeWhileDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | \
         predicate: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(take_while),
    Op::new(
        "ExperimentalTakeWhileDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | \
         predicate: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(take_while),
    Op::new(
        "ScanDataset",
        "input_dataset: variant, initial_state: list(Tstate), other_arguments: \
         list(Targuments) -> handle: variant | f: func; Tstate: list(type) >= 1; Targuments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         preserve_cardinality: bool = false; use_default_device: bool = true; metadata: \
         string = ''",
    )
    .shape(shapes::scalar)
    .kernel(scan),
    Op::new(
        "ExperimentalScanDataset",
        "input_dataset: variant, initial_state: list(Tstate), other_arguments: \
         list(Targuments) -> handle: variant | f: func; Tstate: list(type) >= 1; Targuments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         preserve_cardinality: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(scan),
];

const NOT_BOOL: &str = "Filter predicate `f` must return a scalar bool.";

/// How many calls of a function run at a time.
#[derive(Clone, Copy, PartialEq)]
enum Calls {
    /// One, when its result is asked for.
    One,
    /// As many as given or as the engine chooses, ahead of time.
    Many(Option<usize>),
}

struct Map {
    input: Arc<Dataset>,
    function: Element,
    calls: Calls,
    keeps_cardinality: bool,
}

struct MapIterator {
    source: Arc<Map>,
    inner: Input,
}

/// Turns the error of a function that ends the sequence into its end, where it may.
fn end_or_error(error: Status, keeps_cardinality: bool) -> Result<Option<Components>> {
    match error.code() {
        Code::OutOfRange if keeps_cardinality => Err(invalid_argument!(
            "Function invocation produced OutOfRangeError: {}",
            error.message()
        )),
        Code::OutOfRange => Ok(None),
        _ => Err(error),
    }
}

/// Calls `function` on elements; results have `n` components.
fn element_function(function: CapturedFunction, n: usize, keeps_cardinality: bool) -> Element {
    Arc::new(move |element, services| {
        let made = match function.call(element, services) {
            Ok(made) => made,
            Err(error) => return end_or_error(error, keeps_cardinality),
        };
        match made.len() == n {
            true => Ok(Some(made)),
            false => Err(invalid_argument!(
                "the function returns {} tensors, but the dataset's elements have {n}",
                made.len()
            )),
        }
    })
}

fn map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    let keeps = flag_attr(build, "preserve_cardinality");
    make(build, move |ctx, spec| {
        let function = function(ctx, &name, components(ctx, 1)?)?;
        Ok(Arc::new(Map {
            input: dataset(ctx, 0)?,
            function: element_function(function, spec.dtypes.len(), keeps),
            calls: Calls::One,
            keeps_cardinality: keeps,
        }))
    })
}

fn parallel_map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    let keeps = flag_attr(build, "preserve_cardinality");
    make(build, move |ctx, spec| {
        let last = ctx.num_inputs() - 1;
        let function = function(ctx, &name, some(ctx, 1, last)?)?;
        Ok(Arc::new(Map {
            input: dataset(ctx, 0)?,
            function: element_function(function, spec.dtypes.len(), keeps),
            calls: Calls::Many(parallel_calls(ctx, last)?),
            keeps_cardinality: keeps,
        }))
    })
}

fn map_and_batch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    let keeps = flag_attr(build, "preserve_cardinality");
    let n = n_of(build, "Targuments")?;
    make(build, move |ctx, spec| {
        let function = function(ctx, &name, some(ctx, 1, 1 + n)?)?;
        let problem = "batch_size must be greater than zero.";
        let size = positive(ctx, 1 + n, "batch_size", problem)?;
        let calls = Calls::Many(parallel_calls(ctx, 2 + n)?);
        let drops_remainder = flag(ctx, 3 + n, "drop_remainder")?;
        let map = Map {
            input: dataset(ctx, 0)?,
            function: element_function(function, spec.dtypes.len(), keeps),
            calls,
            keeps_cardinality: keeps,
        };
        let mapped = within(Arc::new(map), spec);
        Ok(stacked(mapped, spec.dtypes.clone(), size, drops_remainder))
    })
}

/// Returns a dataset that is part of another one.
pub(crate) fn within(source: Arc<dyn Source>, spec: &Spec) -> Arc<Dataset> {
    spec.dataset(source, DatasetNode::default())
}

impl Source for Map {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let input = self.input.iterator()?;
        Ok(match self.calls {
            Calls::One => Box::new(MapIterator {
                inner: Some(input),
                source: self,
            }),
            Calls::Many(n) => Box::new(InOrder::new(input, self.function.clone(), n)),
        })
    }

    fn cardinality(&self) -> i64 {
        match self.keeps_cardinality {
            true => self.input.cardinality(),
            false => UNKNOWN,
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        match self.input.source.get(index, services)? {
            Some(element) => (self.function)(element, services),
            None => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for MapIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        match next_of(&mut self.inner, services)? {
            Some(element) => (self.source.function)(element, services),
            None => Ok(None),
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Filter {
    input: Arc<Dataset>,
    predicate: CapturedFunction,
    calls: Calls,
}

struct FilterIterator {
    source: Arc<Filter>,
    inner: Input,
}

/// Elements with the predicate's answer behind them.
struct JudgedIterator(InOrder);

fn filter(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "predicate")?;
    make(build, move |ctx, _| {
        Ok(Arc::new(Filter {
            input: dataset(ctx, 0)?,
            predicate: function(ctx, &name, components(ctx, 1)?)?,
            calls: Calls::One,
        }))
    })
}

fn parallel_filter(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "predicate")?;
    make(build, move |ctx, _| {
        let last = ctx.num_inputs() - 1;
        Ok(Arc::new(Filter {
            input: dataset(ctx, 0)?,
            predicate: function(ctx, &name, some(ctx, 1, last)?)?,
            calls: Calls::Many(parallel_calls(ctx, last)?),
        }))
    })
}

impl Source for Filter {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let input = self.input.iterator()?;
        let Calls::Many(n) = self.calls else {
            return Ok(Box::new(FilterIterator {
                inner: Some(input),
                source: self,
            }));
        };
        let predicate = self.predicate.clone();
        let judge = move |mut element: Components, services: &StepServices| {
            let holds = predicate.holds(&element, NOT_BOOL, services)?;
            element.push(Tensor::scalar(holds));
            Ok(Some(element))
        };
        let judged = InOrder::new(input, Arc::new(judge), n);
        Ok(Box::new(JudgedIterator(judged)))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for FilterIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(element) = next_of(&mut self.inner, services)? {
            if self.source.predicate.holds(&element, NOT_BOOL, services)? {
                return Ok(Some(element));
            }
            services.cancel.check()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.input)
    }
}

impl DatasetIterator for JudgedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(mut element) = self.0.next(services)? {
            let holds = element.pop().map(|t| t.to_scalar::<bool>()).transpose()?;
            if holds == Some(true) {
                return Ok(Some(element));
            }
            services.cancel.check()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        self.0.state(state)
    }
}

struct TakeWhile {
    input: Arc<Dataset>,
    predicate: CapturedFunction,
}

struct TakeWhileIterator {
    source: Arc<TakeWhile>,
    inner: Input,
}

fn take_while(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "predicate")?;
    make(build, move |ctx, _| {
        Ok(Arc::new(TakeWhile {
            input: dataset(ctx, 0)?,
            predicate: function(ctx, &name, components(ctx, 1)?)?,
        }))
    })
}

impl Source for TakeWhile {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(TakeWhileIterator {
            inner: Some(self.input.iterator()?),
            source: self,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for TakeWhileIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let Some(element) = next_of(&mut self.inner, services)? else {
            return Ok(None);
        };
        let problem = "`predicate` must returns a scalar bool tensor.";
        if self.source.predicate.holds(&element, problem, services)? {
            return Ok(Some(element));
        }
        self.inner = None;
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Scan {
    input: Arc<Dataset>,
    function: CapturedFunction,
    initial: Components,
    types: Spec,
    keeps_cardinality: bool,
}

struct ScanIterator {
    source: Arc<Scan>,
    inner: Input,
    carried: Components,
}

fn scan(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    let keeps_cardinality = flag_attr(build, "preserve_cardinality");
    let n = n_of(build, "Tstate")?;
    make(build, move |ctx: &KernelCtx, spec| {
        Ok(Arc::new(Scan {
            input: dataset(ctx, 0)?,
            function: function(ctx, &name, components(ctx, 1 + n)?)?,
            initial: some(ctx, 1, 1 + n)?,
            types: spec.clone(),
            keeps_cardinality,
        }))
    })
}

impl Source for Scan {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ScanIterator {
            inner: Some(self.input.iterator()?),
            carried: self.initial.clone(),
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.keeps_cardinality {
            true => self.input.cardinality(),
            false => UNKNOWN,
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for ScanIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let Some(element) = next_of(&mut self.inner, services)? else {
            return Ok(None);
        };
        let mut args = self.carried.clone();
        args.extend(element);
        let source = &self.source;
        let mut made = match source.function.call(args, services) {
            Ok(made) => made,
            Err(error) => return end_or_error(error, source.keeps_cardinality),
        };
        let n = self.carried.len();
        if made.len() != n + source.types.dtypes.len() {
            return Err(invalid_argument!(
                "scan_func returns {} tensors, expected {n} of the state and {} of the element",
                made.len(),
                source.types.dtypes.len()
            ));
        }
        let result = made.split_off(n);
        let wrong = |i: usize, expected: DType, got: DType| {
            invalid_argument!(
                "Got wrong type for scan_func return value {i} (expected {expected}, got {got})."
            )
        };
        for (i, (was, now)) in self.carried.iter().zip(&made).enumerate() {
            if was.dtype() != now.dtype() {
                return Err(wrong(i, was.dtype(), now.dtype()));
            }
        }
        let types = source.types.dtypes.iter().zip(&source.types.shapes);
        for (i, (t, (&dtype, shape))) in result.iter().zip(types).enumerate() {
            if t.dtype() != dtype {
                return Err(wrong(n + i, dtype, t.dtype()));
            }
            if !shape.matches(t.shape()) {
                return Err(invalid_argument!(
                    "Got wrong shape for scan_func return value {} (expected {shape}, got {}).",
                    n + i,
                    t.shape()
                ));
            }
        }
        self.carried = made;
        Ok(Some(result))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.element(&mut self.carried)?;
        state.input(&mut self.inner, &self.source.input)
    }
}
