//! [`Tensor`]: dtype, shape and shared storage.

use crate::buffer::Buffer;
use crate::{DType, Element, MappedFile, Shape};
use bytes::Bytes;
use ferroflow_base::{Result, internal, invalid_argument};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a tensor holds without a heap allocation.
const INLINE_BYTES: usize = 16;

/// A handle to a resource (variable, queue, table) that lives in a resource manager.
#[derive(Clone)]
pub struct ResourceHandle {
    /// The container that owns it.
    pub container: Arc<str>,
    /// Its name in the container.
    pub name: Arc<str>,
    /// The resource itself, when the handle has been resolved.
    pub value: Option<Arc<dyn Any + Send + Sync>>,
}

impl Default for ResourceHandle {
    fn default() -> Self {
        ResourceHandle {
            container: "".into(),
            name: "".into(),
            value: None,
        }
    }
}

/// An element of a variant tensor: a shared value of any type, or nothing.
#[derive(Clone, Default)]
pub struct Variant(pub Option<Arc<dyn Any + Send + Sync>>);

/// A dense, row-major array of elements of one dtype. Cloning shares the storage.
///
/// ```
/// use ferroflow_tensor::Tensor;
/// let t = Tensor::from_slice([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
/// assert_eq!(t.slice::<f32>().unwrap()[3], 4.0);
/// assert_eq!(t.shape().to_string(), "[2,2]");
/// assert!(t.slice::<i32>().is_err());
/// ```
#[derive(Clone)]
pub struct Tensor {
    shape: Shape,
    data: Data,
    dtype: DType,
}

#[derive(Clone)]
enum Data {
    Inline([u64; INLINE_BYTES / 8]),
    Buffer { buffer: Arc<Buffer>, offset: usize },
    Strings(Arc<Vec<Bytes>>),
    Resources(Arc<Vec<ResourceHandle>>),
    Variants(Arc<Vec<Variant>>),
}

mod raw {
    pub trait Sealed {}
}

/// How an element is stored, for kernels that move elements without looking at them.
///
/// [`dispatch_items!`](crate::dispatch_items) picks the item type of a dtype.
pub trait Item: raw::Sealed + Clone + Default + Send + Sync + 'static {
    #[doc(hidden)]
    fn get(t: &Tensor) -> Option<&[Self]>;
    #[doc(hidden)]
    fn get_mut(t: &mut Tensor) -> Option<&mut [Self]>;
}

macro_rules! plain_items {
    ($($ty:ty),*) => {$(
        impl raw::Sealed for $ty {}
        impl Item for $ty {
            #[inline]
            fn get(t: &Tensor) -> Option<&[Self]> {
                let fits = t.dtype.size() == size_of::<$ty>() && t.dtype != DType::Bool;
                // SAFETY: integers accept every bit pattern, and the size fits the dtype.
                fits.then(|| unsafe { t.typed() })
            }
            #[inline]
            fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
                let fits = t.dtype.size() == size_of::<$ty>() && t.dtype != DType::Bool;
                // SAFETY: as above; non-bool plain dtypes accept every bit pattern too.
                if fits { unsafe { t.typed_mut() } } else { None }
            }
        }
    )*};
}
plain_items!(u8, u16, u32, u64, [u64; 2]);

impl raw::Sealed for bool {}
impl Item for bool {
    fn get(t: &Tensor) -> Option<&[Self]> {
        t.slice().ok()
    }
    fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
        t.slice_mut().ok()
    }
}

macro_rules! owned_items {
    ($($ty:ty, $variant:ident;)*) => {$(
        impl raw::Sealed for $ty {}
        impl Item for $ty {
            fn get(t: &Tensor) -> Option<&[Self]> {
                match &t.data { Data::$variant(v) => Some(v), _ => None }
            }
            fn get_mut(t: &mut Tensor) -> Option<&mut [Self]> {
                match &mut t.data { Data::$variant(v) => Some(&mut Arc::make_mut(v)[..]), _ => None }
            }
        }
    )*};
}
owned_items! { Bytes, Strings; ResourceHandle, Resources; Variant, Variants; }

