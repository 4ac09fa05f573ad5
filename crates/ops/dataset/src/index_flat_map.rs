//! Flat maps with known positions: IndexFlatMapDataset, WeightedFlatMapDataset (TensorFlow:
//! `core/kernels/data/{index_flat_map,weighted_flat_map}_dataset_op.cc`).

use crate::common::{Input, dataset, function, function_name, make, n_of, next_of, number, some};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, INFINITE, Source, State,
};
use ferroflow_tensor::Tensor;
use ferroflow_tensor::rows::split_first;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "IndexFlatMapDataset",
        "input_dataset: variant, map_func_other_args: list(Tmap_func_args), \
         index_map_func_other_args: list(Tindex_map_func_args), output_cardinality: int64 -> \
         handle: variant | map_func: func; index_map_func: func; Tmap_func_args: list(type) \
         >= 0; Tindex_map_func_args: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(index_flat_map),
    Op::new(
        "WeightedFlatMapDataset",
        "input_datasets: N*variant, weights: M*double -> handle: variant | N: int >= 2; M: \
         int >= 2; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: \
         string = ''",
    )
    .shape(shapes::scalar)
    .kernel(weighted_flat_map),
];

struct IndexFlatMap {
    input: Arc<Dataset>,
    map: CapturedFunction,
    /// Maps a position to that of an input element and an offset in what `map` makes of it.
    index_map: CapturedFunction,
    cardinality: i64,
}

struct IndexIterator {
    source: Arc<IndexFlatMap>,
    inner: Input,
    /// What `map` made of the current input element.
    current: Components,
    n: u64,
    at: u64,
}

fn index_flat_map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let names = [
        function_name(build, "map_func")?,
        function_name(build, "index_map_func")?,
    ];
    let n_map = n_of(build, "Tmap_func_args")?;
    make(build, move |ctx, _| {
        let last = ctx.num_inputs() - 1;
        Ok(Arc::new(IndexFlatMap {
            input: dataset(ctx, 0)?,
            map: function(ctx, &names[0], some(ctx, 1, 1 + n_map)?)?,
            index_map: function(ctx, &names[1], some(ctx, 1 + n_map, last)?)?,
            cardinality: number(ctx, last, "output_cardinality")?,
        }))
    })
}

impl Source for IndexFlatMap {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(IndexIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            current: Vec::new(),
            n: 0,
            at: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.cardinality
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl IndexFlatMap {
    fn position(&self, i: u64, services: &StepServices) -> Result<(u64, usize)> {
        let index = i64::try_from(i).unwrap_or(i64::MAX);
        let results = self.index_map.call(vec![Tensor::scalar(index)], services)?;
        let wrong = || -> Status {
            invalid_argument!(
                "The `index_map_fn` for `index_flat_map` is expected to return two int values \
                 representing the element index and an offset within the element."
            )
        };
        let [element, offset] = &results[..] else {
            return Err(wrong());
        };
        let element = indices::int(element).and_then(|n| u64::try_from(n).ok());
        let offset = indices::int(offset).and_then(|n| usize::try_from(n).ok());
        element.zip(offset).ok_or_else(wrong)
    }
}

/// Returns one of several tensors, or a row of a single one.
fn slice(tensors: &[Tensor], offset: usize) -> Result<Components> {
    let wrong = |n: usize| {
        invalid_argument!(
            "`index_flat_map` got invalid `index_map_func` which returns offset {offset}, but the \
             input element has {n} elements"
        )
    };
    let [single] = tensors else {
        let found = tensors.get(offset).cloned();
        return Ok(vec![found.ok_or_else(|| wrong(tensors.len()))?]);
    };
    if single.shape().is_scalar() && offset == 0 {
        return Ok(vec![single.clone()]);
    }
    let (n, row) = split_first(single.shape())?;
    match offset < n {
        true => Ok(vec![single.view(offset * row.num_elements(), row)?]),
        false => Err(wrong(n)),
    }
}

impl DatasetIterator for IndexIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let (element, offset) = self.source.position(self.n, services)?;
        if element > self.at || self.current.is_empty() {
            self.current.clear();
            let Some(input) = next_of(&mut self.inner, services)? else {
                return Ok(None);
            };
            self.current = self.source.map.call(input, services)?;
            self.at = element;
        }
        let found = slice(&self.current, offset)?;
        self.n += 1;
        Ok(Some(found))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.n)?;
        state.uint(&mut self.at)?;
        state.element(&mut self.current)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct WeightedFlatMap {
    inputs: Vec<Arc<Dataset>>,
    /// How many elements of each input are taken.
    counts: Vec<u64>,
}

struct WeightedIterator {
    source: Arc<WeightedFlatMap>,
    inner: Input,
    at: usize,
    taken: u64,
}

fn weighted_flat_map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = usize::try_from(build.attrs.int("N")?).unwrap_or(0);
    make(build, move |ctx, _| {
        let n_weights = ctx.num_inputs() - n;
        if n != n_weights {
            return Err(invalid_argument!(
                "`input_datasets` and `weights` of the WeightedFlatMap must have the same size. \
                 Got {n} datasets and {n_weights} weights."
            ));
        }
        let inputs: Vec<Arc<Dataset>> = (0..n).map(|i| dataset(ctx, i)).collect::<Result<_>>()?;
        let counts = counts(ctx, &inputs)?;
        Ok(Arc::new(WeightedFlatMap { inputs, counts }))
    })
}

