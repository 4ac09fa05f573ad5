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
    shared: Arc<Shared>,
    /// Where it is if the op's task has not given it to another one.
    place: Place,
    /// Where a function has left it.
    moved: OnceLock<Place>,
    dtype: DType,
    op: i64,
    number: i32,
    outcome: Outcome,
    /// Its copy in this process.
    copy: OnceLock<Tensor>,
}

struct Place {
    task: TaskName,
    device: String,
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
            place: Place {
                task: task.clone(),
                device: device.to_string(),
            },
            moved: OnceLock::new(),
            dtype,
            op,
            number,
            outcome: Outcome::default(),
            copy: OnceLock::new(),
        }
    }

    /// Returns the full name of the device that has the tensor; before the op has run, of the op's.
    pub fn device(&self) -> &str {
        &self.place().device
    }

    pub(super) fn task(&self) -> &TaskName {
        &self.place().task
    }

    fn place(&self) -> &Place {
        self.moved.get().unwrap_or(&self.place)
    }

    /// Says that a function has left the tensor on this device, unless that is empty.
    pub(super) fn set_device(&self, device: &str) {
        if let Some(task) = TaskName::of_device(device) {
            let device = device.to_string();
            self.moved.get_or_init(|| Place { task, device });
        }
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
            device: self.device().to_string(),
            op_device: self.device().to_string(),
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
            self.shared.forget(self.task(), self.to_proto());
        }
    }
}
