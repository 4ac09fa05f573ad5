//! GlobalShuffleDataset and DatasetFingerprint (TensorFlow:
//! `core/kernels/data/experimental/global_shuffle_dataset_op.cc`, `core/kernels/data/dataset_ops.cc`).

use crate::common::{dataset, flag_attr, is_any, make, number};
use crate::fingerprint::fingerprint;
use crate::seeds::SeedGenerator;
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::index_shuffle::place;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Source, State};
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GlobalShuffleDataset",
        "input_dataset: variant, seed: int64, seed2: int64, seed_generator: resource -> handle: \
         variant | reshuffle_each_iteration: bool = true; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(global_shuffle),
    Op::new(
        "DatasetFingerprint",
        "input_dataset: variant -> fingerprint: uint64 |  |",
    )
    .shape(shapes::scalar)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let number = fingerprint(&*dataset(ctx, 0)?)?;
            ctx.set_output(0, Tensor::scalar(number))
        }))
    }),
];

/// Rounds of the permutation.
const ROUNDS: usize = 8;

struct GlobalShuffle {
    input: Arc<Dataset>,
    seeds: Arc<SeedGenerator>,
}

struct ShuffleIterator {
    source: Arc<GlobalShuffle>,
    key: [u64; 3],
    at: u64,
}

/// Datasets that find an element by its index, whatever was read before.
const INDEXED: &[&str] = &[
    "AssertCardinality",
    "AutoShard",
    "Batch",
    "Cache",
    "Concatenate",
    "GlobalShuffle",
    "IndexFlatMap",
    "List",
    "Map",
    "Options",
    "ParallelMap",
    "Prefetch",
    "Range",
    "Repeat",
    "Shard",
    "Skip",
    "Take",
    "Tensor",
    "TensorSlice",
    "WeightedFlatMap",
    "Zip",
];

/// Returns the kind of a dataset that a dataset reads and that is not indexed, if any.
fn without_indices(dataset: &Dataset) -> Option<String> {
    let kind = dataset.node.op.replacen("Dataset", "", 1);
    match is_any(&kind, INDEXED) {
        true => dataset
            .source
            .inputs()
            .iter()
            .find_map(|d| without_indices(d)),
        false => Some(kind),
    }
}

fn global_shuffle(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let reshuffles = flag_attr(build, "reshuffle_each_iteration");
    make(build, move |ctx, _| {
        let input = dataset(ctx, 0)?;
        if let Some(found) = without_indices(&input) {
            return Err(failed_precondition!(
                "`global_shuffle` requires all upstream transformations be compatible with random \
                 access. Got: FAILED_PRECONDITION: {found} does not support random access."
            ));
        }
        let n = input.cardinality();
        if n <= 0 {
            return Err(invalid_argument!(
                "`global_shuffle` requires the input dataset to have a non-empty finite \
                 cardinality. Got cardinality {n} for dataset {}",
                input.node.op
            ));
        }
        let (seed, seed2) = (number(ctx, 1, "seed")?, number(ctx, 2, "seed2")?);
        let seeds = match SeedGenerator::input(ctx, 3)? {
            Some(found) => found,
            None => Arc::new(SeedGenerator::new(seed, seed2, reshuffles)),
        };
        Ok(Arc::new(GlobalShuffle { input, seeds }))
    })
}

impl GlobalShuffle {
    fn element(
        &self,
        i: u64,
        key: [u64; 3],
        services: &StepServices,
    ) -> Result<Option<Components>> {
        let n = u64::try_from(self.input.cardinality()).unwrap_or(0);
        if i >= n {
            return Ok(None);
        }
        let at = place(i, key.map(|k| k as u32), n - 1, ROUNDS);
        self.input.source.get(at, services)
    }
}

impl Source for GlobalShuffle {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let ((a, b), (c, _)) = (self.seeds.generate(), self.seeds.generate());
        Ok(Box::new(ShuffleIterator {
            source: self,
            key: [a, b, c].map(|seed| seed as u64),
            at: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for ShuffleIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let element = self.source.element(self.at, self.key, services)?;
        self.at += u64::from(element.is_some());
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        self.source.seeds.state(state)?;
        for part in &mut self.key {
            state.uint(part)?;
        }
        state.uint(&mut self.at)
    }
}
