//! Host programs: text to BEF and back, and running them as TFRT's tools do.
//!
//! Entry points: [`mlir_to_bef`], [`bef_to_mlir`], [`Driver`] with its [`Config`], [`optimize`].

mod driver;
mod expected;
mod metrics;
mod tools;
mod tracing;

pub use driver::{AllocatorType, Config, Driver, ModelCall, work_queue};
pub use expected::Expected;
pub use ferroflow_executor::host::Program;
pub use ferroflow_host_context::{
    Buckets, ExecutionContext, Function, Gauge, Histogram, HostContext, KernelFrame,
    KernelRegistry, MetricsRegistry, TraceLevel, TraceSink, Tracer, Values,
};
pub use ferroflow_host_kernels::{TfrtState, basic_registry, registry as host_registry};
pub use ferroflow_program::{bef, mlir};
pub use ferroflow_sync::{
    AsyncValue, IndirectPromise, MultiThreadedWorkQueue, Promise, SingleThreadedWorkQueue,
    WorkQueue,
};
pub use ferroflow_tensor::{HostAllocator, MallocAllocator};
pub use tools::{TextOptions, bef_to_mlir, mlir_to_bef, optimize};
