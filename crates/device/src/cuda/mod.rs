//! [`Cuda`]: NVIDIA GPUs, through their driver, which is loaded at run time.
//!
//! Nothing of CUDA is needed to build this, nor to run it on a machine without a GPU. Handles are looked
//! up in tables before the driver sees them.

mod blas;
mod calls;
mod dnn;
mod driver;
mod library;

use crate::backend::{
    Address, Backend, DeviceInfo, Grid, HostCall, LaunchArg, RawEvent, RawFunction, RawGraph,
    RawModule, RawStream, Span, no_device,
};
pub use blas::{Blas, Epilogue, Gemm};
use calls::{Calls, Reached, reached, watch};
pub use dnn::{Conv, ConvArgs, ConvGradient, Dnn};
use driver::{CuResult, Driver, Handle, NOT_READY};
use ferroflow_base::{Result, Status, invalid_argument};
pub use library::measure;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Elementwise kernels as PTX: `empty`, `add_f32`, `mul_f32` and `axpy_f32`, which host streams have, too.
pub const KERNELS: &str = include_str!("kernels.ptx");

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
/// Other threads, and allocations, go on as usual.
const CAPTURE_RELAXED: c_int = 2;
const HOST_PORTABLE_AND_MAPPED: c_uint = 3;

/// NVIDIA GPUs.
pub struct Cuda {
    driver: Driver,
    devices: Vec<Gpu>,
    /// The device of each handle.
    streams: Mutex<HashMap<Handle, usize>>,
    events: Mutex<HashMap<Handle, usize>>,
    modules: Mutex<HashMap<Handle, usize>>,
    functions: Mutex<HashMap<Handle, usize>>,
    graphs: Mutex<HashMap<Handle, usize>>,
    /// Whether each allocation is host memory.
    allocations: Mutex<HashMap<u64, bool>>,
    calls: Arc<Calls>,
}

/// An argument of a launch. The stand-in for the driver checks accesses against the memory.
#[repr(C)]
struct Param {
    value: [u8; 8],
    start: u64,
    len: usize,
}

impl Param {
    fn new(arg: &LaunchArg) -> Param {
        let (value, all) = match arg {
            LaunchArg::Memory(span) => (span.address.0.to_ne_bytes(), *span),
            LaunchArg::Within { at, all } => (at.0.to_ne_bytes(), *all),
            LaunchArg::Number { bytes, .. } => {
                let (address, len) = (Address(0), 0);
                (*bytes, Span { address, len })
            }
        };
        Param {
            value,
            start: all.address.0,
            len: all.len,
        }
    }
}

struct Gpu {
    context: Handle,
    info: DeviceInfo,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn unknown(what: &str, handle: Handle) -> Status {
    invalid_argument!("{what} {handle:#x} does not exist")
}

impl Cuda {
    /// Loads the driver and finds its devices.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if there is no driver, an old one, or no device.
    pub fn new() -> Result<Arc<Cuda>> {
        let library = match cfg!(windows) {
            true => "nvcuda.dll",
            false => "libcuda.so.1",
        };
        Self::open(library)
    }

    /// As [`Cuda::new`], with the driver's library from a path.
    ///
    /// # Errors
    /// As for [`Cuda::new`].
    pub fn open(library: &str) -> Result<Arc<Cuda>> {
        let driver = Driver::open(library)?;
        // SAFETY: the flags must be 0.
        driver.check(unsafe { (driver.init)(0) }, "cuInit")?;
        let mut n: c_int = 0;
        // SAFETY: writes one number.
        let counted = unsafe { (driver.device_count)(&raw mut n) };
        driver.check(counted, "cuDeviceGetCount")?;
        let devices: Result<Vec<Gpu>> = (0..n).map(|i| Gpu::open(&driver, i)).collect();
        let cuda = Arc::new(Cuda {
            devices: devices?,
            driver,
            streams: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            graphs: Mutex::default(),
            allocations: Mutex::default(),
            calls: Calls::new(),
        });
        watch(&cuda);
        Ok(cuda)
    }

