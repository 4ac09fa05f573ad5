//! Functions of the graph that kernels call.

use crate::StepServices;
use ferroflow_base::Result;
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// A function that a kernel got from [`KernelCtx::function`](crate::KernelCtx::function) and may
/// call whenever it likes, in later steps too.
pub trait Callable: Send + Sync {
    /// Returns the function's results, in order. The step that the services belong to waits; no
    /// other work of its threads runs meanwhile, so the caller may hold a lock.
    fn call(&self, args: Vec<Tensor>, services: &StepServices) -> Result<Vec<Tensor>>;
}

/// The functions that the attrs of a graph's nodes name. `()` holds none.
pub trait Functions: Send + Sync {
    /// Returns the function of this name.
    fn get(&self, name: &str) -> Option<Arc<dyn Callable>>;
}

impl Functions for () {
    fn get(&self, _name: &str) -> Option<Arc<dyn Callable>> {
        None
    }
}
