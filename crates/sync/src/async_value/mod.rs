//! Values that become available later: [`AsyncValue`], its typed form [`AsyncValueRef`], and the
//! write ends [`Promise`], [`Constructed`] and [`IndirectPromise`].
//!
//! A value has one writer and any number of readers. The writer is a type of its own that cannot
//! be cloned, so a value is set at most once; a writer that is dropped without having set its
//! value sets an error, so no reader waits forever.

mod header;
mod memory;
mod ref_batch;
mod value;
mod waiter;
mod writer;

#[cfg(all(test, not(loom)))]
mod tests;

pub use ref_batch::RefBatch;
pub use value::{AsyncValue, AsyncValueRef, Ready, ValueState};
pub use writer::{Constructed, IndirectPromise, Promise};

use ferroflow_base::Status;
use std::fmt;

/// A value without content: it orders side effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain;

/// The position of a kernel in the source of its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The content of an erroneous value: the error and its location.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The error.
    pub status: Status,
    /// The location of the kernel that reported the error, if known.
    pub location: Option<Location>,
}

impl From<Status> for Diagnostic {
    fn from(status: Status) -> Self {
        Diagnostic {
            status,
            location: None,
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Some(location) => write!(f, "{location}: {}", self.status.message()),
            None => f.write_str(self.status.message()),
        }
    }
}