    /// The driver's result as ours. A device that failed fails the calls that wait for it.
    fn check(&self, result: CuResult, what: &str) -> Result<()> {
        let checked = self.driver.check(result, what);
        if let (Err(e), 700 | 702 | 709 | 710 | 714..=719 | 999) = (&checked, result) {
            // The context is lost.
            self.calls.fail(e);
        }
        checked
    }

    /// Makes a device's context the calling thread's.
    fn enter(&self, device: usize) -> Result<()> {
        let gpu = self
            .devices
            .get(device)
            .ok_or_else(|| no_device(self, device))?;
        // SAFETY: the context was retained in `Gpu::open` and is never released.
        self.check(
            unsafe { (self.driver.context_set)(gpu.context) },
            "cuCtxSetCurrent",
        )
    }

    fn enter_for(
        &self,
        table: &Mutex<HashMap<Handle, usize>>,
        what: &str,
        handle: Handle,
    ) -> Result<usize> {
        let device = lock(table).get(&handle).copied();
        let device = device.ok_or_else(|| unknown(what, handle))?;
        self.enter(device)?;
        Ok(device)
    }

    fn enter_stream(&self, stream: RawStream) -> Result<Handle> {
        self.enter_for(&self.streams, "stream", stream.0)?;
        Ok(stream.0)
    }

    /// Asks for the state of a stream, so that an error of its device fails the calls that wait for it.
    fn query(&self, stream: Handle) {
        if let Ok(stream) = self.enter_stream(RawStream(stream)) {
            // SAFETY: the handle is a stream.
            let result = unsafe { (self.driver.stream_query)(stream) };
            if result != NOT_READY {
                // An error has been passed on.
                let _ = self.check(result, "cuStreamQuery");
            }
        }
    }

    fn new_event(&self, device: usize, flags: c_uint) -> Result<RawEvent> {
        self.enter(device)?;
        let mut event = 0;
        // SAFETY: writes one handle.
        let created = unsafe { (self.driver.event_create)(&raw mut event, flags) };
        self.check(created, "cuEventCreate")?;
        lock(&self.events).insert(event, device);
        Ok(RawEvent(event))
    }

    fn enter_event(&self, event: RawEvent) -> Result<Handle> {
        self.enter_for(&self.events, "event", event.0)?;
        Ok(event.0)
    }
}

impl Gpu {
    fn open(driver: &Driver, ordinal: c_int) -> Result<Gpu> {
        let (mut device, mut memory, mut context) = (0, 0usize, 0);
        let mut name = [0u8; 256];
        // SAFETY: each function writes one value of its parameter's type; the name's buffer has 256 bytes.
        unsafe {
            driver.check((driver.device_get)(&raw mut device, ordinal), "cuDeviceGet")?;
            driver.check(
                (driver.device_name)(name.as_mut_ptr().cast(), 256, device),
                "cuDeviceGetName",
            )?;
            driver.check(
                (driver.device_memory)(&raw mut memory, device),
                "cuDeviceTotalMem",
            )?;
            let retained = (driver.context_retain)(&raw mut context, device);
            driver.check(retained, "cuDevicePrimaryCtxRetain")?;
        }
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let model = String::from_utf8_lossy(name).into_owned();
        Ok(Gpu {
            context,
            info: DeviceInfo { model, memory },
        })
    }
}

impl Backend for Cuda {
    fn kind(&self) -> &str {
        "GPU"
    }

    fn platform(&self) -> &str {
        "CUDA"
    }

    fn device_count(&self) -> usize {
        self.devices.len()
    }

    fn describe(&self, device: usize) -> Result<DeviceInfo> {
        let gpu = self.devices.get(device);
        gpu.map(|g| g.info.clone())
            .ok_or_else(|| no_device(self, device))
    }

