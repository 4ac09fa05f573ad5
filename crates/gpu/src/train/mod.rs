//! What training adds: variables, optimizers and gradients.

pub(crate) mod batch_norm;
pub(crate) mod conv;
pub(crate) mod loss;
pub(crate) mod optimizers;
pub(crate) mod pool;
pub(crate) mod rules;
pub(crate) mod scatter;
pub(crate) mod step_variables;
pub(crate) mod variables;
