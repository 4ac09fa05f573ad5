//! Merging the inputs of requests, and splitting the outputs of a batch.

use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_runtime::{Shape, Tensor};
use ferroflow_tensor::rows::{joined, prepended, split_first};

/// The number of rows of a request: the first dimension that all its inputs share.
///
/// # Errors
/// INVALID_ARGUMENT if an input is a scalar or if the inputs differ.
pub(super) fn num_rows(args: &[Tensor]) -> Result<usize> {
    let mut rows = None;
    for arg in args {
        let Some(&n) = arg.shape().dims().first() else {
            return Err(invalid_argument!(
                "Batching Run() input tensors must have at least one dimension"
            ));
        };
        if rows.is_some_and(|rows| rows != n) {
            return Err(invalid_argument!(
                "Batching Run() input tensors must have equal 0th-dimension size"
            ));
        }
        rows = Some(n);
    }
    rows.ok_or_else(|| invalid_argument!("Batching Run() must have at least one input tensor"))
}

/// The bytes of the inputs of a request.
pub(super) fn num_bytes(args: &[Tensor]) -> usize {
    args.iter().map(Tensor::byte_len).sum()
}

/// How many rows are computed at once where `rows` have `bytes` of inputs: a row of an image keeps a processor busy alone,
/// and the intermediate values of many leave its caches.
pub(super) fn rows_at_once(rows: usize, bytes: usize) -> usize {
    /// Bytes of inputs.
    const MOST: usize = 2 << 20;
    (MOST / (bytes / rows.max(1)).max(1)).max(1)
}

/// Divides the requests of a batch into those that are computed at once. `size` returns the rows and bytes of one.
pub(super) fn divide<T>(requests: Vec<T>, size: impl Fn(&T) -> (usize, usize)) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for request in requests {
        let (rows, bytes) = size(&request);
        match parts.last_mut().filter(|_| rows <= room) {
            Some(part) => part.push(request),
            None => {
                room = rows_at_once(rows, bytes);
                parts.push(vec![request]);
            }
        }
        room = room.saturating_sub(rows);
    }
    parts
}

/// Whether the inputs of two requests have the same shapes but for the first dimension.
pub(super) fn are_alike(a: &[Tensor], b: &[Tensor]) -> bool {
    let rest = |t: &Tensor| t.shape().dims().get(1..).map(<[usize]>::to_vec);
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| rest(a) == rest(b))
}

/// Pads the inputs of requests to the largest size in each dimension, with the first element of each input.
///
/// # Errors
/// INVALID_ARGUMENT if the ranks of an input differ or if an input is empty.
pub(super) fn pad_alike(requests: &mut [Vec<Tensor>]) -> Result<()> {
    let Some(n_args) = requests.first().map(Vec::len) else {
        return Ok(());
    };
    for i in 0..n_args {
        let mut largest: Vec<usize> = requests[0][i].shape().dims().to_vec();
        for request in requests.iter() {
            let dims = request[i].shape().dims();
            if dims.len() != largest.len() {
                return Err(invalid_argument!(
                    "Tensors of one batch have different ranks"
                ));
            }
            largest
                .iter_mut()
                .zip(dims)
                .for_each(|(l, d)| *l = (*l).max(*d));
        }
        for request in requests.iter_mut() {
            let arg = &mut request[i];
            largest[0] = arg.shape().dims()[0];
            if arg.shape().dims() != largest {
                *arg = padded(arg, &largest)?;
            }
        }
    }
    Ok(())
}

/// Returns a tensor of larger dimensions, filled with the first element.
fn padded(t: &Tensor, dims: &[usize]) -> Result<Tensor> {
    if t.num_elements() < 1 {
        return Err(invalid_argument!(
            "Got empty tensor in batch of non-empty tensors."
        ));
    }
    let to: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let shape = Shape::checked(&to)?;
    let old = t.shape().dims().to_vec();
    let mut out = Tensor::for_overwrite(t.dtype(), shape)?;
    ferroflow_tensor::dispatch_items!(t.dtype(), T => {
        let from = t.items::<T>()?;
        let to = out.items_mut::<T>()?;
        to.iter_mut().for_each(|e| e.clone_from(&from[0]));
        let row = old.last().copied().unwrap_or(1);
        let row_to = dims.last().copied().unwrap_or(1);
        for (i, values) in from.chunks(row.max(1)).enumerate() {
            // The position of a row in the larger tensor.
            let (mut rest, mut at, mut stride) = (i, 0, 1);
            for d in (0..old.len().saturating_sub(1)).rev() {
                at += rest % old[d] * stride;
                rest /= old[d];
                stride *= dims[d];
            }
            to[at * row_to..at * row_to + row].clone_from_slice(values);
        }
    });
    Ok(out)
}

