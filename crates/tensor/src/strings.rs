//! The elements of string tensors: values of their own, or packed in one buffer until they are read as values.

use crate::repr::{Content, ContentMut};
use crate::storage::Data;
use crate::tensor::check_count;
use crate::{DType, Shape, Tensor};
use bytes::Bytes;
use ferroflow_base::Result;
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes of packed strings that share memory as values.
const SHARED: usize = 4096;
/// Bytes of the longest string that shares memory with others as a value.
const SHORT: usize = 512;

/// Strings one behind the other in a buffer. What a string of its own costs, a reference count and an address, is more
/// than most functions of short strings take.
///
/// ```
/// use ferroflow_tensor::{PackedStrings, Tensor};
/// let mut strings = PackedStrings::default();
/// strings.push(b"one");
/// strings.write(|to| to.extend_from_slice(b"two"));
/// let t = Tensor::from_packed_strings([2], strings)?;
/// assert_eq!(t.texts()?.get(1), b"two");
/// assert_eq!(t.strings()?[0], "one");
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PackedStrings {
    bytes: Vec<u8>,
    /// Where each string ends.
    ends: Vec<usize>,
}

impl PackedStrings {
    /// Returns no strings, with memory for the ends of `n`.
    pub fn with_capacity(n: usize) -> Self {
        PackedStrings {
            bytes: Vec::new(),
            ends: Vec::with_capacity(n),
        }
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the number of strings is 0.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a string.
    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Adds the string that `f` appends to the buffer.
    #[inline]
    pub fn write<R>(&mut self, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let start = self.bytes.len();
        let result = f(&mut self.bytes);
        debug_assert!(start <= self.bytes.len());
        self.ends.push(self.bytes.len());
        result
    }

    /// Removes the last string, if any.
    pub fn pop(&mut self) {
        if self.ends.pop().is_some() {
            self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        }
    }

    /// Adds all strings of another.
    pub fn append(&mut self, other: &PackedStrings) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    /// Returns all strings as one slice, to be overwritten.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the place of string `i`; that of a missing one is behind all others.
    #[inline]
    fn range(&self, i: usize) -> Range<usize> {
        let start = match i {
            0 => 0,
            _ => self.ends.get(i - 1).copied().unwrap_or(self.bytes.len()),
        };
        start..self.ends.get(i).copied().unwrap_or(start)
    }

    /// Returns string `i`; empty if there are not as many.
    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        self.bytes.get(self.range(i)).unwrap_or_default()
    }

    /// Returns the strings as values, of which short neighbors share memory.
    pub fn values(&self) -> Vec<Bytes> {
        let mut values = Vec::with_capacity(self.len());
        let (mut block, mut first) = (0, 0);
        let mut start = 0;
        let flush = |range: Range<usize>, starts: Range<usize>, values: &mut Vec<Bytes>| {
            let shared = Bytes::copy_from_slice(&self.bytes[range.clone()]);
            let mut at = 0;
            for &end in &self.ends[starts] {
                values.push(shared.slice(at..end - range.start));
                at = end - range.start;
            }
        };
        for (i, &end) in self.ends.iter().enumerate() {
            let is_long = end - start > SHORT;
            if (is_long || end - block > SHARED) && first < i {
                flush(block..start, first..i, &mut values);
                (block, first) = (start, i);
            }
            if is_long {
                values.push(Bytes::copy_from_slice(&self.bytes[start..end]));
                (block, first) = (end, i + 1);
            }
            start = end;
        }
        if first < self.len() {
            flush(block..start, first..self.len(), &mut values);
        }
        values
    }
}

/// The elements of a string tensor.
pub(crate) enum Strings {
    Values(Vec<Bytes>),
    Packed(PackedStrings, OnceLock<Vec<Bytes>>),
}

impl Strings {
    pub(crate) fn values(&self) -> &[Bytes] {
        match self {
            Strings::Values(values) => values,
            Strings::Packed(packed, values) => values.get_or_init(|| packed.values()),
        }
    }

    fn values_mut(&mut self) -> &mut [Bytes] {
        if let Strings::Packed(packed, values) = self {
            *self = Strings::Values(values.take().unwrap_or_else(|| packed.values()));
        }
        match self {
            Strings::Values(values) => values,
            Strings::Packed(..) => &mut [],
        }
    }
}

/// The elements of a string tensor, to be read.
#[derive(Clone, Copy)]
pub struct Texts<'a>(Kind<'a>);

