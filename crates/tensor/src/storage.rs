//! Storage of all tensors that are not plain scalars.

use crate::buffer::Buffer;
use crate::strings::Strings;
use crate::{ResourceHandle, Shape, Variant};
use std::sync::Arc;

/// Bytes that need no buffer of their own.
pub(crate) const INLINE_BYTES: usize = 16;
/// Plain elements in the tensor itself, aligned for every dtype.
pub(crate) type Words = [u64; INLINE_BYTES / 8];

/// A shape and its elements.
pub(crate) struct Dense {
    pub(crate) shape: Shape,
    pub(crate) data: Data,
}

pub(crate) enum Data {
    Inline(Words),
    Block(Buffer),
    /// Memory that the host does not reach.
    Device(Buffer),
    /// Elements of another storage that is not itself a view: bytes from `offset` for a block,
    /// all elements for owned ones (`offset` is 0).
    View {
        parent: Arc<Dense>,
        offset: usize,
    },
    Strings(Strings),
    Resources(Vec<ResourceHandle>),
    Variants(Vec<Variant>),
}

impl Dense {
    /// Returns the storage that holds the elements.
    #[inline]
    pub(crate) fn root(&self) -> &Data {
        match &self.data {
            Data::View { parent, .. } => &parent.data,
            data => data,
        }
    }

    /// Returns the address of plain elements and their number; dangling, but aligned, for others. The
    /// host sees none of the elements in a device's memory.
    #[inline]
    pub(crate) fn raw(&self) -> (*const u8, usize) {
        let ptr = match &self.data {
            Data::Inline(words) => words.as_ptr().cast(),
            Data::Block(buffer) => buffer.as_ptr(),
            Data::View { parent, offset } => match &parent.data {
                // SAFETY: views are inside the parent's block, see `share`.
                Data::Block(buffer) => unsafe { buffer.as_ptr().add(*offset) },
                Data::Device(_) => return (dangling(), 0),
                _ => dangling(),
            },
            Data::Device(_) => return (dangling(), 0),
            _ => dangling(),
        };
        (ptr, self.shape.num_elements())
    }

    /// Returns whether the elements are in memory that the host does not reach.
    #[inline]
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.root(), Data::Device(_))
    }

    /// Returns the address of plain elements, if they have no other owner and may be written.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> Option<*mut u8> {
        match &mut self.data {
            Data::Inline(words) => Some(words.as_mut_ptr().cast()),
            Data::Block(buffer) if buffer.is_writable() => Some(buffer.as_mut_ptr()),
            Data::View { parent, offset } => match Arc::get_mut(parent) {
                Some(Dense {
                    data: Data::Block(buffer),
                    ..
                }) if buffer.is_writable() => {
                    // SAFETY: views are inside the parent's block, see `share`.
                    Some(unsafe { buffer.as_mut_ptr().add(*offset) })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether a sole owner of this may write its elements.
    #[inline]
    pub(crate) fn is_writable(&mut self) -> bool {
        match &mut self.data {
            Data::Block(buffer) => buffer.is_writable(),
            Data::View { parent, .. } => Arc::get_mut(parent)
                .is_some_and(|p| matches!(&p.data, Data::Block(b) if b.is_writable())),
            Data::Device(_) => false,
            _ => true,
        }
    }

    /// Returns whether a sole owner of this is the only one of its elements, wherever these are.
    pub(crate) fn is_sole(&mut self) -> bool {
        match &mut self.data {
            Data::View { parent, .. } => Arc::get_mut(parent).is_some(),
            _ => true,
        }
    }

    /// Returns the elements from byte `start` on (0 for owned elements), which must be inside,
    /// under another shape.
    pub(crate) fn share(self: &Arc<Self>, start: usize, shape: Shape) -> Dense {
        let data = match &self.data {
            Data::Inline(words) => Data::Inline(*words),
            Data::View { parent, offset } => Data::View {
                parent: parent.clone(),
                offset: offset + start,
            },
            _ => Data::View {
                parent: self.clone(),
                offset: start,
            },
        };
        debug_assert!(match &data {
            Data::View { parent, offset } => match &parent.data {
                Data::Block(block) | Data::Device(block) => *offset <= block.len(),
                _ => *offset == 0,
            },
            _ => start == 0,
        });
        Dense { shape, data }
    }
}

fn dangling() -> *const u8 {
    std::ptr::NonNull::<u64>::dangling().as_ptr().cast()
}