/// Runs `$body` with `$T` bound to the [`Item`] type that stores elements of `$dtype`.
///
/// ```
/// use ferroflow_tensor::{Tensor, dispatch_items};
/// let t = Tensor::from_slice([3], &[1.0f32, 2.0, 3.0]).unwrap();
/// let n = dispatch_items!(t.dtype(), T => t.items::<T>().unwrap().len());
/// assert_eq!(n, 3);
/// ```
#[macro_export]
macro_rules! dispatch_items {
    ($dtype:expr, $T:ident => $body:expr) => {{
        let dtype: $crate::DType = $dtype;
        match (dtype, dtype.size()) {
            ($crate::DType::Bool, _) => {
                type $T = bool;
                $body
            }
            ($crate::DType::Resource, _) => {
                type $T = $crate::ResourceHandle;
                $body
            }
            ($crate::DType::Variant, _) => {
                type $T = $crate::Variant;
                $body
            }
            (_, 1) => {
                type $T = u8;
                $body
            }
            (_, 2) => {
                type $T = u16;
                $body
            }
            (_, 4) => {
                type $T = u32;
                $body
            }
            (_, 8) => {
                type $T = u64;
                $body
            }
            (_, 16) => {
                type $T = [u64; 2];
                $body
            }
            _ => {
                type $T = $crate::Bytes;
                $body
            }
        }
    }};
}

impl Tensor {
    /// A tensor whose elements are about to be written: initialised, but with arbitrary values.
    ///
    /// Fails with RESOURCE_EXHAUSTED when the size overflows or exceeds the machine's memory.
    pub fn for_overwrite(dtype: DType, shape: Shape) -> Result<Tensor> {
        // A stale byte may not be a valid bool.
        Self::allocate(dtype, shape, dtype == DType::Bool)
    }

    /// A tensor of zeros (false, empty strings, empty handles).
    pub fn zeros(dtype: DType, shape: Shape) -> Result<Tensor> {
        Self::allocate(dtype, shape, true)
    }

    fn allocate(dtype: DType, shape: Shape, zeroed: bool) -> Result<Tensor> {
        let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let per_element = if dtype.is_plain() {
            dtype.size()
        } else {
            size_of::<Bytes>()
        };
        let Some((n, bytes)) = n.and_then(|n| Some((n, n.checked_mul(per_element)?))) else {
            return Err(too_large(dtype, &shape));
        };
        if !dtype.is_plain() && bytes > crate::memory_limit() {
            return Err(too_large(dtype, &shape));
        }
        let data = match dtype {
            DType::String => Data::Strings(Arc::new(vec![Bytes::new(); n])),
            DType::Resource => Data::Resources(Arc::new(vec![ResourceHandle::default(); n])),
            DType::Variant => Data::Variants(Arc::new(vec![Variant::default(); n])),
            _ if bytes <= INLINE_BYTES => Data::Inline([0; 2]),
            _ => {
                let buffer =
                    Buffer::allocate(bytes, zeroed).map_err(|_| too_large(dtype, &shape))?;
                Data::Buffer {
                    buffer: Arc::new(buffer),
                    offset: 0,
                }
            }
        };
        Ok(Tensor { shape, data, dtype })
    }

