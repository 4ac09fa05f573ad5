//! [`StreamMemory`]: tensors in the memory of a device.

mod places;
mod reclaim;

pub use reclaim::Reclaim;

use crate::allocator::{Allocator, AllocatorOptions, For, MemoryStats};
use crate::buffer::{Buffer, Pinned};
use crate::capture::{self, CaptureStats};
use crate::dispatch::Dispatch;
use crate::timeline::{StreamKind, Timeline};
use crate::{Device, Function, Grid, LaunchArg, Span, Stream};
use ferroflow_base::{
    Result, Status, failed_precondition, internal, invalid_argument, resource_exhausted,
};
use ferroflow_tensor::{DType, MemoryBlock, Shape, Tensor, TensorMemory};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A device with its tensors, the stream that computes, and streams for copies to and from it.
///
/// The copies are operations of their own streams: events order them with the computing stream, and no
/// thread waits for them. Where the host reaches the memory, kernels of the CPU compute in tasks of the
/// stream. Elsewhere a thread of the device's own calls kernels, which enqueue launches and return.
pub struct StreamMemory {
    compute: Stream,
    /// In the place of `compute` for a thread that captures: others go on to use that one.
    captures: Stream,
    into: Stream,
    out: Stream,
    allocator: Allocator,
    staging: Allocator,
    /// Calls kernels that enqueue launches; `None` where kernels of the CPU compute.
    dispatch: Option<Dispatch>,
    /// Times what the streams run, if the device is traced.
    timeline: Mutex<Option<Arc<Timeline>>>,
    is_traced: AtomicBool,
    capture_stats: CaptureStats,
    reclaimable: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// What the kernels of the device share.
    shared: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The memory of one tensor.
struct DeviceBlock {
    buffer: Arc<Buffer>,
    is_host: bool,
    /// The memory by way of which the host reads.
    staging: Allocator,
}

// SAFETY: the address of a buffer does not change, chunks are aligned to 256 bytes, and the regions of a
// backend that the host reaches are initialised. Only `StreamMemory` makes blocks: their buffers are used
// by its copies alone, which keep the tensor, or are over before the tensor exists.
unsafe impl MemoryBlock for DeviceBlock {
    fn ptr(&self) -> NonNull<u8> {
        pointer(&self.buffer)
    }

    fn is_host(&self) -> bool {
        self.is_host
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        if capture::is_capturing() {
            return Err(failed_precondition!(
                "a step that is captured cannot read what it computes"
            ));
        }
        self.buffer.read(offset, len, &self.staging)
    }
}

/// Pinned memory of a tensor.
struct PinnedBlock(Pinned);

// SAFETY: as for `DeviceBlock`; a `Pinned` is used by no operation.
unsafe impl MemoryBlock for PinnedBlock {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::from(self.0.bytes()).cast()
    }
}

fn pointer(buffer: &Buffer) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(
        buffer.address().0 as usize,
    ))
    .unwrap_or(NonNull::dangling())
}

thread_local! {
    /// The holder of new blocks.
    static HOLDER: RefCell<String> = const { RefCell::new(String::new()) };
    /// The memory that this thread's kernels enqueue launches for.
    static CURRENT: RefCell<Option<Arc<StreamMemory>>> = const { RefCell::new(None) };
}

/// Sets the holder of new blocks of this thread.
fn set_holder(holder: &str) {
    HOLDER.with_borrow_mut(|name| {
        name.clear();
        name.push_str(holder);
    });
}

