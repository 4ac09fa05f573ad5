//! Axes, sizes and index tensors, for kernels and shape functions.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch};
use smallvec::SmallVec;

/// The values of a small integer tensor.
pub type Ints = SmallVec<[i64; 8]>;

/// An integer element that indexes or counts.
pub trait Index: Element {
    /// Converts to 64 bits.
    fn to_i64(self) -> i64;
    /// Converts from 64 bits, truncating.
    fn from_i64(v: i64) -> Self;
}

macro_rules! index {
    ($($ty:ty),*) => {$(
        impl Index for $ty {
            #[inline]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline]
            fn from_i64(v: i64) -> Self {
                v as $ty
            }
        }
    )*};
}
index!(i8, i16, i32, i64, u8, u16);

pub use crate::dispatch_index;

/// Runs `$body` with `$I` bound to the [`Index`](crate::indices::Index) type of `$dtype`; fails for
/// other dtypes.
#[macro_export]
macro_rules! dispatch_index {
    ($dtype:expr, $I:ident => $body:expr) => {
        ferroflow_tensor::dispatch!($dtype, $I in [i32, i64, i16] => $body,
            else Err(ferroflow_base::invalid_argument!("{} is not an index type", $dtype)))
    };
}

/// Returns the values of an integer tensor as 64-bit numbers.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not of an integer type.
#[inline]
pub fn ints(t: &Tensor) -> Result<Ints> {
    match t.dtype() {
        DType::Int32 => Ok(t.slice::<i32>()?.iter().map(|&v| v as i64).collect()),
        DType::Int64 => Ok(SmallVec::from_slice(t.slice::<i64>()?)),
        dtype => dispatch!(dtype, T in [i8, i16, u8, u16] =>
            Ok(t.slice::<T>()?.iter().map(|&v| v as i64).collect()),
            else Err(invalid_argument!("expected integers, got a {dtype} tensor"))),
    }
}

/// Converts a tensor of 64-bit numbers to `dtype`, truncating.
///
/// # Errors
/// INVALID_ARGUMENT if `dtype` is not an index type.
pub fn narrowed(t: Tensor, dtype: DType) -> Result<Tensor> {
    if dtype == t.dtype() {
        return Ok(t);
    }
    let mut out = Tensor::for_overwrite(dtype, t.shape().clone())?;
    dispatch!(dtype, T in [i8, i16, i32, u8, u16] => {
        for (to, from) in out.slice_mut::<T>()?.iter_mut().zip(t.slice::<i64>()?) {
            *to = *from as T;
        }
    }, else return Err(invalid_argument!("{dtype} is not an index type")));
    Ok(out)
}

/// Returns the value of an integer tensor that has exactly one element.
#[inline]
pub fn int(t: &Tensor) -> Option<i64> {
    match t.dtype() {
        DType::Int32 => t.to_scalar::<i32>().ok().map(i64::from),
        DType::Int64 => t.to_scalar::<i64>().ok(),
        _ => match ints(t).ok()?[..] {
            [v] => Some(v),
            _ => None,
        },
    }
}

/// Returns the value of an integer tensor without dimensions.
#[inline]
pub fn scalar(t: &Tensor) -> Option<i64> {
    int(t).filter(|_| t.shape().rank() == 0)
}

/// Returns a 1-D integer tensor of `dtype`, which is int32 or int64.
///
/// # Errors
/// INVALID_ARGUMENT for other dtypes, and if a number does not fit.
#[inline]
pub fn int_vector(dtype: DType, values: impl ExactSizeIterator<Item = i64>) -> Result<Tensor> {
    let mut out = Tensor::for_overwrite(dtype, Shape::from([values.len()]))?;
    dispatch!(dtype, T in [i32, i64] => {
        for (o, v) in out.slice_mut::<T>()?.iter_mut().zip(values) {
            *o = T::try_from(v).map_err(|_| too_large_for(dtype, v))?;
        }
    }, else return Err(invalid_argument!("{dtype} is not int32 or int64")));
    Ok(out)
}

