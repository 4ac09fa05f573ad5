//! [`Ragged`]: a ragged tensor as the value of a variant.

use ferroflow_tensor::{Tensor, Variant};
use std::sync::Arc;

/// The payload of a variant.
pub struct Ragged {
    /// Row splits, outermost dimension first.
    pub splits: Vec<Tensor>,
    /// Values of all rows, concatenated.
    pub values: Tensor,
}

impl Ragged {
    /// Wraps the value as a variant.
    pub fn variant(self) -> Variant {
        Variant(Some(Arc::new(self)))
    }

    /// Returns the payload of a variant, if it is a ragged tensor.
    pub fn of(variant: &Variant) -> Option<&Ragged> {
        variant.0.as_deref()?.downcast_ref()
    }

    /// Returns a ragged tensor with the same splits and other values.
    pub fn with_values(&self, values: Tensor) -> Ragged {
        Ragged {
            splits: self.splits.clone(),
            values,
        }
    }
}
