//! Elements in random order: ShuffleDataset, ShuffleAndRepeatDataset and their versions (TensorFlow:
//! `core/kernels/data/shuffle_dataset_op.cc`, whose order for a seed this is).

use crate::common::{Input, dataset, flag_attr, make, next_of, number};
use crate::seeds::{Random, SeedGenerator};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, INFINITE, Source, State, UNKNOWN,
};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ShuffleDataset",
        "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64 -> handle: \
         variant | reshuffle_each_iteration: bool = true; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(shuffle),
    Op::new(
        "ShuffleDatasetV2",
        "input_dataset: variant, buffer_size: int64, seed_generator: resource -> handle: \
         variant | output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: \
         string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(shuffle_v2),
    Op::new(
        "ShuffleDatasetV3",
        "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64, \
         seed_generator: resource -> handle: variant | reshuffle_each_iteration: bool = true; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(shuffle_v3),
    Op::new(
        "ShuffleAndRepeatDataset",
        "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64, count: int64 \
         -> handle: variant | output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         reshuffle_each_iteration: bool = true; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(shuffle_and_repeat),
    Op::new(
        "ShuffleAndRepeatDatasetV2",
        "input_dataset: variant, buffer_size: int64, seed: int64, seed2: int64, count: int64, \
         seed_generator: resource -> handle: variant | reshuffle_each_iteration: bool = true; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(shuffle_and_repeat_v2),
];

/// Rounds that the buffer may span.
const MAX_ROUNDS_IN_BUFFER: usize = 3;

struct Shuffle {
    input: Arc<Dataset>,
    /// Elements to choose from; `None` is all of them.
    size: Option<usize>,
    seeds: Arc<SeedGenerator>,
    /// Rounds over the input; `None` is without end.
    count: Option<u64>,
    /// The order of random access.
    order: OnceLock<Vec<u64>>,
}

/// A part of the buffer, from one round. Positions count on beyond the buffer's size.
#[derive(Default)]
struct Slice {
    start: usize,
    end: usize,
    is_complete: bool,
}

struct ShuffleIterator {
    source: Arc<Shuffle>,
    inner: Input,
    buffer: Vec<Components>,
    n_elements: usize,
    slices: VecDeque<Slice>,
    round: u64,
    random: Random,
    has_produced: bool,
}

fn source(
    ctx: &KernelCtx,
    count: Option<u64>,
    seeds: impl FnOnce() -> Result<Arc<SeedGenerator>>,
) -> Result<Arc<Shuffle>> {
    let size = match number(ctx, 1, "buffer_size")? {
        UNKNOWN => None,
        n => match usize::try_from(n) {
            Ok(n) if n > 0 => Some(n),
            _ => {
                return Err(invalid_argument!(
                    "buffer_size must be greater than zero or UNKNOWN_CARDINALITY"
                ));
            }
        },
    };
    Ok(Arc::new(Shuffle {
        input: dataset(ctx, 0)?,
        size,
        seeds: seeds()?,
        count,
        order: OnceLock::new(),
    }))
}

fn seeds_of(ctx: &KernelCtx, reshuffles: bool) -> Result<Arc<SeedGenerator>> {
    let (seed, seed2) = (number(ctx, 2, "seed")?, number(ctx, 3, "seed2")?);
    Ok(Arc::new(SeedGenerator::new(seed, seed2, reshuffles)))
}

fn shuffle(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let reshuffles = flag_attr(build, "reshuffle_each_iteration");
    make(build, move |ctx, _| {
        Ok(source(ctx, Some(1), || seeds_of(ctx, reshuffles))?)
    })
}

fn shuffle_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let seeds = || {
            let found = SeedGenerator::input(ctx, 2)?;
            Ok(found.unwrap_or_else(|| Arc::new(SeedGenerator::new(0, 0, true))))
        };
        Ok(source(ctx, Some(1), seeds)?)
    })
}

fn shuffle_v3(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let reshuffles = flag_attr(build, "reshuffle_each_iteration");
    make(build, move |ctx, _| {
        let seeds = || match SeedGenerator::input(ctx, 4)? {
            Some(found) => Ok(found),
            None => seeds_of(ctx, reshuffles),
        };
        Ok(source(ctx, Some(1), seeds)?)
    })
}

fn rounds(ctx: &KernelCtx) -> Result<Option<u64>> {
    match number(ctx, 4, "count")? {
        -1 => Ok(None),
        n if n > 0 => Ok(Some(n as u64)),
        _ => Err(invalid_argument!(
            "count must be greater than zero or equal to -1."
        )),
    }
}

fn shuffle_and_repeat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let reshuffles = flag_attr(build, "reshuffle_each_iteration");
    make(build, move |ctx, _| {
        Ok(source(ctx, rounds(ctx)?, || seeds_of(ctx, reshuffles))?)
    })
}

fn shuffle_and_repeat_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let reshuffles = flag_attr(build, "reshuffle_each_iteration");
    make(build, move |ctx, _| {
        let seeds = || match SeedGenerator::input(ctx, 5)? {
            Some(found) => Ok(found),
            None => seeds_of(ctx, reshuffles),
        };
        Ok(source(ctx, rounds(ctx)?, seeds)?)
    })
}

