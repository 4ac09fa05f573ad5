//! The coordinates of sparse tensors: checks and groups (TensorFlow: `core/util/sparse/`).

use crate::indices::list;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::Tensor;
use std::ops::Range;

/// Checks that the coordinates, rows of `rank` numbers, are in bounds and ascend.
///
/// # Errors
/// INVALID_ARGUMENT if a row is out of bounds, repeated or out of order.
pub fn check_ordered(coordinates: &[i64], rank: usize, shape: &[i64]) -> Result<()> {
    let mut last: Option<&[i64]> = None;
    for (i, row) in coordinates.chunks_exact(rank.max(1)).enumerate() {
        let shown = || format!("indices[{i}] = {}", list(row));
        if row.iter().zip(shape).any(|(&x, &d)| x < 0 || x >= d) {
            return Err(invalid_argument!(
                "{} is out of bounds: need 0 <= index < {}",
                shown(),
                list(shape)
            ));
        }
        match last.map(|last| last.cmp(row)) {
            None | Some(std::cmp::Ordering::Less) => {}
            Some(std::cmp::Ordering::Equal) => {
                return Err(invalid_argument!("{} is repeated", shown()));
            }
            Some(std::cmp::Ordering::Greater) => {
                return Err(invalid_argument!(
                    "{} is out of order. Many sparse ops require sorted indices.\n    Use \
                     `tf.sparse.reorder` to create a correctly ordered copy.\n\n",
                    shown()
                ));
            }
        }
        last = Some(row);
    }
    Ok(())
}

/// Checks that the coordinates are in bounds.
///
/// # Errors
/// INVALID_ARGUMENT if a row is out of bounds.
pub fn check_bounds(coordinates: &[i64], rank: usize, shape: &[i64]) -> Result<()> {
    for (i, row) in coordinates.chunks_exact(rank.max(1)).enumerate() {
        if row.iter().zip(shape).any(|(&x, &d)| x < 0 || x >= d) {
            return Err(invalid_argument!(
                "Sparse index tuple indices[{i}, :] = {} is out of bounds",
                crate::indices::coordinates(row.iter().copied())
            ));
        }
    }
    Ok(())
}

/// Returns the runs of rows that agree in all but the last coordinate.
pub fn groups(coordinates: &[i64], rank: usize) -> Vec<Range<usize>> {
    let rank = rank.max(1);
    let key = |i: usize| coordinates.get(i * rank..(i + 1) * rank - 1);
    let mut groups: Vec<Range<usize>> = Vec::new();
    for i in 0..coordinates.len() / rank {
        match groups.last_mut() {
            Some(group) if key(group.start) == key(i) => group.end = i + 1,
            _ => groups.push(i..i + 1),
        }
    }
    groups
}

/// Checks the shapes of the parts of a sparse tensor; returns the number of values and the rank.
///
/// # Errors
/// INVALID_ARGUMENT if a part has another rank or the parts do not fit together.
pub fn check_parts(indices: &Tensor, values: &Tensor, shape: &Tensor) -> Result<(usize, usize)> {
    for (name, part, rank) in [
        ("indices", indices, 2),
        ("values", values, 1),
        ("shape", shape, 1),
    ] {
        let found = part.shape().rank();
        if found != rank {
            return Err(invalid_argument!(
                "Sparse {name} must be rank {rank} but is rank {found}"
            ));
        }
    }
    let (n, rank) = (indices.shape()[0], indices.shape()[1]);
    if values.num_elements() != n {
        return Err(invalid_argument!(
            "Number of elements in indices ({n}) and values ({}) do not match",
            values.num_elements()
        ));
    }
    if shape.num_elements() != rank {
        return Err(invalid_argument!(
            "Index rank ({rank}) and shape rank ({}) do not match",
            shape.num_elements()
        ));
    }
    Ok((n, rank))
}
