//! Batches taken apart and windows: UnbatchDataset, RebatchDataset, RebatchDatasetV2, WindowDataset,
//! SlidingWindowDataset (TensorFlow: `core/kernels/data/{unbatch,rebatch,window}_dataset_op.cc`).

use crate::common::{Input, Spec, dataset, flag, make, next_of, positive, scaled};
use crate::sources::{batched, window_of};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Source, State, UNKNOWN};
use ferroflow_tensor::rows::{joined, prepended, split_first};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "UnbatchDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(unbatch),
    Op::new(
        "ExperimentalUnbatchDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(unbatch),
    Op::new(
        "RebatchDataset",
        "input_dataset: variant, num_replicas: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; use_fallback: bool = true",
    )
    .shape(shapes::scalar)
    .kernel(rebatch),
    Op::new(
        "ExperimentalRebatchDataset",
        "input_dataset: variant, num_replicas: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; use_fallback: bool = true",
    )
    .shape(shapes::scalar)
    .kernel(rebatch),
    Op::new(
        "RebatchDatasetV2",
        "input_dataset: variant, batch_sizes: int64, drop_remainder: bool -> handle: variant \
         | output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(rebatch_v2),
    Op::new(
        "WindowDataset",
        "input_dataset: variant, size: int64, shift: int64, stride: int64, drop_remainder: \
         bool -> handle: variant | output_types: list(type) >= 1; output_shapes: list(shape) \
         >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(window),
    Op::new(
        "SlidingWindowDataset",
        "input_dataset: variant, window_size: int64, window_shift: int64, window_stride: \
         int64 -> handle: variant | drop_remainder: bool = true; output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(sliding_window),
    Op::new(
        "ExperimentalSlidingWindowDataset",
        "input_dataset: variant, window_size: int64, window_shift: int64, window_stride: \
         int64 -> handle: variant | output_types: list(type) >= 1; output_shapes: list(shape) \
         >= 1",
    )
    .shape(shapes::scalar)
    .kernel(sliding_window),
];

/// Returns the rows `start..end` of a batch's components.
fn rows_of(batch: &[Tensor], start: usize, end: usize) -> Result<Components> {
    let slice = |t: &Tensor| -> Result<Tensor> {
        let (_, row) = split_first(t.shape())?;
        t.view(start * row.num_elements(), prepended(end - start, &row)?)
    };
    batch.iter().map(slice).collect()
}

/// Returns the number of rows of a batch, which all components must have.
fn n_rows(batch: &[Tensor]) -> Result<usize> {
    let mut n = None;
    for (i, t) in batch.iter().enumerate() {
        let Some(&rows) = t.shape().dims().first() else {
            return Err(invalid_argument!(
                "Input element must have a non-scalar value in each component."
            ));
        };
        let first = *n.get_or_insert(rows);
        if rows != first {
            return Err(invalid_argument!(
                "Input element must have the same batch size in each component. Component 0 had \
                 size {first} but component {i} had size, {rows}."
            ));
        }
    }
    Ok(n.unwrap_or(0))
}

struct Unbatch {
    input: Arc<Dataset>,
    batch_size: Option<usize>,
}

struct UnbatchIterator {
    source: Arc<Unbatch>,
    inner: Input,
    batch: Components,
    at: usize,
    n: usize,
}

fn unbatch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let input = dataset(ctx, 0)?;
        let sizes = input.shapes.iter().map(|s| s.dim(0));
        let batch_size = sizes.flatten().next();
        Ok(Arc::new(Unbatch { input, batch_size }))
    })
}

impl Source for Unbatch {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(UnbatchIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            batch: Vec::new(),
            at: 0,
            n: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.input.cardinality() {
            n if n < 0 => n,
            n => self.batch_size.map_or(UNKNOWN, |size| {
                n.saturating_mul(i64::try_from(size).unwrap_or(i64::MAX))
            }),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for UnbatchIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while self.at >= self.n {
            services.cancel.check()?;
            (self.at, self.n) = (0, 0);
            // A batch that is saved is read again.
            self.batch.clear();
            let Some(batch) = next_of(&mut self.inner, services)? else {
                return Ok(None);
            };
            self.n = n_rows(&batch)?;
            self.batch = batch;
        }
        let i = self.at;
        self.at += 1;
        let row = |t: &Tensor| -> Result<Tensor> {
            let (_, row) = split_first(t.shape())?;
            t.view(i * row.num_elements(), row)
        };
        self.batch.iter().map(row).collect::<Result<_>>().map(Some)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        state.element(&mut self.batch)?;
        self.n = n_rows(&self.batch)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Rebatch {
    input: Arc<Dataset>,
    n_replicas: usize,
}

struct RebatchIterator {
    source: Arc<Rebatch>,
    inner: Input,
    batch: Components,
    part: usize,
}

fn rebatch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let problem = "num_replicas must be greater than zero.";
        Ok(Arc::new(Rebatch {
            input: dataset(ctx, 0)?,
            n_replicas: positive(ctx, 1, "num_replicas", problem)?,
        }))
    })
}

