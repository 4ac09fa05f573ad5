//! ChooseFastestBranchDataset: functions that make the same elements of a dataset, of which the fastest is kept (TensorFlow:
//! `core/kernels/data/experimental/choose_fastest_branch_dataset_op.cc`).

use crate::common::{Input, Spec, dataset, function, make, number, scaled, some};
use crate::map::within;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AttrValue, KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, Source, State, returned_dataset,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "ChooseFastestBranchDataset",
    "input_dataset: variant, ratio_numerator: int64, ratio_denominator: int64, other_arguments: \
     list(Targuments) -> handle: variant | Targuments: list(type) >= 0; num_elements_per_branch: \
     int >= 1; branches: list(func) >= 1; other_arguments_lengths: list(int) >= 1; output_types: \
     list(type) >= 1; output_shapes: list(shape) >= 1",
)
.shape(shapes::scalar)
.kernel(fastest_branch)];

struct Branches {
    input: Arc<Dataset>,
    functions: Vec<CapturedFunction>,
    per_branch: u64,
    /// Input elements for output elements.
    ratio: [i64; 2],
}

fn fastest_branch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let branches = build.attrs.list("branches")?;
    let names = branches.iter().filter_map(|branch| match branch {
        AttrValue::Func(f) => Some(f.name.clone()),
        _ => None,
    });
    let names: Vec<String> = names.collect();
    let lengths = build.attrs.ints("other_arguments_lengths")?;
    if names.len() != lengths.len() {
        return Err(invalid_argument!(
            "branches and other_arguments_lengths must have the same length."
        ));
    }
    let per_branch = build.attrs.int("num_elements_per_branch")?;
    make(build, move |ctx, _| {
        let numerator = number(ctx, 1, "ratio_numerator")?;
        let denominator = number(ctx, 2, "ratio_denominator")?;
        for (name, value) in [("numerator", numerator), ("denominator", denominator)] {
            if value <= 0 {
                return Err(invalid_argument!(
                    "`ratio_{name}` must be greater than zero."
                ));
            }
        }
        if per_branch % denominator != 0 {
            return Err(invalid_argument!(
                "`num_elements_per_branch` must be divisible by `ratio_denominator`."
            ));
        }
        let mut functions = Vec::with_capacity(names.len());
        let mut first = 3usize;
        for (name, length) in names.iter().zip(&lengths) {
            let end = usize::try_from(*length)
                .ok()
                .and_then(|n| first.checked_add(n));
            let end = end.filter(|end| *end <= ctx.num_inputs());
            let end = end.ok_or_else(|| invalid_argument!("other_arguments_lengths is wrong"))?;
            functions.push(function(ctx, name, some(ctx, first, end)?)?);
            first = end;
        }
        Ok(Arc::new(Branches {
            input: dataset(ctx, 0)?,
            functions,
            per_branch: u64::try_from(per_branch).unwrap_or(1),
            ratio: [numerator, denominator],
        }))
    })
}

impl Source for Branches {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(BranchIterator {
            input: Arc::new(Mutex::new(Some(self.input.iterator()?))),
            times: vec![Vec::new(); self.functions.len()],
            source: self,
            branch: 0,
            n: 0,
            fastest: 0,
            current: None,
        }))
    }

    fn cardinality(&self) -> i64 {
        let [numerator, denominator] = self.ratio;
        scaled(self.input.cardinality(), |n| {
            (n as f64 * numerator as f64 / denominator as f64) as i64
        })
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

/// The input as the dataset that a branch is given: what is left of an iterator.
struct Rest {
    input: Arc<Mutex<Input>>,
    /// How many elements a trial may take.
    limit: Option<u64>,
    is_used: AtomicBool,
}

struct RestIterator {
    source: Arc<Rest>,
    n: u64,
}

impl Source for Rest {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        if self.is_used.swap(true, Ordering::Relaxed) {
            return Err(invalid_argument!(
                "Cannot create more than one WrapperIterator per WrapperDataset. Make sure the \
                 branches to ChooseFastestDataset do not expect the input to repeat."
            ));
        }
        Ok(Box::new(RestIterator { source: self, n: 0 }))
    }
}

impl DatasetIterator for RestIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        if self.source.limit.is_some_and(|limit| self.n >= limit) {
            return Ok(None);
        }
        self.n += 1;
        let mut input = self
            .source
            .input
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        crate::common::next_of(&mut input, services)
    }

    fn state(&mut self, _: &mut State) -> Result<()> {
        Ok(())
    }
}

struct BranchIterator {
    source: Arc<Branches>,
    input: Arc<Mutex<Input>>,
    times: Vec<Vec<Duration>>,
    /// The branch on trial, and how many elements it has returned.
    branch: usize,
    n: u64,
    fastest: usize,
    current: Option<(Arc<Dataset>, Box<dyn DatasetIterator>)>,
}

impl BranchIterator {
    fn begin(
        &self,
        branch: usize,
        limit: Option<u64>,
        services: &StepServices,
    ) -> Result<(Arc<Dataset>, Box<dyn DatasetIterator>)> {
        let input = &self.source.input;
        let spec = Spec::new(input.dtypes.clone(), input.shapes.clone());
        let rest = Rest {
            input: self.input.clone(),
            limit,
            is_used: AtomicBool::new(false),
        };
        let rest = within(Arc::new(rest), &spec);
        let results = self.source.functions[branch].call(vec![rest.tensor()?], services)?;
        let dataset = returned_dataset(&results)?;
        let iterator = dataset.iterator()?;
        Ok((dataset, iterator))
    }

    /// Returns the branch whose slow elements are the least slow.
    fn fastest(&self) -> usize {
        let slow = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times.get(times.len() * 9 / 10).copied().unwrap_or_default()
        };
        let all = self.times.iter().map(|times| slow(times)).enumerate();
        all.min_by_key(|(_, time)| *time).map_or(0, |(i, _)| i)
    }
}

impl DatasetIterator for BranchIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let on_trial = self.branch < self.source.functions.len();
        let (dataset, mut iterator) = match self.current.take() {
            Some(current) => current,
            None if on_trial => {
                let [numerator, denominator] = self.source.ratio.map(|n| n as u64);
                let limit = self.source.per_branch.saturating_mul(numerator) / denominator;
                self.begin(self.branch, Some(limit), services)?
            }
            None => {
                self.fastest = self.fastest();
                self.begin(self.fastest, None, services)?
            }
        };
        let start = Instant::now();
        let element = iterator.next(services);
        if !on_trial {
            self.current = Some((dataset, iterator));
            return element;
        }
        // The first element may take longer for other reasons.
        if self.n > 0 {
            self.times[self.branch].push(start.elapsed());
        }
        self.n += 1;
        if self.n < self.source.per_branch {
            self.current = Some((dataset, iterator));
        } else {
            (self.branch, self.n) = (self.branch + 1, 0);
        }
        element
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        if self.current.is_some() && !state.is_restoring() {
            return Err(unimplemented_error!(
                "An iterator over ChooseFastestBranchDataset can be saved between trials only."
            ));
        }
        self.current = None;
        state.size(&mut self.branch)?;
        state.uint(&mut self.n)?;
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        state.input(&mut input, &self.source.input)
    }
}
