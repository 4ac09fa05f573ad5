//! Row splits as kernels read them.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::ints;
use ferroflow_tensor::Tensor;

/// Returns row splits that begin with 0, ascend, and end with `n_values` if that is known
/// (TensorFlow: `RaggedTensorVerifySplits`).
pub(crate) fn verified_splits(splits: &Tensor, n_values: Option<usize>) -> Result<Vec<usize>> {
    let bad = |why: String| invalid_argument!("Invalid ragged splits: {why}");
    if splits.shape().rank() != 1 {
        let rank = splits.shape().rank();
        return Err(bad(format!(
            "ragged splits must be rank 1 but is rank {rank}"
        )));
    }
    let splits = ints(splits)?;
    match splits.first() {
        None => {
            return Err(bad(
                "ragged splits must have at least one splits, but is empty".into(),
            ));
        }
        Some(0) => {}
        Some(first) => {
            return Err(bad(format!(
                "first element of ragged splits  must be 0 but is {first}"
            )));
        }
    }
    for (i, pair) in splits.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err(bad(format!(
                "ragged splits must be monotonically increasing, but ragged_splits[{}]={} is smaller than \
                 row_splits[{i}]={}",
                i + 1,
                pair[1],
                pair[0]
            )));
        }
    }
    let last = splits.last().copied().unwrap_or(0);
    if let Some(n) = n_values.filter(|&n| n as i64 != last) {
        return Err(bad(format!(
            "last element of ragged splits must be the number of ragged values({n}) but is {last}"
        )));
    }
    Ok(splits.iter().map(|&split| split as usize).collect())
}