impl Source for Rebatch {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(RebatchIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            batch: Vec::new(),
            part: 0,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for RebatchIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let n = self.source.n_replicas;
        if self.part == 0 {
            let Some(batch) = next_of(&mut self.inner, services)? else {
                return Ok(None);
            };
            if let Some(i) = batch.iter().position(|t| t.shape().is_scalar()) {
                return Err(invalid_argument!(
                    "Cannot rebatch dataset: All components must have at least one dimension. \
                     Perhaps your input dataset is not batched? Component {i} is scalar."
                ));
            }
            self.batch = batch;
        }
        let mut parts = Vec::new();
        for t in &self.batch {
            let rows = t.shape().dims().first().copied().unwrap_or(0);
            let each = rows.div_ceil(n);
            let end = (each * (self.part + 1)).min(rows);
            let start = (each * self.part).min(end);
            parts.extend(rows_of(std::slice::from_ref(t), start, end)?);
        }
        self.part = (self.part + 1) % n;
        Ok(Some(parts))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.part)?;
        state.element(&mut self.batch)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct RebatchV2 {
    input: Arc<Dataset>,
    sizes: Vec<usize>,
    drops_remainder: bool,
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
}

struct RebatchV2Iterator {
    source: Arc<RebatchV2>,
    inner: Input,
    batch: Components,
    /// Rows of the batch that were taken.
    at: usize,
    next_size: usize,
}

fn rebatch_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        let sizes = ctx.input(1)?;
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!(
                "`batch_sizes` must be a scalar or a vector."
            ));
        }
        let size = |&n: &i64| {
            usize::try_from(n).map_err(|_| invalid_argument!("`batch_sizes` must not be negative."))
        };
        let sizes: Vec<usize> = sizes
            .slice::<i64>()?
            .iter()
            .map(size)
            .collect::<Result<_>>()?;
        if sizes.is_empty() {
            return Err(invalid_argument!("`batch_sizes` must not be empty."));
        }
        Ok(Arc::new(RebatchV2 {
            input: dataset(ctx, 0)?,
            sizes,
            drops_remainder: flag(ctx, 2, "drop_remainder")?,
            dtypes: spec.dtypes.clone(),
            shapes: spec.shapes.clone(),
        }))
    })
}

impl Source for RebatchV2 {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(RebatchV2Iterator {
            inner: Some(self.input.iterator()?),
            source: self,
            batch: Vec::new(),
            at: 0,
            next_size: 0,
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl RebatchV2 {
    fn empty_batch(&self) -> Result<Components> {
        let empty = |(dtype, shape): (&DType, &PartialShape)| -> Result<Tensor> {
            let dims = shape.dims().unwrap_or_default().iter().skip(1);
            let row: Vec<i64> = dims.map(|d| d.map_or(0, |d| d as i64)).collect();
            let row = ferroflow_tensor::Shape::checked(&row)?;
            Tensor::zeros(*dtype, prepended(0, &row)?)
        };
        self.dtypes.iter().zip(&self.shapes).map(empty).collect()
    }
}

/// Concatenates batches.
fn concatenated(parts: &[Components]) -> Result<Components> {
    let n = parts.first().map_or(0, Vec::len);
    let component = |c: usize| -> Result<Tensor> {
        let items: Vec<&Tensor> = parts.iter().filter_map(|p| p.get(c)).collect();
        let Some(first) = items.first() else {
            return Err(invalid_argument!("a batch has no component {c}"));
        };
        if items.len() == 1 {
            return Ok((*first).clone());
        }
        let (_, row) = split_first(first.shape())?;
        let mut rows = 0;
        for item in &items {
            let (n, other) = split_first(item.shape())?;
            if other != row {
                return Err(invalid_argument!(
                    "Cannot rebatch tensors with different shapes in component {c}: {row} and {other}."
                ));
            }
            rows += n;
        }
        let pieces: Vec<_> = items.iter().map(|&t| (Some(t), t.num_elements())).collect();
        joined(first.dtype(), prepended(rows, &row)?, &pieces)
    };
    (0..n).map(component).collect()
}

impl DatasetIterator for RebatchV2Iterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let sizes = &self.source.sizes;
        let wanted = sizes.get(self.next_size).copied().unwrap_or(0);
        let (mut parts, mut n) = (Vec::new(), 0);
        while n < wanted {
            if self.batch.is_empty() {
                let Some(batch) = next_of(&mut self.inner, services)? else {
                    break;
                };
                n_rows(&batch)?;
                (self.batch, self.at) = (batch, 0);
            }
            let rows = n_rows(&self.batch)?;
            let end = (self.at + wanted - n).min(rows);
            parts.push(rows_of(&self.batch, self.at, end)?);
            n += end - self.at;
            self.at = end;
            if end == rows {
                self.batch.clear();
            }
        }
        self.next_size = (self.next_size + 1) % sizes.len();
        if (n == 0 && wanted > 0) || (self.source.drops_remainder && n < wanted) {
            return Ok(None);
        }
        match wanted {
            0 if self.inner.is_none() && self.batch.is_empty() => Ok(None),
            0 => self.source.empty_batch().map(Some),
            _ => concatenated(&parts).map(Some),
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.size(&mut self.at)?;
        state.size(&mut self.next_size)?;
        state.element(&mut self.batch)?;
        self.at = self.at.min(n_rows(&self.batch)?);
        state.input(&mut self.inner, &self.source.input)
    }
}

/// Elements at regular distances, from starts at regular distances.
struct Window {
    input: Arc<Dataset>,
    size: usize,
    shift: usize,
    stride: usize,
    drops_remainder: bool,
    /// The dtypes of batches, or none if windows are datasets.
    batches: Option<Vec<DType>>,
}

struct WindowIterator {
    source: Arc<Window>,
    inner: Input,
    buffer: VecDeque<Components>,
}

fn window(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let at_least = |i, name: &str, what| {
            let problem = format!("Window {what} must be greater than zero.");
            positive(ctx, i, name, &problem)
        };
        Ok(Arc::new(Window {
            input: dataset(ctx, 0)?,
            size: at_least(1, "size", "size")?,
            shift: at_least(2, "shift", "shift")?,
            stride: at_least(3, "stride", "stride")?,
            drops_remainder: flag(ctx, 4, "drop_remainder")?,
            batches: None,
        }))
    })
}

