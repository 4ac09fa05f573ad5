//! Datasets of given elements: RangeDataset, TensorDataset, TensorSliceDataset, ListDataset,
//! SparseTensorSliceDataset, and windows (TensorFlow: `core/kernels/data/*_dataset_op.cc`).

use crate::common::{Made, Spec, components, make, make_of, n_of, number};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AttrValue, KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, DatasetNode, INFINITE, Source, State,
};
use ferroflow_tensor::rows::{joined, split_first};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RangeDataset",
        "start: int64, stop: int64, step: int64 -> handle: variant | output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; metadata: string = ''; replicate_on_split: \
         bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(range),
    Op::new(
        "TensorDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(tensors),
    Op::new(
        "TensorSliceDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; is_files: bool = false; metadata: string = ''; \
         replicate_on_split: bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(slices),
    Op::new(
        "ListDataset",
        "tensors: list(Tinput_types) -> handle: variant | Tinput_types: list(type) >= 1; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(list),
    Op::new(
        "SparseTensorSliceDataset",
        "indices: int64, values: Tvalues, dense_shape: int64 -> handle: variant | Tvalues: \
         type | stateful",
    )
    .shape(shapes::scalar)
    .kernel(sparse_slices),
    Op::new(
        "WindowOp",
        "inputs: list(Tinputs) -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; Tinputs: list(type) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(window),
];

/// A source with random access; [`At`] iterates over it.
pub(crate) trait Indexed: Send + Sync + 'static {
    /// Returns the number of elements; `None` without end.
    fn len(&self) -> Option<u64>;
    /// Returns the element at a position below `len`.
    fn at(&self, i: u64) -> Result<Components>;
    /// Returns the number of elements that the dataset says it has.
    fn cardinality(&self) -> i64 {
        let len = self.len();
        len.map_or(INFINITE, |n| i64::try_from(n).unwrap_or(i64::MAX))
    }
}

/// The dataset of an indexed source.
pub(crate) struct At<T>(pub(crate) T);

struct AtIterator<T> {
    source: Arc<At<T>>,
    next: u64,
}

impl<T: Indexed> Source for At<T> {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(AtIterator {
            source: self,
            next: 0,
        }))
    }

    fn cardinality(&self) -> i64 {
        self.0.cardinality()
    }

    fn get(&self, index: u64, _: &StepServices) -> Result<Option<Components>> {
        match self.0.len().is_none_or(|n| index < n) {
            true => self.0.at(index).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Indexed> DatasetIterator for AtIterator<T> {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let i = self.next;
        let element = self.source.get(i, services)?;
        self.next += u64::from(element.is_some());
        Ok(element)
    }

    fn skip(&mut self, n: u64, _: &StepServices) -> Result<u64> {
        let left = self.source.0.len().map_or(u64::MAX, |len| len - self.next);
        self.next += n.min(left);
        Ok(n.min(left))
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        state.uint(&mut self.next)?;
        let end = self.source.0.len().unwrap_or(u64::MAX);
        self.next = self.next.min(end);
        Ok(())
    }
}

struct Range {
    start: i64,
    step: i64,
    len: u64,
    /// Whether it stands for all numbers from `start` on, as that of `enumerate` does.
    is_endless: bool,
    dtype: DType,
}

impl Indexed for Range {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn at(&self, i: u64) -> Result<Components> {
        let offset = i128::from(i) * i128::from(self.step);
        let value = i64::try_from(i128::from(self.start) + offset).unwrap_or(i64::MAX);
        Ok(vec![range_value(self.dtype, value)?])
    }

    fn cardinality(&self) -> i64 {
        match self.is_endless {
            true => INFINITE,
            false => i64::try_from(self.len).unwrap_or(i64::MAX),
        }
    }
}

fn range(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, spec| {
        let start = number(ctx, 0, "start")?;
        let stop = number(ctx, 1, "stop")?;
        let step = number(ctx, 2, "step")?;
        if step == 0 {
            return Err(invalid_argument!("step must be a non-zero integer."));
        }
        let (distance, pace) = match step > 0 {
            true => (i128::from(stop) - i128::from(start), i128::from(step)),
            false => (i128::from(start) - i128::from(stop), -i128::from(step)),
        };
        let len = (distance + pace - 1).max(0) / pace;
        Ok(Arc::new(At(Range {
            start,
            step,
            len: u64::try_from(len).unwrap_or(u64::MAX),
            is_endless: stop == i64::MAX,
            dtype: spec.dtypes.first().copied().unwrap_or(DType::Int64),
        })))
    })
}

fn range_value(dtype: DType, value: i64) -> Result<Tensor> {
    match dtype {
        DType::Int64 => Ok(Tensor::scalar(value)),
        DType::Int32 => Ok(Tensor::scalar(value as i32)),
        DType::Float => Ok(Tensor::scalar(value as f32)),
        DType::Double => Ok(Tensor::scalar(value as f64)),
        DType::Int8 => Ok(Tensor::scalar(value as i8)),
        DType::Int16 => Ok(Tensor::scalar(value as i16)),
        DType::Uint8 => Ok(Tensor::scalar(value as u8)),
        DType::Uint16 => Ok(Tensor::scalar(value as u16)),
        DType::Uint32 => Ok(Tensor::scalar(value as u32)),
        DType::Uint64 => Ok(Tensor::scalar(value as u64)),
        _ => Err(invalid_argument!("Unsupported data type: {dtype}")),
    }
}

/// Elements in a list: of ListDataset, and of a window.
pub(crate) struct Elements(pub(crate) Vec<Components>);

impl Indexed for Elements {
    fn len(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn at(&self, i: u64) -> Result<Components> {
        Ok(self.0.get(i as usize).cloned().unwrap_or_default())
    }
}

fn tensors(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        Ok(Arc::new(At(Elements(vec![components(ctx, 0)?]))))
    })
}

