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

    /// Returns the op of a function that is one node, of all arguments in their order. A kernel may compute such a
    /// function itself.
    fn only_op(&self) -> Option<&str> {
        None
    }

    /// Returns the argument that is the only result of a function without nodes.
    fn forwarded_arg(&self) -> Option<usize> {
        None
    }

    /// Returns whether a function of scalars computes the same of tensors, element by element. A result that depends
    /// on no argument stays a scalar.
    fn is_elementwise(&self) -> bool {
        false
    }
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
