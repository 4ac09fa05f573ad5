//! `TF_Status` (`tensorflow/c/tf_status.h`) and its twins `TSL_*`.

use crate::guard::guard_plain;
use ferroflow_base::{Code, Status};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// A code and a message.
#[derive(Default)]
pub struct TF_Status {
    code: c_int,
    /// NULL-terminated; empty if the code is OK.
    message: CString,
    payloads: BTreeMap<CString, CString>,
}

impl TF_Status {
    pub(crate) fn clear(&mut self) {
        if self.code != 0 {
            *self = TF_Status::default();
        }
    }

    pub(crate) fn set(&mut self, error: &Status) {
        self.set_text(error.code() as c_int, unescaped(&error.to_client_text()));
        for (url, payload) in error.payloads() {
            // Values end at the first NUL, as clients of this interface read them.
            let value = payload.split(|byte| *byte == 0).next().unwrap_or_default();
            if let (Ok(url), Ok(value)) = (CString::new(url.as_str()), CString::new(value)) {
                self.payloads.insert(url, value);
            }
        }
    }

    fn set_text(&mut self, code: c_int, message: impl Into<Vec<u8>>) {
        self.payloads.clear();
        self.code = code;
        let mut bytes = if code == 0 {
            Vec::new()
        } else {
            message.into()
        };
        bytes.retain(|b| *b != 0);
        self.message = CString::new(bytes).unwrap_or_default();
    }

    /// Returns the error, if any.
    pub(crate) fn error(&self) -> Option<Status> {
        let code = match self.code {
            0 => return None,
            code => Code::from_number(code).unwrap_or(Code::Unknown),
        };
        Some(Status::new(code, escaped(self.message.to_bytes())))
    }
}

/// While the engine has a text of the client, bytes from 0x80 on that are not UTF-8 are characters: their number and
/// this one. So are the bytes of those characters themselves.
const BYTES: u32 = 0x10_ff00;

/// The text of bytes, of which [`unescaped`] gets all back.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        let escapes = bytes.iter().map(|byte| BYTES + u32::from(*byte));
        text.extend(escapes.filter_map(char::from_u32));
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match u32::from(c) > BYTES {
                true => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => text.push(c),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match u32::from(c)
            .checked_sub(BYTES)
            .and_then(|byte| u8::try_from(byte).ok())
        {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Text of errors as clients of the C API see it.
trait ClientText {
    fn to_client_text(&self) -> String;
}

impl ClientText for Status {
    fn to_client_text(&self) -> String {
        let mut text = self.message().to_string();
        for note in self.notes() {
            text.push_str("\n\t ");
            text.push_str(note);
        }
        text
    }
}

/// The error with the name of its node, if the message does not end with it.
pub(crate) fn with_node(error: Status) -> Status {
    let message = error.message();
    // It is the step that runs out of time, and the graph that has unknown ops.
    let is_general = error.code() == Code::DeadlineExceeded || message.starts_with("Op type not");
    let is_named = |node: &&str| message.ends_with(&format!("{{{{node {node}}}}}"));
    match error.node().filter(|node| !is_general && !is_named(node)) {
        None => error,
        Some(node) => Status::new(
            error.code(),
            format!("{message}\n\t [[{{{{node {node}}}}}]]"),
        ),
    }
}

/// Creates an OK status.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewStatus() -> *mut TF_Status {
    crate::guard::handle(TF_Status::default())
}

/// Deletes a status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteStatus(s: *mut TF_Status) {
    // SAFETY: the contract of the header.
    unsafe { crate::guard::delete(s) }
}

/// Sets code and message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetStatus(s: *mut TF_Status, code: c_int, msg: *const c_char) {
    guard_plain((), || {
        let message = match msg.is_null() {
            true => Vec::new(),
            // SAFETY: the contract of the header.
            false => unsafe { CStr::from_ptr(msg) }.to_bytes().to_vec(),
        };
        // SAFETY: the contract of the header.
        if let Some(status) = unsafe { s.as_mut() } {
            let known = code == 0 || Code::from_number(code).is_some();
            status.set_text(if known { code } else { Code::Unknown as c_int }, message);
        }
    });
}