/// Sets back which memory was current, also in a panic.
struct Restore(Option<Arc<StreamMemory>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl TensorMemory for StreamMemory {
    fn allocate(&self, len: usize) -> Result<Box<dyn MemoryBlock>> {
        let buffer = HOLDER.with_borrow(|holder| {
            // A kernel writes at once, in an operation of the stream.
            Buffer::allocate(&self.allocator, len, For::Now, holder)
        })?;
        Ok(Box::new(DeviceBlock {
            buffer: Arc::new(buffer),
            is_host: true,
            staging: self.staging.clone(),
        }))
    }
}

/// An argument of [`StreamMemory::launch`].
#[derive(Clone, Copy)]
pub enum TensorArg<'a> {
    /// A tensor on the device: the function receives its address.
    Tensor(&'a Tensor),
    /// The address of an element of a tensor on the device, around which the function reaches.
    Within(&'a Tensor, usize),
    /// No memory.
    Null,
    /// A number.
    I32(i32),
    /// A number.
    F32(f32),
}

/// Tensors that are smaller, and those that are not plain, stay with the host.
const MIN_BYTES: usize = 17;

impl StreamMemory {
    /// Memory of a device, with its streams.
    ///
    /// # Errors
    /// That of the device.
    pub fn new(device: &Device, options: &AllocatorOptions) -> Result<StreamMemory> {
        let is_host = device.backend().platform() == "HOST_STREAM";
        let options = AllocatorOptions {
            records_frees: is_host,
            ..options.clone()
        };
        let compute = Stream::new(device)?;
        Ok(StreamMemory {
            // Kernels of the CPU are not captured.
            captures: match is_host {
                true => compute.clone(),
                false => Stream::captured(device)?,
            },
            compute,
            into: Stream::new(device)?,
            out: Stream::new(device)?,
            allocator: Allocator::new(device, &options),
            staging: Allocator::pinned(device),
            dispatch: match is_host {
                true => None,
                false => Some(Dispatch::new(device)?),
            },
            timeline: Mutex::default(),
            is_traced: AtomicBool::new(false),
            capture_stats: CaptureStats::default(),
            reclaimable: Mutex::default(),
            shared: OnceLock::new(),
        })
    }

    /// The memory for which kernels of this thread enqueue launches.
    ///
    /// # Errors
    /// INTERNAL outside of [`StreamMemory::enqueuing`].
    pub fn current() -> Result<Arc<StreamMemory>> {
        let current = CURRENT.with_borrow(Clone::clone);
        current.ok_or_else(|| internal!("a kernel of a device runs on no device"))
    }

    /// Begins to time what the streams of the device run, instead of an earlier timeline, if any.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the device has no times; those of the device.
    pub fn start_timeline(&self) -> Result<Arc<Timeline>> {
        let new = Arc::new(Timeline::new(&self.compute)?);
        let mut timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        *timeline = Some(new.clone());
        self.is_traced.store(true, Ordering::Release);
        Ok(new)
    }

    /// Ends a timeline, unless another one was started.
    pub fn end_timeline(&self, ended: &Arc<Timeline>) {
        let mut timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        if timeline.as_ref().is_some_and(|t| Arc::ptr_eq(t, ended)) {
            *timeline = None;
            self.is_traced.store(false, Ordering::Release);
        }
    }

    /// Runs `enqueue`, whose operations are timed if the device is traced.
    fn timed<R>(&self, kind: StreamKind, names: [&str; 2], enqueue: impl FnOnce() -> R) -> R {
        if !self.is_traced.load(Ordering::Acquire) {
            return enqueue();
        }
        let timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        let timeline = timeline.clone();
        let stream = match kind {
            StreamKind::Compute => &self.compute,
            StreamKind::Into => &self.into,
            StreamKind::Out => &self.out,
        };
        match timeline {
            Some(timeline) => timeline.time((kind, stream), names, enqueue),
            None => enqueue(),
        }
    }

    /// Whether kernels enqueue launches, instead of computing on the host.
    pub fn enqueues(&self) -> bool {
        self.dispatch.is_some()
    }

    /// Returns what the kernels of the device share; `make` makes it at the first call. All callers name one
    /// type.
    ///
    /// # Errors
    /// Those of `make`; INTERNAL if a caller named another type.
    pub fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if self.shared.get().is_none() {
            // Another thread may have been faster.
            let _ = self.shared.set(Box::new(make()?));
        }
        let shared = self.shared.get().and_then(|s| s.downcast_ref());
        shared.ok_or_else(|| internal!("kernels of a device share something of another type"))
    }

    /// The stream that computes: what is enqueued there is captured, if this thread captures.
    pub fn compute(&self) -> &Stream {
        match capture::is_capturing() {
            true => &self.captures,
            false => &self.compute,
        }
    }

    /// The stream whose operations are captured.
    pub(crate) fn capturing(&self) -> &Stream {
        &self.captures
    }

    /// Runs `f`, in which kernels of the device are replayed.
    pub(crate) fn as_current<R>(self: &Arc<Self>, f: impl FnOnce() -> R) -> R {
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        f()
    }

    /// An allocator for a step that is captured.
    pub(crate) fn allocator_of_capture(&self) -> Allocator {
        self.allocator.part(&self.compute, "a captured step")
    }

    /// What became of the steps that may be replayed.
    pub fn capture_stats(&self) -> &CaptureStats {
        &self.capture_stats
    }

    /// The memory of the tensors.
    pub fn stats(&self) -> MemoryStats {
        self.allocator.stats()
    }

    /// Runs a task behind everything before: on the computing stream, or on the thread that enqueues.
    pub fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        if let Some(dispatch) = &self.dispatch {
            return dispatch.spawn(Box::new(task));
        }
        // What failed before has reported it: each task has its own outcome.
        self.compute.call_host_always(move |_| task());
    }

    /// Runs `f`; new tensors of this thread are in this memory and belong to `holder`.
    pub fn allocating<R>(self: &Arc<Self>, holder: &str, f: impl FnOnce() -> R) -> R {
        set_holder(holder);
        let memory: Arc<dyn TensorMemory> = self.clone();
        ferroflow_tensor::with_memory(&memory, f)
    }

    /// Runs `f`, whose kernels enqueue launches of an op on the computing stream; memory that they allocate belongs to
    /// `holder`.
    pub fn enqueuing<R>(self: &Arc<Self>, holder: &str, op: &str, f: impl FnOnce() -> R) -> R {
        if capture::is_replaying() {
            return f();
        }
        set_holder(holder);
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        self.timed(StreamKind::Compute, [holder, op], f)
    }

    /// Returns a new tensor in the device's memory, for launches on the computing stream.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory; INVALID_ARGUMENT if the dtype is not plain.
    pub fn allocate_tensor(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        let capturing = capture::allocator();
        let allocator = capturing.as_ref().unwrap_or(&self.allocator);
        self.allocate_in(allocator, self.compute(), dtype, shape)
    }

    fn allocate_in(
        &self,
        allocator: &Allocator,
        stream: &Stream,
        dtype: DType,
        shape: Shape,
    ) -> Result<Tensor> {
        if !dtype.is_plain() {
            return Err(invalid_argument!(
                "a device has no memory for {dtype} tensors"
            ));
        }
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let len = count.and_then(|n| n.checked_mul(dtype.size()));
        let len = len
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or_else(|| {
                resource_exhausted!(
                    "OOM when allocating tensor with shape{shape} and type {dtype} on {}",
                    self.compute.device()
                )
            })?;
        let holder = HOLDER.with_borrow(Clone::clone);
        let buffer = self.buffer(allocator, stream, len, &holder)?;
        let block = self.block(Arc::new(buffer));
        // SAFETY: the block has as many bytes. The host reads none of them; a kernel of the device may read
        // what it has not written, and then computes with arbitrary elements.
        Ok(unsafe { Tensor::from_block(dtype, shape, Box::new(block)) })
    }

    /// Returns a copy of a tensor of the host for launches on the computing stream, which the copy precedes. A
    /// tensor that is on the device already is returned as it is.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory; INVALID_ARGUMENT if the dtype is not plain.
    pub fn upload(&self, tensor: &Tensor) -> Result<Tensor> {
        if device_block(tensor)?.is_some_and(|b| b.device() == self.compute.device()) {
            return Ok(tensor.clone());
        }
        if capture::is_capturing() {
            return Err(failed_precondition!(
                "a tensor of shape {} is copied from the host",
                tensor.shape()
            ));
        }
        let copy = self.allocate_tensor(tensor.dtype(), tensor.shape().clone())?;
        self.upload_to(&copy, tensor)?;
        Ok(copy)
    }

    /// Copies a tensor of the host to one of the same size that was allocated here.
    pub(crate) fn upload_to(&self, to: &Tensor, from: &Tensor) -> Result<()> {
        let bytes = from.bytes()?;
        match (device_block(to)?, bytes.len()) {
            (None, _) | (_, 0) => Ok(()),
            // Without staging.
            (Some(to), 1 | 2 | 4) => self.compute().fill(&to, bytes),
            (Some(to), _) => self.compute().copy_from_host(&to, bytes, &self.staging),
        }
    }

    /// The range of memory of a tensor on this device.
    ///
    /// # Errors
    /// INTERNAL if the tensor is elsewhere.
    pub fn span(&self, tensor: &Tensor) -> Result<Span> {
        let elsewhere = || {
            internal!(
                "a {} tensor of shape {} is not on {}",
                tensor.dtype(),
                tensor.shape(),
                self.compute.device()
            )
        };
        let (block, offset) = tensor.block().ok_or_else(elsewhere)?;
        let block: &dyn Any = block;
        let block: &DeviceBlock = block.downcast_ref().ok_or_else(elsewhere)?;
        if block.buffer.device() != self.compute.device() {
            return Err(elsewhere());
        }
        Ok(Span {
            address: block.buffer.address().offset(offset),
            len: tensor.byte_len(),
        })
    }

    /// Launches a function on the computing stream. Tensors that it writes have no other reader yet.
    ///
    /// # Errors
    /// INTERNAL if a tensor is not on this device; those of [`Function::launch`].
    pub fn launch(&self, function: &Function, grid: &Grid, args: &[TensorArg]) -> Result<()> {
        function.check_device(self.compute.device())?;
        let mut raw = SmallVec::<[LaunchArg; 32]>::new();
        for arg in args {
            raw.push(match arg {
                TensorArg::Tensor(tensor) => LaunchArg::Memory(self.span(tensor)?),
                TensorArg::Within(tensor, i) => {
                    let (all, size) = (self.span(tensor)?, tensor.dtype().size());
                    let at = all.address.offset(i * size);
                    LaunchArg::Within { at, all }
                }
                TensorArg::Null => LaunchArg::number(0u64.to_le_bytes()),
                TensorArg::I32(v) => LaunchArg::number(v.to_le_bytes()),
                TensorArg::F32(v) => LaunchArg::number(v.to_le_bytes()),
            });
        }
        // The tensors' buffers note the computing stream since they were allocated.
        function.launch_raw(self.compute(), grid, &raw)
    }

    /// Copies a tensor on this device to another one of the same size, which was allocated here.
    ///
    /// # Errors
    /// As for [`Stream::copy`]; INTERNAL if a tensor is elsewhere.
    pub fn copy_tensor(&self, to: &Tensor, from: &Tensor) -> Result<()> {
        let elsewhere = || internal!("a tensor to copy is not on {}", self.compute.device());
        let to = device_block(to)?.ok_or_else(elsewhere)?;
        let from = device_block(from)?.ok_or_else(elsewhere)?;
        match to.is_empty() && from.is_empty() {
            true => Ok(()),
            false => self.compute().copy(&to, &from),
        }
    }

    /// Fills a tensor that was allocated here with a word of 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// As for [`Stream::fill`]; INTERNAL if the tensor is elsewhere.
    pub fn fill(&self, tensor: &Tensor, word: &[u8]) -> Result<()> {
        let elsewhere = || internal!("a tensor to fill is not on {}", self.compute.device());
        let buffer = device_block(tensor)?.ok_or_else(elsewhere)?;
        match buffer.is_empty() {
            true => Ok(()),
            false => self.compute().fill(&buffer, word),
        }
    }

    fn block(&self, buffer: Arc<Buffer>) -> DeviceBlock {
        DeviceBlock {
            buffer,
            is_host: self.dispatch.is_none(),
            staging: self.staging.clone(),
        }
    }

    /// Whether tensors of a dtype are in the device's memory. Where kernels enqueue, all but floats stays with the host, which
    /// computes shapes, indices and conditions, as TensorFlow's GPU kernels have it.
    fn takes(&self, dtype: DType, len: usize) -> bool {
        let is_small = len < MIN_BYTES;
        match self.enqueues() {
            true => dtype.is_floating() && len > 0,
            false => dtype.is_plain() && !is_small,
        }
    }

    /// Copies a tensor to the device, from the host or from another device; `done` is called behind the copy:
    /// on the computing stream, or at once where kernels enqueue. A tensor that is on the device already is
    /// passed on as it is.
    ///
    /// Out-of-memory errors name `holder` as the holder of the tensor.
    pub fn to_device(
        self: &Arc<Self>,
        tensor: Tensor,
        holder: &str,
        done: impl FnOnce(Result<Tensor>) + Send + 'static,
    ) {
        let enqueue = || self.enqueue_to_device(&tensor, holder);
        let copied = match self.timed(StreamKind::Into, [holder, "MEMCPYHtoD"], enqueue) {
            Ok(copied) => copied,
            Err(e) => return done(Err(e)),
        };
        let memory = self.clone();
        let finish = move |ran: Result<()>| {
            let tensor = ran.map(|()| {
                copied.map_or(tensor, |(buffer, dtype, shape)| {
                    // SAFETY: the copy has run, or runs before what reads the tensor: the buffer has the
                    // bytes of a tensor of this dtype and shape, and nothing else knows it.
                    unsafe { Tensor::from_block(dtype, shape, Box::new(memory.block(buffer))) }
                })
            });
            done(tensor);
        };
        match self.enqueues() {
            // What is enqueued from here on is behind the copy.
            true => finish(Ok(())),
            false => self.compute.call_host_always(finish),
        }
    }

    /// Enqueues the copy, and a wait of the computing stream; `None` if none is needed.
    fn enqueue_to_device(
        &self,
        tensor: &Tensor,
        holder: &str,
    ) -> Result<Option<(Arc<Buffer>, DType, Shape)>> {
        let (dtype, len) = (tensor.dtype(), tensor.byte_len());
        if !self.takes(dtype, len) {
            return Ok(None);
        }
        let source = device_block(tensor)?;
        if source
            .as_ref()
            .is_some_and(|s| s.device() == self.compute.device())
        {
            return Ok(None);
        }
        let buffer = self.buffer(&self.allocator, &self.into, len, holder)?;
        let same_backend =
            |s: &Buffer| Arc::ptr_eq(s.device().backend(), self.compute.device().backend());
        match source.filter(same_backend) {
            Some(source) => {
                self.into.copy(&buffer, &source)?;
                // No kernel writes to the tensor before it was copied.
                let kept = tensor.clone();
                self.into.call_host(move |_| drop(kept))?;
            }
            None => self
                .into
                .copy_from_host(&buffer, tensor.bytes()?, &self.staging)?,
        }
        self.compute.wait(&self.into.mark()?)?;
        if self.enqueues() {
            buffer.use_on(&self.compute)?;
        }
        Ok(Some((Arc::new(buffer), dtype, tensor.shape().clone())))
    }

    /// Copies a tensor to the host; `done` is called when it was copied: at once, if it is on the host already.
    pub fn to_host(&self, tensor: Tensor, done: impl FnOnce(Result<Tensor>) + Send + 'static) {
        let source = match device_block(&tensor) {
            Ok(Some(source)) => source,
            Ok(None) => return done(Ok(tensor)),
            Err(e) => return done(Err(e)),
        };
        if self.enqueues()
            && let Err(e) = self.compute.mark().and_then(|m| self.out.wait(&m))
        {
            return done(Err(e));
        }
        let staging = self.staging.clone();
        let finish = move |pinned: Result<Pinned>| {
            let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
            // Before its receiver continues: a variable may be overwritten where nothing else has its value.
            drop(tensor);
            done(pinned.map(|pinned| {
                // SAFETY: the memory has the bytes of `tensor`, of this dtype and shape.
                unsafe { Tensor::from_block(dtype, shape, Box::new(PinnedBlock(pinned))) }
            }));
        };
        // The kernel that computed the tensor has run; `finish` keeps the tensor until it was copied.
        let enqueue = || self.out.copy_to_host(&source, &staging, finish);
        self.timed(StreamKind::Out, ["a result", "MEMCPYDtoH"], enqueue);
    }
}

/// The part of a device's memory that has a tensor; `None` if it is the host's.
fn device_block(tensor: &Tensor) -> Result<Option<Buffer>> {
    let Some((block, offset)) = tensor.block() else {
        return Ok(None);
    };
    let block: &dyn Any = block;
    let Some(DeviceBlock { buffer, .. }) = block.downcast_ref() else {
        return Ok(None);
    };
    let outside = |e: Status| internal!("a tensor is outside its block: {e}");
    buffer
        .view(offset, tensor.byte_len())
        .map(Some)
        .map_err(outside)
}
