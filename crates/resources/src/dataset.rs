//! Datasets, the values of the dataset ops' variants, and iterators over them (TensorFlow:
//! `core/framework/dataset.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Callable, StepServices};
use ferroflow_tensor::rows::{joined, prepended, rows};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

/// The components of one element.
pub type Components = Vec<Tensor>;

/// A sequence of elements that can be iterated any number of times.
pub struct Dataset {
    /// The source of the elements.
    pub source: DatasetSource,
    /// Dtypes of the components.
    pub dtypes: Vec<DType>,
    /// Shapes of the components.
    pub shapes: Vec<PartialShape>,
}

/// The source of a dataset's elements.
pub enum DatasetSource {
    /// From the first number up to the second, exclusive, in steps of the third.
    Range([i64; 3]),
    /// One element.
    Tensors(Components),
    /// The elements, rows of the components.
    Slices(Vec<Components>),
    /// Consecutive elements stacked.
    Batch {
        /// Input dataset.
        input: Arc<Dataset>,
        /// Elements per batch.
        size: usize,
        /// Whether a last, smaller batch is dropped.
        drop_remainder: bool,
    },
    /// The number of repetitions; `None` repeats forever.
    Repeat(Arc<Dataset>, Option<u64>),
    /// At most this many elements; `None` takes all.
    Take(Arc<Dataset>, Option<u64>),
    /// Without this many elements at the beginning; `None` skips all.
    Skip(Arc<Dataset>, Option<u64>),
    /// Elements of all inputs side by side.
    Zip(Vec<Arc<Dataset>>),
    /// The first dataset, then the second.
    Concatenate(Arc<Dataset>, Arc<Dataset>),
    /// The function applied to each element and its captured tensors.
    Map {
        /// Input dataset.
        input: Arc<Dataset>,
        /// Function applied to each element.
        function: Arc<dyn Callable>,
        /// Captured inputs of the function.
        captured: Components,
    },
}

/// An iterator over a dataset.
pub trait IteratorBase: Send {
    /// Returns the next element; `None` at the end.
    ///
    /// # Errors
    /// Those of a map's function; INVALID_ARGUMENT if elements of a batch have different shapes.
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>>;
}

impl<F: FnMut(&StepServices) -> Result<Option<Components>> + Send> IteratorBase for F {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        self(services)
    }
}

impl Dataset {
    /// Returns the dataset that a variant scalar holds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the tensor is not such a scalar.
    pub fn of(t: &Tensor) -> Result<Arc<Dataset>> {
        let found = match t.variants()? {
            [Variant(Some(value))] => value.clone().downcast().ok(),
            _ => None,
        };
        found.ok_or_else(|| {
            invalid_argument!(
                "The given dataset variant tensor must be a scalar that holds a dataset."
            )
        })
    }

