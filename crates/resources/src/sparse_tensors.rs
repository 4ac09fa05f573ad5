//! Sparse tensors by number: what AddSparseToTensorsMap keeps between steps (TensorFlow:
//! `core/kernels/sparse_tensors_map_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The parts of a sparse tensor.
#[derive(Clone)]
pub struct SparseParts {
    /// The coordinates, a row for each value.
    pub indices: Tensor,
    /// The values.
    pub values: Tensor,
    /// The sizes of the dimensions.
    pub shape: Vec<i64>,
}

/// A map of sparse tensors.
pub struct SparseTensorsMap {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: i64,
    kept: FxHashMap<i64, SparseParts>,
}

impl SparseTensorsMap {
    /// Creates an empty map.
    pub fn new(name: &str) -> Self {
        SparseTensorsMap {
            name: name.to_string(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a sparse tensor; returns its number.
    pub fn add(&self, parts: SparseParts) -> i64 {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.kept.insert(number, parts);
        number
    }

    /// Takes the sparse tensors with these numbers out.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if one is not there; those before it are taken.
    pub fn take(&self, numbers: &[i64]) -> Result<Vec<SparseParts>> {
        let mut state = self.lock();
        let take = |number: &i64| {
            let found = state.kept.remove(number);
            found.ok_or_else(|| {
                invalid_argument!(
                    "Unable to find SparseTensor: {number} in map: {}",
                    self.name
                )
            })
        };
        numbers.iter().map(take).collect()
    }
}
