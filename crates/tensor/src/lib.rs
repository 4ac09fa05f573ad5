//! Values: the dtype table, shapes, buffers and [`Tensor`].
//!
//! Entry points, in reading order: [`DType`] and [`Element`], [`Shape`] and [`PartialShape`],
//! [`Tensor`], [`PackedStrings`], [`Part`], [`LazyTensor`] over a [`MappedFile`]; [`Arena`], the memory of a step.
//!
//! Invariants: a tensor's buffer holds exactly `shape.num_elements() * dtype.size()` initialised
//! bytes, aligned for its element type; a buffer is written only through its one owner.
//!
//! Does not know: ops, graphs, devices, files other than as mapped bytes.

#![warn(clippy::missing_errors_doc)]

mod allocation_log;
mod allocator;
mod arena;
mod buffer;
mod derived;
mod dtype;
mod format;
#[cfg(feature = "mimalloc")]
mod give_back;
mod huge_pages;
mod item;
mod lazy;
mod mapped;
mod memory;
mod part;
mod repr;
pub mod rows;
mod shape;
mod storage;
mod strings;
mod tensor;

pub use allocation_log::{AllocationLog, LoggedUse};
pub use allocator::{
    CachingAllocator, FixedSizeAllocator, HostAllocator, HostBuffer, MallocAllocator,
    ProfiledAllocator,
};
pub use arena::{Arena, BlockPlace, outside_arenas};
pub use buffer::{Buffer, ByteOwner, memory_limit, return_freed_memory};
pub use dtype::{DType, Element};
#[cfg(feature = "mimalloc")]
pub use give_back::return_freed_memory_after;
pub use item::Item;
pub use lazy::LazyTensor;
pub use mapped::MappedFile;
pub use memory::{MemoryBlock, TensorMemory, with_memory};
pub use part::{Part, PartMut};
pub use shape::{PartialShape, Shape};
pub use strings::{PackedStrings, Texts};
pub use tensor::{ResourceHandle, ResourceOrigin, Tensor, Variant};

pub use bytes::Bytes;

pub use half::{bf16, f16};
pub use num_complex::{Complex, Complex32, Complex64};
