//! Host kernels by name.

use super::frame::KernelFrame;
use super::typed::{AsyncKernel, SyncKernel, TypedKernel, TypedSyncKernel};
use super::{Values, sync_frame::SyncKernelFrame};
use ferroflow_base::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// A kernel's implementation.
#[derive(Clone)]
pub enum HostKernel {
    /// Runs in the engine `async`.
    Async(AsyncKernel),
    /// Runs in the engine `sync`.
    Sync(SyncKernel),
}

/// The cost of a kernel's call, as far as known before it runs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum KernelCost {
    /// Unknown, or more than passing the call to another thread.
    #[default]
    Expensive,
    /// A few nanoseconds, without effects: runs inline as soon as it is ready.
    Inexpensive,
    /// The cost of the functions the kernel may call, one of which it calls once.
    Callees,
}

/// Native code that programs can call like a function.
pub type NativeFunction = fn(&super::ExecutionContext, &Values, usize) -> Values;

/// The kernels that programs can use.
///
/// ```
/// use ferroflow_host_context::{Attr, KernelRegistry};
/// fn add(a: i32, b: i32) -> i32 {
///     a.wrapping_add(b)
/// }
/// let mut registry = KernelRegistry::default();
/// registry.add("my.add.i32", add).add("my.constant.i32", |value: Attr<i32>| value.0);
/// assert!(registry.get("my.add.i32").is_some());
/// ```
#[derive(Clone, Default)]
pub struct KernelRegistry {
    kernels: HashMap<String, (HostKernel, KernelCost)>,
    natives: HashMap<String, NativeFunction>,
    /// The cost of kernels that are added.
    cost: KernelCost,
}

impl KernelRegistry {
    /// Adds a plain function as a kernel.
    pub fn add<M>(&mut self, name: &str, kernel: impl TypedKernel<M>) -> &mut Self {
        self.insert(name, HostKernel::Async(kernel.into_async()))
    }

    /// Adds a plain function as a synchronous kernel.
    pub fn add_sync<M>(&mut self, name: &str, kernel: impl TypedSyncKernel<M>) -> &mut Self {
        self.insert(name, HostKernel::Sync(kernel.into_sync()))
    }

    /// Adds a kernel that handles its frame itself.
    pub fn add_raw(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut KernelFrame) -> Result<()> + Send + Sync + 'static,
    ) -> &mut Self {
        let kernel: AsyncKernel = Arc::new(move |frame| {
            if let Err(status) = kernel(frame) {
                frame.report_error(status);
            }
        });
        self.insert(name, HostKernel::Async(kernel))
    }

    /// Adds a synchronous kernel that handles its frame itself.
    pub fn add_raw_sync(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut SyncKernelFrame) -> Result<()> + Send + Sync + 'static,
    ) -> &mut Self {
        self.insert(name, HostKernel::Sync(Arc::new(kernel)))
    }

    fn insert(&mut self, name: &str, kernel: HostKernel) -> &mut Self {
        let entry = (kernel, self.cost);
        self.kernels.insert(name.to_string(), entry);
        self
    }

    /// Adds kernels of a known cost.
    ///
    /// ```
    /// use ferroflow_host_context::{KernelCost, KernelRegistry};
    /// let mut registry = KernelRegistry::default();
    /// registry.with_cost(KernelCost::Inexpensive, |r| {
    ///     r.add("my.not.i1", |a: bool| !a);
    /// });
    /// assert_eq!(registry.cost("my.not.i1"), KernelCost::Inexpensive);
    /// ```
    pub fn with_cost(&mut self, cost: KernelCost, add: impl FnOnce(&mut Self)) -> &mut Self {
        let before = std::mem::replace(&mut self.cost, cost);
        add(self);
        self.cost = before;
        self
    }

    /// Returns the cost of a call of the kernel `name`.
    pub fn cost(&self, name: &str) -> KernelCost {
        self.kernels
            .get(name)
            .map_or(KernelCost::Expensive, |(_, cost)| *cost)
    }

    /// Adds native code under the name of a function.
    pub fn add_native(&mut self, name: &str, function: NativeFunction) -> &mut Self {
        self.natives.insert(name.to_string(), function);
        self
    }

    /// Returns the kernel `name`, if any.
    pub fn get(&self, name: &str) -> Option<&HostKernel> {
        self.kernels.get(name).map(|(kernel, _)| kernel)
    }

    /// Returns the native function `name`, if any.
    pub fn native(&self, name: &str) -> Option<NativeFunction> {
        self.natives.get(name).copied()
    }

    /// Returns the names of all kernels, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}
