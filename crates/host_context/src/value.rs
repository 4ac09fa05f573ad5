//! Values of the engine `sync`: numbers are stored inline.

use ferroflow_base::internal;
use ferroflow_sync::AsyncValue;
use std::any::Any;
use std::fmt;

/// A type whose values kernels pass to each other.
pub trait HostValue: Send + Sync + 'static {}

macro_rules! host_values {
    ($($ty:ty),*) => { $(impl HostValue for $ty {})* };
}
host_values!(
    bool,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    f32,
    f64,
    String,
    ferroflow_sync::Chain,
    ferroflow_tensor::f16,
    ferroflow_tensor::bf16,
    Vec<i64>
);

/// A value in a register of a synchronous function.
#[derive(Clone, Default)]
pub enum Value {
    /// Not set yet.
    #[default]
    Empty,
    /// `i1`
    Bool(bool),
    /// `i32`
    I32(i32),
    /// `i64`
    I64(i64),
    /// `f32`
    F32(f32),
    /// `f64`
    F64(f64),
    /// Anything else, in two words with the tag.
    Any(AsyncValue),
}

impl Value {
    /// Creates a value of any type.
    #[inline]
    pub fn new<T: Send + Sync + 'static>(value: T) -> Value {
        let any: &dyn Any = &value;
        if let Some(v) = any.downcast_ref() {
            return Value::I32(*v);
        }
        if let Some(v) = any.downcast_ref() {
            return Value::Bool(*v);
        }
        if let Some(v) = any.downcast_ref() {
            return Value::I64(*v);
        }
        if let Some(v) = any.downcast_ref() {
            return Value::F32(*v);
        }
        if let Some(v) = any.downcast_ref() {
            return Value::F64(*v);
        }
        Value::Any(AsyncValue::new(value))
    }

    /// Returns the value if it is a `T`.
    #[inline]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        match self {
            Value::Any(v) => v.get(),
            _ => self.number(),
        }
    }

    /// Returns the number if it is one of this type stored inline.
    #[inline]
    pub(super) fn number<T: 'static>(&self) -> Option<&T> {
        // Each arm knows its type, so there are no checks at run time.
        match self {
            Value::Empty | Value::Any(_) => None,
            Value::Bool(v) => is(v),
            Value::I32(v) => is(v),
            Value::I64(v) => is(v),
            Value::F32(v) => is(v),
            Value::F64(v) => is(v),
        }
    }

    /// Replaces this value.
    #[inline]
    pub(super) fn set(&mut self, value: Value) {
        if let Value::Any(_) = self {
            self.clear();
        }
        // Nothing to drop, which the compiler must see to keep kernels of numbers small.
        std::mem::forget(std::mem::replace(self, value));
    }

    #[cold]
    #[inline(never)]
    fn clear(&mut self) {
        *self = Value::Empty;
    }
}

/// Converts to a value that others may wait for. `Empty` becomes an error.
impl From<Value> for AsyncValue {
    fn from(value: Value) -> AsyncValue {
        match value {
            Value::Empty => AsyncValue::new_error(internal!("kernel did not set a result")),
            Value::Bool(v) => AsyncValue::new(v),
            Value::I32(v) => AsyncValue::new(v),
            Value::I64(v) => AsyncValue::new(v),
            Value::F32(v) => AsyncValue::new(v),
            Value::F64(v) => AsyncValue::new(v),
            Value::Any(v) => v,
        }
    }
}

#[inline]
fn is<U: 'static, T: 'static>(value: &U) -> Option<&T> {
    (value as &dyn Any).downcast_ref()
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Empty => f.write_str("nothing"),
            Value::Bool(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
            Value::Any(v) => f.write_str(v.type_name()),
        }
    }
}