    /// A scalar.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        const { assert!(size_of::<T>() <= INLINE_BYTES) };
        let mut words = [0u64; 2];
        // SAFETY: `T` is plain, at most 16 bytes, and `words` is aligned for it.
        unsafe { words.as_mut_ptr().cast::<T>().write(value) };
        Tensor {
            shape: Shape::scalar(),
            data: Data::Inline(words),
            dtype: T::DTYPE,
        }
    }

    /// A string scalar.
    pub fn string(value: impl Into<Bytes>) -> Tensor {
        Tensor {
            shape: Shape::scalar(),
            data: Data::Strings(Arc::new(vec![value.into()])),
            dtype: DType::String,
        }
    }

    /// A tensor of strings; as many as `shape` has elements.
    pub fn from_strings(shape: impl Into<Shape>, values: Vec<Bytes>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        Ok(Tensor {
            shape,
            data: Data::Strings(Arc::new(values)),
            dtype: DType::String,
        })
    }

    /// A tensor of resource handles; as many as `shape` has elements.
    pub fn from_resources(shape: impl Into<Shape>, values: Vec<ResourceHandle>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        Ok(Tensor {
            shape,
            data: Data::Resources(Arc::new(values)),
            dtype: DType::Resource,
        })
    }

    /// A tensor of variants; as many as `shape` has elements.
    pub fn from_variants(shape: impl Into<Shape>, values: Vec<Variant>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        Ok(Tensor {
            shape,
            data: Data::Variants(Arc::new(values)),
            dtype: DType::Variant,
        })
    }

    /// A copy of `values`; as many as `shape` has elements.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, values: &[T]) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        let mut t = Tensor::for_overwrite(T::DTYPE, shape)?;
        t.slice_mut::<T>()?.copy_from_slice(values);
        Ok(t)
    }

    /// A 1-D copy of `values`.
    pub fn vector<T: Element>(values: &[T]) -> Result<Tensor> {
        Self::from_slice([values.len()], values)
    }

    /// A tensor from row-major little-endian bytes of a plain dtype.
    pub fn from_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Tensor> {
        let mut t = Tensor::for_overwrite(dtype, shape)?;
        let expected = t.byte_len();
        if !dtype.is_plain() || bytes.len() != expected {
            return Err(invalid_argument!(
                "a {dtype} tensor of shape {} takes {expected} bytes, but {} were given",
                t.shape,
                bytes.len()
            ));
        }
        if dtype == DType::Bool {
            for (to, from) in t.slice_mut::<bool>()?.iter_mut().zip(bytes) {
                *to = *from != 0;
            }
            return Ok(t);
        }
        // SAFETY: every byte pattern is valid for plain dtypes other than bool, and the new tensor
        // is its buffer's only owner.
        if let Some(to) = unsafe { t.bytes_mut() } {
            to.copy_from_slice(bytes);
        }
        Ok(t)
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
        if !aligned || bytes.len() <= INLINE_BYTES || dtype == DType::Bool {
            return Self::from_bytes(dtype, shape, bytes);
        }
        check_count(&shape, bytes.len() / dtype.size())?;
        let buffer = Arc::new(Buffer::mapped(file, range));
        Ok(Tensor {
            shape,
            data: Data::Buffer { buffer, offset: 0 },
            dtype,
        })
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element count.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Bytes of plain data; 0 for dtypes that own their elements.
    pub fn byte_len(&self) -> usize {
        self.num_elements() * self.dtype.size()
    }

    /// The elements, which must be of type `T`.
    #[inline]
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        if self.dtype != T::DTYPE {
            return Err(self.wrong_dtype(T::DTYPE));
        }
        // SAFETY: the dtype says that the storage holds valid elements of `T`.
        Ok(unsafe { self.typed() })
    }

    /// The elements for writing; shared storage is copied first.
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype != T::DTYPE {
            return Err(self.wrong_dtype(T::DTYPE));
        }
        self.make_unique()?;
        // SAFETY: the dtype says that the storage holds valid elements of `T`.
        unsafe { self.typed_mut() }.ok_or_else(|| internal!("a plain tensor without plain storage"))
    }

    /// The single element of a scalar (or of any tensor with one element).
    #[inline]
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        match self.slice::<T>()? {
            [value] => Ok(*value),
            _ => Err(invalid_argument!(
                "expected a scalar, got a tensor of shape {}",
                self.shape
            )),
        }
    }

    /// The elements of a string tensor.
    pub fn strings(&self) -> Result<&[Bytes]> {
        match &self.data {
            Data::Strings(v) => Ok(v),
            _ => Err(self.wrong_dtype(DType::String)),
        }
    }

    /// The elements of a resource tensor.
    pub fn resources(&self) -> Result<&[ResourceHandle]> {
        match &self.data {
            Data::Resources(v) => Ok(v),
            _ => Err(self.wrong_dtype(DType::Resource)),
        }
    }

    /// The elements of a variant tensor.
    pub fn variants(&self) -> Result<&[Variant]> {
        match &self.data {
            Data::Variants(v) => Ok(v),
            _ => Err(self.wrong_dtype(DType::Variant)),
        }
    }

    /// The elements as stored items; see [`dispatch_items!`](crate::dispatch_items).
    pub fn items<T: Item>(&self) -> Result<&[T]> {
        T::get(self).ok_or_else(|| internal!("{} is not stored in the asked form", self.dtype))
    }

    /// The elements as stored items for writing; shared storage is copied first.
    pub fn items_mut<T: Item>(&mut self) -> Result<&mut [T]> {
        self.make_unique()?;
        let dtype = self.dtype;
        T::get_mut(self).ok_or_else(|| internal!("{dtype} is not stored in the asked form"))
    }

    /// The plain bytes, row-major and little-endian on the machines that Ferroflow runs on.
    pub fn bytes(&self) -> Result<&[u8]> {
        if !self.dtype.is_plain() {
            return Err(invalid_argument!(
                "a {} tensor has no plain bytes",
                self.dtype
            ));
        }
        let len = self.byte_len();
        // SAFETY: the storage of a plain dtype holds `byte_len` initialised bytes, none of them
        // padding.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), len) })
    }

    /// The same elements under another shape of the same element count.
    pub fn with_shape(mut self, shape: Shape) -> Result<Tensor> {
        check_count(&shape, self.num_elements())?;
        self.shape = shape;
        Ok(self)
    }

    /// `shape.num_elements()` elements from element `start` on, sharing the storage.
    ///
    /// Fails when they are not all inside this tensor.
    pub fn view(&self, start: usize, shape: Shape) -> Result<Tensor> {
        let n = shape.num_elements();
        let end = start
            .checked_add(n)
            .filter(|&end| end <= self.num_elements());
        let Some(end) = end else {
            return Err(internal!(
                "view of {n} elements at {start} of a tensor of shape {}",
                self.shape
            ));
        };
        let size = self.dtype.size();
        if let Data::Buffer { buffer, offset } = &self.data
            && n * size > INLINE_BYTES
        {
            let data = Data::Buffer {
                buffer: buffer.clone(),
                offset: offset + start * size,
            };
            return Ok(Tensor {
                shape,
                data,
                dtype: self.dtype,
            });
        }
        let mut t = Tensor::for_overwrite(self.dtype, shape)?;
        crate::dispatch_items!(self.dtype, T => {
            t.items_mut::<T>()?.clone_from_slice(&self.items::<T>()?[start..end]);
        });
        Ok(t)
    }

    /// The same bytes read as another plain dtype of the same element size.
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        if !dtype.is_plain() || dtype.size() != self.dtype.size() {
            return Err(invalid_argument!(
                "cannot bitcast {} to {dtype}",
                self.dtype
            ));
        }
        if dtype == DType::Bool || self.dtype == DType::Bool {
            return Self::from_bytes(dtype, self.shape.clone(), self.bytes()?);
        }
        let mut t = self.clone();
        t.dtype = dtype;
        Ok(t)
    }

    /// Whether nobody else shares the storage, so that it may be written in place.
    #[inline]
    pub fn is_unique(&mut self) -> bool {
        match &mut self.data {
            Data::Inline(_) => true,
            Data::Buffer { buffer, .. } => Arc::get_mut(buffer).is_some_and(|b| b.is_writable()),
            Data::Strings(v) => Arc::get_mut(v).is_some(),
            Data::Resources(v) => Arc::get_mut(v).is_some(),
            Data::Variants(v) => Arc::get_mut(v).is_some(),
        }
    }

    /// Whether both have equal dtype, shape and bytes (or equal strings), or share storage.
    pub fn same_value(&self, other: &Tensor) -> bool {
        if self.dtype != other.dtype || self.shape != other.shape {
            return false;
        }
        match (&self.data, &other.data) {
            (Data::Strings(a), Data::Strings(b)) => a == b,
            _ if self.dtype.is_plain() => {
                self.as_ptr() == other.as_ptr() || self.bytes().ok() == other.bytes().ok()
            }
            _ => false,
        }
    }

    fn make_unique(&mut self) -> Result<()> {
        if matches!(self.data, Data::Buffer { .. }) && !self.is_unique() {
            *self = Self::from_bytes(self.dtype, self.shape.clone(), self.bytes()?)?;
        }
        Ok(())
    }

    #[cold]
    fn wrong_dtype(&self, expected: DType) -> ferroflow_base::Status {
        invalid_argument!("expected a {expected} tensor, got a {} tensor", self.dtype)
    }

    #[inline]
    fn as_ptr(&self) -> *const u8 {
        match &self.data {
            Data::Inline(words) => words.as_ptr().cast(),
            // SAFETY: `offset` is inside the buffer by construction of views.
            Data::Buffer { buffer, offset } => unsafe { buffer.as_ptr().add(*offset) },
            _ => std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
        }
    }

    /// # Safety
    /// Every element of a tensor of this dtype must be a valid `T` of the same size.
    #[inline]
    unsafe fn typed<T>(&self) -> &[T] {
        let ptr = self.as_ptr();
        debug_assert!((ptr as usize).is_multiple_of(align_of::<T>()));
        debug_assert_eq!(self.dtype.size(), size_of::<T>());
        // SAFETY: storage holds `num_elements` initialised elements, aligned for their type
        // (inline words: 8; buffers: 64, or checked in `from_mapped`; views start at an element).
        unsafe { std::slice::from_raw_parts(ptr.cast(), self.num_elements()) }
    }

    /// # Safety
    /// As [`Tensor::typed`], and every `T` must be a valid element of this dtype.
    #[inline]
    unsafe fn typed_mut<T>(&mut self) -> Option<&mut [T]> {
        let n = self.num_elements();
        let ptr: *mut u8 = match &mut self.data {
            Data::Inline(words) => words.as_mut_ptr().cast(),
            Data::Buffer { buffer, offset } => {
                let buffer = Arc::get_mut(buffer).filter(|b| b.is_writable())?;
                debug_assert!(*offset + n * size_of::<T>() <= buffer.len());
                // SAFETY: `offset` is inside the buffer by construction of views.
                unsafe { buffer.as_mut_ptr().add(*offset) }
            }
            _ => return None,
        };
        // SAFETY: as in `typed`; `get_mut` proved that nobody else refers to the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) })
    }

    /// # Safety
    /// What is written must be valid for the dtype.
    unsafe fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let len = self.byte_len();
        // SAFETY: bytes are the storage of every plain dtype; the caller vouches for validity.
        let first = unsafe { self.typed_mut::<u8>() }?.as_mut_ptr();
        // SAFETY: the storage has `byte_len` bytes and is exclusively borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(first, len) })
    }
}

