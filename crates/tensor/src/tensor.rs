//! [`Tensor`]: dtype, shape and shared storage.

use crate::buffer::Buffer;
use crate::repr::{Content, ContentMut, Repr};
use crate::storage::{Data, Dense, INLINE_BYTES};
use crate::strings::Strings;
use crate::{DType, Element, Item, PartialShape, Shape};
use bytes::Bytes;
use ferroflow_base::{Result, internal, invalid_argument};
use std::any::Any;
use std::borrow::Cow;
use std::mem::transmute_copy;
use std::sync::Arc;

/// A handle to a resource (variable, queue, table) that lives in a resource manager.
#[derive(Clone)]
pub struct ResourceHandle {
    /// The container that owns it.
    pub container: Arc<str>,
    /// Its name in the container.
    pub name: Arc<str>,
    /// The resource itself, when the handle has been resolved.
    pub value: Option<Arc<dyn Any + Send + Sync>>,
    /// What another task says of the resource, if the handle came from one.
    pub origin: Option<Arc<ResourceOrigin>>,
}

/// What the handle of another task says of its resource (TensorFlow's `ResourceHandleProto`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceOrigin {
    /// The full name of the device that has the resource.
    pub device: String,
    /// The hash of its type in the program of that task.
    pub hash_code: u64,
    /// The name of its type.
    pub type_name: String,
    /// The dtypes and the shapes of a variable or a table.
    pub dtypes_and_shapes: Vec<(DType, PartialShape)>,
}

impl Default for ResourceHandle {
    fn default() -> Self {
        ResourceHandle {
            container: "".into(),
            name: "".into(),
            value: None,
            origin: None,
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
pub struct Tensor(pub(crate) Repr);

/// Bytes of a scalar that is stored in the tensor itself.
const SCALAR_BYTES: usize = 8;

static SCALAR_SHAPE: Shape = Shape::scalar();

impl Tensor {
    /// Returns a tensor whose elements are about to be written: initialised, but with arbitrary
    /// values.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the size overflows or exceeds the machine's memory.
    pub fn for_overwrite(dtype: DType, shape: Shape) -> Result<Tensor> {
        // A stale byte may not be a valid bool.
        Self::allocate(dtype, shape, dtype == DType::Bool)
    }

    /// Returns a tensor of zeros (false, empty strings, empty handles).
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the size overflows or exceeds the machine's memory.
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
            DType::String => Data::Strings(Strings::Values(vec![Bytes::new(); n])),
            DType::Resource => Data::Resources(vec![ResourceHandle::default(); n]),
            DType::Variant => Data::Variants(vec![Variant::default(); n]),
            _ if shape.is_scalar() && bytes <= SCALAR_BYTES => {
                return Ok(Tensor(Repr::scalar(dtype, 0)));
            }
            _ if bytes <= INLINE_BYTES => Data::Inline([0; 2]),
            _ => Data::Block(Buffer::allocate(bytes, zeroed).map_err(|e| {
                match crate::memory::is_heap() {
                    true => too_large(dtype, &shape),
                    false => e,
                }
            })?),
        };
        Ok(Self::dense(dtype, shape, data))
    }

    pub(crate) fn dense(dtype: DType, shape: Shape, data: Data) -> Tensor {
        Tensor(Repr::dense(dtype, Arc::new(Dense { shape, data })))
    }

    /// Returns a scalar.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        const { assert!(size_of::<T>() <= INLINE_BYTES) };
        // SAFETY: `T` is plain and has exactly as many bytes as what it is read as.
        let bits = unsafe {
            match size_of::<T>() {
                1 => transmute_copy::<T, u8>(&value).into(),
                2 => transmute_copy::<T, u16>(&value).into(),
                4 => transmute_copy::<T, u32>(&value).into(),
                8 => transmute_copy::<T, u64>(&value),
                _ => {
                    let data = Data::Inline(transmute_copy::<T, [u64; 2]>(&value));
                    return Self::dense(T::DTYPE, Shape::scalar(), data);
                }
            }
        };
        Tensor(Repr::scalar(T::DTYPE, bits))
    }

    /// Returns a string scalar.
    pub fn string(value: impl Into<Bytes>) -> Tensor {
        let data = Data::Strings(Strings::Values(vec![value.into()]));
        Self::dense(DType::String, Shape::scalar(), data)
    }

    /// Creates a tensor of strings.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of values is not that of the shape's elements.
    pub fn from_strings(shape: impl Into<Shape>, values: Vec<Bytes>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        let data = Data::Strings(Strings::Values(values));
        Ok(Self::dense(DType::String, shape, data))
    }

    /// Creates a tensor of resource handles.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of values is not that of the shape's elements.
    pub fn from_resources(shape: impl Into<Shape>, values: Vec<ResourceHandle>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        Ok(Self::dense(DType::Resource, shape, Data::Resources(values)))
    }

