//! References for several readers, counted in one step.

use super::value::AsyncValue;

/// A value with a known number of readers: their references are counted together when the value is
/// set, so that handing one out takes no read-modify-write.
///
/// ```
/// use ferroflow_sync::{AsyncValue, RefBatch};
/// let mut batch = RefBatch::for_readers(2);
/// assert!(batch.take().is_none());
/// assert!(batch.set(AsyncValue::new(1i32)).is_ok());
/// let first = batch.take().expect("the first reader's");
/// assert!(!first.is_unique());
/// drop(first);
/// assert!(batch.take().expect("the second reader's").is_unique());
/// assert!(batch.take().is_none());
/// ```
#[derive(Default)]
pub struct RefBatch {
    value: Option<AsyncValue>,
    /// Readers without a handle. While there is a value, this batch owns as many of its references,
    /// including that of `value`.
    left: u32,
}

impl RefBatch {
    /// Returns an empty batch for `n` readers.
    #[inline]
    pub fn for_readers(n: u32) -> RefBatch {
        RefBatch {
            value: None,
            left: n,
        }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Returns the value if no reader is left, or if there is a value already.
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

    /// Returns a reader's handle; `None` if there is no value yet, or if every reader has its
    /// handle.
    #[inline]
    pub fn take(&mut self) -> Option<AsyncValue> {
        if self.left <= 1 {
            let value = self.value.take()?;
            self.left = 0;
            return Some(value);
        }
        let raw = self.value.as_ref()?.raw();
        self.left -= 1;
        // SAFETY: of the references counted for the readers, this batch owned `left`, and now owns
        // one less.
        Some(AsyncValue::from_raw(unsafe { raw.twin() }))
    }
}

impl Drop for RefBatch {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = &self.value
            && self.left > 1
        {
            value.raw().forget(self.left - 1);
        }
    }
}