#[cold]
fn too_large(dtype: DType, shape: &Shape) -> ferroflow_base::Status {
    ferroflow_base::resource_exhausted!(
        "OOM when allocating tensor with shape{shape} and type {dtype}: larger than the machine's memory"
    )
}

fn check_count(shape: &Shape, n: usize) -> Result<()> {
    if shape.num_elements() == n {
        return Ok(());
    }
    Err(invalid_argument!(
        "shape {shape} has {} elements, but {n} were given",
        shape.num_elements()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_and_writes_copy() {
        let base =
            Tensor::from_slice([4, 4], &(0..16).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let mut view = base.view(4, Shape::from([2, 4])).unwrap();
        assert!(!view.is_unique());
        view.slice_mut::<f32>().unwrap()[0] = 100.0;
        assert_eq!(base.slice::<f32>().unwrap()[4], 4.0);
        assert_eq!(view.slice::<f32>().unwrap()[..2], [100.0, 5.0]);
        assert!(base.view(15, Shape::from([2])).is_err());
    }

    #[test]
    fn scalars_are_inline_and_plain() {
        let mut t = Tensor::scalar(2.5f64);
        assert!(t.is_unique());
        assert_eq!(t.bytes().unwrap(), 2.5f64.to_le_bytes());
        assert_eq!(t.to_scalar::<f64>().unwrap(), 2.5);
        assert_eq!(size_of::<Tensor>(), 72);
    }

    #[test]
    fn items_of_every_dtype() {
        for &dtype in DType::ALL {
            let mut t = Tensor::zeros(dtype, Shape::from([3, 5])).unwrap();
            let n = crate::dispatch_items!(dtype, T => {
                t.items_mut::<T>().unwrap()[7] = Default::default();
                t.items::<T>().unwrap().len()
            });
            assert_eq!(n, 15, "{dtype}");
        }
    }

    #[test]
    fn bools_from_bytes_are_normalised() {
        let t = Tensor::from_bytes(DType::Bool, Shape::from([3]), &[0, 1, 7]).unwrap();
        assert_eq!(t.slice::<bool>().unwrap(), [false, true, true]);
    }

    #[test]
    fn bad_sizes_are_errors() {
        assert!(Tensor::from_slice([3], &[1i32]).is_err());
        assert!(Tensor::zeros(DType::Float, Shape::from([1 << 40, 1 << 40])).is_err());
        assert!(Tensor::from_bytes(DType::Float, Shape::from([2]), &[0; 7]).is_err());
    }
}
