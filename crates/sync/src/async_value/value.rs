//! The read ends: [`AsyncValue`] without its type, [`AsyncValueRef`] with it.

use super::Diagnostic;
use super::header::{self, CONCRETE, CONSTRUCTED, ERROR, Raw, UNCONSTRUCTED};
use ferroflow_base::{Result, Status, failed_precondition, internal};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The state of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueState {
    /// Not written yet.
    Unconstructed,
    /// Written, but may still change.
    Constructed,
    /// The payload can be read.
    Concrete,
    /// There will be no payload.
    Error,
}

/// A shared handle of a value of some type that is, or will be, available.
///
/// ```
/// use ferroflow_sync::{AsyncValue, Promise};
/// let (promise, value) = Promise::<String>::new();
/// let value: AsyncValue = value.into();
/// value.clone().and_then(move || println!("{:?}", value.get::<String>()));
/// promise.emplace("now".to_string());
/// ```
#[derive(Clone)]
pub struct AsyncValue(Raw);

impl AsyncValue {
    /// Creates an available value.
    #[inline]
    pub fn new<T: Send + Sync + 'static>(value: T) -> Self {
        AsyncValue(Raw::new::<T, false>(Some(value), 1))
    }

    /// Creates an available error.
    #[cold]
    pub fn new_error(error: impl Into<Diagnostic>) -> Self {
        AsyncValue(Raw::new_error(error.into()))
    }

    /// Returns the number of live values in the process; counted in debug builds only.
    pub fn live() -> Option<usize> {
        header::live()
    }

    #[inline]
    pub(super) fn from_raw(raw: Raw) -> Self {
        AsyncValue(raw)
    }

    #[inline]
    pub(super) fn raw(&self) -> &Raw {
        &self.0
    }

    #[inline]
    pub(super) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.0
    }

    /// Returns the state of the value.
    #[inline]
    pub fn state(&self) -> ValueState {
        match self.0.state() {
            UNCONSTRUCTED => ValueState::Unconstructed,
            CONSTRUCTED => ValueState::Constructed,
            CONCRETE => ValueState::Concrete,
            _ => ValueState::Error,
        }
    }

    /// Returns whether there is a payload or an error.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.0.state() >= CONCRETE
    }

    /// Returns whether there is a payload.
    #[inline]
    pub fn is_concrete(&self) -> bool {
        self.0.state() == CONCRETE
    }

    /// Returns whether there is an error.
    #[inline]
    pub fn is_error(&self) -> bool {
        self.0.state() == ERROR
    }

    /// Returns whether the value is indirect and not forwarded yet.
    pub fn is_unresolved_indirect(&self) -> bool {
        self.0.info().is_indirect && !self.is_available()
    }

    /// Returns the value that this one stands for: itself, unless it is indirect and resolved.
    #[inline]
    pub fn direct(&self) -> &AsyncValue {
        if self.0.info().is_indirect && self.is_available() {
            // SAFETY: an indirect value that is available has a reference as its payload, in the
            // states `CONCRETE` and `ERROR` alike.
            unsafe { self.0.value::<AsyncValue>() }
        } else {
            self
        }
    }

    /// Like [`AsyncValue::direct`], giving up this handle.
    pub fn into_direct(self) -> AsyncValue {
        if self.0.info().is_indirect && self.is_available() {
            self.direct().clone()
        } else {
            self
        }
    }

    /// Returns the payload, if it is available and of this type.
    #[inline]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        if self.0.holds::<T>() && self.is_concrete() {
            // SAFETY: of that type, and available.
            return Some(unsafe { self.0.value::<T>() });
        }
        self.get_indirect()
    }

    #[inline(never)]
    fn get_indirect<T: 'static>(&self) -> Option<&T> {
        let direct = self.direct();
        (direct.0.holds::<T>() && direct.is_concrete())
            // SAFETY: of that type, and available.
            .then(|| unsafe { direct.0.value::<T>() })
    }

    /// Returns the payload.
    ///
    /// # Errors
    /// The value's own error; INTERNAL if the value is not available yet; FAILED_PRECONDITION if
    /// its type is not `T`.
    #[inline]
    pub fn expect<T: 'static>(&self) -> Result<&T> {
        match self.get() {
            Some(value) => Ok(value),
            None => Err(self.unexpected::<T>()),
        }
    }

    #[cold]
    fn unexpected<T>(&self) -> Status {
        if let Some(error) = self.error() {
            return error.status.clone();
        }
        if !self.is_available() {
            return internal!("the value is not available yet");
        }
        failed_precondition!(
            "the value is of type {}, not {}",
            self.type_name(),
            std::any::type_name::<T>()
        )
    }

    /// Returns the payload for changing or moving it out, if it is available, of this type, and
    /// there is no other handle of it or of an indirect value in between.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        if !self.is_unique() {
            return None;
        }
        if self.0.info().is_indirect {
            // SAFETY: available (by `is_unique`), and ours alone.
            let target = unsafe { self.0.value_mut::<AsyncValue>() };
            return target.get_mut();
        }
        // SAFETY: of that type, available, and ours alone.
        (self.0.holds::<T>() && self.is_concrete()).then(|| unsafe { self.0.value_mut::<T>() })
    }

    /// Returns whether the value is available and this handle is the only way to it.
    pub fn is_unique(&self) -> bool {
        self.is_available() && self.0.is_unique() && {
            !self.0.info().is_indirect || self.direct().0.is_unique()
        }
    }

    /// Returns the error, if there is one.
    pub fn error(&self) -> Option<&Diagnostic> {
        let direct = self.direct();
        if direct.0.state() != ERROR || direct.0.info().is_indirect {
            return None;
        }
        // SAFETY: in that state, and not indirect.
        Some(unsafe { direct.0.error() })
    }

    /// Returns the name of the payload's type, for messages.
    pub fn type_name(&self) -> &'static str {
        let info = self.direct().0.info();
        if info.is_indirect {
            "(not known yet)"
        } else {
            (info.type_name)()
        }
    }

    /// Returns whether both handles are of the same value.
    pub fn is_same(&self, other: &AsyncValue) -> bool {
        self.0.is_same(&other.0)
    }

    /// Runs `f` when the value is available: now, or by the thread that makes it so.
    ///
    /// A closure of up to three words is stored without an allocation.
    #[inline]
    pub fn and_then(&self, f: impl FnOnce() + Send + 'static) {
        self.0.and_then(f);
    }

    /// Passes the handle to `f` when the value is available: now, or by the thread that makes it
    /// so.
    #[inline]
    pub fn when_available(self, f: impl FnOnce(AsyncValue) + Send + 'static) {
        if self.is_available() {
            f(self)
        } else {
            Raw::enqueue_owned(self.0, move |raw| f(AsyncValue(raw)));
        }
    }

    /// Returns a future that completes when the value is available.
    pub fn ready(&self) -> Ready<'_> {
        Ready::of(self)
    }

    #[cfg(test)]
    pub(super) fn refs(&self) -> u32 {
        self.0.refs()
    }
}