    fn create_stream(&self, device: usize) -> Result<RawStream> {
        self.enter(device)?;
        let mut stream = 0;
        // SAFETY: writes one handle.
        let created = unsafe { (self.driver.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        self.check(created, "cuStreamCreate")?;
        lock(&self.streams).insert(stream, device);
        Ok(RawStream(stream))
    }

    fn destroy_stream(&self, stream: RawStream) {
        if lock(&self.streams).remove(&stream.0).is_some() {
            // SAFETY: the handle was in the table, so that it is a stream; it is not used again.
            unsafe { (self.driver.stream_destroy)(stream.0) };
        }
    }

    fn synchronize(&self, stream: RawStream) -> Result<()> {
        let stream = self.enter_stream(stream)?;
        // SAFETY: the handle is a stream.
        self.check(
            unsafe { (self.driver.stream_synchronize)(stream) },
            "cuStreamSynchronize",
        )
    }

    fn create_event(&self, device: usize) -> Result<RawEvent> {
        self.new_event(device, EVENT_DISABLE_TIMING)
    }

    fn create_timed_event(&self, device: usize) -> Result<RawEvent> {
        self.new_event(device, 0)
    }

    fn elapsed(&self, from: RawEvent, to: RawEvent) -> Result<Duration> {
        self.enter_event(from)?;
        self.enter_event(to)?;
        let mut ms = 0.0;
        // SAFETY: writes one number; the handles are in the table.
        let read = unsafe { (self.driver.event_elapsed)(&raw mut ms, from.0, to.0) };
        self.check(read, "cuEventElapsedTime")?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }

    fn destroy_event(&self, event: RawEvent) {
        if lock(&self.events).remove(&event.0).is_some() {
            // SAFETY: the handle was in the table, so that it is an event; it is not used again.
            unsafe { (self.driver.event_destroy)(event.0) };
        }
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let (event, stream) = (self.enter_event(event)?, self.enter_stream(stream)?);
        // SAFETY: both handles are of their kinds.
        self.check(
            unsafe { (self.driver.event_record)(event, stream) },
            "cuEventRecord",
        )
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let (event, stream) = (self.enter_event(event)?, self.enter_stream(stream)?);
        // SAFETY: both handles are of their kinds; the flags must be 0.
        self.check(
            unsafe { (self.driver.stream_wait)(stream, event, 0) },
            "cuStreamWaitEvent",
        )
    }

    fn is_reached(&self, event: RawEvent) -> Result<bool> {
        let event = self.enter_event(event)?;
        // SAFETY: the handle is an event.
        match unsafe { (self.driver.event_query)(event) } {
            NOT_READY => Ok(false),
            result => self.check(result, "cuEventQuery").map(|()| true),
        }
    }

    fn synchronize_event(&self, event: RawEvent) -> Result<()> {
        let event = self.enter_event(event)?;
        // SAFETY: the handle is an event.
        self.check(
            unsafe { (self.driver.event_synchronize)(event) },
            "cuEventSynchronize",
        )
    }

    fn allocate(&self, device: usize, len: usize) -> Result<Address> {
        self.enter(device)?;
        let mut address = 0;
        // SAFETY: writes one address.
        let allocated = unsafe { (self.driver.allocate)(&raw mut address, len.max(1)) };
        self.check(allocated, "cuMemAlloc")?;
        lock(&self.allocations).insert(address, false);
        Ok(Address(address))
    }

    fn allocate_host(&self, device: usize, len: usize) -> Result<Address> {
        self.enter(device)?;
        let (mut pointer, len) = (std::ptr::null_mut(), len.max(1));
        let allocate = self.driver.allocate_host;
        // SAFETY: writes one pointer.
        let allocated = unsafe { allocate(&raw mut pointer, len, HOST_PORTABLE_AND_MAPPED) };
        self.check(allocated, "cuMemHostAlloc")?;
        // SAFETY: the driver allocated `len` bytes, which nothing else knows yet. Others read them as
        // initialised memory.
        unsafe { pointer.cast::<u8>().write_bytes(0, len) };
        let address = pointer.expose_provenance() as u64;
        lock(&self.allocations).insert(address, true);
        Ok(Address(address))
    }

    unsafe fn free(&self, device: usize, address: Address) {
        let is_host = lock(&self.allocations).remove(&address.0);
        // Memory of a device that was lost is lost with it.
        let Some(is_host) = is_host.filter(|_| self.enter(device).is_ok()) else {
            return;
        };
        // SAFETY: the memory is of this driver and is freed once; the caller promises that nothing uses it.
        unsafe {
            match is_host {
                true => {
                    let at = std::ptr::with_exposed_provenance_mut(address.0 as usize);
                    (self.driver.free_host)(at)
                }
                false => (self.driver.free)(address.0),
            }
        };
    }

    unsafe fn copy(&self, stream: RawStream, to: Span, from: Address) -> Result<()> {
        let stream = self.enter_stream(stream)?;
        // SAFETY: the handle is a stream; the caller promises both ranges. Host and device memory share
        // one address space.
        let copied = unsafe { (self.driver.copy)(to.address.0, from.0, to.len, stream) };
        self.check(copied, "cuMemcpyAsync")
    }

    unsafe fn fill(&self, stream: RawStream, to: Span, word: &[u8]) -> Result<()> {
        let stream = self.enter_stream(stream)?;
        if word.is_empty() || !to.len.is_multiple_of(word.len()) {
            return Err(invalid_argument!(
                "{} bytes are no multiple of the word",
                to.len
            ));
        }
        let (at, n, driver) = (to.address.0, to.len / word.len(), &self.driver);
        // SAFETY: the handle is a stream; the caller promises the range, of `n` words.
        let filled = unsafe {
            match *word {
                [a] => (driver.fill_8)(at, a, n, stream),
                [a, b] => (driver.fill_16)(at, u16::from_le_bytes([a, b]), n, stream),
                [a, b, c, d] => (driver.fill_32)(at, u32::from_le_bytes([a, b, c, d]), n, stream),
                _ => {
                    let len = word.len();
                    return Err(invalid_argument!(
                        "memory cannot be filled with words of {len} bytes"
                    ));
                }
            }
        };
        self.check(filled, "cuMemsetAsync")
    }

    fn load_module(&self, device: usize, image: &str) -> Result<RawModule> {
        self.enter(device)?;
        let image = c_string(image)?;
        let mut module = 0;
        // SAFETY: the text ends in zero; the driver copies what it needs and writes one handle.
        let loaded = unsafe { (self.driver.module_load)(&raw mut module, image.as_ptr().cast()) };
        self.check(loaded, "cuModuleLoadData")?;
        lock(&self.modules).insert(module, device);
        Ok(RawModule(module))
    }

    fn unload_module(&self, module: RawModule) {
        let device = lock(&self.modules).remove(&module.0);
        if device.is_some_and(|device| self.enter(device).is_ok()) {
            // SAFETY: the handle was in the table, so that it is a module; it is not used again, and what was
            // launched of it has run.
            unsafe {
                (self.driver.context_synchronize)();
                (self.driver.module_unload)(module.0);
            }
        }
    }

    fn function(&self, module: RawModule, name: &str) -> Result<RawFunction> {
        let device = self.enter_for(&self.modules, "module", module.0)?;
        let (mut function, c_name) = (0, c_string(name)?);
        // SAFETY: the handle is a module, the name ends in zero; writes one handle.
        let found = unsafe { (self.driver.function)(&raw mut function, module.0, c_name.as_ptr()) };
        self.check(found, &format!("cuModuleGetFunction '{name}'"))?;
        lock(&self.functions).insert(function, device);
        Ok(RawFunction(function))
    }

    fn global(&self, module: RawModule, name: &str) -> Result<Span> {
        self.enter_for(&self.modules, "module", module.0)?;
        let (mut address, mut len, c_name) = (0, 0, c_string(name)?);
        let global = self.driver.global;
        // SAFETY: the handle is a module, the name ends in zero; writes an address and a length.
        let found = unsafe { global(&raw mut address, &raw mut len, module.0, c_name.as_ptr()) };
        self.check(found, &format!("cuModuleGetGlobal '{name}'"))?;
        Ok(Span {
            address: Address(address),
            len,
        })
    }

    unsafe fn launch(
        &self,
        stream: RawStream,
        function: RawFunction,
        grid: &Grid,
        args: &[LaunchArg],
    ) -> Result<()> {
        if !lock(&self.functions).contains_key(&function.0) {
            return Err(unknown("function", function.0));
        }
        let stream = self.enter_stream(stream)?;
        let mut values: SmallVec<[Param; 8]> = args.iter().map(Param::new).collect();
        // The driver reads as many bytes of each value as the function's parameter has: at most 8 of those
        // that `LaunchArg` can express. The null is for the stand-in.
        let pointers = values.iter_mut().map(|v| (&raw mut *v).cast());
        let mut params: SmallVec<[*mut c_void; 9]> =
            pointers.chain([std::ptr::null_mut()]).collect();
        let ([bx, by, bz], [tx, ty, tz]) = (grid.blocks, grid.threads);
        // SAFETY: the handles are of their kinds; the driver copies the parameters before it returns. The
        // caller promises that they are the function's.
        let launched = unsafe {
            (self.driver.launch)(
                function.0,
                bx,
                by,
                bz,
                tx,
                ty,
                tz,
                grid.shared_bytes,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check(launched, "cuLaunchKernel")
    }

    fn begin_capture(&self, stream: RawStream) -> Result<()> {
        let stream = self.enter_stream(stream)?;
        // SAFETY: the handle is a stream.
        let begun = unsafe { (self.driver.capture_begin)(stream, CAPTURE_RELAXED) };
        self.check(begun, "cuStreamBeginCapture")
    }

    fn end_capture(&self, stream: RawStream) -> Result<RawGraph> {
        let device = self.enter_for(&self.streams, "stream", stream.0)?;
        let (mut graph, mut ready) = (0, 0);
        // SAFETY: the handle is a stream; writes one handle.
        let ended = unsafe { (self.driver.capture_end)(stream.0, &raw mut graph) };
        self.check(ended, "cuStreamEndCapture")?;
        // SAFETY: the handle is a graph, which is not used again; writes one handle.
        let made = unsafe {
            let made = (self.driver.graph_instantiate)(&raw mut ready, graph, 0);
            (self.driver.graph_destroy)(graph);
            made
        };
        self.check(made, "cuGraphInstantiate")?;
        lock(&self.graphs).insert(ready, device);
        Ok(RawGraph(ready))
    }

    unsafe fn launch_graph(&self, stream: RawStream, graph: RawGraph) -> Result<()> {
        if !lock(&self.graphs).contains_key(&graph.0) {
            return Err(unknown("graph", graph.0));
        }
        let stream = self.enter_stream(stream)?;
        // SAFETY: the handles are of their kinds; the caller promises the operations.
        self.check(
            unsafe { (self.driver.graph_launch)(graph.0, stream) },
            "cuGraphLaunch",
        )
    }

    fn destroy_graph(&self, graph: RawGraph) {
        let device = lock(&self.graphs).remove(&graph.0);
        if device.is_some_and(|device| self.enter(device).is_ok()) {
            // SAFETY: the handle was in the table, so that it is a graph; it is not used again.
            unsafe { (self.driver.graph_exec_destroy)(graph.0) };
        }
    }

    fn call_host(&self, stream: RawStream, call: HostCall) -> Result<()> {
        let stream = self.enter_stream(stream)?;
        let number = self.calls.add(stream, call);
        let calls = self.calls.clone();
        let data = Box::into_raw(Box::new(Reached { calls, number }));
        // SAFETY: the handle is a stream; `reached` takes the box, once.
        let enqueued = unsafe { (self.driver.call_host)(stream, reached, data.cast()) };
        self.check(enqueued, "cuLaunchHostFunc").inspect_err(|_| {
            // SAFETY: the driver refused the call, so that the box is still ours.
            drop(unsafe { Box::from_raw(data) });
            self.calls.take(number);
        })
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| invalid_argument!("a text for the driver contains a zero byte"))
}

#[cfg(test)]
mod tests;
