//! File names in TensorFlow's notation, and file system errors with its codes.

use ferroflow_base::{Code, Status};

/// Returns the local path of `name`, which may be a URI `file://…`.
pub fn local_path(name: &str) -> &str {
    let path = name
        .strip_prefix("file://")
        .and_then(|rest| rest.get(rest.find('/')?..));
    path.unwrap_or(name)
}

/// Returns the error of an operation on a file, with TensorFlow's code.
#[cold]
pub fn io_error(path: &str, error: &std::io::Error) -> Status {
    use std::io::ErrorKind as Kind;
    let code = match error.kind() {
        Kind::NotFound => Code::NotFound,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Code::PermissionDenied,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Code::ResourceExhausted,
        Kind::IsADirectory | Kind::NotADirectory => Code::FailedPrecondition,
        _ => Code::Unknown,
    };
    // Rust appends the system's error number.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    Status::new(code, format!("{path}; {text}"))
}
