//! Tensors along their first dimension: concatenation, splitting, leading dimensions.

use crate::{DType, Shape, Tensor, dispatch_items};
use ferroflow_base::{Result, internal, invalid_argument};

/// Concatenates the elements of all parts to a tensor of `shape`. A part is a tensor or `None`,
/// which stands for zeros, with the number of its elements.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the tensor does not fit into memory; INTERNAL if the numbers of elements
/// do not match.
pub fn joined(dtype: DType, shape: Shape, parts: &[(Option<&Tensor>, usize)]) -> Result<Tensor> {
    let complete = parts.iter().all(|(part, _)| part.is_some());
    let mut out = match complete {
        true => Tensor::for_overwrite(dtype, shape)?,
        false => Tensor::zeros(dtype, shape)?,
    };
    dispatch_items!(dtype, T => {
        let mut rest = out.items_mut::<T>()?;
        for &(part, n) in parts {
            let Some((to, tail)) = std::mem::take(&mut rest).split_at_mut_checked(n) else {
                return Err(internal!("the parts have more elements than the whole"));
            };
            if let Some(part) = part {
                let from = part.items::<T>()?;
                if from.len() != n {
                    return Err(internal!("a part has {} elements, not {n}", from.len()));
                }
                to.clone_from_slice(from);
            }
            rest = tail;
        }
    });
    Ok(out)
}

/// Splits `t` along its first dimension. The rows share the storage of `t` if they are large.
///
/// # Errors
/// INVALID_ARGUMENT if `t` is a scalar.
pub fn rows(t: &Tensor) -> Result<Vec<Tensor>> {
    let (n, row) = split_first(t.shape())?;
    if row.is_scalar() && t.dtype().is_plain() && t.dtype().size() <= 8 && !t.is_on_device() {
        // Kept in the tensors themselves.
        let scalars = crate::dispatch!(t.dtype(), T in [f32, f64, i32, i64, i16, i8, u8, u16, u32, u64, bool] =>
            Some(t.slice::<T>()?.iter().map(|x| Tensor::scalar(*x)).collect()), else None);
        if let Some(scalars) = scalars {
            return Ok(scalars);
        }
    }
    let size = row.num_elements();
    (0..n).map(|i| t.view(i * size, row.clone())).collect()
}

/// Returns the first dimension of a shape and the others.
///
/// # Errors
/// INVALID_ARGUMENT if the shape is a scalar's.
pub fn split_first(shape: &Shape) -> Result<(usize, Shape)> {
    match shape.split_first() {
        Some((&n, row)) => Ok((n, Shape::from(row))),
        None => Err(invalid_argument!(
            "Tensor must be at least a vector, but saw shape: []"
        )),
    }
}

/// Returns `shape` with `n` as an additional first dimension.
///
/// # Errors
/// INVALID_ARGUMENT if the shape gets too many dimensions or elements.
pub fn prepended(n: usize, shape: &Shape) -> Result<Shape> {
    let dims = std::iter::once(n).chain(shape.iter().copied());
    let dims: Vec<i64> = dims.map(|d| i64::try_from(d).unwrap_or(-1)).collect();
    Shape::checked(&dims)
}

/// Returns where consecutive pieces of `lengths` rows begin and end; `None` if a length is negative
/// or their sum overflows.
pub fn pieces(lengths: &[i64]) -> Option<Vec<(usize, usize)>> {
    let mut start = 0usize;
    let piece = |&length: &i64| {
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        Some((std::mem::replace(&mut start, end), end))
    };
    lengths.iter().map(piece).collect()
}
