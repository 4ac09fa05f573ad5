//! Conversion of values between host and library.

use crate::abi::{self, Content, ObjectParts, Text, Value};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Attribute, Frame, HostDType, HostValue};
use ferroflow_sync::{AsyncValue, Chain};
use std::ffi::{CStr, CString, c_char, c_void};

/// An object of a type that only libraries know.
pub(crate) struct Object {
    data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    type_name: CString,
}

// SAFETY: by the header, objects are passed between threads, shared and destroyed on any.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl HostValue for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the library passed both together; an object is dropped once.
            unsafe { destroy(self.data) }
        }
    }
}

/// Returns a zero-terminated text.
///
/// # Safety
/// `text` is null or such a text.
pub(crate) unsafe fn text(text: *const c_char) -> Result<String> {
    if text.is_null() {
        return Err(invalid_argument!("a text is a null pointer"));
    }
    // SAFETY: not null, hence the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map(str::to_string);
    text.map_err(|_| invalid_argument!("a text is not UTF-8"))
}

/// Returns a zero-terminated text with any bytes; `None` if null.
///
/// # Safety
/// `text` is null or such a text.
pub(crate) unsafe fn lossy(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, hence the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Returns `n` elements of a library.
///
/// # Safety
/// `data` is null or has `n` elements, aligned, that do not change meanwhile.
pub(crate) unsafe fn list<'a, T>(data: *const T, n: usize) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if data.is_null() || n > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(invalid_argument!(
            "a library passes {n} elements with a null pointer"
        ));
    }
    // SAFETY: not null and not too many, hence the contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(data, n) })
}

fn unknown_type(kind: u32) -> ferroflow_base::Status {
    invalid_argument!("a library passes a value of the unknown type {kind}")
}

fn string(text: &str) -> Content {
    let (data, length) = (text.as_ptr().cast(), text.len());
    let string = Text { data, length };
    Content { string }
}

/// Returns argument `i` of a call, of the type of `wanted`.
///
/// # Safety
/// The name of the type of an object, if one is wanted, is null or ends with a zero.
pub(crate) unsafe fn arg(frame: &impl Frame, i: usize, wanted: &Value) -> Result<Content> {
    Ok(match wanted.kind {
        abi::CHAIN => frame.arg::<Chain>(i).map(|_| Content { ui64: 0 })?,
        abi::I1 => Content {
            ui8: u8::from(*frame.arg::<bool>(i)?),
        },
        abi::UI8 => Content {
            ui8: *frame.arg(i)?,
        },
        abi::UI16 => Content {
            ui16: *frame.arg(i)?,
        },
        abi::UI32 => Content {
            ui32: *frame.arg(i)?,
        },
        abi::UI64 => Content {
            ui64: *frame.arg(i)?,
        },
        abi::I8 => Content { i8: *frame.arg(i)? },
        abi::I16 => Content {
            i16: *frame.arg(i)?,
        },
        abi::I32 => Content {
            i32: *frame.arg(i)?,
        },
        abi::I64 => Content {
            i64: *frame.arg(i)?,
        },
        abi::F32 => Content {
            f32: *frame.arg(i)?,
        },
        abi::F64 => Content {
            f64: *frame.arg(i)?,
        },
        abi::STRING => string(frame.arg::<String>(i)?),
        abi::OBJECT => {
            let object: &Object = frame.arg(i)?;
            // SAFETY: an object is wanted, so `object` is the valid field, with such a name.
            let wanted = unsafe { text(wanted.content.object.type_name) }?;
            let found = object.type_name.to_string_lossy();
            if found != wanted {
                return Err(invalid_argument!(
                    "argument {i} is a {found}, kernel expects a {wanted}"
                ));
            }
            Content {
                object: ObjectParts {
                    data: object.data,
                    // The host keeps ownership.
                    destroy: None,
                    type_name: object.type_name.as_ptr(),
                },
            }
        }
        kind => return Err(unknown_type(kind)),
    })
}

