//! Host kernels by name.

use super::frame::KernelFrame;
use super::typed::{AsyncKernel, SyncKernel, TypedKernel, TypedSyncKernel};
use super::{Values, sync_frame::SyncKernelFrame};
use ferroflow_base::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// An implementation.
#[derive(Clone)]
pub enum HostKernel {
    /// Runs in the engine `async`.
    Async(AsyncKernel),
    /// Runs in the engine `sync`.
    Sync(SyncKernel),
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
    kernels: HashMap<String, HostKernel>,
    natives: HashMap<String, NativeFunction>,
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
        self.kernels.insert(name.to_string(), kernel);
        self
    }

    /// Adds native code under the name of a function.
    pub fn add_native(&mut self, name: &str, function: NativeFunction) -> &mut Self {
        self.natives.insert(name.to_string(), function);
        self
    }

    /// The kernel called `name`.
    pub fn get(&self, name: &str) -> Option<&HostKernel> {
        self.kernels.get(name)
    }

    /// The native code called `name`.
    pub fn native(&self, name: &str) -> Option<NativeFunction> {
        self.natives.get(name).copied()
    }

    /// Names of all kernels, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}
