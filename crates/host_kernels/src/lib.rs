//! Host kernels, by TFRT's names.
//!
//! Entry point: [`registry`].

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod basic;
mod benchmark;
mod btf;
mod control;
mod core_runtime;
mod dense;
mod device;
mod dht;
mod parallel;
mod shape;
mod strings;
mod test;
mod tracked;

pub use dense::{DenseHostTensor, HostTensor, SharedBuffer, TfrtState};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{ExecutionContext, KernelRegistry};
pub use shape::TensorShape;

/// Runs a task that may block on a suitable thread.
fn blocking(ctx: &ExecutionContext, task: impl FnOnce() + Send + 'static) -> Result<()> {
    ctx.enqueue_blocking(Box::new(task))
        .map_err(|_| invalid_argument!("Failed to enqueue blocking work."))
}

/// Returns the kernels of numbers and control flow only, for small programs.
pub fn basic_registry() -> KernelRegistry {
    let mut registry = KernelRegistry::default();
    basic::register(&mut registry);
    control::register(&mut registry);
    registry
}

/// Returns all host kernels.
///
/// ```
/// assert!(ferroflow_host_kernels::registry().get("tfrt.add.i32").is_some());
/// ```
pub fn registry() -> KernelRegistry {
    let mut registry = KernelRegistry::default();
    basic::register(&mut registry);
    control::register(&mut registry);
    parallel::register(&mut registry);
    shape::register(&mut registry);
    dht::register(&mut registry);
    device::register(&mut registry);
    btf::register(&mut registry);
    strings::register(&mut registry);
    core_runtime::register(&mut registry);
    test::register(&mut registry);
    tracked::register(&mut registry);
    benchmark::register(&mut registry);
    registry
}
