//! Parts of datasets: RepeatDataset, TakeDataset, SkipDataset, ShardDataset,
//! AssertCardinalityDataset (TensorFlow: `core/kernels/data/*_dataset_op.cc`).

use crate::common::{Input, dataset, flag_attr, make, next_of, number, scaled, skip_of};
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, INFINITE, Source, State, UNKNOWN,
};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RepeatDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(repeat),
    Op::new(
        "TakeDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(take),
    Op::new(
        "SkipDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(skip),
    Op::new(
        "ShardDataset",
        "input_dataset: variant, num_shards: int64, index: int64 -> handle: variant | \
         require_non_empty: bool = false; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(shard),
    Op::new(
        "AssertCardinalityDataset",
        "input_dataset: variant, cardinality: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(assert_cardinality),
];

/// Returns a count of elements or repetitions; negative means unlimited.
fn count(ctx: &KernelCtx) -> Result<Option<u64>> {
    Ok(u64::try_from(number(ctx, 1, "count")?).ok())
}

struct Repeat {
    input: Arc<Dataset>,
    count: Option<u64>,
}

struct RepeatIterator {
    source: Arc<Repeat>,
    inner: Input,
    /// Rounds that have begun.
    round: u64,
    /// Whether this round had an element.
    has_produced: bool,
}

fn repeat(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        Ok(Arc::new(Repeat {
            input: dataset(ctx, 0)?,
            count: count(ctx)?,
        }))
    })
}

impl Source for Repeat {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(RepeatIterator {
            source: self,
            inner: None,
            round: 0,
            has_produced: true,
        }))
    }

    fn cardinality(&self) -> i64 {
        match (self.count, self.input.cardinality()) {
            (Some(0), _) | (_, 0) => 0,
            (None, _) => INFINITE,
            (Some(n), each) => scaled(each, |each| {
                each.saturating_mul(i64::try_from(n).unwrap_or(i64::MAX))
            }),
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        match u64::try_from(self.input.cardinality()) {
            Ok(each) if each > 0 && self.count.is_none_or(|n| index / each < n) => {
                self.input.source.get(index % each, services)
            }
            _ => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for RepeatIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if self.inner.is_none() {
                // Repeating an empty dataset forever ends.
                let goes_on = match self.source.count {
                    Some(count) => self.round < count,
                    None => self.has_produced,
                };
                if !goes_on {
                    return Ok(None);
                }
                services.cancel.check()?;
                self.inner = Some(self.source.input.iterator()?);
                self.round += 1;
                self.has_produced = false;
            }
            if let Some(element) = next_of(&mut self.inner, services)? {
                self.has_produced = true;
                return Ok(Some(element));
            }
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.round)?;
        state.flag(&mut self.has_produced)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Take {
    input: Arc<Dataset>,
    count: Option<u64>,
}

struct TakeIterator {
    source: Arc<Take>,
    inner: Input,
    taken: u64,
}

fn take(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        Ok(Arc::new(Take {
            input: dataset(ctx, 0)?,
            count: count(ctx)?,
        }))
    })
}

