//! Tensors over memory of other owners, and which memory tensors share.

use super::{Tensor, check_count};
use crate::buffer::{Buffer, ByteOwner};
use crate::memory::MemoryBlock;
use crate::repr::{Content, ContentMut};
use crate::storage::{Data, INLINE_BYTES};
use crate::{DType, MappedFile, Shape};
use ferroflow_base::{Result, internal};
use std::ops::Range;
use std::sync::Arc;

impl Tensor {
    /// Returns a tensor over the bytes of `owner`, without a copy if they are aligned as the
    /// elements need. Kernels never write to them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not plain or the number of bytes is not that of the shape.
    pub fn from_owner(dtype: DType, shape: Shape, owner: Arc<dyn ByteOwner>) -> Result<Tensor> {
        let bytes = (*owner).as_ref();
        let is_aligned = bytes.as_ptr().align_offset(dtype.size().clamp(1, 16)) == 0;
        let has_size = shape.num_elements().checked_mul(dtype.size()) == Some(bytes.len());
        // Other bytes than 0 and 1 are not valid bools.
        let is_shared = is_aligned && has_size && bytes.len() > INLINE_BYTES;
        if !is_shared || dtype == DType::Bool || !dtype.is_plain() {
            return Self::from_bytes(dtype, shape, bytes);
        }
        Ok(Self::dense(dtype, shape, Data::Block(Buffer::owned(owner))))
    }

    /// Returns a tensor that owns a block of memory.
    ///
    /// # Safety
    /// The block has the bytes of `shape`, which are valid elements of the dtype, a plain one.
    pub unsafe fn from_block(dtype: DType, shape: Shape, block: Box<dyn MemoryBlock>) -> Tensor {
        let len = shape.num_elements() * dtype.size();
        let is_host = block.is_host();
        let buffer = Buffer::block(block, len);
        let data = match is_host {
            true => Data::Block(buffer),
            false => Data::Device(buffer),
        };
        Self::dense(dtype, shape, data)
    }

    /// Returns whether the elements are in memory that the host does not reach.
    pub fn is_on_device(&self) -> bool {
        matches!(self.0.content(), Content::Dense(dense) if dense.is_on_device())
    }

    /// Returns whether the elements have no other owner, so that operations of the device that has them may overwrite
    /// them.
    pub fn is_sole_owner(&mut self) -> bool {
        match self.0.content_mut() {
            ContentMut::Scalar(_) => true,
            ContentMut::Dense(dense) => dense.is_sole(),
            ContentMut::Shared => false,
        }
    }

    /// Returns the tensor with elements that the host reaches: those of a device are copied, which waits for it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn on_host(&self) -> Result<Tensor> {
        match self.is_on_device() {
            false => Ok(self.clone()),
            true => self.copied_to_host(),
        }
    }

    #[cold]
    fn copied_to_host(&self) -> Result<Tensor> {
        let (block, offset) = self
            .block()
            .ok_or_else(|| internal!("a tensor on a device has no block"))?;
        let bytes = block.read(offset, self.byte_len())?;
        Tensor::from_bytes(self.dtype(), self.shape().clone(), &bytes)
    }

    /// # Errors
    /// INTERNAL if the host does not reach the elements.
    #[cold]
    pub(super) fn check_on_host(&self) -> Result<()> {
        match self.is_on_device() {
            false => Ok(()),
            true => Err(internal!(
                "a {} tensor of shape {} is in the memory of a device and was not copied to the host",
                self.dtype(),
                self.shape()
            )),
        }
    }

    /// Returns the block that has the elements, and the position of the first byte in it; `None` if they
    /// are in memory of this room.
    pub fn block(&self) -> Option<(&dyn MemoryBlock, usize)> {
        let Content::Dense(dense) = self.0.content() else {
            return None;
        };
        let (Data::Block(buffer) | Data::Device(buffer)) = dense.root() else {
            return None;
        };
        let offset = match &dense.data {
            Data::View { offset, .. } => *offset,
            _ => 0,
        };
        Some((buffer.as_block()?, offset))
    }

    /// Returns whether both have equal dtype, shape and bytes (or equal strings), or share storage.
    pub fn same_value(&self, other: &Tensor) -> bool {
        if self.dtype() != other.dtype() || self.shape() != other.shape() {
            return false;
        }
        match (self.string_items(), other.string_items()) {
            (Some(a), Some(b)) => a == b,
            _ if self.dtype().is_plain() => match (self.bytes(), other.bytes()) {
                (Ok(a), Ok(b)) => std::ptr::eq(a, b) || a == b,
                _ => false,
            },
            _ => false,
        }
    }

    pub(crate) fn from_mapped(
        dtype: DType,
        shape: Shape,
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Result<Tensor> {
        let bytes = (**file)
            .as_ref()
            .get(range.clone())
            .ok_or_else(|| internal!("range {range:?} is outside the mapped file"))?;
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(dtype.size().clamp(1, 8));
        let is_copied = !aligned && !crate::memory::is_heap();
        if is_copied || bytes.len() <= INLINE_BYTES || dtype == DType::Bool {
            return Self::from_bytes(dtype, shape, bytes);
        }
        check_count(&shape, bytes.len() / dtype.size())?;
        let block = match aligned {
            true => Buffer::mapped(file, range),
            false => Buffer::constant(bytes)?,
        };
        Ok(Self::dense(dtype, shape, Data::Block(block)))
    }
}
