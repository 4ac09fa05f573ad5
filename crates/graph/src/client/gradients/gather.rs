//! The rule of GatherV2 (`tensorflow/cc/gradients/array_grad.cc`).

use super::backprop::Call;
use super::rules::{Rules, first};
use super::scope::{Arg, Scope, op};
use crate::Output;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::DType;

pub(super) const RULES: Rules = &[("GatherV2", gather)];

fn gather(s: &Scope, c: &Call) -> Result<Vec<Option<Output>>> {
    let near = s.near(c.x(0));
    let shape = op!(near, Shape, c.x(0); out_type = DType::Int64);
    let shape = near.cast(shape, DType::Int32);
    op!(s, ExpandDims, op!(s, Size, c.x(1)), 0);
    let axis = op!(s, ExpandDims, c.x(2), 0);
    let n_batch = i32::try_from(c.node.attrs.int("batch_dims")?).unwrap_or(-1);
    if n_batch < 0 {
        return Err(invalid_argument!(
            "C++ GatherV2 gradient does not support negative batch_dims."
        ));
    }
    let outer = op!(s, Slice, shape, [0], axis);
    let inner = op!(s, Slice, shape, axis, [-1]);
    let inner = op!(s, Slice, inner, [1], [-1]);
    let parts = vec![Arg::from(outer), [-1].into(), inner.into()];
    let values_shape = op!(s, ConcatV2, parts, 0);
    let n_values = op!(s, Size, values_shape);
    let n_outer = op!(s, Size, outer);
    let batch = op!(s, Range, 0, n_batch, 1);
    let before = op!(s, Range, n_batch, n_outer, 1);
    let next = op!(s, Add, n_outer, 1);
    let after = op!(s, Range, next, n_values, 1);
    let at = op!(s, ExpandDims, n_outer, 0);
    let values = op!(s, Reshape, c.dy(0), values_shape);
    let order = op!(s, ConcatV2, &[batch, at, before, after][..], 0);
    let values = op!(s, Transpose, values, order);
    let size = op!(s, Slice, shape, axis, [1]);
    let size = op!(s, Squeeze, size);
    let shape = op!(s, Gather, shape, order);
    let gradient = scattered(s, shape, [values, c.x(1)], n_batch, size);
    let moved = op!(s, Add, before, 1);
    let parts = vec![
        Arg::from(batch),
        moved.into(),
        [n_batch].into(),
        after.into(),
    ];
    let back = op!(s, ConcatV2, parts, 0);
    first(op!(s, Transpose, gradient, back), 3)
}

/// The sum of the values of each index, whose number is `size`.
fn scattered(
    s: &Scope,
    shape: Output,
    [mut values, mut indices]: [Output; 2],
    n_batch: i32,
    mut size: Output,
) -> Output {
    let n_indices = op!(s, ExpandDims, op!(s, Size, indices), 0);
    if n_batch != 0 {
        let whole = op!(s, Shape, values);
        let outer = op!(s, Slice, whole, [0], [n_batch]);
        let inner = op!(s, Slice, whole, [n_batch], [-1]);
        let inner = op!(s, Slice, inner, [1], [-1]);
        let n_outer = op!(s, Prod, outer, 0);
        let flat = op!(s, ConcatV2, vec![Arg::from([-1]), inner.into()], 0);
        size = op!(s, Mul, size, n_outer);
        indices = batch_indices(s, shape, indices, n_batch);
        values = op!(s, Reshape, values, flat);
    }
    let indices = op!(s, Reshape, indices, n_indices);
    let gradient = op!(s, UnsortedSegmentSum, values, indices, size);
    match n_batch {
        0 => gradient,
        _ => op!(s, Reshape, gradient, shape),
    }
}

/// Indices into the elements of all batches together.
fn batch_indices(s: &Scope, shape: Output, indices: Output, n_batch: i32) -> Output {
    let dtype = s.dtype(indices);
    let mut sum = indices;
    let rank = op!(s, Rank, indices);
    let shape = s.cast(shape, dtype);
    let mut stride = s.number(1i32, dtype);
    for axis in (1..=n_batch).rev() {
        let size = op!(s, Slice, shape, [axis - 1], [1]);
        let next = op!(s, Slice, shape, [axis], [1]);
        stride = op!(s, Mul, stride, next);
        let (start, step) = (s.number(0i32, dtype), s.number(1i32, dtype));
        let range = op!(s, Range, start, op!(s, Squeeze, size), step);
        let range = op!(s, Mul, range, stride);
        let one = s.cast(s.ints(&[1]), dtype);
        let before = op!(s, Tile, one, s.ints(&[axis - 1]));
        let n_after = op!(s, ExpandDims, op!(s, Sub, rank, axis), 0);
        let after = op!(s, Tile, one, n_after);
        let spread = op!(s, ConcatV2, &[before, size, after][..], 0);
        let range = op!(s, Reshape, range, spread);
        sum = op!(s, Add, sum, range);
    }
    sum
}
