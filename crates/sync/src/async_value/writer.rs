//! The write ends of values.

use super::header::{CONCRETE, ERROR, Raw};
use super::value::{AsyncValue, AsyncValueRef};
use super::{Diagnostic, Location};
use ferroflow_base::cancelled;
use std::marker::PhantomData;

fn abandoned() -> Diagnostic {
    cancelled!("the promise was dropped before the value was set").into()
}

/// The right and duty to set a value. If it is dropped unset, the value becomes an error.
///
/// ```
/// use ferroflow_sync::{AsyncValueRef, Promise};
/// let (promise, value) = Promise::<i32>::new();
/// assert!(!value.is_available());
/// promise.emplace(42);
/// assert_eq!(value.get(), Some(&42));
/// ```
pub struct Promise<T: Send + Sync + 'static> {
    raw: Option<Raw>,
    _value: PhantomData<fn(T)>,
}

impl<T: Send + Sync + 'static> Promise<T> {
    /// Returns an unconstructed value and the right to set it.
    #[inline]
    pub fn new() -> (Promise<T>, AsyncValueRef<T>) {
        let raw = Raw::new::<T, false>(None, 2);
        // SAFETY: made with two references.
        let twin = unsafe { raw.twin() };
        let promise = Promise {
            raw: Some(raw),
            _value: PhantomData,
        };
        (promise, AsyncValueRef::from_raw(twin))
    }

    /// Sets the value and runs its waiters.
    #[inline]
    pub fn emplace(mut self, value: T) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: we are the writer, of a `T`, and write once.
            unsafe {
                raw.write_value(value);
                raw.set_available(CONCRETE);
            }
        }
    }

    /// Writes the value without making it available yet.
    pub fn construct(mut self, value: T) -> Constructed<T> {
        let raw = self.raw.take();
        if let Some(raw) = &raw {
            // SAFETY: we are the writer, of a `T`, and write once.
            unsafe {
                raw.write_value(value);
                raw.set_constructed();
            }
        }
        Constructed {
            raw,
            _value: PhantomData,
        }
    }

    /// Sets an error instead of a value.
    pub fn set_error(mut self, error: impl Into<Diagnostic>) {
        self.fail(error.into());
    }

    /// Sets a value or an error; the error gets `location` if it has none.
    pub fn set(self, result: ferroflow_base::Result<T>, location: Option<Location>) {
        match result {
            Ok(value) => self.emplace(value),
            Err(status) => self.set_error(Diagnostic { status, location }),
        }
    }

    fn fail(&mut self, error: Diagnostic) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: we are the writer, of a `T`, and write once.
            unsafe {
                raw.write_error::<T>(error);
                raw.set_available(ERROR);
            }
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Promise<T> {
    fn drop(&mut self) {
        if self.raw.is_some() {
            self.fail(abandoned());
        }
    }
}

/// The right to change a value that is written but not available yet.
pub struct Constructed<T: Send + Sync + 'static> {
    raw: Option<Raw>,
    _value: PhantomData<T>,
}

impl<T: Send + Sync + 'static> Constructed<T> {
    /// Returns the value, which no reader can see yet.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: constructed by the promise, of a `T`, and we are the writer.
        self.raw.as_mut().map(|raw| unsafe { raw.value_mut::<T>() })
    }

    /// Makes the value available.
    pub fn set_state_concrete(mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: we are the writer; the value was written by the promise.
            unsafe { raw.set_available(CONCRETE) };
        }
    }

    /// Drops the value and sets an error in its place.
    pub fn set_error(mut self, error: impl Into<Diagnostic>) {
        self.fail(error.into());
    }

    fn fail(&mut self, error: Diagnostic) {
        if let Some(mut raw) = self.raw.take() {
            // SAFETY: we are the writer of a `T`, and it cannot be read before it is available. The
            // value is moved out, and dropped after the error took its place: should that panic,
            // nothing is dropped twice.
            let value = unsafe { std::ptr::read(raw.value_mut::<T>()) };
            // SAFETY: as above; nothing between here and the read can panic.
            unsafe {
                raw.write_error::<T>(error);
                raw.set_available(ERROR);
            }
            drop(value);
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Constructed<T> {
    fn drop(&mut self) {
        if self.raw.is_some() {
            self.fail(abandoned());
        }
    }
}

/// The right to decide which other value an indirect value stands for.
///
/// ```
/// use ferroflow_sync::{AsyncValue, IndirectPromise};
/// let (promise, value) = IndirectPromise::new();
/// promise.forward_to(AsyncValue::new(7i64));
/// assert_eq!(value.get::<i64>(), Some(&7));
/// ```
pub struct IndirectPromise {
    raw: Option<Raw>,
}

impl IndirectPromise {
    /// Returns an indirect value and the right to forward it.
    #[inline]
    pub fn new() -> (IndirectPromise, AsyncValue) {
        let raw = Raw::new::<AsyncValue, true>(None, 2);
        // SAFETY: made with two references.
        let twin = unsafe { raw.twin() };
        (
            IndirectPromise { raw: Some(raw) },
            AsyncValue::from_raw(twin),
        )
    }

    /// Forwards to `target`: the value becomes available with it.
    pub fn forward_to(mut self, target: AsyncValue) {
        if target.is_available() {
            self.set(target);
        } else {
            let twin = target.clone();
            twin.and_then(move || self.set(target));
        }
    }

    /// Makes the value an error.
    pub fn set_error(mut self, error: impl Into<Diagnostic>) {
        self.set(AsyncValue::new_error(error));
    }

    fn set(&mut self, target: AsyncValue) {
        if let Some(raw) = self.raw.take() {
            let target = target.into_direct();
            let state = target.raw().state();
            // SAFETY: we are the writer, of an `AsyncValue`, and write once. The payload of an
            // indirect value is a reference in the state `ERROR` too; `Info` knows.
            unsafe {
                raw.write_value::<AsyncValue>(target);
                raw.set_available(state);
            }
        }
    }
}

impl Drop for IndirectPromise {
    fn drop(&mut self) {
        if self.raw.is_some() {
            self.set(AsyncValue::new_error(abandoned()));
        }
    }
}
