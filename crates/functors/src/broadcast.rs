//! Numpy-style broadcasting.

use crate::strided::Strided;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{PartialShape, Shape, Tensor};
use smallvec::SmallVec;

/// Returns the shape of two full shapes broadcast together.
///
/// ```
/// use ferroflow_functors::broadcast::broadcast_shape;
/// use ferroflow_tensor::Shape;
/// let s = broadcast_shape(&Shape::from([2, 1, 3]), &Shape::from([4, 1])).unwrap();
/// assert_eq!(s, Shape::from([2, 4, 3]));
/// assert!(broadcast_shape(&Shape::from([2]), &Shape::from([3])).is_err());
/// ```
///
/// # Errors
/// INVALID_ARGUMENT if the shapes are not compatible.
pub fn broadcast_shape(a: &Shape, b: &Shape) -> Result<Shape> {
    let rank = a.rank().max(b.rank());
    let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(invalid_argument!("Incompatible shapes: {a} vs. {b}")),
        })
        .collect()
}

/// Returns the shape of two partial shapes broadcast together, as far as it is known.
///
/// # Errors
/// INVALID_ARGUMENT if known dimensions are not compatible.
pub fn broadcast_partial(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(PartialShape::unknown());
    };
    let rank = x.len().max(y.len());
    let at =
        |s: &[Option<usize>], i: usize| (i + s.len()).checked_sub(rank).map_or(Some(1), |j| s[j]);
    let dims: SmallVec<[Option<usize>; 4]> = (0..rank)
        .map(|i| match (at(x, i), at(y, i)) {
            (Some(p), Some(q)) if p == q => Ok(Some(p)),
            (Some(1), q) => Ok(q),
            (p, Some(1)) => Ok(p),
            (Some(p), None) | (None, Some(p)) => Ok(Some(p)),
            (None, None) => Ok(None),
            _ => Err(invalid_argument!(
                "Dimensions must be equal, or one of them 1, to broadcast {a} with {b}"
            )),
        })
        .collect::<Result<_>>()?;
    Ok(PartialShape::of(dims))
}

/// Returns `value` broadcast to `shape`, which it must fit.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the result does not fit into memory.
pub fn broadcast_tensor(ctx: &KernelCtx, value: &Tensor, shape: Shape) -> Result<Tensor> {
    let from = value.shape();
    let lead = shape.rank().saturating_sub(from.rank());
    let strides = from.strides();
    let view = Strided::new(
        0,
        shape
            .iter()
            .enumerate()
            .map(|(i, &d)| match i.checked_sub(lead) {
                Some(j) if from[j] != 1 => (d, strides[j] as isize),
                _ => (d, 0),
            }),
    );
    let mut out = ctx.alloc(value.dtype(), shape)?;
    view.gather(ctx.par(), value, &mut out)?;
    Ok(out)
}
