//! Devices: streams, events, memory, modules and launches.
//!
//! Entry points, in reading order: [`Backend`], which a kind of device implements; [`Device`],
//! [`Stream`] and [`Event`]; [`Allocator`] with [`Buffer`] and [`Pinned`]; [`Module`] and
//! [`Function`]; the backend
//! [`HostStreams`] and [`cuda::Cuda`]; [`StreamMemory`], tensors in a device's memory; [`Timeline`], when streams ran what.
//!
//! Invariants: operations of one stream run in order, those of several in any order that events do
//! not forbid. No operation chooses its stream: callers name it. The memory of a freed [`Buffer`] is
//! reused only behind everything that was enqueued on it.
//!
//! Does not know: ops, graphs.

#![warn(clippy::missing_errors_doc)]

mod allocator;
mod backend;
mod buffer;
mod capture;
mod chunks;
pub mod cuda;
mod device;
mod dispatch;
mod host_stream;
mod module;
mod stream;
mod tensor_memory;
mod timeline;

pub use allocator::{Allocator, AllocatorOptions, MemoryStats};
pub use backend::{
    Address, Backend, DeviceInfo, Grid, HostCall, LaunchArg, RawEvent, RawFunction, RawGraph,
    RawModule, RawStream, Span,
};
pub use buffer::{Buffer, Pinned};
pub use capture::{
    CaptureStats, Captured, Draw, FromInputs, InputCheck, begin_call, check_input, is_capturing,
    note_output, note_read, note_write, upload_computed, upload_drawn, upload_input,
};
pub use device::Device;
pub use host_stream::{
    HostKernel, HostKernels, HostStreamOptions, HostStreams, Operand, Order, Race,
};
pub use module::{Function, KernelArg, Module};
pub use stream::{Event, Stream};
pub use tensor_memory::{Reclaim, StreamMemory, TensorArg};
pub use timeline::{StreamKind, TimedOps, Timeline};
