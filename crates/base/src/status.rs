//! Errors as values: TensorFlow's codes, a message, and notes added on the way up.

use std::collections::BTreeMap;
use std::fmt;

/// A result whose error is a [`Status`].
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// TensorFlow's (and gRPC's) canonical error codes; the number is the wire value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the canonical names say all there is to say")]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Returns the code of a wire value, if it is one of an error.
    pub fn from_number(number: i32) -> Option<Code> {
        const ALL: [Code; 16] = [
            Code::Cancelled,
            Code::Unknown,
            Code::InvalidArgument,
            Code::DeadlineExceeded,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        ALL.into_iter().find(|code| *code as i32 == number)
    }

    /// Returns the canonical upper-case name, e.g. `INVALID_ARGUMENT`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

#[derive(Clone)]
struct Inner {
    code: Code,
    message: String,
    notes: Vec<String>,
    node: Option<String>,
    /// Index of the note that names the node.
    node_note: Option<usize>,
    payloads: BTreeMap<String, Vec<u8>>,
}

/// An error: a [`Code`], a message and the notes that callers added. One pointer wide.
///
/// ```
/// use ferroflow_base::{Code, invalid_argument};
/// let s = invalid_argument!("expected rank {}, got {}", 2, 3).at_node("dense/MatMul", "MatMul");
/// assert_eq!(s.code(), Code::InvalidArgument);
/// assert_eq!(s.to_string(),
///     "INVALID_ARGUMENT: expected rank 2, got 3\n\t [[{{node dense/MatMul}} = MatMul]]");
/// ```
#[derive(Clone)]
pub struct Status(Box<Inner>);

impl Status {
    /// Creates an error with this code and message.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self::with_message(code, message.into())
    }

    /// Creates an error with this code and a formatted message, for the macros: what calls it has no string to drop.
    #[cold]
    #[inline(never)]
    pub fn formatted(code: Code, message: fmt::Arguments<'_>) -> Self {
        Self::with_message(code, fmt::format(message))
    }

    #[cold]
    #[inline(never)]
    fn with_message(code: Code, message: String) -> Self {
        Status(Box::new(Inner {
            code,
            message,
            notes: Vec::new(),
            node: None,
            node_note: None,
            payloads: BTreeMap::new(),
        }))
    }

    /// Returns the error code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the message without the notes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the lines that callers added, innermost first, without the line that names the node.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        let notes = self.0.notes.iter().enumerate();
        let of_node = self.0.node_note;
        notes
            .filter(move |(i, _)| Some(*i) != of_node)
            .map(|(_, n)| n.as_str())
    }

    /// Returns the same error with text before its message.
    #[must_use]
    pub fn prefixed(mut self, text: &str) -> Self {
        self.0.message.insert_str(0, text);
        self
    }

    /// Returns the node at which the error happened, if one was named.
    pub fn node(&self) -> Option<&str> {
        self.0.node.as_deref()
    }

    /// Adds a payload: a serialized message under the URL of its type, for programs that handle the error
    /// (`absl::Status::SetPayload`).
    ///
    /// ```
    /// use ferroflow_base::aborted;
    /// let s = aborted!("the task restarted").with_payload("type.googleapis.com/Restarted", "");
    /// assert_eq!(s.payloads()["type.googleapis.com/Restarted"], b"");
    /// ```
    #[must_use]
    pub fn with_payload(
        mut self,
        type_url: impl Into<String>,
        message: impl Into<Vec<u8>>,
    ) -> Self {
        self.0.payloads.insert(type_url.into(), message.into());
        self
    }

    /// Returns the payloads by type URL.
    pub fn payloads(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.0.payloads
    }

    /// Adds payloads by type URL, such as those of another error.
    #[must_use]
    pub fn with_payloads(mut self, payloads: BTreeMap<String, Vec<u8>>) -> Self {
        self.0.payloads.extend(payloads);
        self
    }

    /// Adds a line of context, outermost last.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.0.notes.push(note.into());
        self
    }

    /// Names the node and op at fault, unless an inner caller already did.
    #[must_use]
    pub fn at_node(mut self, node: &str, op: &str) -> Self {
        if self.0.node.is_none() {
            self.0.node = Some(node.to_string());
            self.0.node_note = Some(self.0.notes.len());
            self.0
                .notes
                .push(format!("\t [[{{{{node {node}}}}} = {op}]]"));
        }
        self
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.name(), self.0.message)?;
        for note in &self.0.notes {
            write!(f, "\n{note}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

// One invocation per constructor: a nested macro would need a literal `$`, which stable Rust cannot
// escape.
macro_rules! constructor {
    ($d:tt $(#[$doc:meta])* $name:ident => $code:ident) => {
        $(#[$doc])*
        #[macro_export]
        macro_rules! $name {
            ($d($d arg:tt)*) => {{
                let status = $crate::Status::formatted($crate::Code::$code, format_args!($d($d arg)*));
                status
            }};
        }
    };
}
constructor!($ /// `INVALID_ARGUMENT` with a formatted message.
    invalid_argument => InvalidArgument);
constructor!($ /// `NOT_FOUND` with a formatted message.
    not_found => NotFound);
constructor!($ /// `UNIMPLEMENTED` with a formatted message.
    unimplemented_error => Unimplemented);
constructor!($ /// `INTERNAL` with a formatted message: this is a bug in Ferroflow.
    internal => Internal);
constructor!($ /// `OUT_OF_RANGE` with a formatted message.
    out_of_range => OutOfRange);
constructor!($ /// `FAILED_PRECONDITION` with a formatted message.
    failed_precondition => FailedPrecondition);
constructor!($ /// `RESOURCE_EXHAUSTED` with a formatted message.
    resource_exhausted => ResourceExhausted);
constructor!($ /// `CANCELLED` with a formatted message.
    cancelled => Cancelled);
constructor!($ /// `DEADLINE_EXCEEDED` with a formatted message.
    deadline_exceeded => DeadlineExceeded);
constructor!($ /// `ALREADY_EXISTS` with a formatted message.
    already_exists => AlreadyExists);
constructor!($ /// `DATA_LOSS` with a formatted message.
    data_loss => DataLoss);
constructor!($ /// `ABORTED` with a formatted message.
    aborted => Aborted);
