//! `TF_Tensor` (`tensorflow/c/tf_tensor.h`).

use crate::guard::{delete, guard_plain, handle, list};
use crate::{TF_Status, TF_TString};
use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Alignment of tensors, in bytes.
const ALIGN: usize = 64;

/// A tensor as clients see it: its memory has an address for its whole life.
pub struct TF_Tensor {
    dtype: c_int,
    dims: SmallVec<[i64; 4]>,
    data: Data,
}

enum Data {
    /// Memory of ours or of the client.
    Memory(Arc<Memory>),
    /// A result of the engine. A scalar's bytes are in `TF_Tensor` itself.
    Engine(Tensor),
}

/// A block of memory.
struct Memory {
    ptr: *mut u8,
    len: usize,
    release: Release,
}

/// How a block is freed.
enum Release {
    /// Allocated with alignment [`ALIGN`].
    Allocated,
    /// Allocated as well, and full of strings that own their characters.
    Strings,
    /// By the client's function.
    Client(Deallocator, *mut c_void),
}

/// Frees data of the given length; the last argument is the client's own.
pub type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

// SAFETY: the block is plain memory; the header lets any thread delete a tensor.
unsafe impl Send for Memory {}
// SAFETY: as above; the engine only reads it.
unsafe impl Sync for Memory {}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block has `len` bytes as long as this lives.
        unsafe { list(self.ptr, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.release {
            Release::Client(deallocator, arg) => {
                // SAFETY: the client gave this function for this block, which nothing else uses.
                unsafe { deallocator(self.ptr.cast(), self.len, arg) };
                return;
            }
            Release::Strings => {
                let n = self.len / size_of::<TF_TString>();
                // SAFETY: the block holds that many strings, which own their characters.
                let strings = unsafe { crate::guard::list_mut(self.ptr.cast::<TF_TString>(), n) };
                for string in strings {
                    // SAFETY: as above.
                    unsafe { string.dealloc() };
                }
            }
            Release::Allocated => {}
        }
        if self.len > 0
            && let Ok(layout) = Layout::from_size_align(self.len, ALIGN)
        {
            // SAFETY: `allocate` made it with this layout.
            unsafe { dealloc(self.ptr, layout) };
        }
    }
}

/// Bytes from which on a tensor is in memory of the engine: smaller ones it copies.
const ENGINE_MEMORY: usize = 64;