    /// Creates a tensor of variants.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of values is not that of the shape's elements.
    pub fn from_variants(shape: impl Into<Shape>, values: Vec<Variant>) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        Ok(Self::dense(DType::Variant, shape, Data::Variants(values)))
    }

    /// Creates a tensor with a copy of `values`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the number of values is not that of the shape's elements;
    /// RESOURCE_EXHAUSTED if the tensor does not fit into memory.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, values: &[T]) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, values.len())?;
        let mut t = Tensor::for_overwrite(T::DTYPE, shape)?;
        t.slice_mut::<T>()?.copy_from_slice(values);
        Ok(t)
    }

    /// Returns a 1-D copy of `values`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the tensor does not fit into memory.
    pub fn vector<T: Element>(values: &[T]) -> Result<Tensor> {
        Self::from_slice([values.len()], values)
    }

    /// Creates a tensor from row-major little-endian bytes of a plain dtype.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not plain or the number of bytes does not fit the shape;
    /// RESOURCE_EXHAUSTED if the tensor does not fit into memory.
    pub fn from_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Tensor> {
        let mut t = Tensor::for_overwrite(dtype, shape)?;
        let expected = t.byte_len();
        if !dtype.is_plain() || bytes.len() != expected {
            return Err(invalid_argument!(
                "a {dtype} tensor of shape {} takes {expected} bytes, but {} were given",
                t.shape(),
                bytes.len()
            ));
        }
        if dtype == DType::Bool {
            for (to, from) in t.slice_mut::<bool>()?.iter_mut().zip(bytes) {
                *to = *from != 0;
            }
            return Ok(t);
        }
        let narrow = dtype.narrow();
        let bytes = narrow.map_or(Cow::from(bytes), |f| bytes.iter().map(|b| f(*b)).collect());
        // SAFETY: every byte pattern is valid for plain dtypes other than bool, and the new tensor
        // is its buffer's only owner.
        if let Some(to) = unsafe { t.bytes_mut() } {
            to.copy_from_slice(&bytes);
        }
        Ok(t)
    }

    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Returns the shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        match self.0.content() {
            Content::Scalar(_) => &SCALAR_SHAPE,
            Content::Dense(dense) => &dense.shape,
        }
    }

    /// Returns the number of elements.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.shape().num_elements()
    }

    /// Returns the size of the plain data in bytes; 0 for dtypes that own their elements.
    pub fn byte_len(&self) -> usize {
        self.num_elements() * self.dtype().size()
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not that of `T`.
    #[inline]
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        if self.dtype() != T::DTYPE {
            return Err(self.wrong_dtype(T::DTYPE));
        }
        // SAFETY: the dtype says that the storage holds valid elements of `T`.
        let elements = unsafe { self.typed() };
        if elements.is_empty() {
            self.check_on_host()?;
        }
        Ok(elements)
    }

    /// Returns the elements for writing; shared storage is copied first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not that of `T`; RESOURCE_EXHAUSTED if a copy does not fit
    /// into memory.
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype() != T::DTYPE {
            return Err(self.wrong_dtype(T::DTYPE));
        }
        self.make_unique()?;
        // SAFETY: the dtype says that the storage holds valid elements of `T`.
        unsafe { self.typed_mut() }.ok_or_else(|| internal!("a plain tensor without plain storage"))
    }

    /// Returns the single element of a scalar (or of any tensor with one element).
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not that of `T` or the tensor does not have one element.
    #[inline]
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        match self.slice::<T>()? {
            [value] => Ok(*value),
            _ => Err(invalid_argument!(
                "expected a scalar, got a tensor of shape {}",
                self.shape()
            )),
        }
    }

    /// Returns the value if this is a scalar of type `T` stored in the tensor itself, as most
    /// scalars are.
    #[inline]
    pub fn inline_scalar<T: Element>(&self) -> Option<T> {
        let bits = self.0.bits(T::DTYPE)?;
        // SAFETY: the dtype says that the bits begin with a valid `T`, which is not larger: larger
        // scalars are never in the tensor itself.
        (size_of::<T>() <= SCALAR_BYTES).then(|| unsafe { (&raw const bits).cast::<T>().read() })
    }

    /// Returns the elements of a string tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not `string`.
    pub fn strings(&self) -> Result<&[Bytes]> {
        self.string_items()
            .ok_or_else(|| self.wrong_dtype(DType::String))
    }

    /// Returns the elements of a resource tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not `resource`.
    pub fn resources(&self) -> Result<&[ResourceHandle]> {
        self.resource_items()
            .ok_or_else(|| self.wrong_dtype(DType::Resource))
    }

    /// Returns the elements of a variant tensor.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not `variant`.
    pub fn variants(&self) -> Result<&[Variant]> {
        self.variant_items()
            .ok_or_else(|| self.wrong_dtype(DType::Variant))
    }

    /// Returns the elements as stored items; see [`dispatch_items!`](crate::dispatch_items).
    ///
    /// # Errors
    /// INTERNAL if `T` is not the item type of the dtype.
    pub fn items<T: Item>(&self) -> Result<&[T]> {
        let items = T::get(self);
        let items = items.ok_or_else(|| {
            internal!("{} is not stored as the requested item type", self.dtype())
        })?;
        if items.is_empty() {
            self.check_on_host()?;
        }
        Ok(items)
    }

    /// Returns the elements as stored items for writing; shared storage is copied first.
    ///
    /// # Errors
    /// INTERNAL if `T` is not the item type of the dtype; RESOURCE_EXHAUSTED if a copy does not fit
    /// into memory.
    pub fn items_mut<T: Item>(&mut self) -> Result<&mut [T]> {
        self.make_unique()?;
        let dtype = self.dtype();
        T::get_mut(self)
            .ok_or_else(|| internal!("{dtype} is not stored as the requested item type"))
    }

    /// Returns the plain bytes, row-major and little-endian on the machines that Ferroflow runs on.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not plain.
    pub fn bytes(&self) -> Result<&[u8]> {
        if !self.dtype().is_plain() {
            return Err(invalid_argument!(
                "a {} tensor has no plain bytes",
                self.dtype()
            ));
        }
        let (ptr, n) = self.raw();
        if n == 0 {
            self.check_on_host()?;
        }
        // SAFETY: the storage of a plain dtype holds that many initialised bytes, none of them
        // padding.
        Ok(unsafe { std::slice::from_raw_parts(ptr, n * self.dtype().size()) })
    }

    /// Returns the same elements under another shape of the same element count.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the element counts differ.
    pub fn with_shape(mut self, shape: Shape) -> Result<Tensor> {
        check_count(&shape, self.num_elements())?;
        let dtype = self.dtype();
        if shape.is_scalar() && dtype.is_plain() && dtype.size() <= SCALAR_BYTES {
            // Scalars are kept in the tensor itself, unless a device has them.
            return self.view(0, shape);
        }
        let bits = match self.0.content_mut() {
            ContentMut::Scalar(bits) => *bits,
            ContentMut::Dense(dense) => {
                dense.shape = shape;
                return Ok(self);
            }
            ContentMut::Shared => {
                let shared = self.0.share();
                let dense = shared.ok_or_else(|| internal!("expected shared storage"))?;
                return Ok(Tensor(Repr::dense(dtype, Arc::new(dense.share(0, shape)))));
            }
        };
        Ok(Self::dense(dtype, shape, Data::Inline([bits, 0])))
    }

    /// Returns the `shape.num_elements()` elements from element `start` on, sharing the storage.
    ///
    /// # Errors
    /// INTERNAL if they are not all inside this tensor; RESOURCE_EXHAUSTED if a copy does not fit
    /// into memory.
    pub fn view(&self, start: usize, shape: Shape) -> Result<Tensor> {
        let n = shape.num_elements();
        let end = start
            .checked_add(n)
            .filter(|&end| end <= self.num_elements());
        let Some(end) = end else {
            return Err(internal!(
                "view of {n} elements at {start} of a tensor of shape {}",
                self.shape()
            ));
        };
        let (dtype, size) = (self.dtype(), self.dtype().size());
        if let Some(dense) = self.0.share()
            && (n * size > INLINE_BYTES || dense.is_on_device())
            && dtype.is_plain()
        {
            let part = dense.share(start * size, shape);
            return Ok(Tensor(Repr::dense(dtype, Arc::new(part))));
        }
        let mut t = Tensor::for_overwrite(dtype, shape)?;
        crate::dispatch_items!(dtype, T => {
            t.items_mut::<T>()?.clone_from_slice(&self.items::<T>()?[start..end]);
        });
        Ok(t)
    }

    /// Returns the same bytes read as another plain dtype of the same element size.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a dtype is not plain or the sizes differ.
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        if !dtype.is_plain() || dtype.size() != self.dtype().size() {
            return Err(invalid_argument!(
                "cannot bitcast {} to {dtype}",
                self.dtype()
            ));
        }
        if dtype == DType::Bool || self.dtype() == DType::Bool {
            return Self::from_bytes(dtype, self.shape().clone(), self.bytes()?);
        }
        let mut t = self.clone();
        t.0.set_dtype(dtype);
        Ok(t)
    }

    /// Returns whether the storage has no other owner, so that it may be written in place.
    #[inline]
    pub fn is_unique(&mut self) -> bool {
        match self.0.content_mut() {
            ContentMut::Scalar(_) => true,
            ContentMut::Dense(dense) => dense.is_writable(),
            ContentMut::Shared => false,
        }
    }

    pub(crate) fn make_unique(&mut self) -> Result<()> {
        if self.is_unique() {
            return Ok(());
        }
        if self.dtype().is_plain() {
            *self = Self::from_bytes(self.dtype(), self.shape().clone(), self.bytes()?)?;
        } else if let Content::Dense(dense) = self.0.content() {
            let dtype = self.dtype();
            let data = match dense.root() {
                Data::Strings(v) => Data::Strings(Strings::Values(v.values().to_vec())),
                Data::Resources(v) => Data::Resources(v.clone()),
                Data::Variants(v) => Data::Variants(v.clone()),
                _ => return Err(internal!("a {dtype} tensor with plain storage")),
            };
            *self = Self::dense(dtype, dense.shape.clone(), data);
        }
        Ok(())
    }

    #[cold]
    fn wrong_dtype(&self, expected: DType) -> ferroflow_base::Status {
        invalid_argument!(
            "expected a {expected} tensor, got a {} tensor",
            self.dtype()
        )
    }

    /// Returns the address of the elements (dangling for owned ones) and their number.
    #[inline]
    fn raw(&self) -> (*const u8, usize) {
        match self.0.content() {
            Content::Scalar(bits) => (std::ptr::from_ref(bits).cast(), 1),
            Content::Dense(dense) => dense.raw(),
        }
    }

    /// # Safety
    /// Every element of a tensor of this dtype must be a valid `T` of the same size.
    #[inline]
    pub(crate) unsafe fn typed<T>(&self) -> &[T] {
        let (ptr, n) = self.raw();
        debug_assert!((ptr as usize).is_multiple_of(align_of::<T>()));
        debug_assert_eq!(self.dtype().size(), size_of::<T>());
        // SAFETY: storage holds `num_elements` initialised elements, aligned for their type
        // (inline words: 8; buffers: 64, or checked in `from_mapped`; views start at an element).
        unsafe { std::slice::from_raw_parts(ptr.cast(), n) }
    }

    /// # Safety
    /// As [`Tensor::typed`], and every `T` must be a valid element of this dtype.
    #[inline]
    pub(crate) unsafe fn typed_mut<T>(&mut self) -> Option<&mut [T]> {
        let (ptr, n): (*mut u8, usize) = match self.0.content_mut() {
            ContentMut::Scalar(bits) => (std::ptr::from_mut(bits).cast(), 1),
            ContentMut::Dense(dense) => (dense.as_mut_ptr()?, dense.shape.num_elements()),
            ContentMut::Shared => return None,
        };
        // SAFETY: as in `typed`; `get_mut` proved that the storage has no other owner.
        Some(unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) })
    }

    /// # Safety
    /// The bytes that are written must be valid for the dtype.
    unsafe fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let len = self.byte_len();
        // SAFETY: bytes are the storage of every plain dtype; the caller vouches for validity.
        let first = unsafe { self.typed_mut::<u8>() }?.as_mut_ptr();
        // SAFETY: the storage has `byte_len` bytes and is exclusively borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(first, len) })
    }
}

