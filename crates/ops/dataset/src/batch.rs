//! Elements in batches: BatchDataset, ParallelBatchDataset, PaddedBatchDataset,
//! DenseToSparseBatchDataset (TensorFlow: `core/kernels/data/*batch_dataset_op.cc`).

use crate::common::{Input, Spec, batch_size, dataset, flag, make, next_of, scaled};
use crate::sources::batched;
use ferroflow_base::{Result, data_loss, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, Source, State};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant, dispatch_items};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "BatchDataset",
        "input_dataset: variant, batch_size: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(batch_v1),
    Op::new(
        "BatchDatasetV2",
        "input_dataset: variant, batch_size: int64, drop_remainder: bool -> handle: variant | \
         parallel_copy: bool = false; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(batch_v2),
    Op::new(
        "ParallelBatchDataset",
        "input_dataset: variant, batch_size: int64, num_parallel_calls: int64, \
         drop_remainder: bool -> handle: variant | parallel_copy: bool = false; output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; deterministic: string = 'default'; \
         metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(parallel_batch),
    Op::new(
        "PaddedBatchDataset",
        "input_dataset: variant, batch_size: int64, padded_shapes: N*int64, padding_values: \
         list(Toutput_types) -> handle: variant | Toutput_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; N: int >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(padded_batch_v1),
    Op::new(
        "PaddedBatchDatasetV2",
        "input_dataset: variant, batch_size: int64, padded_shapes: N*int64, padding_values: \
         list(Toutput_types), drop_remainder: bool -> handle: variant | parallel_copy: bool = \
         false; Toutput_types: list(type) >= 1; output_shapes: list(shape) >= 1; N: int >= 1; \
         metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(padded_batch_v2),
    Op::new(
        "DenseToSparseBatchDataset",
        "input_dataset: variant, batch_size: int64, row_shape: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(dense_to_sparse_batch),
    Op::new(
        "ExperimentalDenseToSparseBatchDataset",
        "input_dataset: variant, batch_size: int64, row_shape: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(dense_to_sparse_batch),
];

/// Makes the components of a batch from its elements.
pub(crate) type Stack = Box<dyn Fn(&[Components]) -> Result<Components> + Send + Sync>;

/// Consecutive elements, made one by `stack`.
pub(crate) struct Batch {
    input: Arc<Dataset>,
    size: usize,
    drops_remainder: bool,
    stack: Stack,
}

struct BatchIterator {
    source: Arc<Batch>,
    inner: Input,
}

/// Returns a dataset of stacked elements.
pub(crate) fn stacked(
    input: Arc<Dataset>,
    dtypes: Vec<DType>,
    size: usize,
    drops_remainder: bool,
) -> Arc<dyn Source> {
    Arc::new(Batch {
        input,
        size,
        drops_remainder,
        stack: Box::new(move |elements| batched(&dtypes, elements)),
    })
}

fn batch(ctx: &KernelCtx, spec: &Spec, drops_remainder: bool) -> Result<Arc<dyn Source>> {
    let (input, size) = (dataset(ctx, 0)?, batch_size(ctx, 1)?);
    Ok(stacked(input, spec.dtypes.clone(), size, drops_remainder))
}

fn batch_v1(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| batch(ctx, spec, false))
}

fn batch_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        batch(ctx, spec, flag(ctx, 2, "drop_remainder")?)
    })
}

fn parallel_batch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        batch(ctx, spec, flag(ctx, 3, "drop_remainder")?)
    })
}

impl Source for Batch {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(BatchIterator {
            inner: Some(self.input.iterator()?),
            source: self,
        }))
    }

    fn cardinality(&self) -> i64 {
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        let has_rest = |n: i64| !self.drops_remainder && n % size != 0;
        scaled(self.input.cardinality(), |n| {
            n / size + i64::from(has_rest(n))
        })
    }

    fn get(&self, index: u64, services: &StepServices) -> Result<Option<Components>> {
        let Some(start) = index.checked_mul(self.size as u64) else {
            return Ok(None);
        };
        let mut elements = Vec::new();
        for i in start..start.saturating_add(self.size as u64) {
            match self.input.source.get(i, services)? {
                Some(element) => elements.push(element),
                None => break,
            }
        }
        let is_short = elements.len() < self.size && self.drops_remainder;
        match elements.is_empty() || is_short {
            true => Ok(None),
            false => (self.stack)(&elements).map(Some),
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for BatchIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let mut elements = Vec::new();
        while elements.len() < self.source.size
            && let Some(element) = next_of(&mut self.inner, services)?
        {
            elements.push(element);
        }
        match elements.len() {
            0 => Ok(None),
            n if n < self.source.size && self.source.drops_remainder => Ok(None),
            _ => (self.source.stack)(&elements).map(Some),
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.input(&mut self.inner, &self.source.input)
    }
}

fn padded_batch_v1(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| padded_batch(ctx, spec, false))
}

