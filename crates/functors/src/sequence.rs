//! Element shapes of lists and tensor arrays, as tensors and with a leading dimension.

use crate::indices;
use ferroflow_base::{Result, Status, invalid_argument, resource_exhausted};
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, memory_limit};

/// Merges two element shapes.
///
/// # Errors
/// INVALID_ARGUMENT if they are not compatible.
pub fn merged(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    a.merge(b).ok_or_else(|| incompatible(a, b))
}

#[cold]
fn incompatible(a: &PartialShape, b: &PartialShape) -> Status {
    match (a.rank(), b.rank()) {
        (Some(x), Some(y)) if x != y => {
            invalid_argument!("PartialTensorShape: Incompatible ranks during merge: {x} vs. {y}")
        }
        _ => invalid_argument!("PartialTensorShape: Incompatible shapes during merge: {a} vs. {b}"),
    }
}

/// Returns the shape that a tensor of sizes describes: −1 is an unknown dimension, the scalar −1 an
/// unknown rank.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a vector of sizes or the scalar −1.
pub fn shape_from_tensor(t: &Tensor) -> Result<PartialShape> {
    if !matches!(t.dtype(), DType::Int32 | DType::Int64) {
        return Err(invalid_argument!(
            "Expected an int32 or int64 shape tensor; found {}",
            t.dtype()
        ));
    }
    match t.shape().rank() {
        0 if indices::int(t) == Some(-1) => Ok(PartialShape::unknown()),
        0 => Err(invalid_argument!(
            "The only valid scalar shape tensor is the fully unknown shape specified as -1."
        )),
        1 => {
            let dims = indices::ints(t)?;
            let shape = PartialShape::from_tf(Some(&dims))?;
            let known: Vec<i64> = dims.iter().map(|&d| d.max(0)).collect();
            Shape::checked(&known)?;
            Ok(shape)
        }
        rank => Err(invalid_argument!(
            "Shape must be at most rank 1 but is rank {rank}"
        )),
    }
}

/// Returns [`shape_from_tensor`] of input `i` of a shape function, as far as its value is known.
///
/// # Errors
/// INVALID_ARGUMENT if the value is not a shape.
pub fn shape_input(ctx: &ShapeCtx, i: usize) -> Result<PartialShape> {
    match (ctx.constant(i), ctx.shape_value(i)) {
        (Some(t), _) => shape_from_tensor(t),
        (None, Some(dims)) => Ok(PartialShape::of(dims.iter().copied())),
        _ => Ok(PartialShape::unknown()),
    }
}

/// Returns a shape as a tensor of sizes; the reverse of [`shape_from_tensor`].
///
/// # Errors
/// INVALID_ARGUMENT if a dimension does not fit `dtype`.
pub fn shape_to_tensor(shape: &PartialShape, dtype: DType) -> Result<Tensor> {
    let size = |d: &Option<usize>| d.map_or(-1, |d| d as i64);
    match shape.dims() {
        None => indices::int_scalar(dtype, -1),
        Some(dims) => indices::int_vector(dtype, dims.iter().map(size)),
    }
}

/// Returns the shape with a leading dimension `n`.
pub fn with_leading(n: Option<usize>, shape: &PartialShape) -> PartialShape {
    match shape.dims() {
        None => PartialShape::unknown(),
        Some(dims) => PartialShape::of(std::iter::once(n).chain(dims.iter().copied())),
    }
}

/// Returns the shape without its first dimension.
pub fn without_leading(shape: &PartialShape) -> PartialShape {
    match shape.dims() {
        Some([_, rest @ ..]) => PartialShape::of(rest.iter().copied()),
        _ => PartialShape::unknown(),
    }
}

/// Extends a vector of slots to at least `n`.
///
/// # Errors
/// RESOURCE_EXHAUSTED if they do not fit into memory.
pub fn grow<T: Default>(slots: &mut Vec<T>, n: usize) -> Result<()> {
    if n <= slots.len() {
        return Ok(());
    }
    let too_large = || resource_exhausted!("OOM when growing a sequence to {n} elements");
    let bytes = n.checked_mul(size_of::<T>()).ok_or_else(too_large)?;
    if bytes > memory_limit() / 4 {
        return Err(too_large());
    }
    slots
        .try_reserve(n - slots.len())
        .map_err(|_| too_large())?;
    slots.resize_with(n, T::default);
    Ok(())
}
