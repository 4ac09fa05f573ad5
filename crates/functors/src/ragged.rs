//! [`Ragged`]: a ragged tensor as the value of a variant; row splits.

use ferroflow_base::{Result, invalid_argument};
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

/// Returns the row of each of `n` values from row splits.
///
/// # Errors
/// INVALID_ARGUMENT if the splits do not begin with 0 and end with `n`.
pub fn rows_of_splits(splits: &[i64], n: usize) -> Result<Vec<usize>> {
    if let Some(&first) = splits.first().filter(|&&first| first != 0) {
        return Err(invalid_argument!(
            "Splits must start with 0, not with {first}"
        ));
    }
    if let Some(&last) = splits.last().filter(|&&last| last != n as i64) {
        return Err(invalid_argument!(
            "Splits must end with the number of values, got {last} instead of {n}"
        ));
    }
    let mut next = 0;
    let row = |i: usize| {
        while splits.get(next).is_some_and(|&split| i as i64 >= split) {
            next += 1;
        }
        next.saturating_sub(1)
    };
    Ok((0..n).map(row).collect())
}