/// What an empty tensor's address is: aligned for every element.
#[repr(align(64))]
struct Nothing(#[allow(dead_code, reason = "only its address is used")] u8);

static NOTHING: Nothing = Nothing(0);

impl Memory {
    fn allocate(len: usize, release: Release) -> Option<Memory> {
        if len == 0 {
            let ptr = (&raw const NOTHING).cast_mut().cast();
            return Some(Memory { ptr, len, release });
        }
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        (!ptr.is_null()).then_some(Memory { ptr, len, release })
    }
}

/// The size of an element in memory; 0 if it has none.
fn element_size(dtype: c_int) -> usize {
    match DType::from_number(dtype) {
        Some(DType::String) => size_of::<TF_TString>(),
        Some(t) if t.is_plain() => t.size(),
        _ => 0,
    }
}

fn num_elements(dims: &[i64]) -> Option<usize> {
    let mut sizes = dims.iter().map(|d| usize::try_from(*d).ok());
    sizes.try_fold(1usize, |n, d| n.checked_mul(d?))
}

impl TF_Tensor {
    /// Wraps a tensor of the engine for the client.
    pub(crate) fn of_engine(tensor: Tensor) -> Result<TF_Tensor> {
        let dtype = tensor.dtype() as c_int;
        let dims = tensor.shape().to_i64();
        let dims = SmallVec::from_slice(&dims);
        let Ok(strings) = tensor.strings() else {
            let data = Data::Engine(tensor);
            return Ok(TF_Tensor { dtype, dims, data });
        };
        let strings = strings.iter().map(|s| TF_TString::of(s));
        let data = Data::Memory(Arc::new(of_strings(strings, tensor.num_elements())?));
        Ok(TF_Tensor { dtype, dims, data })
    }

    /// As [`Self::of_engine`], in memory that [`Self::share`] shares: the bytes of a scalar are part of the
    /// engine's tensor.
    pub(crate) fn of_scalar(tensor: Tensor) -> Result<TF_Tensor> {
        let this = TF_Tensor::of_engine(tensor)?;
        let Data::Engine(tensor) = &this.data else {
            return Ok(this);
        };
        let Ok(bytes) = tensor.bytes() else {
            return Ok(this);
        };
        let memory = Memory::allocate(bytes.len(), Release::Allocated)
            .ok_or_else(|| ferroflow_base::resource_exhausted!("OOM when allocating a scalar"))?;
        // SAFETY: the block is new and has that many bytes.
        unsafe {
            memory
                .ptr
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(TF_Tensor {
            data: Data::Memory(Arc::new(memory)),
            ..this
        })
    }

    /// Returns the engine's form, which shares plain memory.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the memory does not fit dtype and shape.
    pub(crate) fn to_engine(&self) -> Result<Tensor> {
        let dtype = DType::from_number(self.dtype)
            .ok_or_else(|| invalid_argument!("tensor has the unknown dtype {}", self.dtype))?;
        let shape = Shape::checked(&self.dims)?;
        let memory = match &self.data {
            Data::Engine(tensor) => return tensor.clone().with_shape(shape),
            Data::Memory(memory) => memory,
        };
        if dtype == DType::String {
            return strings_of(memory, shape);
        }
        let needed = shape.num_elements().saturating_mul(dtype.size());
        if !dtype.is_plain() || memory.len < needed {
            return Err(invalid_argument!(
                "Malformed TF_Tensor: {} bytes do not hold a {dtype} tensor of shape {shape}",
                memory.len
            ));
        }
        match memory.len == needed {
            true => Tensor::from_owner(dtype, shape, memory.clone()),
            false => Tensor::from_bytes(dtype, shape, &memory.as_ref().as_ref()[..needed]),
        }
    }

    /// Returns a tensor with the same memory.
    pub(crate) fn share(&self) -> TF_Tensor {
        let data = match &self.data {
            Data::Memory(memory) => Data::Memory(memory.clone()),
            Data::Engine(tensor) => Data::Engine(tensor.clone()),
        };
        TF_Tensor {
            dtype: self.dtype,
            dims: self.dims.clone(),
            data,
        }
    }

    /// Allocates a tensor of this shape, which the client fills.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if dtype or shape are not valid; RESOURCE_EXHAUSTED if it is too large.
    pub(crate) fn allocate_host(dtype: c_int, dims: &[i64]) -> Result<TF_Tensor> {
        let size = element_size(dtype);
        let len = num_elements(dims).and_then(|n| n.checked_mul(size));
        let len = len.ok_or_else(|| invalid_argument!("the shape {dims:?} is not valid"))?;
        TF_Tensor::allocate(dtype, dims, len).ok_or_else(|| {
            ferroflow_base::resource_exhausted!("OOM when allocating a tensor of {len} bytes")
        })
    }

    /// Allocates `len` bytes. What the engine may overwrite later is its own memory from the start.
    fn allocate(dtype: c_int, dims: &[i64], len: usize) -> Option<TF_Tensor> {
        let known = DType::from_number(dtype);
        let is_string = known == Some(DType::String);
        let data = match known {
            Some(known)
                if known.is_plain()
                    && known != DType::Bool
                    && len >= ENGINE_MEMORY
                    && num_elements(dims).and_then(|n| n.checked_mul(known.size()))
                        == Some(len) =>
            {
                Data::Engine(Tensor::for_overwrite(known, Shape::checked(dims).ok()?).ok()?)
            }
            _ => {
                let release = match is_string {
                    true => Release::Strings,
                    false => Release::Allocated,
                };
                let memory = Memory::allocate(len, release)?;
                if is_string {
                    // SAFETY: the block has `len` bytes; zeros are empty strings.
                    unsafe { memory.ptr.write_bytes(0, len) };
                }
                Data::Memory(Arc::new(memory))
            }
        };
        Some(TF_Tensor {
            dtype,
            dims: SmallVec::from_slice(dims),
            data,
        })
    }

    fn data(&self) -> *mut c_void {
        match &self.data {
            Data::Memory(memory) => memory.ptr.cast(),
            Data::Engine(tensor) => match tensor.bytes() {
                Ok([]) | Err(_) => (&raw const NOTHING).cast_mut().cast(),
                Ok(bytes) => bytes.as_ptr().cast_mut().cast(),
            },
        }
    }

    fn byte_len(&self) -> usize {
        match &self.data {
            Data::Memory(memory) => memory.len,
            Data::Engine(tensor) => tensor.bytes().map_or(0, <[u8]>::len),
        }
    }
}

/// A block of `n` strings, which it owns.
fn of_strings(strings: impl Iterator<Item = TF_TString>, n: usize) -> Result<Memory> {
    let len = n.checked_mul(size_of::<TF_TString>());
    let memory = len.and_then(|len| Memory::allocate(len, Release::Strings));
    let memory = memory.ok_or_else(|| {
        ferroflow_base::resource_exhausted!("OOM when allocating a tensor of {n} strings")
    })?;
    let first = memory.ptr.cast::<TF_TString>();
    for (i, string) in strings.take(n).enumerate() {
        // SAFETY: the block has room for `n` strings, aligned.
        unsafe { first.add(i).write(string) };
    }
    Ok(memory)
}

fn strings_of(memory: &Memory, shape: Shape) -> Result<Tensor> {
    let n = shape.num_elements();
    if memory.len / size_of::<TF_TString>() < n {
        return Err(invalid_argument!(
            "Malformed TF_STRING tensor: {} bytes do not hold {n} strings",
            memory.len
        ));
    }
    // SAFETY: the block holds at least `n` strings; that they are well formed is the client's
    // part of the contract.
    let strings = unsafe { list(memory.ptr.cast::<TF_TString>(), n) };
    let copy = |s: &TF_TString| {
        // SAFETY: as above.
        Bytes::copy_from_slice(unsafe { s.bytes() })
    };
    Tensor::from_strings(shape, strings.iter().map(copy).collect())
}

/// Takes the client's data over; returns NULL, after having freed them, if they are too few.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewTensor(
    dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    data: *mut c_void,
    len: usize,
    deallocator: Option<Deallocator>,
    deallocator_arg: *mut c_void,
) -> *mut TF_Tensor {
    guard_plain(std::ptr::null_mut(), || {
        unsafe extern "C" fn keep(_: *mut c_void, _: usize, _: *mut c_void) {}
        let client = Memory {
            ptr: data.cast(),
            len: if data.is_null() { 0 } else { len },
            release: Release::Client(deallocator.unwrap_or(keep), deallocator_arg),
        };
        // SAFETY: the contract of the header.
        let dims = unsafe { list(dims, num_dims) };
        let size = element_size(dtype);
        let needed = num_elements(dims).and_then(|n| n.checked_mul(size));
        if size > 0 && needed.is_none_or(|needed| len < needed) {
            return std::ptr::null_mut();
        }
        let is_plain = DType::from_number(dtype).is_some_and(DType::is_plain);
        let is_aligned = (data as usize).is_multiple_of(ALIGN);
        // As TensorFlow: what is not aligned is copied, and freed at once.
        let memory = match is_plain && !is_aligned && client.len > 0 {
            true => {
                let Some(copy) = Memory::allocate(client.len, Release::Allocated) else {
                    return std::ptr::null_mut();
                };
                // SAFETY: both blocks have that many bytes.
                unsafe { copy.ptr.copy_from_nonoverlapping(client.ptr, client.len) };
                copy
            }
            false => client,
        };
        handle(TF_Tensor {
            dtype,
            dims: SmallVec::from_slice(dims),
            data: Data::Memory(Arc::new(memory)),
        })
    })
}

/// Allocates a tensor with arbitrary content; strings are to be initialised by the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AllocateTensor(
    dtype: c_int,
    dims: *const i64,
    num_dims: c_int,
    len: usize,
) -> *mut TF_Tensor {
    guard_plain(std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let dims = unsafe { list(dims, num_dims) };
        TF_Tensor::allocate(dtype, dims, len).map_or(std::ptr::null_mut(), handle)
    })
}

