//! Errors of the engine as Python's exceptions.

use ferroflow_base::{Code, Status};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Returns the exception of a status: a class of `ferroflow.errors`, by code.
#[cold]
pub fn error(status: Status) -> PyErr {
    Python::attach(|py| make(py, &status).unwrap_or_else(|e| e))
}

fn make(py: Python<'_>, status: &Status) -> PyResult<PyErr> {
    let mut message = status.message().to_string();
    for note in status.notes() {
        message += "\n";
        message += note;
    }
    let make = py.import("ferroflow.errors")?.getattr("_of")?;
    let error = make.call1((status.code() as u8, message, status.node()))?;
    Ok(PyErr::from_value(error))
}

/// Returns an `InvalidArgumentError`.
#[cold]
pub fn invalid(message: impl Into<String>) -> PyErr {
    error(Status::new(Code::InvalidArgument, message))
}

/// Returns an error of this package itself.
#[cold]
pub fn broken(message: &'static str) -> PyErr {
    PyRuntimeError::new_err(message)
}