/// Rows of tensors.
struct Slices {
    components: Components,
    rows: Vec<Shape>,
    len: usize,
}

impl Indexed for Slices {
    fn len(&self) -> Option<u64> {
        Some(self.len as u64)
    }

    fn at(&self, i: u64) -> Result<Components> {
        let parts = self.components.iter().zip(&self.rows);
        parts
            .map(|(t, row)| t.view(i as usize * row.num_elements(), row.clone()))
            .collect()
    }
}

fn slices(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let components = components(ctx, 0)?;
        let mut len = None;
        let mut rows = Vec::new();
        for component in &components {
            if component.shape().is_scalar() {
                return Err(invalid_argument!(
                    "All components must be at least 1-dimensional"
                ));
            }
            let (n, row) = split_first(component.shape())?;
            if *len.get_or_insert(n) != n {
                return Err(invalid_argument!(
                    "All components must have the same size in the 0th dimension"
                ));
            }
            rows.push(row);
        }
        let len = len.unwrap_or(0);
        Ok(Arc::new(At(Slices {
            components,
            rows,
            len,
        })))
    })
}

fn list(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = n_of(build, "output_types")?.max(1);
    make(build, move |ctx, _| {
        let tensors = components(ctx, 0)?;
        let elements = tensors.chunks(n).map(<[Tensor]>::to_vec).collect();
        Ok(Arc::new(At(Elements(elements))))
    })
}

fn window(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    list(build)
}

/// Returns a dataset of elements, with the node of WindowOp, so that positions in it can be saved.
pub(crate) fn window_of(elements: Vec<Components>, spec: &Spec) -> Arc<Dataset> {
    let inputs: Components = elements.iter().flatten().cloned().collect();
    let types = inputs.iter().map(|t| AttrValue::Type(t.dtype())).collect();
    let node = match inputs.is_empty() {
        true => DatasetNode::default(),
        false => DatasetNode {
            op: "WindowOp".to_string(),
            attrs: spec.attrs().with("Tinputs", AttrValue::List(types)),
            inputs,
        },
    };
    spec.dataset(Arc::new(At(Elements(elements))), node)
}

/// Rows of a sparse tensor.
struct SparseSlices {
    /// Coordinates behind the first, row by row of the matrix.
    indices: Tensor,
    values: Tensor,
    /// Dimensions behind the first.
    row_shape: Tensor,
    /// Where the entries of each row end.
    ends: Vec<(i64, usize)>,
    len: u64,
}

