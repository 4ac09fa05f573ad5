//! Datasets, the values of the dataset ops' variants, and iterators over them (TensorFlow:
//! `core/framework/dataset.h`).
//!
//! Entry points, in reading order: [`Dataset`], [`Source`], [`DatasetIterator`], [`State`] (an iterator's
//! position), [`CapturedFunction`], [`Prefetch`] and [`InOrder`] (work between steps).

mod background;
mod captured;
mod in_order;
mod prefetch;
mod state;
mod state_file;

pub use background::{Background, BackgroundServices};
pub use captured::CapturedFunction;
pub use in_order::{Element, InOrder};
pub use prefetch::Prefetch;
pub use state::{IteratorState, State};

use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_opdef::{Attrs, StepServices};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

/// The components of one element.
pub type Components = Vec<Tensor>;

/// The cardinality of a dataset without end.
pub const INFINITE: i64 = -1;
/// The cardinality of a dataset whose number of elements is not known.
pub const UNKNOWN: i64 = -2;

/// A sequence of elements that can be iterated any number of times.
pub struct Dataset {
    /// The source of the elements.
    pub source: Arc<dyn Source>,
    /// Dtypes of the components.
    pub dtypes: Vec<DType>,
    /// Shapes of the components.
    pub shapes: Vec<PartialShape>,
    /// The node that made the dataset.
    pub node: DatasetNode,
}

/// The node that made a dataset: what is needed to write it as a graph.
#[derive(Clone, Default)]
pub struct DatasetNode {
    /// The node's op.
    pub op: String,
    /// Its attrs.
    pub attrs: Attrs,
    /// The tensors it read.
    pub inputs: Vec<Tensor>,
}

/// What a dataset op adds: where elements come from.
pub trait Source: Send + Sync {
    /// Returns an iterator at the beginning.
    ///
    /// # Errors
    /// Those of the op.
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>>;

    /// Returns the number of elements, [`INFINITE`] or [`UNKNOWN`].
    fn cardinality(&self) -> i64 {
        UNKNOWN
    }

    /// Returns the element at a position, for datasets with random access; `None` past the end.
    ///
    /// # Errors
    /// UNIMPLEMENTED without random access; those of the op.
    fn get(&self, _index: u64, _services: &StepServices) -> Result<Option<Components>> {
        Err(unimplemented_error!(
            "Random access is not implemented for this dataset."
        ))
    }

    /// Returns the datasets that this one reads.
    fn inputs(&self) -> Vec<Arc<Dataset>> {
        Vec::new()
    }
}

/// A position in a dataset.
pub trait DatasetIterator: Send {
    /// Returns the next element; `None` at the end.
    ///
    /// # Errors
    /// Those of the op. Most iterators may be asked again after an error.
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>>;

    /// Passes up to `n` elements over; returns how many there were.
    ///
    /// # Errors
    /// As for [`DatasetIterator::next`].
    fn skip(&mut self, n: u64, services: &StepServices) -> Result<u64> {
        for done in 0..n {
            services.cancel.check()?;
            if self.next(services)?.is_none() {
                return Ok(done);
            }
        }
        Ok(n)
    }

    /// Saves the position, or moves a new iterator of the same dataset to a saved position.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the state is not one of such an iterator; those of making iterators.
    fn state(&mut self, state: &mut State) -> Result<()>;
}

impl Dataset {
    /// Returns the dataset that a variant scalar holds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the tensor is not such a scalar.
    pub fn of(t: &Tensor) -> Result<Arc<Dataset>> {
        let found = match t.variants()? {
            [variant] => Dataset::of_variant(variant),
            _ => None,
        };
        found.ok_or_else(|| {
            invalid_argument!(
                "The given dataset variant tensor must be a scalar that holds a dataset."
            )
        })
    }

    /// Returns the dataset that a variant holds, if it holds one.
    pub fn of_variant(variant: &Variant) -> Option<Arc<Dataset>> {
        variant.0.as_ref()?.clone().downcast().ok()
    }

    /// Returns the dataset as a variant scalar.
    ///
    /// # Errors
    /// Those of [`Tensor::from_variants`], which do not occur here.
    pub fn tensor(self: &Arc<Self>) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![Variant(Some(self.clone()))])
    }

    /// Returns an iterator at the beginning.
    ///
    /// # Errors
    /// Those of the op.
    pub fn iterator(&self) -> Result<Box<dyn DatasetIterator>> {
        self.source.clone().iterator()
    }

    /// Returns the number of elements, [`INFINITE`] or [`UNKNOWN`].
    pub fn cardinality(&self) -> i64 {
        self.source.cardinality()
    }
}

/// Returns the single dataset that a function returned.
///
/// # Errors
/// INVALID_ARGUMENT if it returned something else.
pub fn returned_dataset(results: &[Tensor]) -> Result<Arc<Dataset>> {
    match results {
        [t] if t.dtype() == DType::Variant && t.shape().is_scalar() => Dataset::of(t),
        _ => Err(invalid_argument!(
            "Function must return a single scalar of dtype DT_VARIANT."
        )),
    }
}
