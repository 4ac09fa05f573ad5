//! Host kernels: their frames, attributes and registry.
//!
//! Entry points, in reading order: [`KernelRegistry`], the parameters that plain functions may have
//! ([`Arg`], [`Attr`] and others), [`KernelFrame`], [`ExecutionContext`] and [`HostContext`].

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod attr;
mod context;
mod frame;
mod metrics;
mod registry;
mod sync_frame;
mod trace;
mod typed;
mod value;

pub use attr::{AttrKind, AttrNumber, Attribute, HostDType, TypedAttr};
pub use context::{
    ExecutionContext, Function, FunctionRef, HostContext, HostProgram, RequestContext, Values,
};
pub use frame::{
    AttrSlot, CallSite, Frame, KernelFrame, LocationId, Operand, References, Register, Reporter,
    ResultItem, SiteTables, Span,
};
pub use metrics::{Buckets, Gauge, Histogram, MetricsRegistry};
pub use registry::{HostKernel, KernelCost, KernelRegistry, NativeFunction};
pub use sync_frame::SyncKernelFrame;
pub use trace::{TraceLevel, TraceScope, TraceSink, Tracer};
pub use typed::{
    Arg, ArrayAttr, AsyncKernel, Attr, Ctx, Cursor, IntoResults, IntoSyncResults, Param,
    RemainingArgs, RemainingAttrs, RemainingFunctions, StrAttr, SyncKernel, TypedAttribute,
    TypedKernel, TypedSyncKernel,
};
pub use value::{HostValue, Value};