fn sliding_window(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let drops_remainder = build.attrs.bool("drop_remainder").unwrap_or(true);
    make(build, move |ctx, spec| {
        let at_least = |i, name: &str, what: &str| {
            let problem = format!("{what} must be greater than zero.");
            positive(ctx, i, name, &problem)
        };
        let size = at_least(1, "window_size", "Window size")?;
        let shift = at_least(2, "window_shift", "Window shift")?;
        let stride = at_least(3, "window_stride", "window_stride")?;
        Ok(Arc::new(Window {
            input: dataset(ctx, 0)?,
            size,
            shift,
            stride,
            drops_remainder,
            batches: Some(spec.dtypes.clone()),
        }))
    })
}

impl Window {
    /// Elements from the first of a window to its last.
    fn extent(&self) -> usize {
        (self.size - 1)
            .saturating_mul(self.stride)
            .saturating_add(1)
    }

    fn element(&self, window: Vec<Components>) -> Result<Components> {
        if let Some(dtypes) = &self.batches {
            return batched(dtypes, &window);
        }
        let types = self.input.dtypes.iter().zip(&self.input.shapes).enumerate();
        let part = |(c, (&dtype, shape)): (usize, (&DType, &PartialShape))| {
            let tensors = window.iter().filter_map(|e| e.get(c).cloned());
            let elements = tensors.map(|t| vec![t]).collect();
            window_of(elements, &Spec::new(vec![dtype], vec![shape.clone()])).tensor()
        };
        types.map(part).collect()
    }
}

impl Source for Window {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(WindowIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            buffer: VecDeque::new(),
        }))
    }

    fn cardinality(&self) -> i64 {
        let as_int = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (shift, extent) = (as_int(self.shift), as_int(self.extent()));
        scaled(self.input.cardinality(), |n| match self.drops_remainder {
            true if n < extent => 0,
            true => (n - extent) / shift + 1,
            false => n / shift + i64::from(n % shift != 0),
        })
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for WindowIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let source = self.source.clone();
        let extent = source.extent();
        while self.buffer.len() < extent
            && let Some(element) = next_of(&mut self.inner, services)?
        {
            self.buffer.push_back(element);
        }
        let is_short = source.drops_remainder && self.buffer.len() < extent;
        if self.buffer.is_empty() || is_short {
            return Ok(None);
        }
        let window = self.buffer.iter().step_by(source.stride);
        let window: Vec<Components> = window.take(source.size).cloned().collect();
        let n = source.shift.min(self.buffer.len());
        self.buffer.drain(..n);
        for _ in n..source.shift {
            if next_of(&mut self.inner, services)?.is_none() {
                break;
            }
        }
        source.element(window).map(Some)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.queue(&mut self.buffer)?;
        state.input(&mut self.inner, &self.source.input)
    }
}