impl Indexed for SparseSlices {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn at(&self, i: u64) -> Result<Components> {
        let at = self.ends.partition_point(|(row, _)| (*row as u64) < i);
        let end = |k: usize| self.ends.get(k).map_or(0, |(_, end)| *end);
        let start = at.checked_sub(1).map_or(0, end);
        let is_here = self.ends.get(at).is_some_and(|(row, _)| *row as u64 == i);
        let n = if is_here { end(at) - start } else { 0 };
        let rank = self.row_shape.num_elements();
        Ok(vec![
            self.indices.view(start * rank, Shape::from([n, rank]))?,
            self.values.view(start, Shape::from([n]))?,
            self.row_shape.clone(),
        ])
    }
}

fn sparse_slices(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = vec![DType::Int64, build.attrs.dtype("Tvalues")?, DType::Int64];
    let spec = Spec::new(
        dtypes,
        vec![
            PartialShape::of_rank(2),
            PartialShape::of_rank(1),
            PartialShape::of_rank(1),
        ],
    );
    make_of(build, spec, |ctx, _| sparse_source(ctx))
}

fn sparse_source(ctx: &KernelCtx) -> Made {
    let [indices, values, dense] = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
    let (&[n, rank], &[n_values], &[n_dims]) = (
        indices.shape().dims(),
        values.shape().dims(),
        dense.shape().dims(),
    ) else {
        return Err(invalid_argument!(
            "Input indices must be a matrix, values and shape vectors. Got: {}, {}, {}",
            indices.shape(),
            values.shape(),
            dense.shape()
        ));
    };
    if n != n_values {
        return Err(invalid_argument!(
            "Number of values must match first dimension of indices. Got {n_values} values, \
             indices shape: {}",
            indices.shape()
        ));
    }
    if rank != n_dims {
        return Err(invalid_argument!(
            "Number of dimensions must match second dimension of indices. Got {n_dims} \
             dimensions, indices shape: {}",
            indices.shape()
        ));
    }
    let dims = dense.slice::<i64>()?;
    let Some((&len, row_dims)) = dims.split_first() else {
        return Err(invalid_argument!(
            "The shape argument requires at least one element."
        ));
    };
    let len = u64::try_from(len).map_err(|_| invalid_argument!("the shape is negative"))?;
    let mut ends: Vec<(i64, usize)> = Vec::new();
    let mut inner: Vec<i64> = Vec::with_capacity(n * (rank - 1));
    for (i, index) in indices.slice::<i64>()?.chunks(rank).enumerate() {
        let Some((&row, rest)) = index.split_first() else {
            continue;
        };
        inner.extend_from_slice(rest);
        match ends.last_mut() {
            Some((last, end)) if *last == row => *end = i + 1,
            Some((last, _)) if *last > row => {
                return Err(unimplemented_error!(
                    "The SparseTensor must be ordered in the batch dimension; handling arbitrarily \
                     ordered input is not currently supported."
                ));
            }
            _ => ends.push((row, i + 1)),
        }
    }
    if ends
        .iter()
        .any(|(row, _)| !u64::try_from(*row).is_ok_and(|r| r < len))
    {
        return Err(invalid_argument!(
            "the first dimension of an index is out of bounds"
        ));
    }
    Ok(Arc::new(At(SparseSlices {
        indices: Tensor::from_slice([n, rank - 1], &inner)?,
        values: values.clone(),
        row_shape: Tensor::vector(row_dims)?,
        ends,
        len,
    })))
}

/// Stacks the elements, all of one shape, along a new first dimension.
pub(crate) fn batched(dtypes: &[DType], elements: &[Components]) -> Result<Components> {
    let component = |(c, &dtype): (usize, &DType)| -> Result<Tensor> {
        let items: Vec<&Tensor> = elements.iter().filter_map(|e| e.get(c)).collect();
        let shape = items.first().map(|t| t.shape().clone()).unwrap_or_default();
        if let Some((i, other)) = items.iter().enumerate().find(|(_, t)| *t.shape() != shape) {
            return Err(invalid_argument!(
                "Cannot batch tensors with different shapes in component {c}. First element had \
                 shape {shape} and element {i} had shape {}.",
                other.shape()
            ));
        }
        let n = shape.num_elements();
        let parts: Vec<_> = items.iter().map(|&t| (Some(t), n)).collect();
        let whole = ferroflow_tensor::rows::prepended(items.len(), &shape)?;
        joined(dtype, whole, &parts)
    };
    dtypes.iter().enumerate().map(component).collect()
}
