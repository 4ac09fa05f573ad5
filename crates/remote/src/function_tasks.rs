//! [`ContextFunctions`]: functions that kernels of an eager context call, where other tasks have what they use.

use crate::device::TaskName;
use crate::eager_context::RemoteContext;
use ferroflow_base::{Result, cancelled};
use ferroflow_runtime::{FunctionTasks, RunOptions, StepServices, has_resource_of};
use ferroflow_tensor::Tensor;
use std::sync::{Arc, Weak};

/// The functions of a context.
struct ContextFunctions {
    context: Weak<RemoteContext>,
    own: TaskName,
}

/// Lets kernels of a context call functions over the tasks of its cluster.
pub(crate) fn open(context: &Arc<RemoteContext>) {
    let functions = ContextFunctions {
        context: Arc::downgrade(context),
        own: context.name().clone(),
    };
    context.resources().set_function_tasks(Arc::new(functions));
}

impl FunctionTasks for ContextFunctions {
    fn spans(&self, _function: &str, args: &[Tensor]) -> bool {
        let is_elsewhere =
            |device: &str| TaskName::of_device(device).is_some_and(|task| task != self.own);
        has_resource_of(args, is_elsewhere)
    }

    fn call(
        &self,
        function: &str,
        args: Vec<Tensor>,
        services: &StepServices,
    ) -> Result<Vec<Tensor>> {
        let context = self.context.upgrade();
        let context = context.ok_or_else(|| cancelled!("the eager context was closed"))?;
        let options = RunOptions {
            cancel: Some(services.cancel.clone()),
            ..Default::default()
        };
        context.call_function(function, args, &options)
    }
}
