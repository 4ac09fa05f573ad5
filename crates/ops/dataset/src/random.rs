//! Random elements and choices: RandomDataset, SamplingDataset, DirectedInterleaveDataset
//! (TensorFlow: `core/kernels/data/{random,sampling,directed_interleave}_dataset_op.cc`).

use crate::common::{Input, dataset, flag_attr, make, next_of, number};
use crate::seeds::{Random, SeedGenerator, seeds_or_fresh};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, INFINITE, Source, State, UNKNOWN,
};
use ferroflow_tensor::{DType, Tensor};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RandomDataset",
        "seed: int64, seed2: int64 -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(random),
    Op::new(
        "ExperimentalRandomDataset",
        "seed: int64, seed2: int64 -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(random),
    Op::new(
        "RandomDatasetV2",
        "seed: int64, seed2: int64, seed_generator: resource -> handle: variant | \
         rerandomize_each_iteration: bool = false; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(random_v2),
    Op::new(
        "SamplingDataset",
        "input_dataset: variant, rate: float, seed: int64, seed2: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(sampling),
    Op::new(
        "DirectedInterleaveDataset",
        "selector_input_dataset: variant, data_input_datasets: N*variant -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; N: int >= 1; \
         stop_on_empty_dataset: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(directed_interleave),
    Op::new(
        "ExperimentalDirectedInterleaveDataset",
        "selector_input_dataset: variant, data_input_datasets: N*variant -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; N: int >= 1",
    )
    .shape(shapes::scalar)
    .kernel(directed_interleave),
];

struct RandomNumbers(Arc<SeedGenerator>);

struct RandomIterator {
    source: Arc<RandomNumbers>,
    random: Random,
}

fn random(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let (seed, seed2) = (number(ctx, 0, "seed")?, number(ctx, 1, "seed2")?);
        let seeds = SeedGenerator::new(seed, seed2, false);
        Ok(Arc::new(RandomNumbers(Arc::new(seeds))))
    })
}

fn random_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let changes = flag_attr(build, "rerandomize_each_iteration");
    make(build, move |ctx, _| {
        let (seed, seed2) = (number(ctx, 0, "seed")?, number(ctx, 1, "seed2")?);
        let seeds = match SeedGenerator::input(ctx, 2)? {
            Some(found) => found,
            None => Arc::new(SeedGenerator::new(seed, seed2, changes)),
        };
        Ok(Arc::new(RandomNumbers(seeds)))
    })
}

impl Source for RandomNumbers {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(RandomIterator {
            random: Random::new(self.0.generate()),
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        INFINITE
    }
}

impl DatasetIterator for RandomIterator {
    fn next(&mut self, _: &StepServices) -> Result<Option<Components>> {
        Ok(Some(vec![Tensor::scalar(i64::from(self.random.next()))]))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        self.source.0.state(state)?;
        self.random.state(state)
    }
}

struct Sampling {
    input: Arc<Dataset>,
    rate: f32,
    seeds: (i64, i64),
}

struct SamplingIterator {
    source: Arc<Sampling>,
    inner: Input,
    random: Random,
}

fn sampling(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let rate = ctx.input(1)?;
        if !rate.shape().is_scalar() {
            return Err(invalid_argument!("rate must be a scalar"));
        }
        let (seed, seed2) = (number(ctx, 2, "seed")?, number(ctx, 3, "seed2")?);
        Ok(Arc::new(Sampling {
            input: dataset(ctx, 0)?,
            rate: rate.to_scalar()?,
            seeds: seeds_or_fresh(seed, seed2),
        }))
    })
}

impl Source for Sampling {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(SamplingIterator {
            inner: Some(self.input.iterator()?),
            random: Random::new(self.seeds),
            source: self,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for SamplingIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(element) = next_of(&mut self.inner, services)? {
            // The upper 23 bits as the fraction of a number from 1 to before 2.
            let bits = (127u32 << 23) | (self.random.next() & 0x7f_ffff);
            if f32::from_bits(bits) - 1.0 < self.source.rate {
                return Ok(Some(element));
            }
            services.cancel.check()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        self.random.state(state)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct DirectedInterleave {
    selector: Arc<Dataset>,
    inputs: Vec<Arc<Dataset>>,
    stops_on_empty: bool,
}

struct DirectedIterator {
    source: Arc<DirectedInterleave>,
    selector: Input,
    inner: Vec<Input>,
}

fn directed_interleave(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let stops_on_empty = flag_attr(build, "stop_on_empty_dataset");
    make(build, move |ctx, _| {
        let selector = dataset(ctx, 0)?;
        let is_scalar = |d: &Dataset| matches!(&d.shapes[..], [shape] if shape.rank().is_none_or(|rank| rank == 0));
        if selector.dtypes != [DType::Int64] || !is_scalar(&selector) {
            return Err(invalid_argument!(
                "The selector input must be a dataset of scalar int64 elements."
            ));
        }
        let inputs = (1..ctx.num_inputs()).map(|i| dataset(ctx, i));
        let inputs: Vec<Arc<Dataset>> = inputs.collect::<Result<_>>()?;
        let first = inputs.first().map(|d| &d.dtypes);
        for (i, input) in inputs.iter().enumerate() {
            if let Some(first) = first.filter(|first| **first != input.dtypes) {
                let list = |dtypes: &[DType]| ferroflow_functors::indices::list(dtypes);
                return Err(invalid_argument!(
                    "All inputs must have the same output_dtypes. First input has types {}, and \
                     input {i} has types {}",
                    list(first),
                    list(&input.dtypes)
                ));
            }
        }
        Ok(Arc::new(DirectedInterleave {
            selector,
            inputs,
            stops_on_empty,
        }))
    })
}

impl Source for DirectedInterleave {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let inner = self.inputs.iter().map(|d| d.iterator().map(Some));
        Ok(Box::new(DirectedIterator {
            selector: Some(self.selector.iterator()?),
            inner: inner.collect::<Result<_>>()?,
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        // As in TensorFlow: known only where all inputs are alike without end, or empty ones stop.
        let all: Vec<i64> = self.inputs.iter().map(|d| d.cardinality()).collect();
        match self.selector.cardinality() {
            INFINITE if all.iter().all(|&n| n == INFINITE) => INFINITE,
            _ => UNKNOWN,
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        let selector = std::iter::once(self.selector.clone());
        selector.chain(self.inputs.iter().cloned()).collect()
    }
}

impl DatasetIterator for DirectedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(selected) = next_of(&mut self.selector, services)? {
            let n = self.inner.len();
            let i = match selected.first() {
                Some(t) => t.to_scalar::<i64>()?,
                None => -1,
            };
            let chosen = usize::try_from(i).ok();
            let chosen = chosen.and_then(|i| self.inner.get_mut(i));
            let Some(input) = chosen else {
                return Err(invalid_argument!("Selector index out of range: {i} >= {n}"));
            };
            if input.is_some() {
                if let Some(element) = next_of(input, services)? {
                    return Ok(Some(element));
                }
                if self.source.stops_on_empty || self.inner.iter().all(Option::is_none) {
                    self.selector = None;
                }
            }
            services.cancel.check()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.selector, &self.source.selector)?;
        for (input, dataset) in self.inner.iter_mut().zip(&self.source.inputs) {
            state.input(input, dataset)?;
        }
        Ok(())
    }
}