/// Sets a payload of an error; an OK status has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetPayload(
    s: *mut TF_Status,
    key: *const c_char,
    value: *const c_char,
) {
    guard_plain((), || {
        if s.is_null() || key.is_null() || value.is_null() {
            return;
        }
        // SAFETY: the contract of the header.
        let (status, key, value) = unsafe { (&mut *s, CStr::from_ptr(key), CStr::from_ptr(value)) };
        if status.code != 0 {
            status.payloads.insert(key.into(), value.into());
        }
    });
}

/// Visits a payload: key, value, capture.
pub type TF_PayloadVisitor =
    Option<unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void)>;

/// Visits all payloads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ForEachPayload(
    s: *const TF_Status,
    visitor: TF_PayloadVisitor,
    capture: *mut c_void,
) {
    // SAFETY: the contract of the header.
    let (Some(status), Some(visitor)) = (unsafe { s.as_ref() }, visitor) else {
        return;
    };
    for (key, value) in &status.payloads {
        // SAFETY: the client's visitor takes two strings and its own capture.
        unsafe { visitor(key.as_ptr(), value.as_ptr(), capture) };
    }
}

/// Sets the status that an `errno` stands for; the message is `context` and the system's words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SetStatusFromIOError(
    s: *mut TF_Status,
    error_code: c_int,
    context: *const c_char,
) {
    guard_plain((), || {
        // SAFETY: the contract of the header.
        let (status, context) = unsafe { (s.as_mut(), crate::guard::text(context).unwrap_or("")) };
        let Some(status) = status else { return };
        // SAFETY: `strerror` returns a NUL-terminated text that is copied at once.
        let words = unsafe { CStr::from_ptr(libc::strerror(error_code)) };
        let message = format!("{context}; {}", words.to_string_lossy());
        let code = of_errno(error_code).map_or(0, |code| code as c_int);
        status.set_text(code, message);
    });
}

/// As TensorFlow's table (`tsl/platform/errors.cc`).
fn of_errno(errno: c_int) -> Option<Code> {
    Some(match errno {
        0 => return None,
        libc::EINVAL
        | libc::ENOSTR
        | libc::ENAMETOOLONG
        | libc::E2BIG
        | libc::EDESTADDRREQ
        | libc::EDOM
        | libc::EFAULT
        | libc::EILSEQ
        | libc::ENOPROTOOPT
        | libc::ENOTSOCK
        | libc::ENOTTY
        | libc::EPROTOTYPE
        | libc::ESPIPE => Code::InvalidArgument,
        libc::ETIMEDOUT | libc::ETIME => Code::DeadlineExceeded,
        libc::ENODEV | libc::ENOENT | libc::ENXIO | libc::ESRCH => Code::NotFound,
        libc::EEXIST | libc::EADDRNOTAVAIL | libc::EALREADY => Code::AlreadyExists,
        libc::EPERM | libc::EACCES | libc::EROFS => Code::PermissionDenied,
        libc::ENOTEMPTY
        | libc::EISDIR
        | libc::ENOTDIR
        | libc::EADDRINUSE
        | libc::EBADF
        | libc::EBUSY
        | libc::ECHILD
        | libc::EISCONN
        | libc::ENOTBLK
        | libc::ENOTCONN
        | libc::EPIPE
        | libc::ESHUTDOWN
        | libc::ETXTBSY => Code::FailedPrecondition,
        libc::ENOSPC
        | libc::EDQUOT
        | libc::EMFILE
        | libc::EMLINK
        | libc::ENFILE
        | libc::ENOBUFS
        | libc::ENOMEM
        | libc::EUSERS
        | libc::ENODATA
        | libc::ENOSR => Code::ResourceExhausted,
        libc::EFBIG | libc::EOVERFLOW | libc::ERANGE => Code::OutOfRange,
        libc::ENOSYS
        | libc::ENOTSUP
        | libc::EAFNOSUPPORT
        | libc::EPFNOSUPPORT
        | libc::EPROTONOSUPPORT
        | libc::ESOCKTNOSUPPORT
        | libc::EXDEV => Code::Unimplemented,
        libc::EAGAIN
        | libc::ECONNREFUSED
        | libc::ECONNABORTED
        | libc::ECONNRESET
        | libc::EINTR
        | libc::EHOSTDOWN
        | libc::EHOSTUNREACH
        | libc::ENETDOWN
        | libc::ENETRESET
        | libc::ENETUNREACH
        | libc::ENOLCK
        | libc::ENOLINK
        | libc::ENONET => Code::Unavailable,
        libc::EDEADLK | libc::ESTALE => Code::Aborted,
        libc::ECANCELED => Code::Cancelled,
        _ => Code::Unknown,
    })
}