/// Returns how many elements to take of each input, so that one ends and the weights hold.
fn counts(ctx: &KernelCtx, inputs: &[Arc<Dataset>]) -> Result<Vec<u64>> {
    let mut known = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        let n = input.cardinality();
        known.push(u64::try_from(n).map_err(|_| {
            invalid_argument!(
                "Cardinalities of the inputs must be known. Input {i} has {} cardinality.",
                if n == INFINITE { "INFINITE" } else { "UNKNOWN" }
            )
        })?);
    }
    let mut weights = Vec::with_capacity(inputs.len());
    for i in 0..inputs.len() {
        let weight = ctx.input(inputs.len() + i)?.to_scalar::<f64>()?;
        if weight.is_nan() || weight <= 0.0 {
            return Err(invalid_argument!(
                "`weights` must be greater than 0.0. Input {i} has a weight of {weight}"
            ));
        }
        weights.push(weight);
    }
    let most = weights.iter().copied().fold(0.0, f64::max);
    let (mut least, mut weight_of_least) = (f64::MAX, most);
    for (&n, &weight) in known.iter().zip(&weights) {
        let scaled = n as f64 * weight / most;
        if least > scaled {
            (least, weight_of_least) = (scaled, weight);
        }
    }
    let pairs = known.iter().zip(&weights).enumerate();
    let count = |(i, (&n, &weight)): (usize, (&u64, &f64))| {
        let count = (least * weight / weight_of_least) as u64;
        match count > n {
            true => Err(invalid_argument!(
                "Input {i} needs to have at least {count} elements. It only has {n} elements."
            )),
            false => Ok(count),
        }
    };
    pairs.map(count).collect()
}

impl Source for WeightedFlatMap {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(WeightedIterator {
            inner: self.inputs.first().map(|d| d.iterator()).transpose()?,
            source: self,
            at: 0,
            taken: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        let all = self
            .counts
            .iter()
            .fold(0u64, |all, n| all.saturating_add(*n));
        i64::try_from(all).unwrap_or(i64::MAX)
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        self.inputs.clone()
    }
}

impl DatasetIterator for WeightedIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(&count) = self.source.counts.get(self.at) {
            if self.taken < count
                && let Some(element) = next_of(&mut self.inner, services)?
            {
                self.taken += 1;
                return Ok(Some(element));
            }
            (self.at, self.taken) = (self.at + 1, 0);
            let following = self.source.inputs.get(self.at);
            self.inner = following.map(|d| d.iterator()).transpose()?;
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        state.uint(&mut self.taken)?;
        let source = self.source.clone();
        match source.inputs.get(self.at) {
            Some(input) => state.input(&mut self.inner, input),
            None => {
                self.inner = None;
                Ok(())
            }
        }
    }
}
