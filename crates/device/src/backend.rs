//! [`Backend`]: what a kind of device implements.

use ferroflow_base::{Result, Status};
use std::fmt;
use std::time::Duration;

/// An address in the memory of a device, or in host memory that devices reach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0.wrapping_add(bytes as u64))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Its first byte.
    pub address: Address,
    /// Its number of bytes.
    pub len: usize,
}

impl Span {
    /// The first address behind the range.
    pub fn end(self) -> Address {
        self.address.offset(self.len)
    }

    /// Whether both have a byte.
    pub fn overlaps(self, other: Span) -> bool {
        let is_empty = self.len == 0 || other.len == 0;
        !is_empty && self.address < other.end() && other.address < self.end()
    }
}

macro_rules! raw_handle {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub u64);
    )*};
}
raw_handle! {
    /// A backend's stream.
    RawStream
    /// A backend's event.
    RawEvent
    /// A backend's module.
    RawModule
    /// A backend's function.
    RawFunction
    /// A backend's graph of operations.
    RawGraph
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name of the model.
    pub model: String,
    /// All memory, in bytes.
    pub memory: usize,
}

/// The threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in each dimension.
    pub blocks: [u32; 3],
    /// Threads of a block in each dimension.
    pub threads: [u32; 3],
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// `threads` threads in one dimension, in blocks of at most 256.
    pub fn linear(threads: usize) -> Grid {
        let block = threads.clamp(1, 256);
        Grid {
            blocks: [threads.div_ceil(block).max(1) as u32, 1, 1],
            threads: [block as u32, 1, 1],
            shared_bytes: 0,
        }
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaunchArg {
    /// Memory: the kernel receives its address.
    Memory(Span),
    /// An address inside memory, around which the kernel reaches.
    Within {
        /// What the kernel receives.
        at: Address,
        /// All that it may reach.
        all: Span,
    },
    /// The first bytes of a number, little endian.
    Number {
        /// The bytes; those behind `len` do not count.
        bytes: [u8; 8],
        /// Their number.
        len: u8,
    },
}

/// A function that a stream calls on the host; the argument tells whether all operations before it
/// succeeded. It must not wait for the stream, and on some devices it must not call the backend.
pub type HostCall = Box<dyn FnOnce(Result<()>) + Send>;

/// A kind of device: what the typed handles of this room stand on.
///
/// Handles and addresses belong to the backend that made them and to one of its devices. Operations are
/// enqueued and run later, in the order of their stream; an error of an operation is reported by the
/// next synchronization of the stream. All methods may be called from any thread.
pub trait Backend: Send + Sync {
    /// The type of its devices in device names, such as `GPU`.
    fn kind(&self) -> &str;

    /// The name of the programming interface, such as `CUDA`.
    fn platform(&self) -> &str;

    /// The number of devices.
    fn device_count(&self) -> usize;

    /// Describes a device.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such device.
    fn describe(&self, device: usize) -> Result<DeviceInfo>;

    /// Creates a stream, which does not synchronize with any other.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such device; the error of the device.
    fn create_stream(&self, device: usize) -> Result<RawStream>;

    /// Releases a stream; what is enqueued on it still runs.
    fn destroy_stream(&self, stream: RawStream);

    /// Waits for everything that is enqueued on the stream.
    ///
    /// # Errors
    /// The first error of an operation since the last synchronization.
    fn synchronize(&self, stream: RawStream) -> Result<()>;

    /// Creates an event, which counts as reached until it is recorded.
    ///
    /// # Errors
    /// As for [`Backend::create_stream`].
    fn create_event(&self, device: usize) -> Result<RawEvent>;

    /// Creates an event that knows when it is reached.
    ///
    /// # Errors
    /// As for [`Backend::create_stream`]; UNIMPLEMENTED if the backend has none.
    fn create_timed_event(&self, _device: usize) -> Result<RawEvent> {
        Err(no_times(self.platform()))
    }

    /// Returns the time from one timed event to a later one, both of which were reached.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a handle is unknown; UNIMPLEMENTED if the backend has no timed events.
    fn elapsed(&self, _from: RawEvent, _to: RawEvent) -> Result<Duration> {
        Err(no_times(self.platform()))
    }

    /// Releases an event; streams that wait for it still do.
    fn destroy_event(&self, event: RawEvent);

    /// Lets the event stand for everything that is enqueued on the stream so far.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a handle is unknown.
    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()>;

    /// Makes what is enqueued on the stream later wait for the last record of the event.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a handle is unknown.
    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()>;

    /// Returns whether the last record of the event was reached, without waiting.
    ///
    /// # Errors
    /// The error of an operation before the record.
    fn is_reached(&self, event: RawEvent) -> Result<bool>;

    /// Waits for the last record of the event.
    ///
    /// # Errors
    /// The error of an operation before the record.
    fn synchronize_event(&self, event: RawEvent) -> Result<()>;

    /// Allocates device memory, aligned for every element type.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the device has too little.
    fn allocate(&self, device: usize, len: usize) -> Result<Address>;

    /// Allocates host memory that the device reaches at the same address.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little.
    fn allocate_host(&self, device: usize, len: usize) -> Result<Address>;

    /// Frees memory of [`Backend::allocate`] or [`Backend::allocate_host`].
    ///
    /// # Safety
    /// The memory was allocated by this backend for this device and not freed; no operation that has not
    /// run, and nothing later, uses it.
    unsafe fn free(&self, device: usize, address: Address);

    /// Copies `to.len` bytes; either side may be host memory of [`Backend::allocate_host`].
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a handle is unknown.
    ///
    /// # Safety
    /// Both ranges are in memory of this backend that is not freed before the operation has run.
    unsafe fn copy(&self, stream: RawStream, to: Span, from: Address) -> Result<()>;

    /// Fills memory with a word of 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for another word length or a range that is not a multiple of it.
    ///
    /// # Safety
    /// As for [`Backend::copy`].
    unsafe fn fill(&self, stream: RawStream, to: Span, word: &[u8]) -> Result<()>;

    /// Loads a module from its text, such as PTX.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text is not a module for the device.
    fn load_module(&self, device: usize, image: &str) -> Result<RawModule>;

    /// Releases a module, none of whose functions is used any more.
    fn unload_module(&self, module: RawModule);

    /// Finds a function.
    ///
    /// # Errors
    /// NOT_FOUND if the module has none of that name.
    fn function(&self, module: RawModule, name: &str) -> Result<RawFunction>;

    /// Finds a global variable.
    ///
    /// # Errors
    /// NOT_FOUND if the module has none of that name.
    fn global(&self, module: RawModule, name: &str) -> Result<Span>;

    /// Launches a function.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the arguments or the grid do not fit the function, as far as the backend can
    /// tell.
    ///
    /// # Safety
    /// The function accesses no memory but that of its arguments, which is as for [`Backend::copy`]; its
    /// module stays loaded until it has run.
    unsafe fn launch(
        &self,
        stream: RawStream,
        function: RawFunction,
        grid: &Grid,
        args: &[LaunchArg],
    ) -> Result<()>;

    /// Makes operations that are enqueued on the stream parts of a graph, instead of running them.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the backend has no graphs.
    fn begin_capture(&self, _stream: RawStream) -> Result<()> {
        Err(no_graphs(self.platform()))
    }

    /// Ends what [`Backend::begin_capture`] began.
    ///
    /// # Errors
    /// That of an operation that cannot be part of a graph.
    fn end_capture(&self, _stream: RawStream) -> Result<RawGraph> {
        Err(no_graphs(self.platform()))
    }

    /// Enqueues the operations of a graph.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a handle is unknown.
    ///
    /// # Safety
    /// As for each operation when it was captured.
    unsafe fn launch_graph(&self, _stream: RawStream, _graph: RawGraph) -> Result<()> {
        Err(no_graphs(self.platform()))
    }

    /// Releases a graph, which has run.
    fn destroy_graph(&self, _graph: RawGraph) {}

    /// Calls a function on the host when everything enqueued on the stream so far has run.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the handle is unknown.
    fn call_host(&self, stream: RawStream, call: HostCall) -> Result<()>;
}

#[cold]
fn no_times(platform: &str) -> Status {
    ferroflow_base::unimplemented_error!("events of {platform} have no times")
}

#[cold]
fn no_graphs(platform: &str) -> Status {
    ferroflow_base::unimplemented_error!("{platform} has no graphs of operations")
}

/// The error of a device that the backend does not have.
#[cold]
pub(crate) fn no_device(backend: &dyn Backend, device: usize) -> Status {
    ferroflow_base::invalid_argument!(
        "there is no {} device {device}: the machine has {}",
        backend.kind(),
        backend.device_count()
    )
}