    /// Returns the dataset as a variant scalar.
    ///
    /// # Errors
    /// Those of [`Tensor::from_variants`], which do not occur here.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![Variant(Some(Arc::new(self)))])
    }

    /// Returns an iterator at the beginning.
    pub fn iterator(self: &Arc<Self>) -> Box<dyn IteratorBase> {
        match &self.source {
            DatasetSource::Range([start, stop, step]) => {
                let (mut at, stop, step) = (Some(*start), *stop, *step);
                let dtype = self.dtypes.first().copied().unwrap_or(DType::Int64);
                Box::new(move |_: &StepServices| {
                    let Some(now) =
                        at.filter(|&now| if step > 0 { now < stop } else { now > stop })
                    else {
                        return Ok(None);
                    };
                    at = now.checked_add(step);
                    Ok(Some(vec![range_value(dtype, now)?]))
                })
            }
            DatasetSource::Tensors(_) | DatasetSource::Slices(_) => {
                let (dataset, mut i) = (self.clone(), 0);
                Box::new(move |_: &StepServices| {
                    i += 1;
                    Ok(match &dataset.source {
                        DatasetSource::Tensors(element) if i == 1 => Some(element.clone()),
                        DatasetSource::Slices(elements) => elements.get(i - 1).cloned(),
                        _ => None,
                    })
                })
            }
            DatasetSource::Batch {
                input,
                size,
                drop_remainder,
            } => {
                let (mut inner, size, drop_remainder) = (input.iterator(), *size, *drop_remainder);
                let dtypes = self.dtypes.clone();
                Box::new(move |services: &StepServices| {
                    let mut elements = Vec::new();
                    while elements.len() < size
                        && let Some(element) = inner.next(services)?
                    {
                        elements.push(element);
                    }
                    match elements.len() {
                        0 => Ok(None),
                        n if n < size && drop_remainder => Ok(None),
                        _ => batched(&dtypes, &elements).map(Some),
                    }
                })
            }
            DatasetSource::Repeat(input, count) => {
                let (input, mut left) = (input.clone(), *count);
                let (mut inner, mut is_empty) = (None::<Box<dyn IteratorBase>>, false);
                Box::new(move |services: &StepServices| {
                    loop {
                        if is_empty {
                            return Ok(None);
                        }
                        let walk = match &mut inner {
                            Some(walk) => walk,
                            None if left == Some(0) => return Ok(None),
                            None => {
                                left = left.map(|n| n - 1);
                                is_empty = true;
                                inner.insert(input.iterator())
                            }
                        };
                        match walk.next(services)? {
                            Some(element) => {
                                is_empty = false;
                                return Ok(Some(element));
                            }
                            // Repeating an empty dataset ends.
                            None => inner = None,
                        }
                    }
                })
            }
            DatasetSource::Take(input, count) => {
                let (mut inner, mut left) = (input.iterator(), *count);
                Box::new(move |services: &StepServices| match left {
                    Some(0) => Ok(None),
                    _ => {
                        left = left.map(|n| n - 1);
                        inner.next(services)
                    }
                })
            }
            DatasetSource::Skip(input, count) => {
                let (mut inner, mut left) = (input.iterator(), *count);
                Box::new(move |services: &StepServices| {
                    let Some(n) = left else {
                        return Ok(None);
                    };
                    for _ in 0..n {
                        if inner.next(services)?.is_none() {
                            break;
                        }
                    }
                    left = Some(0);
                    inner.next(services)
                })
            }
            DatasetSource::Zip(inputs) => {
                let mut walks: Vec<_> = inputs.iter().map(Dataset::iterator).collect();
                Box::new(move |services: &StepServices| {
                    let mut all = Vec::new();
                    for walk in &mut walks {
                        match walk.next(services)? {
                            Some(element) => all.extend(element),
                            None => return Ok(None),
                        }
                    }
                    Ok((!all.is_empty()).then_some(all))
                })
            }
            DatasetSource::Map {
                input,
                function,
                captured,
            } => {
                let (mut inner, function, captured) =
                    (input.iterator(), function.clone(), captured.clone());
                let n = self.dtypes.len();
                Box::new(move |services: &StepServices| {
                    let Some(mut element) = inner.next(services)? else {
                        return Ok(None);
                    };
                    element.extend(captured.iter().cloned());
                    let made = function.call(element, services)?;
                    match made.len() == n {
                        true => Ok(Some(made)),
                        false => Err(invalid_argument!(
                            "the function returns {} tensors, but the dataset's elements have {n}",
                            made.len()
                        )),
                    }
                })
            }
            DatasetSource::Concatenate(first, second) => {
                let (mut first, mut second) = (Some(first.iterator()), second.iterator());
                Box::new(move |services: &StepServices| {
                    if let Some(walk) = &mut first {
                        if let Some(element) = walk.next(services)? {
                            return Ok(Some(element));
                        }
                        first = None;
                    }
                    second.next(services)
                })
            }
        }
    }
}

fn range_value(dtype: DType, value: i64) -> Result<Tensor> {
    match dtype {
        DType::Int64 => Ok(Tensor::scalar(value)),
        DType::Int32 => i32::try_from(value)
            .map(Tensor::scalar)
            .map_err(|_| invalid_argument!("{value} does not fit the output type {dtype}")),
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

/// Splits tensors along their first dimensions into elements.
///
/// # Errors
/// INVALID_ARGUMENT if a component is a scalar or their first dimensions differ.
pub fn slices(components: &[Tensor]) -> Result<Vec<Components>> {
    let mut elements: Vec<Components> = Vec::new();
    for (i, component) in components.iter().enumerate() {
        if component.shape().is_scalar() {
            return Err(invalid_argument!(
                "All components must be at least 1-dimensional"
            ));
        }
        let rows = rows(component)?;
        if i == 0 {
            elements.resize_with(rows.len(), Vec::new);
        }
        if rows.len() != elements.len() {
            return Err(invalid_argument!(
                "All components must have the same size in the 0th dimension"
            ));
        }
        for (element, row) in elements.iter_mut().zip(rows) {
            element.push(row);
        }
    }
    Ok(elements)
}

fn batched(dtypes: &[DType], elements: &[Components]) -> Result<Components> {
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
        joined(dtype, prepended(items.len(), &shape)?, &parts)
    };
    dtypes.iter().enumerate().map(component).collect()
}