/// Returns the code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetCode(s: *const TF_Status) -> c_int {
    // SAFETY: the contract of the header.
    unsafe { s.as_ref() }.map_or(0, |status| status.code)
}

/// Returns the message, which is valid until the status changes; empty if the code is OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_Message(s: *const TF_Status) -> *const c_char {
    // SAFETY: the contract of the header.
    unsafe { s.as_ref() }.map_or(c"".as_ptr(), |status| status.message.as_ptr())
}

/// Declares the twin of a function under the name of the library TSL.
macro_rules! twin {
    ($(fn $name:ident = $of:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[doc = concat!("As [`", stringify!($of), "`].")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                #[allow(unused_unsafe, reason = "one of them is safe")]
                // SAFETY: the contract is the same.
                unsafe { $of($($arg),*) }
            }
        )*
    };
}

twin! {
    fn TSL_NewStatus = TF_NewStatus() -> *mut TF_Status;
    fn TSL_DeleteStatus = TF_DeleteStatus(s: *mut TF_Status);
    fn TSL_SetStatus = TF_SetStatus(s: *mut TF_Status, code: c_int, msg: *const c_char);
    fn TSL_SetPayload = TF_SetPayload(s: *mut TF_Status, key: *const c_char, value: *const c_char);
    fn TSL_ForEachPayload = TF_ForEachPayload(s: *const TF_Status, visitor: TF_PayloadVisitor, capture: *mut c_void);
    fn TSL_SetStatusFromIOError = TF_SetStatusFromIOError(s: *mut TF_Status, error_code: c_int, context: *const c_char);
    fn TSL_GetCode = TF_GetCode(s: *const TF_Status) -> c_int;
    fn TSL_Message = TF_Message(s: *const TF_Status) -> *const c_char;
}

#[cfg(test)]
mod tests {
    use super::{escaped, unescaped, with_node};
    use ferroflow_base::{Code, Status};

    #[test]
    fn bytes_survive_the_engine() {
        let rows: [&[u8]; 5] = [
            b"plain",
            "\u{e4}\u{10ffff}".as_bytes(),
            b"bad \xff data",
            b"\xc3",
            b"\x80\xfe\xc3\xa4",
        ];
        for bytes in rows {
            assert_eq!(unescaped(&escaped(bytes)), bytes, "{bytes:?}");
        }
    }

    #[test]
    fn errors_name_their_node_once() {
        let check = |code, message: &str, expect: &str| {
            let error = with_node(Status::new(code, message).at_node("n", "Op"));
            assert_eq!(error.message(), expect);
        };
        let code = Code::Internal;
        check(code, "failed", "failed\n\t [[{{node n}}]]");
        check(
            code,
            "Missing 0-th output from {{node n}}",
            "Missing 0-th output from {{node n}}",
        );
        check(Code::DeadlineExceeded, "Timed out", "Timed out");
        let unknown = "Op type not registered 'Nope'";
        check(Code::NotFound, unknown, unknown);
    }
}
