//! Combinations of datasets: ZipDataset, ConcatenateDataset (TensorFlow:
//! `core/kernels/data/{zip,concatenate}_dataset_op.cc`).

use crate::common::{Input, dataset, make, next_of};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, INFINITE, Source, State, UNKNOWN,
};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ZipDataset",
        "input_datasets: N*variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; N: int >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(zip),
    Op::new(
        "ConcatenateDataset",
        "input_dataset: variant, another_dataset: variant -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(concatenate),
];

struct Zip(Vec<Arc<Dataset>>);

struct ZipIterator {
    source: Arc<Zip>,
    /// Empty at the end.
    inner: Vec<Input>,
}

fn zip(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let inputs = (0..ctx.num_inputs()).map(|i| dataset(ctx, i));
        Ok(Arc::new(Zip(inputs.collect::<Result<_>>()?)))
    })
}

impl Source for Zip {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let inner = self.0.iter().map(|d| d.iterator().map(Some));
        Ok(Box::new(ZipIterator {
            inner: inner.collect::<Result<_>>()?,
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        let all: Vec<i64> = self.0.iter().map(|d| d.cardinality()).collect();
        if all.contains(&UNKNOWN) {
            return UNKNOWN;
        }
        let finite = all.into_iter().filter(|&n| n != INFINITE);
        finite.min().unwrap_or(INFINITE)
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        let mut all = Vec::new();
        for input in &self.0 {
            match input.source.get(index, services)? {
                Some(element) => all.extend(element),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        self.0.clone()
    }
}

impl DatasetIterator for ZipIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        if self.inner.is_empty() {
            return Ok(None);
        }
        let (mut all, mut has_ended, mut failed) = (Vec::new(), false, None);
        // All inputs advance, so that they stay side by side after an error.
        for input in &mut self.inner {
            match next_of(input, services) {
                Ok(Some(element)) => all.extend(element),
                Ok(None) => has_ended = true,
                Err(error) if !has_ended => failed = failed.or(Some(error)),
                Err(_) => {}
            }
        }
        if has_ended {
            self.inner.clear();
        }
        match failed {
            Some(error) => Err(error),
            None => Ok((!has_ended).then_some(all)),
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut has_ended = self.inner.is_empty();
        state.flag(&mut has_ended)?;
        if has_ended {
            self.inner.clear();
        }
        for (input, dataset) in self.inner.iter_mut().zip(&self.source.0) {
            state.input(input, dataset)?;
        }
        Ok(())
    }
}

struct Concatenate([Arc<Dataset>; 2]);

struct ConcatenateIterator {
    source: Arc<Concatenate>,
    inner: Input,
    /// The input that `inner` is at.
    at: usize,
}

fn concatenate(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let [first, second] = [dataset(ctx, 0)?, dataset(ctx, 1)?];
        if first.dtypes != second.dtypes {
            return Err(invalid_argument!(
                "input dataset and dataset to concatenate have different output_types {} and {}",
                ferroflow_functors::indices::list(&first.dtypes),
                ferroflow_functors::indices::list(&second.dtypes)
            ));
        }
        Ok(Arc::new(Concatenate([first, second])))
    })
}

impl Source for Concatenate {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ConcatenateIterator {
            inner: Some(self.0[0].iterator()?),
            source: self,
            at: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        match [self.0[0].cardinality(), self.0[1].cardinality()] {
            [INFINITE, _] | [_, INFINITE] => INFINITE,
            [UNKNOWN, _] | [_, UNKNOWN] => UNKNOWN,
            [a, b] => a.saturating_add(b),
        }
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        let n = u64::try_from(self.0[0].cardinality()).unwrap_or(u64::MAX);
        match index.checked_sub(n) {
            None => self.0[0].source.get(index, services),
            Some(at) => self.0[1].source.get(at, services),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        self.0.to_vec()
    }
}

impl DatasetIterator for ConcatenateIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if let Some(element) = next_of(&mut self.inner, services)? {
                return Ok(Some(element));
            }
            let Some(following) = self.source.0.get(self.at + 1) else {
                return Ok(None);
            };
            self.at += 1;
            self.inner = Some(following.iterator()?);
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        self.at = self.at.min(1);
        state.input(&mut self.inner, &self.source.0[self.at])
    }
}