#[derive(Clone, Copy)]
enum Kind<'a> {
    Values(&'a [Bytes]),
    Packed(&'a PackedStrings),
}

impl<'a> Texts<'a> {
    /// Returns the number of strings.
    pub fn len(self) -> usize {
        match self.0 {
            Kind::Values(values) => values.len(),
            Kind::Packed(packed) => packed.len(),
        }
    }

    /// Returns whether the number of strings is 0.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns string `i`; empty if there are not as many.
    #[inline]
    pub fn get(self, i: usize) -> &'a [u8] {
        match self.0 {
            Kind::Values(values) => values.get(i).map_or(&[], |value| value),
            Kind::Packed(packed) => packed.get(i),
        }
    }

    /// Returns string `i` as a value that shares memory, if it is one.
    #[inline]
    pub fn value(self, i: usize) -> Option<&'a Bytes> {
        match self.0 {
            Kind::Values(values) => values.get(i),
            Kind::Packed(_) => None,
        }
    }

    /// Returns all strings.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.len()).map(move |i| self.get(i))
    }
}

impl Tensor {
    /// Creates a tensor of strings that are packed.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if their number is not that of the shape's elements.
    pub fn from_packed_strings(shape: impl Into<Shape>, strings: PackedStrings) -> Result<Tensor> {
        let shape = shape.into();
        check_count(&shape, strings.len())?;
        let data = Data::Strings(Strings::Packed(strings, OnceLock::new()));
        Ok(Self::dense(DType::String, shape, data))
    }

    /// Returns the elements of a string tensor, to be read.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the dtype is not `string`.
    pub fn texts(&self) -> Result<Texts<'_>> {
        Ok(Texts(match self.string_storage() {
            Some(Strings::Packed(packed, _)) => Kind::Packed(packed),
            _ => Kind::Values(self.strings()?),
        }))
    }

    fn string_storage(&self) -> Option<&Strings> {
        match self.0.content() {
            Content::Dense(dense) => match dense.root() {
                Data::Strings(strings) => Some(strings),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn string_items(&self) -> Option<&[Bytes]> {
        self.string_storage().map(Strings::values)
    }

    /// Call after `make_unique`.
    pub(crate) fn string_items_mut(&mut self) -> Option<&mut [Bytes]> {
        match self.0.content_mut() {
            ContentMut::Dense(dense) => match &mut dense.data {
                Data::Strings(strings) => Some(strings.values_mut()),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs strings of these lengths in two parts; reads them in every way.
    fn check(lengths: &[usize]) {
        let texts: Vec<Vec<u8>> = lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| vec![b'a' + (i % 26) as u8; len])
            .collect();
        let (left, right) = texts.split_at(texts.len() / 2);
        let mut packed = PackedStrings::default();
        left.iter().for_each(|text| packed.push(text));
        packed.push(b"removed");
        packed.pop();
        let mut rest = PackedStrings::with_capacity(right.len());
        for text in right {
            rest.write(|to| to.extend_from_slice(text));
        }
        packed.append(&rest);
        assert_eq!(packed.len(), texts.len());
        assert_eq!(packed.get(texts.len()), b"");
        let mut t = Tensor::from_packed_strings([texts.len()], packed).expect("as many");
        let view = t.view(0, Shape::from([texts.len(), 1])).expect("as many");
        for t in [&t, &view] {
            let read = t.texts().expect("strings");
            assert!(
                read.iter().eq(texts.iter().map(Vec::as_slice)),
                "{lengths:?}"
            );
            assert_eq!(t.strings().expect("strings"), texts, "{lengths:?}");
        }
        assert!(
            t.same_value(
                &Tensor::from_strings([texts.len()], t.strings().expect("strings").to_vec())
                    .expect("as many")
            )
        );
        drop(view);
        for item in t.items_mut::<Bytes>().expect("strings") {
            *item = Bytes::from_static(b"new");
        }
        assert!(
            t.texts()
                .expect("strings")
                .iter()
                .all(|text| text == b"new")
        );
    }

    #[test]
    fn packed_strings_are_values() {
        for lengths in [
            &[][..],
            &[0],
            &[0, 0, 0],
            &[3, 0, 5, 12],
            &[600],
            &[1, 600, 2, 600, 600, 3],
            &[500; 30],
            &[512, 513, 4096, 1],
            &[7; 5000],
        ] {
            check(lengths);
        }
    }
}