fn padded_batch_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        let drops = flag(ctx, ctx.num_inputs() - 1, "drop_remainder")?;
        padded_batch(ctx, spec, drops)
    })
}

/// How one component is padded.
struct Padding {
    shape: PartialShape,
    value: Tensor,
}

fn padded_batch(ctx: &KernelCtx, spec: &Spec, drops_remainder: bool) -> Result<Arc<dyn Source>> {
    let (input, size) = (dataset(ctx, 0)?, batch_size(ctx, 1)?);
    let n = spec.dtypes.len();
    let n_components = input.dtypes.len();
    if n != n_components {
        return Err(invalid_argument!(
            "Number of padded shapes ({n}) must match the number of components in the input \
             dataset's elements ({n_components})"
        ));
    }
    let mut paddings = Vec::with_capacity(n);
    for (i, &dtype) in input.dtypes.iter().enumerate() {
        let (shape, value) = (ctx.input(2 + i)?, ctx.input(2 + n + i)?);
        if shape.shape().rank() != 1 {
            return Err(invalid_argument!("All padded shapes must be vectors"));
        }
        if !value.shape().is_scalar() {
            return Err(invalid_argument!("All padding values must be scalars"));
        }
        if value.dtype() != dtype {
            return Err(invalid_argument!(
                "Mismatched type between padding value {i} and input dataset's component {i}: {} \
                 vs. {dtype}",
                value.dtype()
            ));
        }
        paddings.push(Padding {
            shape: PartialShape::from_tf(Some(shape.slice::<i64>()?))?,
            value: value.clone(),
        });
    }
    let stack = move |elements: &[Components]| {
        let parts = paddings.iter().enumerate();
        parts.map(|(c, p)| p.stack(c, elements)).collect()
    };
    Ok(Arc::new(Batch {
        input,
        size,
        drops_remainder,
        stack: Box::new(stack),
    }))
}

impl Padding {
    /// Returns the shape to which the elements are padded.
    fn common_shape(&self, c: usize, items: &[&Tensor]) -> Result<Shape> {
        let dims = self.shape.dims();
        let rank = dims.map(<[_]>::len);
        let rank = rank.unwrap_or_else(|| items.first().map_or(0, |t| t.shape().rank()));
        let mut common: Vec<usize> = (0..rank)
            .map(|d| self.shape.dim(d as isize).unwrap_or(0))
            .collect();
        for item in items {
            if item.shape().rank() != rank {
                return Err(invalid_argument!(
                    "All elements in a batch must have the same rank as the padded shape for \
                     component{c}: expected rank {rank} but got element with rank {}",
                    item.shape().rank()
                ));
            }
            for (d, (size, &n)) in common.iter_mut().zip(item.shape().dims()).enumerate() {
                let is_fixed = dims.is_some() && self.shape.dim(d as isize).is_some();
                if !is_fixed {
                    *size = n.max(*size);
                } else if n > *size {
                    return Err(data_loss!(
                        "Attempted to pad to a smaller size than the input element."
                    ));
                }
            }
        }
        let dims: Vec<i64> = common.iter().map(|&d| d as i64).collect();
        Shape::checked(&dims)
    }

    fn stack(&self, c: usize, elements: &[Components]) -> Result<Tensor> {
        let items: Vec<&Tensor> = elements.iter().filter_map(|e| e.get(c)).collect();
        let shape = self.common_shape(c, &items)?;
        let whole = ferroflow_tensor::rows::prepended(items.len(), &shape)?;
        let mut out = Tensor::zeros(self.value.dtype(), whole)?;
        let (dims, size) = (shape.dims(), shape.num_elements());
        dispatch_items!(self.value.dtype(), T => {
            let [value] = self.value.items::<T>()? else {
                return Err(invalid_argument!("All padding values must be scalars"));
            };
            let to = out.items_mut::<T>()?;
            for (i, item) in items.iter().enumerate() {
                let from = item.items::<T>()?;
                let Some(to) = to.get_mut(i * size..(i + 1) * size) else {
                    continue;
                };
                if item.shape().dims() == dims {
                    to.clone_from_slice(from);
                } else {
                    fill(to, value);
                    copy_corner(to, dims, from, item.shape().dims());
                }
            }
        });
        Ok(out)
    }
}

