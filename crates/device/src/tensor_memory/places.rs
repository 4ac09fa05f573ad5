//! Where tensors are: memory without its owner, and owners without their tensor.

use super::{DeviceBlock, StreamMemory, device_block};
use crate::Buffer;
use ferroflow_base::{Result, internal};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::any::Any;
use std::sync::Arc;

impl StreamMemory {
    /// As [`StreamMemory::allocate_tensor`], of memory that no captured operation has but those that read the tensor: it is
    /// written before others of them run.
    pub(crate) fn allocate_place(&self, dtype: DType, shape: Shape) -> Result<Tensor> {
        self.allocate_in(&self.allocator, &self.compute, dtype, shape)
    }

    /// Returns a tensor where `tensor` is that does not keep the memory; one of the host as it is. Only what is enqueued while
    /// the memory is kept may use it.
    ///
    /// # Errors
    /// INTERNAL if the tensor is on another device.
    pub(crate) fn place_of(&self, tensor: &Tensor) -> Result<Tensor> {
        if !tensor.is_on_device() {
            return Ok(tensor.clone());
        }
        let device = self.compute.device();
        let block = self.block(Arc::new(Buffer::of_owner(device, self.span(tensor)?, ())));
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        // SAFETY: the block has as many bytes, of which the host reads none.
        Ok(unsafe { Tensor::from_block(dtype, shape, Box::new(block)) })
    }

    /// Returns a tensor with the elements of `buffer`, for launches on the computing stream.
    ///
    /// # Errors
    /// INTERNAL if the buffer has another number of bytes, or is elsewhere.
    pub fn tensor_of(&self, buffer: Arc<Buffer>, dtype: DType, shape: Shape) -> Result<Tensor> {
        let device = self.compute.device();
        if buffer.device() != device || buffer.len() != shape.num_elements() * dtype.size() {
            return Err(internal!(
                "{buffer:?} is not a {dtype} tensor of shape {shape} on {device}"
            ));
        }
        // SAFETY: the block has as many bytes; those of a device are read by way of copies, after what was enqueued.
        Ok(unsafe { Tensor::from_block(dtype, shape, Box::new(self.block(buffer))) })
    }

    /// Returns the memory of a tensor on this device, which it keeps.
    ///
    /// # Errors
    /// INTERNAL if the tensor is elsewhere.
    pub fn buffer_of(&self, tensor: &Tensor) -> Result<Arc<Buffer>> {
        let span = self.span(tensor)?;
        let elsewhere = || internal!("a tensor is not on {}", self.compute.device());
        let (block, _) = tensor.block().ok_or_else(elsewhere)?;
        let block: &dyn Any = block;
        let whole: Option<&DeviceBlock> = block.downcast_ref();
        match whole {
            // Views of views would nest with every capture.
            Some(whole) if whole.buffer.len() == span.len => Ok(whole.buffer.clone()),
            _ => device_block(tensor)?.map(Arc::new).ok_or_else(elsewhere),
        }
    }
}
