//! [`RemoteTensor`]: a tensor that another task keeps for a context.

use super::Shared;
use crate::device::TaskName;
use crate::master_session::lock;
use ferroflow_base::{Result, Status};
use ferroflow_model::proto::RemoteTensorHandle;
use ferroflow_runtime::{DType, PartialShape};
use ferroflow_tensor::Tensor;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// An output of an op that another task runs or has run. The task forgets it when it is dropped here.
pub struct RemoteTensor {
    pub(super) shared: Arc<Shared>,
    pub(super) task: TaskName,
    device: String,
    dtype: DType,
    op: i64,
    number: i32,
    outcome: Outcome,
    /// Its copy in this process.
    pub(super) copy: OnceLock<Tensor>,
}

/// What is known once the op has run: the shape, or the error.
#[derive(Default)]
struct Outcome {
    state: Mutex<Option<Result<PartialShape>>>,
    set: Condvar,
}

impl RemoteTensor {
    pub(super) fn new(
        shared: &Arc<Shared>,
        (task, device): (&TaskName, &str),
        dtype: DType,
        (op, number): (i64, i32),
    ) -> Self {
        RemoteTensor {
            shared: shared.clone(),
            task: task.clone(),
            device: device.to_string(),
            dtype,
            op,
            number,
            outcome: Outcome::default(),
            copy: OnceLock::new(),
        }
    }

    /// Returns the full name of the device that has the tensor.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape, once the op has run.
    ///
    /// # Errors
    /// That of the op.
    pub fn shape(&self) -> Result<PartialShape> {
        let mut state = lock(&self.outcome.state);
        loop {
            match &*state {
                Some(outcome) => return outcome.clone(),
                None => {
                    let waited = self.outcome.set.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Returns the tensor: requests it from its task the first time.
    ///
    /// # Errors
    /// That of the op; of the transfer.
    pub fn fetch(&self) -> Result<Tensor> {
        self.shape()?;
        if let Some(copy) = self.copy.get() {
            return Ok(copy.clone());
        }
        let tensor = self.shared.fetch(self)?;
        Ok(self.copy.get_or_init(|| tensor).clone())
    }

    pub(super) fn set(&self, outcome: Result<PartialShape>) {
        lock(&self.outcome.state).get_or_insert(outcome);
        self.outcome.set.notify_all();
    }

    /// Ends the tensor with an error, unless the op has run.
    pub fn fail(&self, error: &Status) {
        self.set(Err(error.clone()));
    }

    pub(super) fn to_proto(&self) -> RemoteTensorHandle {
        RemoteTensorHandle {
            op_id: self.op,
            output_num: self.number,
            device: self.device.clone(),
            op_device: self.device.clone(),
            dtype: self.dtype as i32,
            ..Default::default()
        }
    }

    pub(super) fn op(&self) -> i64 {
        self.op
    }
}

impl Drop for RemoteTensor {
    fn drop(&mut self) {
        let has_run = matches!(&*lock(&self.outcome.state), Some(Ok(_)));
        if has_run {
            self.shared.forget(&self.task, self.to_proto());
        }
    }
}