impl fmt::Debug for AsyncValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncValue({}, {:?})", self.type_name(), self.state())
    }
}

/// Completes when a value is available; see [`AsyncValue::ready`].
pub struct Ready<'a> {
    value: &'a AsyncValue,
    /// The waker to call, once the future has registered with the value.
    waker: Option<Arc<Mutex<Waker>>>,
}

impl<'a> Ready<'a> {
    fn of(value: &'a AsyncValue) -> Self {
        Ready { value, waker: None }
    }
}

impl Future for Ready<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.value.is_available() {
            return Poll::Ready(());
        }
        match &self.waker {
            Some(waker) => {
                let mut waker = waker.lock().unwrap_or_else(PoisonError::into_inner);
                waker.clone_from(cx.waker());
            }
            None => {
                let waker = Arc::new(Mutex::new(cx.waker().clone()));
                self.waker = Some(waker.clone());
                self.value.and_then(move || {
                    // Not under the lock: the woken task may poll at once.
                    let waker = waker.lock().map(|w| w.clone());
                    waker.unwrap_or_else(|e| e.into_inner().clone()).wake();
                });
            }
        }
        // The value may have become available between the check and the change of the waker.
        match self.value.is_available() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// A handle of a value whose type is known.
///
/// ```
/// use ferroflow_sync::AsyncValueRef;
/// let value = AsyncValueRef::new(3.5f32);
/// assert_eq!(value.get(), Some(&3.5));
/// ```
pub struct AsyncValueRef<T> {
    value: AsyncValue,
    _type: PhantomData<fn() -> T>,
}

impl<T> Clone for AsyncValueRef<T> {
    fn clone(&self) -> Self {
        AsyncValueRef {
            value: self.value.clone(),
            _type: PhantomData,
        }
    }
}

impl<T: Send + Sync + 'static> AsyncValueRef<T> {
    /// Creates an available value.
    #[inline]
    pub fn new(value: T) -> Self {
        Self::from_raw(Raw::new::<T, false>(Some(value), 1))
    }

    #[inline]
    pub(super) fn from_raw(raw: Raw) -> Self {
        AsyncValueRef {
            value: AsyncValue(raw),
            _type: PhantomData,
        }
    }

    /// Converts `value` to a value of type `T`. The type of a value that is not available yet is
    /// checked when it is read.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the value is available and of another type.
    pub fn try_from_value(value: AsyncValue) -> Result<Self> {
        if value.is_concrete() {
            value.expect::<T>()?;
        }
        Ok(AsyncValueRef {
            value,
            _type: PhantomData,
        })
    }

    /// Returns whether there is a payload or an error.
    pub fn is_available(&self) -> bool {
        self.value.is_available()
    }

    /// Returns the payload, if it is available.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the payload.
    ///
    /// # Errors
    /// As for [`AsyncValue::expect`].
    pub fn expect(&self) -> Result<&T> {
        self.value.expect()
    }

    /// Returns the error, if there is one.
    pub fn error(&self) -> Option<&Diagnostic> {
        self.value.error()
    }

    /// Runs `f` when the value is available.
    #[inline]
    pub fn and_then(&self, f: impl FnOnce() + Send + 'static) {
        self.value.and_then(f);
    }

    /// Returns the handle without its type.
    pub fn as_value(&self) -> &AsyncValue {
        &self.value
    }
}

impl<T> From<AsyncValueRef<T>> for AsyncValue {
    fn from(value: AsyncValueRef<T>) -> AsyncValue {
        value.value
    }
}

impl<T: Clone + Send + Sync + 'static> IntoFuture for AsyncValueRef<T> {
    type Output = Result<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.value.ready().await;
            self.value.expect::<T>().cloned()
        })
    }
}
