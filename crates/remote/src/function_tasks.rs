//! [`ContextFunctions`]: functions that kernels of an eager context call, where other tasks have what they use.

use crate::device::TaskName;
use crate::eager_context::RemoteContext;
use crate::master_session::lock;
use ferroflow_base::{Result, cancelled};
use ferroflow_model::proto::attr_value;
use ferroflow_runtime::{FunctionTasks, RunOptions, StepServices, has_resource_of};
use ferroflow_tensor::Tensor;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};

/// The functions of a context.
struct ContextFunctions {
    context: Weak<RemoteContext>,
    own: TaskName,
    /// Whether functions ask for devices of other tasks.
    asks: Mutex<HashMap<String, bool>>,
}

/// Lets kernels of a context call functions over the tasks of its cluster.
pub(crate) fn open(context: &Arc<RemoteContext>) {
    let functions = ContextFunctions {
        context: Arc::downgrade(context),
        own: context.name().clone(),
        asks: Mutex::default(),
    };
    context.resources().set_function_tasks(Arc::new(functions));
}

impl ContextFunctions {
    /// Whether a node of a function, or of those that it calls, asks for a device of another task, as the Python
    /// functions of a client do.
    fn asks_elsewhere(&self, function: &str, is_elsewhere: &dyn Fn(&str) -> bool) -> bool {
        if let Some(known) = lock(&self.asks).get(function) {
            return *known;
        }
        let Some(context) = self.context.upgrade() else {
            return false;
        };
        let (mut names, mut seen) = (vec![function.to_string()], BTreeSet::new());
        let mut asks = false;
        while let Some(name) = names.pop().filter(|_| !asks) {
            let Some(def) = context.eager().function(&name) else {
                continue;
            };
            asks = def.node_def.iter().any(|node| is_elsewhere(&node.device));
            let values = def.node_def.iter().flat_map(|node| node.attr.values());
            for value in values.filter_map(|value| value.value.as_ref()) {
                let called = match value {
                    attr_value::Value::Func(called) => std::slice::from_ref(&**called),
                    attr_value::Value::List(list) => &list.func[..],
                    _ => &[],
                };
                let new = called.iter().filter(|f| seen.insert(f.name.clone()));
                names.extend(new.map(|f| f.name.clone()));
            }
        }
        lock(&self.asks).insert(function.to_string(), asks);
        asks
    }
}

impl FunctionTasks for ContextFunctions {
    fn spans(&self, function: &str, args: &[Tensor]) -> bool {
        let is_elsewhere =
            |device: &str| TaskName::of_device(device).is_some_and(|task| task != self.own);
        has_resource_of(args, is_elsewhere) || self.asks_elsewhere(function, &is_elsewhere)
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