/// Concatenates the inputs of requests; `padding` rows repeat the first row of the first request.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the batch does not fit into memory.
pub(super) fn merge(requests: &[Vec<Tensor>], padding: usize) -> Result<Vec<Tensor>> {
    let Some(first) = requests.first() else {
        return Ok(Vec::new());
    };
    let mut merged = Vec::with_capacity(first.len());
    for i in 0..first.len() {
        let (_, row) = split_first(first[i].shape())?;
        let mut parts: Vec<Tensor> = requests.iter().map(|r| r[i].clone()).collect();
        if padding > 0 {
            let one = first[i].view(0, prepended(1, &row)?)?;
            parts.extend(std::iter::repeat_n(one, padding));
        }
        if let [only] = &parts[..] {
            merged.push(only.clone());
            continue;
        }
        let rows: usize = parts.iter().map(|p| p.shape().dims()[0]).sum();
        let parts: Vec<_> = parts.iter().map(|p| (Some(p), p.num_elements())).collect();
        merged.push(joined(first[i].dtype(), prepended(rows, &row)?, &parts)?);
    }
    Ok(merged)
}

/// Splits the outputs of a batch of `rows` rows, of which the last `padding` are dropped; returns the outputs of each
/// request.
///
/// # Errors
/// FAILED_PRECONDITION if an output does not have the rows of the batch.
pub(super) fn split(
    outputs: &[Tensor],
    rows: &[usize],
    padding: usize,
) -> Result<Vec<Vec<Tensor>>> {
    let all: usize = rows.iter().sum::<usize>() + padding;
    let mut parts: Vec<Vec<Tensor>> = rows.iter().map(|_| Vec::new()).collect();
    for output in outputs {
        let Some(&n) = output.shape().dims().first() else {
            return Err(failed_precondition!(
                "Batched output tensor has 0 dimensions"
            ));
        };
        if n != all {
            return Err(failed_precondition!(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension \
                 sizes of the input tensors"
            ));
        }
        let (_, row) = split_first(output.shape())?;
        let (size, mut start) = (row.num_elements(), 0);
        for (part, &n) in parts.iter_mut().zip(rows) {
            part.push(output.view(start * size, prepended(n, &row)?)?);
            start += n;
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(requests: &[(&[usize], &[i32])], expected: &[(&[usize], &[i32])]) {
        let tensor = |(dims, values): &(&[usize], &[i32])| {
            vec![Tensor::from_slice(Shape::from(*dims), values).unwrap()]
        };
        let mut padded: Vec<_> = requests.iter().map(tensor).collect();
        pad_alike(&mut padded).unwrap();
        for (padded, expected) in padded.iter().zip(expected) {
            let expected = tensor(expected);
            assert!(padded[0].same_value(&expected[0]), "{}", padded[0]);
        }
        let merged = merge(&padded, 1).unwrap();
        let rows: Vec<usize> = padded.iter().map(|p| num_rows(p).unwrap()).collect();
        let split = split(&merged, &rows, 1).unwrap();
        for (part, padded) in split.iter().zip(&padded) {
            assert!(part[0].same_value(&padded[0]), "{}", part[0]);
        }
    }

    #[test]
    fn inputs_are_padded_with_their_first_element() {
        check(
            &[(&[2, 2], &[1, 2, 3, 4]), (&[1, 3], &[5, 6, 7])],
            &[(&[2, 3], &[1, 2, 1, 3, 4, 1]), (&[1, 3], &[5, 6, 7])],
        );
        check(
            &[(&[1, 2, 1], &[1, 2]), (&[1, 1, 2], &[3, 4])],
            &[(&[1, 2, 2], &[1, 1, 2, 1]), (&[1, 2, 2], &[3, 4, 3, 3])],
        );
    }
}
