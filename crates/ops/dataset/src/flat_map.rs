//! Datasets of elements in turn: FlatMapDataset, InterleaveDataset, ParallelInterleaveDataset and its
//! versions (TensorFlow: `core/kernels/data/{flat_map,interleave,parallel_interleave}_dataset_op.cc`).

use crate::common::{
    Input, Made, components, dataset, function, function_name, make, n_of, next_of, number, some,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, INFINITE, Prefetch, Source, State,
    UNKNOWN, returned_dataset,
};
use ferroflow_sync::Pool;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FlatMapDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | f: \
         func; Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(flat_map),
    Op::new(
        "InterleaveDataset",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64 -> handle: variant | f: func; Targuments: list(type) >= 0; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         ''",
    )
    .shape(shapes::scalar)
    .kernel(interleave),
    Op::new(
        "ParallelInterleaveDataset",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, sloppy: bool, buffer_output_elements: int64, \
         prefetch_input_elements: int64 -> handle: variant | f: func; Targuments: list(type) \
         >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: \
         string = ''",
    )
    .shape(shapes::scalar)
    .kernel(legacy_parallel_interleave),
    Op::new(
        "ExperimentalParallelInterleaveDataset",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, sloppy: bool, buffer_output_elements: int64, \
         prefetch_input_elements: int64 -> handle: variant | f: func; Targuments: list(type) \
         >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(legacy_parallel_interleave),
    Op::new(
        "LegacyParallelInterleaveDatasetV2",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, buffer_output_elements: int64, prefetch_input_elements: int64 \
         -> handle: variant | f: func; deterministic: string = 'default'; Targuments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(legacy_parallel_interleave_v2),
    Op::new(
        "ParallelInterleaveDatasetV2",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, num_parallel_calls: int64 -> handle: variant | f: func; \
         Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; sloppy: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_interleave),
    Op::new(
        "ParallelInterleaveDatasetV3",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, num_parallel_calls: int64 -> handle: variant | f: func; \
         deterministic: string = 'default'; Targuments: list(type) >= 0; output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_interleave),
    Op::new(
        "ParallelInterleaveDatasetV4",
        "input_dataset: variant, other_arguments: list(Targuments), cycle_length: int64, \
         block_length: int64, buffer_output_elements: int64, prefetch_input_elements: int64, \
         num_parallel_calls: int64 -> handle: variant | f: func; deterministic: string = \
         'default'; Targuments: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_interleave_v4),
];

/// Elements that the iterator of one dataset computes ahead, if the program leaves it open.
const AHEAD: usize = 16;

/// A dataset, and the position in it.
type Nested = Option<(Arc<Dataset>, Box<dyn DatasetIterator>)>;

struct FlatMap {
    input: Arc<Dataset>,
    function: CapturedFunction,
}

struct FlatMapIterator {
    source: Arc<FlatMap>,
    inner: Input,
    current: Nested,
}

fn flat_map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = function_name(build, "f")?;
    make(build, move |ctx, _| {
        Ok(Arc::new(FlatMap {
            input: dataset(ctx, 0)?,
            function: function(ctx, &name, components(ctx, 1)?)?,
        }))
    })
}

impl Source for FlatMap {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(FlatMapIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            current: None,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for FlatMapIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if let Some((_, iterator)) = &mut self.current {
                if let Some(element) = iterator.next(services)? {
                    return Ok(Some(element));
                }
                self.current = None;
            }
            services.cancel.check()?;
            let Some(element) = next_of(&mut self.inner, services)? else {
                return Ok(None);
            };
            let results = self.source.function.call(element, services)?;
            let dataset = returned_dataset(&results)?;
            let iterator = dataset.iterator()?;
            self.current = Some((dataset, iterator));
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.nested(&mut self.current)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Interleave {
    input: Arc<Dataset>,
    function: CapturedFunction,
    cycle: usize,
    block: usize,
    /// Elements of each dataset that are computed ahead; 0 for none.
    ahead: usize,
    /// Whether an input without end is known to give a dataset without end.
    is_endless: bool,
}

struct InterleaveIterator {
    source: Arc<Interleave>,
    inner: Input,
    /// The open datasets, in the order of the cycle; grows up to its length.
    slots: Vec<Nested>,
    at: usize,
    /// Elements taken from the current dataset since its turn began.
    in_block: usize,
}

/// Returns the length of a cycle; -1 leaves it to the engine.
fn cycle_length(ctx: &KernelCtx, i: usize, problem: &str) -> Result<usize> {
    match number(ctx, i, "cycle_length")? {
        -1 => Ok(Pool::available_threads()),
        n => {
            let n = usize::try_from(n).ok().filter(|&n| n > 0);
            n.ok_or_else(|| invalid_argument!("{problem}"))
        }
    }
}

/// Returns a number of elements; -1 leaves it to the engine.
fn elements(ctx: &KernelCtx, i: usize, name: &str, least: i64, open: usize) -> Result<usize> {
    match number(ctx, i, name)? {
        -1 => Ok(open),
        n if n < least => Err(invalid_argument!(
            "`{name}` must be `tf.data.AUTOTUNE` or {} but is {n}",
            if least == 0 { ">= 0" } else { "> 0" }
        )),
        n => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
    }
}

fn interleave(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (name, n) = (function_name(build, "f")?, n_of(build, "Targuments")?);
    make(build, move |ctx, _| {
        let problem = "cycle_length must be greater than zero.";
        let cycle = cycle_length(ctx, 1 + n, problem)?;
        let block = number(ctx, 2 + n, "block_length")?;
        let block = usize::try_from(block)
            .ok()
            .filter(|&b| b > 0)
            .ok_or_else(|| invalid_argument!("block_length must be greater than zero."))?;
        Ok(Arc::new(Interleave {
            input: dataset(ctx, 0)?,
            function: function(ctx, &name, some(ctx, 1, 1 + n)?)?,
            cycle,
            block,
            ahead: 0,
            is_endless: false,
        }))
    })
}

fn legacy_parallel_interleave(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    legacy(build, true)
}

fn legacy_parallel_interleave_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    legacy(build, false)
}

fn legacy(build: &KernelBuild, has_sloppy: bool) -> Result<Box<dyn OpKernel>> {
    let (name, n) = (function_name(build, "f")?, n_of(build, "Targuments")?);
    make(build, move |ctx, _| {
        let above = |i, name: &str, least: i64| {
            let value = number(ctx, i, name)?;
            match usize::try_from(value) {
                Ok(size) if value >= least => Ok(size),
                _ => {
                    let sign = if least == 0 { ">=" } else { ">" };
                    Err(invalid_argument!("`{name}` must be {sign} 0"))
                }
            }
        };
        let cycle = above(1 + n, "cycle_length", 1)?;
        let block = above(2 + n, "block_length", 1)?;
        let next = 3 + n + usize::from(has_sloppy);
        let ahead = above(next, "buffer_output_elements", 1)?;
        above(next + 1, "prefetch_input_elements", 0)?;
        Ok(Arc::new(Interleave {
            input: dataset(ctx, 0)?,
            function: function(ctx, &name, some(ctx, 1, 1 + n)?)?,
            cycle,
            block,
            ahead,
            is_endless: false,
        }))
    })
}

fn parallel_interleave(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (name, n) = (function_name(build, "f")?, n_of(build, "Targuments")?);
    make(build, move |ctx, _| parallel(ctx, &name, n, AHEAD, 3 + n))
}

fn parallel_interleave_v4(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (name, n) = (function_name(build, "f")?, n_of(build, "Targuments")?);
    make(build, move |ctx, _| {
        let ahead = elements(ctx, 3 + n, "buffer_output_elements", 1, AHEAD)?;
        elements(ctx, 4 + n, "prefetch_input_elements", 0, 0)?;
        parallel(ctx, &name, n, ahead, 5 + n)
    })
}

/// Returns the source of an op whose number of calls is in input `calls`.
fn parallel(ctx: &KernelCtx, name: &str, n: usize, ahead: usize, calls: usize) -> Made {
    let block = number(ctx, 2 + n, "block_length")?;
    let block = usize::try_from(block).ok().filter(|&b| b > 0);
    let block = block.ok_or_else(|| invalid_argument!("`block_length` must be > 0"))?;
    let n_calls = number(ctx, calls, "num_parallel_calls")?;
    if n_calls < 1 && n_calls != -1 {
        return Err(invalid_argument!(
            "num_parallel_calls must be greater than zero."
        ));
    }
    let wanted = number(ctx, 1 + n, "cycle_length")?;
    let problem =
        format!("`cycle_length` must be `tf.data.AUTOTUNE` or greater than 0 but is {wanted}");
    let cycle = cycle_length(ctx, 1 + n, &problem)?;
    if wanted != -1 && n_calls > wanted {
        return Err(invalid_argument!(
            "If `cycle_length` is set to a fixed value, `num_parallel_calls` must be either \
             `tf.data.AUTOTUNE` or a value less than or equal to `cycle_length`. However, \
             `num_parallel_calls` is {n_calls} and `cycle_length` is {wanted}"
        ));
    }
    Ok(Arc::new(Interleave {
        input: dataset(ctx, 0)?,
        function: function(ctx, name, some(ctx, 1, 1 + n)?)?,
        cycle,
        block,
        ahead,
        is_endless: true,
    }))
}

impl Source for Interleave {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(InterleaveIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            slots: Vec::new(),
            at: 0,
            in_block: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.input.cardinality() {
            INFINITE if self.is_endless => INFINITE,
            _ => UNKNOWN,
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl Interleave {
    /// Returns an iterator over a dataset of the cycle.
    fn open(
        &self,
        dataset: &Dataset,
        services: Option<&StepServices>,
    ) -> Result<Box<dyn DatasetIterator>> {
        let iterator = dataset.iterator()?;
        if self.ahead == 0 {
            return Ok(iterator);
        }
        let prefetch = Prefetch::new(iterator, self.ahead);
        if let Some(services) = services {
            prefetch.start(services);
        }
        Ok(Box::new(prefetch))
    }
}

impl InterleaveIterator {
    /// Returns the dataset of the next input element; `None` at the end of the input.
    fn following(&mut self, services: &StepServices) -> Result<Nested> {
        let Some(element) = next_of(&mut self.inner, services)? else {
            return Ok(None);
        };
        let results = self.source.function.call(element, services)?;
        let dataset = returned_dataset(&results)?;
        let iterator = self.source.open(&dataset, Some(services))?;
        Ok(Some((dataset, iterator)))
    }

    /// Opens as many datasets as the cycle has, so that all of them are computed ahead.
    fn open_all(&mut self, services: &StepServices) -> Result<()> {
        while self.slots.len() < self.source.cycle
            && let Some(nested) = self.following(services)?
        {
            self.slots.push(Some(nested));
        }
        Ok(())
    }

    fn advance(&mut self) {
        self.in_block = 0;
        self.at = (self.at + 1) % self.source.cycle;
        if self.inner.is_none() && self.at >= self.slots.len() {
            self.at = 0;
        }
    }
}

impl DatasetIterator for InterleaveIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        if self.source.ahead > 0 {
            self.open_all(services)?;
        }
        while self.inner.is_some() || self.slots.iter().any(Option::is_some) {
            if let Some(Some((_, iterator))) = self.slots.get_mut(self.at) {
                if let Some(element) = iterator.next(services)? {
                    self.in_block += 1;
                    if self.in_block >= self.source.block {
                        self.advance();
                    }
                    return Ok(Some(element));
                }
                self.slots[self.at] = match self.source.ahead {
                    0 => None,
                    _ => self.following(services)?,
                };
                self.advance();
            } else if self.inner.is_some() {
                if let Some(nested) = self.following(services)? {
                    match self.slots.get_mut(self.at) {
                        Some(slot) => *slot = Some(nested),
                        None => self.slots.push(Some(nested)),
                    }
                }
            } else {
                self.advance();
            }
            services.cancel.check()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        state.size(&mut self.in_block)?;
        let source = self.source.clone();
        state.list(&mut self.slots, |state, nested| {
            let mut dataset = nested.as_ref().map(|(dataset, _)| dataset.clone());
            state.dataset(&mut dataset)?;
            if state.is_restoring() {
                *nested = match dataset {
                    Some(dataset) => {
                        let iterator = source.open(&dataset, None)?;
                        Some((dataset, iterator))
                    }
                    None => None,
                };
            }
            match nested {
                Some((_, iterator)) => iterator.state(state),
                None => Ok(()),
            }
        })?;
        if self.at > self.slots.len() || self.slots.len() > source.cycle {
            return Err(invalid_argument!(
                "The saved iterator state does not fit the cycle length {}.",
                source.cycle
            ));
        }
        state.input(&mut self.inner, &source.input)
    }
}
