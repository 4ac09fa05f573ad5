//! Batches of a queue's elements.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::rows::{joined, prepended};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch_items};

/// Returns a batch of one component; items smaller than the others are padded with zeros where the
/// specified shape leaves a dimension open.
pub(crate) fn batch_of(dtype: DType, spec: &PartialShape, items: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = items.first() else {
        let row: Shape = match spec.dims() {
            Some(dims) => dims.iter().map(|d| d.unwrap_or(0)).collect(),
            None => Shape::scalar(),
        };
        return Tensor::zeros(dtype, prepended(0, &row)?);
    };
    let mut largest: Vec<usize> = first.shape().to_vec();
    for item in items {
        if item.shape().rank() != largest.len() {
            return Err(invalid_argument!(
                "elements of shapes {} and {} cannot be batched",
                first.shape(),
                item.shape()
            ));
        }
        for (most, &d) in largest.iter_mut().zip(item.shape().iter()) {
            *most = d.max(*most);
        }
    }
    let row = Shape::from(&largest[..]);
    let n = row.num_elements();
    let whole = prepended(items.len(), &row)?;
    if items.iter().all(|item| *item.shape() == row) {
        let parts: Vec<_> = items.iter().map(|&item| (Some(item), n)).collect();
        return joined(dtype, whole, &parts);
    }
    let mut out = Tensor::zeros(dtype, whole)?;
    let strides = row.strides();
    dispatch_items!(dtype, T => {
        let all = out.items_mut::<T>()?;
        for (to, item) in all.chunks_mut(n.max(1)).zip(items) {
            pad(to, &strides, item.shape(), item.items::<T>()?);
        }
    });
    Ok(out)
}

/// Copies a block into the corner of a larger one with these strides.
fn pad<T: Clone>(to: &mut [T], strides: &[usize], dims: &[usize], from: &[T]) {
    let [.., inner] = dims else {
        to.clone_from_slice(from);
        return;
    };
    if from.is_empty() {
        return;
    }
    for (i, row) in from.chunks(*inner).enumerate() {
        // The position of row `i` of the item, with the strides of the whole.
        let (mut rest, mut start) = (i, 0);
        for d in (0..dims.len() - 1).rev() {
            start += rest % dims[d] * strides[d];
            rest /= dims[d];
        }
        to[start..start + row.len()].clone_from_slice(row);
    }
}