/// Deletes a tensor, and its memory if no step uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteTensor(t: *mut TF_Tensor) {
    // SAFETY: the contract of the header.
    unsafe { delete(t) }
}

/// Moves a tensor out if nothing else uses its memory; returns NULL otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorMaybeMove(tensor: *mut TF_Tensor) -> *mut TF_Tensor {
    // SAFETY: the contract of the header.
    let Some(t) = (unsafe { tensor.as_mut() }) else {
        return std::ptr::null_mut();
    };
    let is_ours = match &mut t.data {
        Data::Memory(memory) => {
            Arc::get_mut(memory).is_some_and(|m| !matches!(m.release, Release::Client(..)))
        }
        Data::Engine(tensor) => tensor.is_unique(),
    };
    if is_ours {
        tensor
    } else {
        std::ptr::null_mut()
    }
}

/// Returns the dtype's number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorType(t: *const TF_Tensor) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { t.as_ref() }.map_or(0, |t| t.dtype)
}

/// Changes the shape; the number of elements is the client's concern.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetShape(t: *mut TF_Tensor, dims: *const i64, num_dims: c_int) {
    // SAFETY: the contract of the header.
    if let Some(t) = unsafe { t.as_mut() } {
        // SAFETY: as above.
        t.dims = SmallVec::from_slice(unsafe { list(dims, num_dims) });
    }
}

/// Returns the rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NumDims(t: *const TF_Tensor) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { t.as_ref() }.map_or(0, |t| t.dims.len() as c_int)
}

