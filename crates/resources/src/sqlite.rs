//! Errors of SQLite as TensorFlow reports them (`core/lib/db/sqlite.cc`). Crates that have databases pass the numbers
//! of SQLite's errors, so that this one needs no database.

use ferroflow_base::{Code, Status};

/// Returns TensorFlow's code for a result code of SQLite, extended or not.
///
/// ```
/// use ferroflow_base::Code;
/// // SQLITE_CONSTRAINT_UNIQUE
/// assert_eq!(ferroflow_resources::sqlite::code(2067), Code::InvalidArgument);
/// ```
pub fn code(number: i32) -> Code {
    match number & 0xff {
        // SQLITE_ABORT
        4 => Code::Aborted,
        // SQLITE_READONLY, SQLITE_MISMATCH
        8 | 20 => Code::FailedPrecondition,
        // SQLITE_MISUSE, SQLITE_INTERNAL
        21 | 2 => Code::Internal,
        // SQLITE_RANGE
        25 => Code::OutOfRange,
        // SQLITE_CANTOPEN, SQLITE_CONSTRAINT, SQLITE_NOTFOUND, SQLITE_NOTADB
        14 | 19 | 12 | 26 => Code::InvalidArgument,
        // SQLITE_CORRUPT
        11 => Code::DataLoss,
        // SQLITE_AUTH, SQLITE_PERM
        23 | 3 => Code::PermissionDenied,
        // SQLITE_FULL, SQLITE_TOOBIG, SQLITE_NOLFS
        13 | 18 | 22 => Code::ResourceExhausted,
        // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL, SQLITE_NOMEM
        5 | 6 | 15 | 7 => Code::Unavailable,
        // SQLITE_INTERRUPT
        9 => Code::Cancelled,
        _ => Code::Unknown,
    }
}

/// Returns the error of a call `what` for a statement `sql`, with SQLite's number and message.
///
/// ```
/// let e = ferroflow_resources::sqlite::failed("Prepare", 1, "no such table: t", "SELECT 1 FROM t");
/// assert_eq!(e.message(), "Prepare() failed: [1] no such table: t: SELECT 1 FROM t");
/// ```
pub fn failed(what: &str, number: i32, message: &str, sql: &str) -> Status {
    Status::new(
        code(number),
        format!("{what}() failed: [{number}] {message}: {sql}"),
    )
}

/// Returns the error of a database at `path` that does not open.
pub fn not_opened(path: &str, number: i32, reason: &str) -> Status {
    Status::new(
        code(number),
        format!("Sqlite::Open({path}) failed: {reason}"),
    )
}