fn fill<T: Clone>(to: &mut [T], value: &T) {
    to.fill(value.clone());
}

/// Copies a tensor into the corner of a larger one of the same rank.
fn copy_corner<T: Clone>(to: &mut [T], to_dims: &[usize], from: &[T], from_dims: &[usize]) {
    let (Some((&n, from_rest)), Some((_, to_rest))) =
        (from_dims.split_first(), to_dims.split_first())
    else {
        return to.clone_from_slice(from);
    };
    if from_rest.is_empty() {
        if let Some(to) = to.get_mut(..n) {
            to.clone_from_slice(from);
        }
        return;
    }
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    let (from_size, to_size) = (size(from_rest), size(to_rest));
    if from_size == 0 || to_size == 0 {
        return;
    }
    let rows = to
        .chunks_exact_mut(to_size)
        .zip(from.chunks_exact(from_size));
    for (to, from) in rows {
        copy_corner(to, to_rest, from, from_rest);
    }
}

fn dense_to_sparse_batch(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // The op's types are those of the values; elements are sparse tensors, serialized as variants.
    let spec = Spec::new(
        vec![DType::Variant],
        vec![PartialShape::of([None, Some(3)])],
    );
    crate::common::make_of(build, spec, |ctx, _| sparse_batch(ctx))
}

fn sparse_batch(ctx: &KernelCtx) -> Result<Arc<dyn Source>> {
    let (input, size) = (dataset(ctx, 0)?, batch_size(ctx, 1)?);
    if input.dtypes.len() != 1 {
        return Err(invalid_argument!(
            "DenseToSparseBatchDataset only supports inputs with a single component."
        ));
    }
    let row_shape = ctx.input(2)?;
    if row_shape.shape().rank() != 1 {
        return Err(invalid_argument!("row_shape must be a vector"));
    }
    let row_shape = PartialShape::from_tf(Some(row_shape.slice::<i64>()?))?;
    let stack = move |elements: &[Components]| sparse_stack(&row_shape, elements);
    Ok(Arc::new(Batch {
        input,
        size,
        drops_remainder: false,
        stack: Box::new(stack),
    }))
}

fn sparse_stack(row_shape: &PartialShape, elements: &[Components]) -> Result<Components> {
    let rank = row_shape.rank().unwrap_or(0);
    let mut dense: Vec<usize> = (0..rank)
        .map(|d| row_shape.dim(d as isize).unwrap_or(0))
        .collect();
    let items: Vec<&Tensor> = elements.iter().filter_map(|e| e.first()).collect();
    let mut n_all = 0usize;
    for (i, item) in items.iter().enumerate() {
        if item.shape().rank() != rank {
            return Err(invalid_argument!(
                "Input element had shape ({}) that is incompatible with the row shape ({row_shape}).",
                item.shape()
            ));
        }
        for (d, (size, &n)) in dense.iter_mut().zip(item.shape().dims()).enumerate() {
            match row_shape.dim(d as isize) {
                None => *size = n.max(*size),
                Some(most) if n > most => {
                    return Err(data_loss!(
                        "Input element {i} had shape ({}) that is larger than the row shape \
                         ({row_shape}).",
                        item.shape()
                    ));
                }
                Some(_) => {}
            }
        }
        n_all += item.num_elements();
    }
    let mut indices: Vec<i64> = Vec::with_capacity(n_all * (rank + 1));
    for (i, item) in items.iter().enumerate() {
        let strides = item.shape().strides();
        for at in 0..item.num_elements() {
            indices.push(i as i64);
            let dims = item.shape().dims().iter().zip(&strides);
            indices.extend(dims.map(|(&n, &stride)| (at / stride % n) as i64));
        }
    }
    let parts: Vec<_> = items.iter().map(|&t| (Some(t), t.num_elements())).collect();
    let dtype = items.first().map_or(DType::Float, |t| t.dtype());
    let shape: Vec<i64> = std::iter::once(items.len())
        .chain(dense)
        .map(|d| d as i64)
        .collect();
    let parts = [
        Tensor::from_slice([n_all, rank + 1], &indices)?,
        ferroflow_tensor::rows::joined(dtype, Shape::from([n_all]), &parts)?,
        Tensor::vector(&shape)?,
    ];
    let parts = parts.map(|t| Variant(Some(Arc::new(t))));
    Ok(vec![Tensor::from_variants([3], parts.into())?])
}