macro_rules! owned {
    ($($get:ident, $get_mut:ident, $variant:ident, $ty:ty;)*) => {
        impl Tensor {$(
            pub(crate) fn $get(&self) -> Option<&[$ty]> {
                match self.0.content() {
                    Content::Dense(dense) => match dense.root() {
                        Data::$variant(v) => Some(v),
                        _ => None,
                    },
                    _ => None,
                }
            }

            /// Call after `make_unique`.
            pub(crate) fn $get_mut(&mut self) -> Option<&mut [$ty]> {
                match self.0.content_mut() {
                    ContentMut::Dense(dense) => match &mut dense.data {
                        Data::$variant(v) => Some(v),
                        _ => None,
                    },
                    _ => None,
                }
            }
        )*}
    };
}
owned! {
    resource_items, resource_items_mut, Resources, ResourceHandle;
    variant_items, variant_items_mut, Variants, Variant;
}

#[cold]
fn too_large(dtype: DType, shape: &Shape) -> ferroflow_base::Status {
    ferroflow_base::resource_exhausted!(
        "OOM when allocating tensor with shape{shape} and type {dtype}: larger than the machine's memory"
    )
}

pub(crate) fn check_count(shape: &Shape, n: usize) -> Result<()> {
    if shape.num_elements() == n {
        return Ok(());
    }
    Err(invalid_argument!(
        "shape {shape} has {} elements, but {n} were given",
        shape.num_elements()
    ))
}
mod shared;
#[cfg(test)]
mod tests;
