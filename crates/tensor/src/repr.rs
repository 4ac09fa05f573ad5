//! The two words of a tensor: its kind, and a scalar's bits or a pointer to storage.
//!
//! Tensors move from node to node all the time, so they are two plain words that are passed in
//! registers, and unused values of the first encode "no tensor" in an `Option`.

use crate::DType;
use crate::storage::Dense;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A dtype with how elements are kept: its number for a scalar in the second word, plus 64 for
/// storage behind a pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
#[allow(dead_code, reason = "values are made from dtypes")]
enum Head {
    S1 = 1,
    S2 = 2,
    S3 = 3,
    S4 = 4,
    S5 = 5,
    S6 = 6,
    S7 = 7,
    S8 = 8,
    S9 = 9,
    S10 = 10,
    S11 = 11,
    S12 = 12,
    S13 = 13,
    S14 = 14,
    S15 = 15,
    S16 = 16,
    S17 = 17,
    S18 = 18,
    S19 = 19,
    S20 = 20,
    S21 = 21,
    S22 = 22,
    S23 = 23,
    S24 = 24,
    S25 = 25,
    S26 = 26,
    S27 = 27,
    S28 = 28,
    S29 = 29,
    S30 = 30,
    S31 = 31,
    S32 = 32,
    S33 = 33,
    D1 = 65,
    D2 = 66,
    D3 = 67,
    D4 = 68,
    D5 = 69,
    D6 = 70,
    D7 = 71,
    D8 = 72,
    D9 = 73,
    D10 = 74,
    D11 = 75,
    D12 = 76,
    D13 = 77,
    D14 = 78,
    D15 = 79,
    D16 = 80,
    D17 = 81,
    D18 = 82,
    D19 = 83,
    D20 = 84,
    D21 = 85,
    D22 = 86,
    D23 = 87,
    D24 = 88,
    D25 = 89,
    D26 = 90,
    D27 = 91,
    D28 = 92,
    D29 = 93,
    D30 = 94,
    D31 = 95,
    D32 = 96,
    D33 = 97,
}

const DENSE: u64 = 64;

const _: () = assert!(DType::ALL.len() == 33);

impl Head {
    #[inline]
    const fn scalar(dtype: DType) -> Head {
        // SAFETY: dtype numbers are 1 to 33 without a gap, and each has a variant.
        unsafe { std::mem::transmute::<u64, Head>(dtype as u64) }
    }

    #[inline]
    const fn dense(dtype: DType) -> Head {
        // SAFETY: as above, for the second half of the variants.
        unsafe { std::mem::transmute::<u64, Head>(dtype as u64 | DENSE) }
    }

    #[inline]
    const fn dtype(self) -> DType {
        // SAFETY: without the flag this is the number of the dtype that the head was made from.
        unsafe { std::mem::transmute::<u8, DType>((self as u64 & (DENSE - 1)) as u8) }
    }
}

/// See the module text. Invariant: with a dense head, `word` owns a reference to an `Arc<Dense>`;
/// else its address bits are the scalar, the first bytes in memory first.
pub(crate) struct Repr {
    head: Head,
    word: *const Dense,
}

// SAFETY: it is either plain bits or an `Arc<Dense>`, which is `Send` and `Sync`.
unsafe impl Send for Repr {}
// SAFETY: as above.
unsafe impl Sync for Repr {}

/// The content of a tensor.
pub(crate) enum Content<'a> {
    Scalar(&'a u64),
    Dense(&'a Dense),
}

/// The content of a tensor, for writing.
pub(crate) enum ContentMut<'a> {
    Scalar(&'a mut u64),
    Dense(&'a mut Dense),
    /// The storage has other owners.
    Shared,
}

impl Repr {
    #[inline]
    pub(crate) fn scalar(dtype: DType, bits: u64) -> Repr {
        Repr {
            head: Head::scalar(dtype),
            word: std::ptr::without_provenance(bits as usize),
        }
    }

    #[inline]
    pub(crate) fn dense(dtype: DType, dense: Arc<Dense>) -> Repr {
        Repr {
            head: Head::dense(dtype),
            word: Arc::into_raw(dense),
        }
    }

    #[inline]
    pub(crate) fn dtype(&self) -> DType {
        self.head.dtype()
    }

    /// Changes the dtype to one of the same kind and size.
    pub(crate) fn set_dtype(&mut self, dtype: DType) {
        self.head = match self.is_dense() {
            true => Head::dense(dtype),
            false => Head::scalar(dtype),
        };
    }

    #[inline]
    fn is_dense(&self) -> bool {
        self.head as u64 & DENSE != 0
    }

    /// Returns the bits, if this is a scalar of `dtype` in the second word.
    #[inline]
    pub(crate) fn bits(&self, dtype: DType) -> Option<u64> {
        (self.head == Head::scalar(dtype)).then(|| self.word.addr() as u64)
    }

    #[inline]
    pub(crate) fn content(&self) -> Content<'_> {
        if self.is_dense() {
            // SAFETY: by the invariant `word` points to a live `Dense` that we keep alive.
            Content::Dense(unsafe { &*self.word })
        } else {
            // SAFETY: a pointer without provenance is 8 plain bytes, and so is a `u64`.
            Content::Scalar(unsafe { &*(&raw const self.word).cast::<u64>() })
        }
    }

    #[inline]
    pub(crate) fn content_mut(&mut self) -> ContentMut<'_> {
        if !self.is_dense() {
            // SAFETY: as in `content`; whatever is written is a pointer without provenance.
            return ContentMut::Scalar(unsafe { &mut *(&raw mut self.word).cast::<u64>() });
        }
        // SAFETY: by the invariant; the count stays ours, since the `Arc` is not dropped.
        let mut arc = ManuallyDrop::new(unsafe { Arc::from_raw(self.word) });
        match Arc::get_mut(&mut arc) {
            // SAFETY: the storage has no other owner, and it lives as long as `self`.
            Some(dense) => ContentMut::Dense(unsafe { &mut *std::ptr::from_mut(dense) }),
            None => ContentMut::Shared,
        }
    }

    /// Returns the storage, if there is one, with one more owner.
    pub(crate) fn share(&self) -> Option<Arc<Dense>> {
        self.is_dense().then(|| {
            // SAFETY: by the invariant; the new count goes to the new `Arc`.
            unsafe {
                Arc::increment_strong_count(self.word);
                Arc::from_raw(self.word)
            }
        })
    }
}

impl Clone for Repr {
    #[inline]
    fn clone(&self) -> Self {
        if self.is_dense() {
            // SAFETY: by the invariant; the new count belongs to the clone.
            unsafe { Arc::increment_strong_count(self.word) };
        }
        Repr {
            head: self.head,
            word: self.word,
        }
    }
}

impl Drop for Repr {
    #[inline]
    fn drop(&mut self) {
        if self.is_dense() {
            // SAFETY: by the invariant this is our reference, given back once.
            drop(unsafe { Arc::from_raw(self.word) });
        }
    }
}
