//! [`StreamMemory`]: tensors in the memory of a device that the host reaches.

use crate::allocator::{Allocator, AllocatorOptions, For, MemoryStats};
use crate::buffer::{Buffer, Pinned};
use crate::{Device, Stream};
use ferroflow_base::{Result, Status, internal, unimplemented_error};
use ferroflow_tensor::{DType, MemoryBlock, Shape, Tensor, TensorMemory};
use std::any::Any;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// A device whose tensors kernels of the CPU compute on a stream, with streams for copies to and from it.
///
/// The copies are operations of their own streams: events order them with the computing stream, and no
/// thread waits for them.
pub struct StreamMemory {
    compute: Stream,
    into: Stream,
    out: Stream,
    allocator: Allocator,
    staging: Allocator,
}

/// The memory of one tensor.
struct DeviceBlock(Arc<Buffer>);

// SAFETY: the address of a buffer does not change, chunks are aligned to 256 bytes, and the regions of a
// backend that the host reaches are initialised. Only `StreamMemory` makes blocks: their buffers are used
// by its copies alone, which keep the tensor, or are over before the tensor exists.
unsafe impl MemoryBlock for DeviceBlock {
    fn ptr(&self) -> NonNull<u8> {
        pointer(&self.0)
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
}

impl TensorMemory for StreamMemory {
    fn allocate(&self, len: usize) -> Result<Box<dyn MemoryBlock>> {
        let buffer = HOLDER.with_borrow(|holder| {
            // A kernel writes at once, in an operation of the stream.
            Buffer::allocate(&self.allocator, len, For::Now, holder)
        })?;
        Ok(Box::new(DeviceBlock(Arc::new(buffer))))
    }
}

/// Tensors that are smaller, and those that are not plain, stay with the host.
const MIN_BYTES: usize = 17;

impl StreamMemory {
    /// Memory of a device, with its streams.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the host does not reach the device's memory; that of the device.
    pub fn new(device: &Device, options: &AllocatorOptions) -> Result<StreamMemory> {
        if device.backend().platform() != "HOST_STREAM" {
            return Err(unimplemented_error!(
                "kernels of the CPU cannot compute in the memory of {device}"
            ));
        }
        Ok(StreamMemory {
            compute: Stream::new(device)?,
            into: Stream::new(device)?,
            out: Stream::new(device)?,
            allocator: Allocator::new(device, options),
            staging: Allocator::pinned(device),
        })
    }

    /// The stream that computes.
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// The memory of the tensors.
    pub fn stats(&self) -> MemoryStats {
        self.allocator.stats()
    }

    /// Runs a task on the computing stream, behind everything before.
    pub fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        // What failed before has reported it: each task has its own outcome.
        self.compute.call_host_always(move |_| task());
    }

    /// Runs `f`; new tensors of this thread are in this memory and belong to `holder`.
    pub fn allocating<R>(self: &Arc<Self>, holder: &str, f: impl FnOnce() -> R) -> R {
        HOLDER.with_borrow_mut(|name| {
            name.clear();
            name.push_str(holder);
        });
        let memory: Arc<dyn TensorMemory> = self.clone();
        ferroflow_tensor::with_memory(&memory, f)
    }

    /// Copies a tensor to the device, from the host or from another device; `done` is called on the
    /// computing stream, behind the copy. A tensor that is on the device already is passed on as it is.
    ///
    /// Out-of-memory errors name `holder` as the holder of the tensor.
    pub fn to_device(
        self: &Arc<Self>,
        tensor: Tensor,
        holder: &str,
        done: impl FnOnce(Result<Tensor>) + Send + 'static,
    ) {
        let copied = match self.enqueue_to_device(&tensor, holder) {
            Ok(copied) => copied,
            Err(e) => return done(Err(e)),
        };
        let finish = move |ran: Result<()>| {
            let tensor = ran.map(|()| {
                copied.map_or(tensor, |(buffer, dtype, shape)| {
                    // SAFETY: the copy has run: the buffer has the bytes of a tensor of this dtype and shape,
                    // and nothing else knows it.
                    unsafe { Tensor::from_block(dtype, shape, Box::new(DeviceBlock(buffer))) }
                })
            });
            done(tensor);
        };
        self.compute.call_host_always(finish);
    }

    /// Enqueues the copy, and a wait of the computing stream; `None` if none is needed.
    fn enqueue_to_device(
        &self,
        tensor: &Tensor,
        holder: &str,
    ) -> Result<Option<(Arc<Buffer>, DType, Shape)>> {
        let (dtype, len) = (tensor.dtype(), tensor.byte_len());
        if !dtype.is_plain() || len < MIN_BYTES {
            return Ok(None);
        }
        let source = device_block(tensor)?;
        if source
            .as_ref()
            .is_some_and(|s| s.device() == self.compute.device())
        {
            return Ok(None);
        }
        let buffer = Buffer::new(&self.allocator, &self.into, len, holder)?;
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
        Ok(Some((Arc::new(buffer), dtype, tensor.shape().clone())))
    }

    /// Copies a tensor to the host; `done` is called when it was copied: at once, if it is on the host already.
    pub fn to_host(&self, tensor: Tensor, done: impl FnOnce(Result<Tensor>) + Send + 'static) {
        let source = match device_block(&tensor) {
            Ok(Some(source)) => source,
            Ok(None) => return done(Ok(tensor)),
            Err(e) => return done(Err(e)),
        };
        let staging = self.staging.clone();
        let finish = move |pinned: Result<Pinned>| {
            done(pinned.map(|pinned| {
                let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
                // SAFETY: the memory has the bytes of `tensor`, of this dtype and shape.
                unsafe { Tensor::from_block(dtype, shape, Box::new(PinnedBlock(pinned))) }
            }));
        };
        // The kernel that computed the tensor has run; `finish` keeps the tensor until it was copied.
        self.out.copy_to_host(&source, &staging, finish);
    }
}

/// The part of a device's memory that has a tensor; `None` if it is the host's.
fn device_block(tensor: &Tensor) -> Result<Option<Buffer>> {
    let Some((block, offset)) = tensor.block() else {
        return Ok(None);
    };
    let block: &dyn Any = block;
    let Some(DeviceBlock(buffer)) = block.downcast_ref() else {
        return Ok(None);
    };
    let outside = |e: Status| internal!("a tensor is outside its block: {e}");
    buffer
        .view(offset, tensor.byte_len())
        .map(Some)
        .map_err(outside)
}