impl Source for Take {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(TakeIterator {
            inner: match self.count {
                Some(0) => None,
                _ => Some(self.input.iterator()?),
            },
            source: self,
            taken: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        let n = self.input.cardinality();
        match (self.count.map(|c| i64::try_from(c).unwrap_or(i64::MAX)), n) {
            (None, n) => n,
            (Some(0), _) => 0,
            (Some(count), INFINITE) => count,
            (Some(_), UNKNOWN) => UNKNOWN,
            (Some(count), n) => n.min(count),
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        match self.count.is_none_or(|n| index < n) {
            true => self.input.source.get(index, services),
            false => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for TakeIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        if self.source.count.is_some_and(|n| self.taken >= n) {
            self.inner = None;
        }
        let element = next_of(&mut self.inner, services)?;
        self.taken += u64::from(element.is_some());
        Ok(element)
    }

    fn skip(&mut self, n: u64, services: &StepServices) -> Result<u64> {
        let left = self
            .source
            .count
            .map_or(u64::MAX, |count| count - self.taken);
        let skipped = skip_of(&mut self.inner, n.min(left), services)?;
        self.taken += skipped;
        Ok(skipped)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.taken)?;
        self.taken = self.taken.min(self.source.count.unwrap_or(u64::MAX));
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Skip {
    input: Arc<Dataset>,
    count: Option<u64>,
}

struct SkipIterator {
    source: Arc<Skip>,
    inner: Input,
    skipped: u64,
}

fn skip(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        Ok(Arc::new(Skip {
            input: dataset(ctx, 0)?,
            count: count(ctx)?,
        }))
    })
}

impl Source for Skip {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(SkipIterator {
            inner: match self.count {
                Some(_) => Some(self.input.iterator()?),
                None => None,
            },
            source: self,
            skipped: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.count {
            None => 0,
            Some(count) => scaled(self.input.cardinality(), |n| {
                n.saturating_sub(i64::try_from(count).unwrap_or(i64::MAX))
                    .max(0)
            }),
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        match self.count.and_then(|n| index.checked_add(n)) {
            Some(at) => self.input.source.get(at, services),
            None => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for SkipIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let left = self.source.count.unwrap_or(0) - self.skipped;
        if left > 0 {
            self.skipped += skip_of(&mut self.inner, left, services)?;
        }
        next_of(&mut self.inner, services)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.skipped)?;
        self.skipped = self.skipped.min(self.source.count.unwrap_or(0));
        state.input(&mut self.inner, &self.source.input)
    }
}

/// A number of shards that distribution replaces.
pub(crate) const SHARD_HINT: i64 = -1;

struct Shard {
    input: Arc<Dataset>,
    /// 0 if left to distribution.
    n: u64,
    index: u64,
    needs_all: bool,
}

struct ShardIterator {
    source: Arc<Shard>,
    inner: Input,
    position: u64,
}

fn shard(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let needs_all = flag_attr(build, "require_non_empty");
    make(build, move |ctx, _| {
        let n_shards = number(ctx, 1, "num_shards")?;
        let index = number(ctx, 2, "index")?;
        let n = u64::try_from(n_shards).ok().filter(|&n| n > 0);
        let n = n.or((n_shards == SHARD_HINT).then_some(0)).ok_or_else(|| {
            invalid_argument!(
                "Number of shards must be greater than zero (currently num_shards = {n_shards})."
            )
        })?;
        let i = u64::try_from(index).ok().filter(|&i| i < n);
        let index = i.or((n == 0).then_some(0)).ok_or_else(|| {
            invalid_argument!(
                "Index must be between 0 and {} (currently index = {index}).",
                n_shards - 1
            )
        })?;
        let input = dataset(ctx, 0)?;
        Ok(Arc::new(Shard {
            input,
            n,
            index,
            needs_all,
        }))
    })
}

impl Source for Shard {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        if self.n == 0 {
            return Err(failed_precondition!(
                "`tf.data.Dataset.shard(SHARD_HINT, ...)` can only be used in \
                 `tf.distribute.Strategy.experimental_distribute_dataset()` with \
                 `tf.data.experimental.AutoShardPolicy.HINT` policy, or tf.data service with \
                 `tf.data.experimental.service.ShardingPolicy.HINT` processing mode."
            ));
        }
        Ok(Box::new(ShardIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            position: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        let (n, index) = (self.n.max(1) as i64, self.index as i64);
        scaled(self.input.cardinality(), |all| {
            all / n + i64::from(index < all % n)
        })
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        let at = index.checked_mul(self.n);
        match at.and_then(|at| at.checked_add(self.index)) {
            Some(at) => self.input.source.get(at, services),
            None => Ok(None),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for ShardIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let Shard {
            n,
            index,
            needs_all,
            ..
        } = *self.source;
        let ahead = (n + index - self.position % n) % n;
        self.position += skip_of(&mut self.inner, ahead, services)?;
        let element = next_of(&mut self.inner, services)?;
        self.position += u64::from(element.is_some());
        if element.is_some() && needs_all && self.position < n {
            let rest = n - self.position;
            if skip_of(&mut self.inner, rest, services)? < rest {
                return Err(invalid_argument!(
                    "Could not apply FILE based sharding: the dataset only has {} file(s), which \
                     is not enough for the required {n} shards/workers. If you are using datasets \
                     with distribution strategy, consider setting the auto sharding policy to either \
                     DATA or OFF using the `experimental_distribute.auto_shard_policy` option of \
                     `tf.data.Options()`. Or, split your input files into a larger number of small \
                     files such that number of files is greater than number of shards/workers.",
                    self.position
                ));
            }
            self.position = n;
        }
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.position)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct AssertCardinality {
    input: Arc<Dataset>,
    expected: i64,
}

struct AssertCardinalityIterator {
    source: Arc<AssertCardinality>,
    inner: Input,
    n: u64,
}

fn assert_cardinality(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        Ok(Arc::new(AssertCardinality {
            input: dataset(ctx, 0)?,
            expected: number(ctx, 1, "cardinality")?,
        }))
    })
}

impl Source for AssertCardinality {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(AssertCardinalityIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            n: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.expected
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        self.input.source.get(index, services)
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for AssertCardinalityIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let had_input = self.inner.is_some();
        let element = next_of(&mut self.inner, services)?;
        self.n += u64::from(element.is_some());
        let expected = self.source.expected;
        let elements = |n: i64| match n {
            INFINITE => "an infinite number of elements".to_string(),
            1 => "1 element".to_string(),
            n => format!("{n} elements"),
        };
        let got = i64::try_from(self.n).unwrap_or(i64::MAX);
        let (bound, is_wrong) = match element.is_some() {
            true => ("at least", expected != INFINITE && got > expected),
            false => ("only", had_input && got != expected),
        };
        if is_wrong {
            return Err(failed_precondition!(
                "Input dataset was expected to contain {} but contained {bound} {}.",
                elements(expected),
                elements(got)
            ));
        }
        Ok(element)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.n)?;
        state.input(&mut self.inner, &self.source.input)
    }
}
