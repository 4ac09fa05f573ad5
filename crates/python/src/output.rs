//! Tensors as numpy arrays over the same memory.

use crate::error::error;
use crate::numpy::{numpy, numpy_dtype};
use ferroflow_tensor::{DType, Tensor, dispatch_items};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3::{ffi, intern};
use std::ffi::c_int;
use std::ops::Range;

/// A tensor that ops take as an input: one made by `ferroflow.tensor`, or one that numpy cannot hold, such as the
/// handle of a variable.
#[pyclass(name = "Tensor", module = "ferroflow", frozen)]
pub struct PyTensor(pub Tensor);

#[pymethods]
impl PyTensor {
    /// The dtype by name, such as `resource`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().numpy_name()
    }

    /// The shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape().dims())
    }

    /// Returns the tensor as an array over the same memory, which cannot be written.
    ///
    /// >>> import ferroflow
    /// >>> ferroflow.tensor([1, 2], "int64").numpy()
    /// array([1, 2])
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let DType::Resource | DType::Variant = self.0.dtype() {
            let text = format!("numpy has no {} arrays", self.0.dtype());
            return Err(PyTypeError::new_err(text));
        }
        let found = array(py, self.0.clone(), &Shared::default())?;
        // A scalar string is a bytes object.
        numpy(py)?.asarray.bind(py).call1((found,))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = self.numpy(py)?;
        let is_wanted = match dtype {
            Some(dtype) => found.getattr(intern!(py, "dtype"))?.eq(dtype)?,
            None => true,
        };
        match (is_wanted, dtype) {
            (false, Some(_)) if copy == Some(false) => {
                Err(PyValueError::new_err("another dtype needs a copy"))
            }
            (false, Some(dtype)) => found.call_method1(intern!(py, "astype"), (dtype,)),
            _ if copy == Some(true) => found.call_method0(intern!(py, "copy")),
            _ => Ok(found),
        }
    }

    /// Exports the tensor by the DLPack protocol. Consumers that know no read-only memory get a copy.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (found, name) = (self.numpy(py)?, intern!(py, "__dlpack__"));
        let exported = found.call_method(name, (), options);
        exported.or_else(|e| match e.is_instance_of::<PyBufferError>(py) {
            true => {
                let copy = found.call_method0(intern!(py, "copy"))?;
                copy.call_method(name, (), options)
            }
            false => Err(e),
        })
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        const CPU: i32 = 1;
        (CPU, 0)
    }

    fn __repr__(&self) -> String {
        format!("<ferroflow.Tensor {}{}>", self.0.dtype(), self.0.shape())
    }
}

/// The memory of a tensor, as the base of a numpy array.
#[pyclass(module = "ferroflow", weakref)]
pub struct Memory {
    tensor: Tensor,
    is_writable: bool,
}

impl Memory {
    fn address(&mut self) -> ferroflow_base::Result<*mut u8> {
        if !self.is_writable {
            return Ok(self.tensor.bytes()?.as_ptr().cast_mut());
        }
        let tensor = &mut self.tensor;
        Ok(dispatch_items!(tensor.dtype(), T => tensor.items_mut::<T>()?.as_mut_ptr().cast()))
    }
}

#[pymethods]
impl Memory {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let (address, len, is_writable) = {
            let mut memory = slf.borrow_mut();
            let len = memory.tensor.byte_len();
            (memory.address().map_err(error)?, len, memory.is_writable)
        };
        // SAFETY: the view is Python's to fill. The bytes belong to a tensor that this object keeps in place
        // and never changes; they are written only if the object is the tensor's one owner.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                address.cast(),
                len as ffi::Py_ssize_t,
                c_int::from(!is_writable),
                flags,
            )
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// The memory of arrays that a step may have returned as they are.
#[derive(Default)]
pub struct Shared(Vec<Range<usize>>);

impl Shared {
    /// Remembers the memory of a tensor, unless it is small.
    pub fn add(&mut self, tensor: &Tensor) {
        if let Ok(bytes) = tensor.bytes()
            && bytes.len() > 4096
        {
            let start = bytes.as_ptr() as usize;
            self.0.push(start..start + bytes.len());
        }
    }

    fn has(&self, tensor: &Tensor) -> bool {
        let Ok(bytes) = tensor.bytes() else {
            return false;
        };
        let start = bytes.as_ptr() as usize;
        self.0.iter().any(|range| range.contains(&start))
    }
}

/// Returns a tensor as an array over its memory: writable, unless the engine uses the memory too, as it does
/// that of variables and constants. What a step returned as it was fed is copied.
pub fn array<'py>(
    py: Python<'py>,
    mut tensor: Tensor,
    fed: &Shared,
) -> PyResult<Bound<'py, PyAny>> {
    match tensor.dtype() {
        DType::String => return strings(py, &tensor),
        DType::Resource | DType::Variant => return Ok(Bound::new(py, PyTensor(tensor))?.into_any()),
        _ => {}
    }
    if !fed.0.is_empty() && fed.has(&tensor) {
        let bytes = tensor.bytes().map_err(error)?;
        let copy = Tensor::from_bytes(tensor.dtype(), tensor.shape().clone(), bytes);
        tensor = copy.map_err(error)?;
    }
    let shape = PyTuple::new(py, tensor.shape().dims())?;
    let dtype = numpy_dtype(py, tensor.dtype())?;
    let np = numpy(py)?;
    if tensor.byte_len() == 0 {
        return np.empty.bind(py).call1((shape, dtype));
    }
    let is_writable = tensor.is_unique();
    let memory = Bound::new(
        py,
        Memory {
            tensor,
            is_writable,
        },
    )?;
    np.ndarray.bind(py).call1((shape, dtype, memory))
}

/// Returns strings as an array of bytes objects, a scalar as bytes.
fn strings<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let strings = tensor.strings().map_err(error)?;
    if let ([one], true) = (strings, tensor.shape().is_scalar()) {
        return Ok(PyBytes::new(py, one).into_any());
    }
    let np = numpy(py)?;
    let flat = np
        .empty
        .bind(py)
        .call1((strings.len(), numpy_dtype(py, DType::String)?))?;
    if !strings.is_empty() {
        let items = PyList::new(py, strings.iter().map(|s| PyBytes::new(py, s)))?;
        flat.set_item(pyo3::types::PySlice::full(py), items)?;
    }
    let shape = PyTuple::new(py, tensor.shape().dims())?;
    flat.call_method1(intern!(py, "reshape"), (shape,))
}