/// Returns an integer scalar of `dtype`, which is int32 or int64.
///
/// # Errors
/// INVALID_ARGUMENT if the number does not fit.
#[inline]
pub fn int_scalar(dtype: DType, v: i64) -> Result<Tensor> {
    match dtype {
        DType::Int32 => Ok(Tensor::scalar(
            i32::try_from(v).map_err(|_| too_large_for(dtype, v))?,
        )),
        _ => Ok(Tensor::scalar(v)),
    }
}

#[cold]
fn too_large_for(dtype: DType, v: i64) -> ferroflow_base::Status {
    invalid_argument!("the size {v} does not fit the output type {dtype}")
}

/// Returns `axis`, counted from the end if negative, as a position in `0..rank`.
#[inline]
pub fn axis_in(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 {
        axis.checked_add(rank as i64)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|&a| a < rank)
}

/// Returns the values of input `i` of a shape function if it is a constant, of any integer type.
pub fn constant(ctx: &ShapeCtx, i: usize) -> Option<Ints> {
    ints(ctx.constant(i)?).ok()
}

/// Returns the value of input `i` of a shape function if it is a constant with one element.
pub fn constant_int(ctx: &ShapeCtx, i: usize) -> Option<i64> {
    int(ctx.constant(i)?)
}

/// Returns a partial shape whose dimensions `f` returns.
pub fn partial(rank: usize, f: impl FnMut(usize) -> Option<usize>) -> PartialShape {
    PartialShape::of((0..rank).map(f))
}

/// Returns the shape that a vector of sizes describes; unlike attrs, tensors have no unknown
/// dimensions.
///
/// # Errors
/// INVALID_ARGUMENT for negative sizes.
pub fn sizes(dims: &[i64]) -> Result<PartialShape> {
    Ok((&Shape::checked(dims)?).into())
}

/// Returns the shape that a vector holds as its value (TensorFlow: `tensor::MakeShape`).
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a vector, and for negative sizes.
pub fn shape_vector(dims: &Tensor) -> Result<Shape> {
    if dims.shape().rank() != 1 {
        return Err(invalid_argument!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            dims.shape()
        ));
    }
    Shape::checked(&ints(dims)?)
}

/// Returns the shape that input `i` of a shape function holds as its value, as far as it is known.
///
/// # Errors
/// INVALID_ARGUMENT for negative sizes.
pub fn shape_input(ctx: &ShapeCtx, i: usize) -> Result<PartialShape> {
    match (constant(ctx, i), ctx.shape_value(i)) {
        (Some(dims), _) => sizes(&dims),
        (None, Some(dims)) => Ok(PartialShape::of(dims.iter().copied())),
        _ => Ok(of_vector_length(&ctx.input(i))),
    }
}

/// Returns the rank of an output whose shape is a vector input of known length.
pub fn of_vector_length(shape: &PartialShape) -> PartialShape {
    match (shape.rank(), shape.dim(0)) {
        (Some(1), Some(rank)) if rank <= Shape::MAX_RANK => PartialShape::of_rank(rank),
        _ => PartialShape::unknown(),
    }
}

/// Formats numbers as `[0,2,5]`.
pub fn list<T: std::fmt::Display>(values: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    format!("[{}]", texts.join(","))
}

/// Formats numbers as ` 3 -1 12`: as wide as the widest, as Eigen prints vectors.
pub fn aligned(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(i64::to_string).collect();
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    let texts: Vec<String> = texts.iter().map(|t| format!("{t:>width$}")).collect();
    texts.join(" ")
}

/// Formats a row of coordinates as `[0, 2, 5]`.
pub fn coordinates(values: impl IntoIterator<Item = i64>) -> String {
    let texts: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    format!("[{}]", texts.join(", "))
}

/// Returns a shape from dimensions.
///
/// # Errors
/// INVALID_ARGUMENT if their product is too large.
#[inline]
pub fn shape_of(dims: impl IntoIterator<Item = usize>) -> Result<Shape> {
    let dims: Ints = dims
        .into_iter()
        .map(|d| i64::try_from(d).unwrap_or(-1))
        .collect();
    Shape::checked(&dims)
}
