//! Consecutive elements of a tensor whose type is a value: what code that exists once for all types hands to the code
//! of one type.

use crate::{DType, Element, Tensor};
use ferroflow_base::{Result, internal};
use std::marker::PhantomData;
use std::ops::Range;

/// Consecutive elements of a tensor with plain elements.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    dtype: DType,
    first: *const u8,
    len: usize,
    tensor: PhantomData<&'a Tensor>,
}

/// Like [`Part`], for writing.
pub struct PartMut<'a> {
    dtype: DType,
    first: *mut u8,
    len: usize,
    tensor: PhantomData<&'a mut Tensor>,
}

// SAFETY: it stands for a slice of plain elements, which may be shared between threads.
unsafe impl Send for Part<'_> {}
// SAFETY: as above.
unsafe impl Sync for Part<'_> {}
// SAFETY: it stands for a mutable slice of plain elements, which may be sent to another thread.
unsafe impl Send for PartMut<'_> {}

impl Tensor {
    /// Returns all elements.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not plain or the elements are on a device.
    pub fn part(&self) -> Result<Part<'_>> {
        let bytes = self.bytes()?;
        Ok(Part {
            dtype: self.dtype(),
            first: bytes.as_ptr(),
            len: self.num_elements(),
            tensor: PhantomData,
        })
    }

    /// Returns all elements for writing; shared storage is copied first.
    ///
    /// # Errors
    /// INTERNAL if the dtype is not plain; RESOURCE_EXHAUSTED if a copy does not fit into memory.
    pub fn part_mut(&mut self) -> Result<PartMut<'_>> {
        let dtype = self.dtype();
        if dtype.is_plain() {
            self.make_unique()?;
            // SAFETY: a slice of the bytes is the slice of the elements; those written are of the dtype, see `slice_mut`.
            if let Some(elements) = unsafe { self.typed_mut::<u8>() } {
                return Ok(PartMut {
                    dtype,
                    first: elements.as_mut_ptr(),
                    len: elements.len(),
                    tensor: PhantomData,
                });
            }
        }
        Err(internal!("a {dtype} tensor without plain storage"))
    }
}

impl<'a> Part<'a> {
    /// Returns the elements `range`.
    ///
    /// # Panics
    /// If the range ends behind the last element.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Part<'a> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part: {range:?} of {}",
            self.len
        );
        Part {
            // SAFETY: inside the elements, just checked.
            first: unsafe { self.first.add(range.start * self.dtype.size()) },
            len: range.len(),
            ..self
        }
    }

    /// Returns the elements; none if the dtype is not that of `T`.
    #[inline]
    pub fn slice<T: Element>(self) -> &'a [T] {
        debug_assert_eq!(self.dtype, T::DTYPE);
        match self.dtype == T::DTYPE {
            // SAFETY: the elements are of this type, and borrowed for `'a`.
            true => unsafe { std::slice::from_raw_parts(self.first.cast(), self.len) },
            false => &[],
        }
    }
}

impl<'a> PartMut<'a> {
    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the part is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements; none if the dtype is not that of `T`.
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        debug_assert_eq!(self.dtype, T::DTYPE);
        match self.dtype == T::DTYPE {
            // SAFETY: the elements are of this type, and exclusively borrowed by `self`.
            true => unsafe { std::slice::from_raw_parts_mut(self.first.cast(), self.len) },
            false => &mut [],
        }
    }

    /// Returns parts of `size` elements, the last one of what is left.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = PartMut<'a>> {
        assert!(size > 0, "chunks of no elements");
        (0..self.len).step_by(size).map(move |at| PartMut {
            // SAFETY: inside the elements; no other chunk has these.
            first: unsafe { self.first.add(at * self.dtype.size()) },
            len: size.min(self.len - at),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    /// Adds one to each element by chunks of `size`, all of which see the right neighbors of a copy.
    fn check<T: Element + std::ops::Add<Output = T> + PartialEq + std::fmt::Debug>(
        values: &[T],
        one: T,
        size: usize,
    ) {
        let mut t = Tensor::vector(values).expect("plain");
        let copy = t.clone();
        let x = copy.part().expect("plain");
        let parts: Vec<PartMut> = t.part_mut().expect("plain").chunks(size).collect();
        assert_eq!(parts.len(), values.len().div_ceil(size));
        for (i, mut part) in parts.into_iter().enumerate() {
            let from = x.range(i * size..i * size + part.len()).slice::<T>();
            for (to, x) in part.slice_mut::<T>().iter_mut().zip(from) {
                *to = *x + one;
            }
        }
        let want: Vec<T> = values.iter().map(|x| *x + one).collect();
        assert_eq!(t.slice::<T>().expect("plain"), want);
        assert_eq!(copy.slice::<T>().expect("plain"), values);
    }

    #[test]
    fn chunks_of_all_sizes() {
        for size in [1, 2, 3, 7, 100] {
            check::<f32>(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 1.0, size);
            check::<i64>(&[1, 2, 3], 1, size);
            check::<u8>(&[9], 1, size);
            check::<f64>(&[], 1.0, size);
        }
    }

    #[test]
    fn strings_have_no_parts() {
        let mut t = Tensor::from_strings(Shape::from([1]), vec!["a".into()]).expect("one string");
        assert!(t.part().is_err());
        assert!(t.part_mut().is_err());
    }
}
