//! Functions of dataset ops with the tensors they capture (TensorFlow:
//! `core/data/captured_function.h`).

use super::Components;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Callable, StepServices};
use ferroflow_tensor::{DType, Tensor};
use std::sync::Arc;

/// A function and its captured inputs, which follow the arguments of each call.
#[derive(Clone)]
pub struct CapturedFunction {
    function: Arc<dyn Callable>,
    captured: Components,
}

impl CapturedFunction {
    /// Captures tensors for a function.
    pub fn new(function: Arc<dyn Callable>, captured: Components) -> Self {
        CapturedFunction { function, captured }
    }

    /// Returns the results for `args` and the captured tensors.
    ///
    /// # Errors
    /// Those of the function.
    pub fn call(&self, mut args: Components, services: &StepServices) -> Result<Components> {
        args.extend(self.captured.iter().cloned());
        self.function.call(args, services)
    }

    /// Returns what a predicate says about an element.
    ///
    /// # Errors
    /// Those of the function; INVALID_ARGUMENT with the message `problem` if it does not return a
    /// scalar bool.
    pub fn holds(
        &self,
        element: &[Tensor],
        problem: &str,
        services: &StepServices,
    ) -> Result<bool> {
        let results = self.call(element.to_vec(), services)?;
        match &results[..] {
            [t] if t.dtype() == DType::Bool && t.num_elements() == 1 => {
                Ok(t.slice::<bool>()?.first() == Some(&true))
            }
            _ => Err(invalid_argument!("{problem}")),
        }
    }

    /// Returns the scalar int64 that the function returns.
    ///
    /// # Errors
    /// Those of the function; INVALID_ARGUMENT, naming the function `what`, if it returns something
    /// else.
    pub fn number(&self, args: Components, what: &str, services: &StepServices) -> Result<i64> {
        let results = self.call(args, services)?;
        match &results[..] {
            [t] if t.dtype() == DType::Int64 && t.num_elements() == 1 => {
                Ok(t.slice::<i64>()?.first().copied().unwrap_or_default())
            }
            _ => Err(invalid_argument!("`{what}` must return a scalar int64.")),
        }
    }
}