/// Returns the number or text of an attribute of type `kind`.
pub(crate) fn attribute(attribute: Attribute<'_>, kind: u32) -> Result<Content> {
    Ok(match kind {
        abi::I1 => Content {
            ui8: u8::from(attribute.number::<bool>()?),
        },
        abi::UI8 => Content {
            ui8: attribute.number()?,
        },
        abi::UI16 => Content {
            ui16: attribute.number()?,
        },
        abi::UI32 => Content {
            ui32: attribute.number()?,
        },
        abi::UI64 => Content {
            ui64: attribute.number()?,
        },
        abi::I8 => Content {
            i8: attribute.number()?,
        },
        abi::I16 => Content {
            i16: attribute.number()?,
        },
        abi::I32 => Content {
            i32: attribute.number()?,
        },
        abi::I64 => Content {
            i64: attribute.number()?,
        },
        abi::F32 => Content {
            f32: attribute.number()?,
        },
        abi::F64 => Content {
            f64: attribute.number()?,
        },
        abi::STRING => string(attribute.string()?),
        kind => return Err(unknown_type(kind)),
    })
}

/// Returns the numeric type with the header's number `kind`.
pub(crate) fn dtype(kind: u32) -> Result<HostDType> {
    let number = u8::try_from(kind).ok().filter(|_| kind <= abi::F64);
    let dtype = number.map(HostDType).filter(|d| d.size().is_some());
    dtype.ok_or_else(|| unknown_type(kind))
}

/// A destination of a library's values.
pub(crate) trait Sink {
    type Made;
    /// Stores a value.
    fn make<T: HostValue>(self, value: T) -> Self::Made;
}

/// Makes a value of the engine `async`.
pub(crate) struct IntoAsync;

impl Sink for IntoAsync {
    type Made = AsyncValue;
    fn make<T: HostValue>(self, value: T) -> AsyncValue {
        AsyncValue::new(value)
    }
}

/// Makes a value of the engine `sync`.
pub(crate) struct IntoSync;

impl Sink for IntoSync {
    type Made = ferroflow_host_context::Value;
    fn make<T: HostValue>(self, value: T) -> Self::Made {
        ferroflow_host_context::Value::new(value)
    }
}

/// Converts a value that a library made.
///
/// # Safety
/// `value` follows the header: `kind` determines the valid field of `content`; texts have their
/// stated length.
pub(crate) unsafe fn take<S: Sink>(value: &Value, sink: S) -> Result<S::Made> {
    let content = &value.content;
    // SAFETY: each arm reads the field that `kind` declares valid, by the contract of this
    // function.
    unsafe {
        Ok(match value.kind {
            abi::CHAIN => sink.make(Chain),
            abi::I1 => sink.make(content.ui8 != 0),
            abi::UI8 => sink.make(content.ui8),
            abi::UI16 => sink.make(content.ui16),
            abi::UI32 => sink.make(content.ui32),
            abi::UI64 => sink.make(content.ui64),
            abi::I8 => sink.make(content.i8),
            abi::I16 => sink.make(content.i16),
            abi::I32 => sink.make(content.i32),
            abi::I64 => sink.make(content.i64),
            abi::F32 => sink.make(content.f32),
            abi::F64 => sink.make(content.f64),
            abi::STRING => {
                let Text { data, length } = content.string;
                let text = std::str::from_utf8(list(data.cast::<u8>(), length)?);
                let text = text.map_err(|_| invalid_argument!("a result is not UTF-8"))?;
                sink.make(text.to_string())
            }
            abi::OBJECT => {
                let parts = content.object;
                // From here on it is destroyed in any case.
                let mut object = Object {
                    data: parts.data,
                    destroy: parts.destroy,
                    type_name: CString::default(),
                };
                if parts.type_name.is_null() {
                    return Err(invalid_argument!("an object's type has no name"));
                }
                object.type_name = CStr::from_ptr(parts.type_name).to_owned();
                sink.make(object)
            }
            kind => return Err(unknown_type(kind)),
        })
    }
}