impl Source for Shuffle {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ShuffleIterator {
            random: Random::new(self.seeds.generate()),
            source: self,
            inner: None,
            buffer: Vec::new(),
            n_elements: 0,
            slices: VecDeque::new(),
            round: 0,
            has_produced: false,
        }))
    }

    fn cardinality(&self) -> i64 {
        match (self.count, self.input.cardinality()) {
            (None, _) | (_, INFINITE) => INFINITE,
            (_, UNKNOWN) => UNKNOWN,
            (Some(count), n) => n.saturating_mul(i64::try_from(count).unwrap_or(i64::MAX)),
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        let order = self.order.get_or_init(|| {
            let n = u64::try_from(self.cardinality()).unwrap_or(0);
            let mut order: Vec<u64> = (0..n).collect();
            let mut random = Random::new(self.seeds.seeds());
            for i in 0..order.len() {
                let offset = random.next() as usize % (order.len() - i);
                order.swap(i, i + offset);
            }
            order
        });
        match usize::try_from(index).ok().and_then(|i| order.get(i)) {
            Some(&at) => self.input.source.get(at, services),
            None => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl ShuffleIterator {
    /// The size of the buffer: as far as it has grown, if it takes all elements.
    fn capacity(&self) -> usize {
        self.source.size.unwrap_or(self.buffer.len())
    }

    fn wants_more(&self) -> bool {
        let is_last = self.source.count.is_some_and(|count| self.round >= count);
        if self.inner.is_none() && is_last {
            return false;
        }
        if self.slices.len() > MAX_ROUNDS_IN_BUFFER && self.n_elements > 0 {
            return false;
        }
        let serving = self.slices.iter().find(|slice| slice.start != slice.end);
        let is_complete = serving.is_some_and(|slice| slice.is_complete);
        if self.source.size.is_none() && (self.slices.is_empty() || !is_complete) {
            return true;
        }
        self.n_elements < self.capacity()
    }

    fn fill(&mut self, services: &StepServices) -> Result<()> {
        while self.wants_more() {
            services.cancel.check()?;
            if self.inner.is_none() {
                let end = self.slices.back().map_or(0, |slice| slice.end);
                self.slices.push_back(Slice {
                    start: end,
                    end,
                    is_complete: false,
                });
                self.inner = Some(self.source.input.iterator()?);
                self.round += 1;
            }
            match next_of(&mut self.inner, services)? {
                Some(element) => self.add(element),
                None => {
                    if let Some(slice) = self.slices.back_mut() {
                        slice.is_complete = true;
                    }
                    // Repeating an empty dataset forever ends.
                    if !self.has_produced && self.source.count.is_none() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, element: Components) {
        self.has_produced = true;
        let end = self.slices.back().map_or(0, |slice| slice.end);
        // A buffer of fixed size grows until the first element is replaced.
        let at = match self.source.size {
            Some(size) => end % size,
            None if self.n_elements == self.buffer.len() => self.buffer.len(),
            None => end % self.buffer.len(),
        };
        match self.buffer.get_mut(at) {
            Some(slot) => *slot = element,
            None => self.buffer.push(element),
        }
        self.n_elements += 1;
        if let Some(slice) = self.slices.back_mut() {
            slice.end += 1;
        }
    }
}

impl DatasetIterator for ShuffleIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        self.fill(services)?;
        if self.n_elements == 0 {
            return Ok(None);
        }
        while self.slices.front().is_some_and(|s| s.start == s.end) {
            self.slices.pop_front();
            self.random = Random::new(self.source.seeds.generate());
        }
        let capacity = self.capacity();
        let Some(slice) = self.slices.front_mut() else {
            return Ok(None);
        };
        let offset = self.random.next() as usize % (slice.end - slice.start);
        let (chosen, first) = ((slice.start + offset) % capacity, slice.start % capacity);
        slice.start += 1;
        self.n_elements -= 1;
        self.buffer.swap(chosen, first);
        Ok(self.buffer.get_mut(first).map(std::mem::take))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        self.source.seeds.state(state)?;
        self.random.state(state)?;
        state.input(&mut self.inner, &self.source.input)?;
        state.uint(&mut self.round)?;
        state.size(&mut self.n_elements)?;
        state.elements(&mut self.buffer)?;
        let mut slices: Vec<Slice> = std::mem::take(&mut self.slices).into();
        let visited = state.list(&mut slices, |state, slice| {
            state.size(&mut slice.start)?;
            state.size(&mut slice.end)?;
            state.flag(&mut slice.is_complete)
        });
        let n: usize = slices.iter().map(|s| s.end.saturating_sub(s.start)).sum();
        self.slices = slices.into();
        visited?;
        if n != self.n_elements || n > self.buffer.len() {
            return Err(invalid_argument!(
                "The saved iterator state does not fit the shuffle buffer."
            ));
        }
        state.flag(&mut self.has_produced)
    }
}
