//! Checkpoints: variables by name.

use crate::error::error;
use crate::model::shape;
use crate::numpy::numpy_dtype;
use crate::output::{Shared, array};
use ferroflow_base::Result;
use ferroflow_model::TensorBundle;
use ferroflow_runtime::Tensor;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList, PyString, PyTuple};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The variables of a checkpoint, by name; each is read when it is asked for.
///
/// >>> import ferroflow
/// >>> checkpoint = ferroflow.load(saved_model + "/variables/variables")
/// >>> name = [name for name in checkpoint if "kernel" in name or "0" in name][0]
/// >>> checkpoint[name].shape == checkpoint.spec(name).shape
/// True
#[pyclass(module = "ferroflow", frozen, weakref, mapping)]
pub struct Checkpoint {
    bundle: Mutex<TensorBundle>,
    names: Vec<String>,
    prefix: String,
}

impl Checkpoint {
    /// Opens a checkpoint.
    pub fn open(prefix: &Path) -> Result<Checkpoint> {
        let prefix = prefix.to_string_lossy().into_owned();
        let bundle = TensorBundle::open(&prefix)?;
        let names = bundle.names().map(String::from).collect();
        Ok(Checkpoint {
            bundle: Mutex::new(bundle),
            names,
            prefix,
        })
    }

    /// Number and bytes of the elements of floating-point variables.
    pub fn size(&self) -> Result<(usize, usize)> {
        let bundle = self.bundle.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut n, mut bytes) = (0, 0);
        for name in &self.names {
            let (dtype, shape) = bundle.dtype_and_shape(name)?;
            if dtype.is_floating() {
                n += shape.num_elements();
                bytes += shape.num_elements() * dtype.size();
            }
        }
        Ok((n, bytes))
    }

    /// Dtypes and shapes of the variables, by name.
    pub fn variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        for name in &self.names {
            out.set_item(name, self.spec(py, name)?)?;
        }
        Ok(out)
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        self.bundle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(name)
    }
}

#[pymethods]
impl Checkpoint {
    /// The prefix of the checkpoint's files.
    #[getter]
    fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The names of the variables.
    fn keys(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Dtype and shape of a variable, without reading it.
    fn spec<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let bundle = self.bundle.lock().unwrap_or_else(PoisonError::into_inner);
        let (dtype, dims) = bundle.dtype_and_shape(name).map_err(error)?;
        drop(bundle);
        let dtype = match dtype.is_plain() {
            true => numpy_dtype(py, dtype)?.clone(),
            false => PyString::new(py, dtype.name()).into_any(),
        };
        let spec = py.import("ferroflow._types")?.getattr("TensorSpec")?;
        spec.call1((name, dtype, shape(py, &(&dims).into())?))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if !self.__contains__(name) {
            return Err(PyKeyError::new_err(name.to_string()));
        }
        let tensor = py.detach(|| self.read(name)).map_err(error)?;
        array(py, tensor, &Shared::default())
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, &self.names)?.try_iter()?.into_any())
    }

    /// Pairs of name and value.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let pair = |name: &String| {
            let name_object = PyString::new(py, name).into_any();
            PyTuple::new(py, [name_object, self.__getitem__(py, name)?])
        };
        self.names.iter().map(pair).collect()
    }

    fn __repr__(&self) -> String {
        let n = self.names.len();
        format!("<ferroflow.Checkpoint: {n} variables in {}>", self.prefix)
    }
}
