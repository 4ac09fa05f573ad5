//! The extension module of the Python package `ferroflow`: wiring between Python's objects and `runtime`.
//!
//! Does not know: passes, engines, kernels.
#![warn(clippy::missing_errors_doc)]

mod checkpoint;
mod eager;
mod error;
mod input;
mod model;
mod numpy;
mod output;
mod progress;
mod session;
mod source;
mod tools;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _ferroflow(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<model::Model>()?;
    module.add_class::<model::PySignature>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<session::Step>()?;
    module.add_class::<checkpoint::Checkpoint>()?;
    module.add_class::<eager::Op>()?;
    module.add_class::<output::PyTensor>()?;
    module.add_function(wrap_pyfunction!(tools::load, module)?)?;
    module.add_function(wrap_pyfunction!(tools::compile, module)?)?;
    module.add_function(wrap_pyfunction!(tools::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(eager::op_names, module)?)?;
    module.add_function(wrap_pyfunction!(eager::tensor, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
