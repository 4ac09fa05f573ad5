//! Several references of a value that are counted at once.

use super::value::AsyncValue;

/// A place for a value with a known number of readers. Handing a handle to each of them costs no
/// read-modify-write: all are counted when the value is set.
///
/// ```
/// use ferroflow_sync::{AsyncValue, Shares};
/// let mut shares = Shares::for_readers(2);
/// assert!(shares.take().is_none());
/// assert!(shares.set(AsyncValue::new(1i32)).is_ok());
/// let first = shares.take().expect("the first reader's");
/// assert!(!first.is_unique());
/// drop(first);
/// assert!(shares.take().expect("the second reader's").is_unique());
/// assert!(shares.take().is_none());
/// ```
#[derive(Default)]
pub struct Shares {
    value: Option<AsyncValue>,
    /// Readers without a handle. While there is a value, so many of its references are ours, that
    /// of `value` included.
    left: u32,
}

impl Shares {
    /// A place that `n` readers will look at.
    #[inline]
    pub fn for_readers(n: u32) -> Shares {
        Shares {
            value: None,
            left: n,
        }
    }

    /// Sets the value; gives it back if nobody is left to read it, or if there is one already.
    #[inline]
    pub fn set(&mut self, mut value: AsyncValue) -> Result<(), AsyncValue> {
        if self.left == 0 || self.value.is_some() {
            return Err(value);
        }
        if self.left > 1 {
            value.raw_mut().reserve(self.left - 1);
        }
        self.value = Some(value);
        Ok(())
    }

    /// A reader's handle; nothing if there is no value yet, or if every reader has its handle.
    #[inline]
    pub fn take(&mut self) -> Option<AsyncValue> {
        if self.left <= 1 {
            let value = self.value.take()?;
            self.left = 0;
            return Some(value);
        }
        let raw = self.value.as_ref()?.raw();
        self.left -= 1;
        // SAFETY: of the references that were counted for the readers, `left` were ours, and now
        // one less is.
        Some(AsyncValue::from_raw(unsafe { raw.twin() }))
    }
}

impl Drop for Shares {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = &self.value
            && self.left > 1
        {
            value.raw().forget(self.left - 1);
        }
    }
}