/// Returns a dimension's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_Dim(t: *const TF_Tensor, dim_index: c_int) -> i64 {
    // SAFETY: the contract of the header.
    let dims = unsafe { t.as_ref() }.map_or(&[][..], |t| &t.dims);
    let dim = usize::try_from(dim_index).ok().and_then(|i| dims.get(i));
    dim.copied().unwrap_or(-1)
}

/// Returns the number of bytes of the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorByteSize(t: *const TF_Tensor) -> usize {
    // SAFETY: the contract of the header.
    unsafe { t.as_ref() }.map_or(0, TF_Tensor::byte_len)
}

/// Returns the address of the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorData(t: *const TF_Tensor) -> *mut c_void {
    // SAFETY: the contract of the header.
    unsafe { t.as_ref() }.map_or(std::ptr::null_mut(), TF_Tensor::data)
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorElementCount(t: *const TF_Tensor) -> i64 {
    // SAFETY: the contract of the header.
    let Some(t) = (unsafe { t.as_ref() }) else {
        return 0;
    };
    t.dims.iter().product()
}

/// Lets `to` be the memory of `from` under another dtype and shape of the same number of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorBitcastFrom(
    from: *const TF_Tensor,
    dtype: c_int,
    to: *mut TF_Tensor,
    new_dims: *const i64,
    num_new_dims: c_int,
    status: *mut TF_Status,
) {
    crate::guard::guard(status, (), || {
        // SAFETY: the contract of the header.
        let (from, to, dims) = unsafe {
            (
                crate::guard::shared(from)?,
                crate::guard::unique(to)?,
                list(new_dims, num_new_dims),
            )
        };
        let (old, new) = (element_size(from.dtype), element_size(dtype));
        let bytes = |dims: &[i64], size: usize| num_elements(dims)?.checked_mul(size);
        let n_bytes = bytes(&from.dims, old);
        if TF_DataTypeSize(dtype) == 0 {
            return Err(invalid_argument!("specified output type is zero-sized"));
        }
        if old == 0 || new == 0 || n_bytes.is_none() || bytes(dims, new) != n_bytes {
            return Err(invalid_argument!(
                "input and output shapes/data type sizes are not compatible"
            ));
        }
        let data = match &from.data {
            Data::Memory(memory) => Data::Memory(memory.clone()),
            Data::Engine(tensor) => {
                let bytes =
                    Tensor::from_bytes(DType::Uint8, [tensor.byte_len()].into(), tensor.bytes()?)?;
                let memory = Memory::allocate(bytes.byte_len(), Release::Allocated);
                let memory = memory.ok_or_else(|| invalid_argument!("out of memory"))?;
                let bytes = bytes.bytes()?;
                // SAFETY: the block was allocated with this size.
                unsafe {
                    memory
                        .ptr
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
                };
                Data::Memory(Arc::new(memory))
            }
        };
        *to = TF_Tensor {
            dtype,
            dims: SmallVec::from_slice(dims),
            data,
        };
        Ok(())
    });
}

/// Returns whether the memory is aligned as the engine wants it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorIsAligned(t: *const TF_Tensor) -> bool {
    // SAFETY: the contract of the header.
    unsafe { t.as_ref() }.is_some_and(|t| (t.data() as usize).is_multiple_of(ALIGN))
}

/// Returns the alignment that avoids copies, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn TF_TensorDefaultAlignment() -> usize {
    ALIGN
}

/// Returns the size of an element; 0 if it varies.
#[unsafe(no_mangle)]
pub extern "C" fn TF_DataTypeSize(dt: c_int) -> usize {
    // One that no kernel has.
    const FLOAT4_E2M1FN: c_int = 33;
    if dt == FLOAT4_E2M1FN {
        return 1;
    }
    DType::from_number(dt)
        .filter(|t| t.is_plain())
        .map_or(0, DType::size)
}

/// Parses a `TensorProto` into `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_TensorFromProto(
    from: *const crate::TF_Buffer,
    to: *mut TF_Tensor,
    status: *mut TF_Status,
) {
    crate::guard::guard(status, (), || {
        use prost::Message;
        // SAFETY: the contract of the header.
        let (bytes, to) = unsafe { (crate::buffer::bytes_of(from), crate::guard::unique(to)?) };
        let proto = ferroflow_model::proto::TensorProto::decode(bytes)
            .map_err(|_| invalid_argument!("Unparseable tensorflow.TensorProto proto"))?;
        let tensor = ferroflow_model::tensor_from_proto(&proto, None)?.get()?;
        *to = TF_Tensor::of_engine(tensor)?;
        Ok(())
    });
}

/// Returns the library's version.
#[unsafe(no_mangle)]
pub extern "C" fn TF_Version() -> *const c_char {
    c"2.21.0".as_ptr()
}
