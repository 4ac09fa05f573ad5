//! Tensors of a model file that are read on first use.

use crate::{DType, MappedFile, Shape, Tensor};
use ferroflow_base::{Result, invalid_argument};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A constant: in memory, or a range of a mapped file whose length fits its shape.
#[derive(Clone)]
pub struct LazyTensor {
    dtype: DType,
    shape: Shape,
    repr: Repr,
}

#[derive(Clone)]
enum Repr {
    Ready(Tensor),
    Mapped(Arc<MappedFile>, Range<usize>),
    Deferred(Arc<dyn Fn() -> Result<Tensor> + Send + Sync>),
}

impl LazyTensor {
    /// Returns a range of `file` that holds a tensor of a plain dtype in row-major little-endian
    /// order.
    ///
    /// Returns `None` when the length does not fit or the range is not inside the file.
    pub fn mapped(
        dtype: DType,
        shape: Shape,
        file: Arc<MappedFile>,
        range: Range<usize>,
    ) -> Option<Self> {
        let bytes = shape.num_elements().checked_mul(dtype.size())?;
        let inside = range.end <= (*file).as_ref().len() && range.start <= range.end;
        let is_as_stored = dtype.is_plain() && dtype != DType::Bool && dtype.narrow().is_none();
        (is_as_stored && inside && bytes == range.len()).then(|| LazyTensor {
            dtype,
            shape,
            repr: Repr::Mapped(file, range),
        })
    }

    /// Returns a constant that `compute` makes on each access; the result must have this dtype and
    /// shape. Passes derive large weights this way, one at a time in memory.
    pub fn deferred(
        dtype: DType,
        shape: Shape,
        compute: Arc<dyn Fn() -> Result<Tensor> + Send + Sync>,
    ) -> LazyTensor {
        LazyTensor {
            dtype,
            shape,
            repr: Repr::Deferred(compute),
        }
    }

    /// Returns the same elements under another shape of the same element count.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the element counts differ.
    pub fn with_shape(&self, shape: Shape) -> Result<LazyTensor> {
        let repr = match &self.repr {
            Repr::Ready(t) => Repr::Ready(t.clone().with_shape(shape.clone())?),
            other if shape.num_elements() == self.shape.num_elements() => match other.clone() {
                Repr::Deferred(compute) => {
                    let shape = shape.clone();
                    Repr::Deferred(Arc::new(move || compute()?.with_shape(shape.clone())))
                }
                other => other,
            },
            _ => {
                return Err(invalid_argument!(
                    "cannot reshape {} to {shape}",
                    self.shape
                ));
            }
        };
        Ok(LazyTensor {
            dtype: self.dtype,
            shape,
            repr,
        })
    }

    /// Returns the size of the plain data in bytes.
    pub fn byte_len(&self) -> usize {
        self.shape.num_elements() * self.dtype.size()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the value; a view of the file where alignment allows it, else a copy.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if a copy does not fit into memory, or the error of a deferred
    /// computation.
    pub fn get(&self) -> Result<Tensor> {
        match &self.repr {
            Repr::Ready(t) => Ok(t.clone()),
            Repr::Mapped(file, range) => {
                Tensor::from_mapped(self.dtype, self.shape.clone(), file, range.clone())
            }
            Repr::Deferred(compute) => compute(),
        }
    }

    /// Hints that the value will not be read again soon; see [`MappedFile::release`].
    pub fn release(&self) {
        if let Repr::Mapped(file, range) = &self.repr {
            file.release(range.clone());
        }
    }

    /// Returns whether two constants share their storage, or have equal small values.
    pub fn same_value(&self, other: &LazyTensor) -> bool {
        if self.dtype != other.dtype || self.shape != other.shape {
            return false;
        }
        match (&self.repr, &other.repr) {
            (Repr::Ready(a), Repr::Ready(b)) => a.same_value(b),
            (Repr::Mapped(f, r), Repr::Mapped(g, s)) => {
                (Arc::ptr_eq(f, g) && r == s)
                    || (r.len() <= 256 && (**f).as_ref()[r.clone()] == (**g).as_ref()[s.clone()])
            }
            (Repr::Deferred(a), Repr::Deferred(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl From<Tensor> for LazyTensor {
    fn from(tensor: Tensor) -> Self {
        LazyTensor {
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            repr: Repr::Ready(tensor),
        }
    }
}

impl fmt::Debug for LazyTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
