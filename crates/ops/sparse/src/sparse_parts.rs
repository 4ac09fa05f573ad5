//! The parts of sparse tensors: checks, order and 16-bit values, for the ops of this group
//! (TensorFlow: `core/util/sparse/sparse_tensor.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{DType, Shape, Tensor};

/// Checks indices and values against a rank; returns the number of values.
///
/// # Errors
/// INVALID_ARGUMENT if the parts do not fit together.
pub(crate) fn fitting(at: &Tensor, values: &Tensor, rank: usize) -> Result<usize> {
    if values.shape().rank() != 1 {
        return Err(invalid_argument!(
            "vals must be a vec, but got: {}",
            values.shape()
        ));
    }
    let n = at.shape().first().copied().unwrap_or(0);
    if n != values.num_elements() {
        return Err(invalid_argument!(
            "indices and values rows (indexing dimension) must match. (indices = {n}, values = {})",
            values.num_elements()
        ));
    }
    let &[_, width] = at.shape().dims() else {
        return Err(invalid_argument!(
            "indices must be a matrix, but got: {}",
            at.shape()
        ));
    };
    if width != rank {
        return Err(invalid_argument!("Order length must be SparseTensor rank."));
    }
    Ok(n)
}

/// Checks the sizes of a sparse tensor's dimensions.
///
/// # Errors
/// INVALID_ARGUMENT if one is negative or their product too large.
pub(crate) fn checked_shape(sizes: &[i64]) -> Result<Shape> {
    if let Some(size) = sizes.iter().find(|&&d| d < 0) {
        return Err(invalid_argument!(
            "Expected shape dimensions to be non-negative, got {size}"
        ));
    }
    Shape::checked(sizes)
}

/// Coordinates: rows of `rank` numbers.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The numbers.
    pub(crate) at: &'a [i64],
    /// Their number in a row.
    pub(crate) rank: usize,
}

impl<'a> Rows<'a> {
    /// Returns the rows of a matrix.
    pub(crate) fn of(at: &'a Tensor) -> Result<Rows<'a>> {
        Ok(Rows {
            at: at.slice()?,
            rank: at.shape().get(1).copied().unwrap_or(0),
        })
    }

    /// Returns row `i`.
    #[inline]
    pub(crate) fn row(&self, i: usize) -> &'a [i64] {
        let range = i * self.rank..(i + 1) * self.rank;
        self.at.get(range).unwrap_or_default()
    }

    /// Returns coordinate `d` of row `i`.
    #[inline]
    pub(crate) fn get(&self, i: usize, d: usize) -> i64 {
        self.at.get(i * self.rank + d).copied().unwrap_or(0)
    }

    /// Returns the positions of `n` rows in the order of these dimensions; rows that are equal
    /// keep their order.
    pub(crate) fn order(&self, n: usize, dims: &[usize]) -> Vec<usize> {
        let compare = |&a: &usize, &b: &usize| {
            let of = |i: usize| dims.iter().map(move |&d| self.get(i, d));
            of(a).cmp(of(b))
        };
        let mut order: Vec<usize> = (0..n).collect();
        if !order.is_sorted_by(|a, b| compare(a, b).is_le()) {
            order.sort_by(compare);
        }
        order
    }

    /// Returns the end of the run of rows, in this order, that agree with the one at `start` in
    /// these dimensions.
    pub(crate) fn run_end(&self, order: &[usize], start: usize, dims: &[usize]) -> usize {
        let Some(&first) = order.get(start) else {
            return start;
        };
        let same = |&&i: &&usize| dims.iter().all(|&d| self.get(i, d) == self.get(first, d));
        start + order.iter().skip(start).take_while(same).count()
    }
}

/// Whether a dtype is computed in single precision.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::Half | DType::Bfloat16)
}

/// Returns input `i`; 16-bit floats in single precision.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub(crate) fn wide_input(ctx: &KernelCtx, i: usize) -> Result<Tensor> {
    let t = ctx.input(i)?;
    match is_half(t.dtype()) {
        true => ferroflow_functors::half_conversion::widened(ctx.par(), t),
        false => Ok(t.clone()),
    }
}

/// Returns a result of [`wide_input`] in the dtype of the op.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub(crate) fn narrow_output(ctx: &KernelCtx, t: Tensor, dtype: DType) -> Result<Tensor> {
    match is_half(dtype) {
        true => ferroflow_functors::half_conversion::narrowed(ctx.par(), t, dtype),
        false => Ok(t),
    }
}
