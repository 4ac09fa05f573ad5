//! Functions of the graph that kernels call.

use crate::StepServices;
use ferroflow_base::Result;
use ferroflow_tensor::Tensor;
use std::sync::Arc;

/// A function that a kernel got from [`KernelCtx::function`](crate::KernelCtx::function); it may be
/// called any number of times, in later steps too.
pub trait Callable: Send + Sync {
    /// Returns the function's results, in order. The step that the services belong to waits; no
    /// other work of its threads runs meanwhile, so the caller may hold a lock.
    ///
    /// # Errors
    /// The error of the first node that fails; INVALID_ARGUMENT if the arguments do not fit.
    fn call(&self, args: Vec<Tensor>, services: &StepServices) -> Result<Vec<Tensor>>;
}

/// The functions that attrs of a graph's nodes name. `()` has none.
pub trait Functions: Send + Sync {
    /// Returns the function of this name.
    fn get(&self, name: &str) -> Option<Arc<dyn Callable>>;
}

impl Functions for () {
    fn get(&self, _name: &str) -> Option<Arc<dyn Callable>> {
        None
    }
}
