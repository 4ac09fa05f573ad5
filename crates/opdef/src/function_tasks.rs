//! [`FunctionTasks`]: functions that kernels call, over several tasks.

use crate::{Resources, StepServices};
use ferroflow_base::Result;
use ferroflow_tensor::{DType, ResourceHandle, Tensor};
use std::sync::Arc;

/// Calls functions that use resources of other tasks, or ask for their devices: these nodes run there (TensorFlow:
/// `CapturedFunction`, which instantiates its function over the devices of what it has captured).
pub trait FunctionTasks: Send + Sync {
    /// Returns whether a call of a function has nodes on other tasks.
    fn spans(&self, function: &str, args: &[Tensor]) -> bool;

    /// Calls a function of the session by name, and waits for its results.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such function; those of its nodes and of the other tasks.
    fn call(
        &self,
        function: &str,
        args: Vec<Tensor>,
        services: &StepServices,
    ) -> Result<Vec<Tensor>>;
}

/// Returns whether one of the tensors is the handle of a resource on a device that `is_elsewhere` selects by its full
/// name.
pub fn has_resource_of(args: &[Tensor], is_elsewhere: impl Fn(&str) -> bool) -> bool {
    let is_foreign = |handle: &ResourceHandle| {
        let origin = handle.origin.as_ref().filter(|_| handle.value.is_none());
        origin.is_some_and(|origin| is_elsewhere(&origin.device))
    };
    let mut handles = args.iter().filter(|arg| arg.dtype() == DType::Resource);
    handles.any(|arg| arg.resources().is_ok_and(|all| all.iter().any(is_foreign)))
}

impl Resources {
    /// Lets kernels of this session, and of those forked from it later, call functions over several tasks, unless that
    /// is set already.
    pub fn set_function_tasks(&self, tasks: Arc<dyn FunctionTasks>) {
        // The first one stays.
        let _ = self.function_tasks_slot().set(tasks);
    }

    /// Returns what calls functions over several tasks, if there are others.
    pub fn function_tasks(&self) -> Option<&Arc<dyn FunctionTasks>> {
        self.function_tasks_slot().get()
    }
}
