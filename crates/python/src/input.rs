//! Python values as tensors. Large arrays are shared, not copied.

use crate::error::invalid;
use crate::numpy::{is_of_ml_dtypes, numpy, numpy_dtype, of_numpy, unsupported};
use crate::output::PyTensor;
use bytes::Bytes;
use ferroflow_base::Status;
use ferroflow_tensor::{DType, Shape, Tensor};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::Arc;

/// Arrays of at most this many bytes are copied: that takes less time than keeping a view of them.
const SMALL: usize = 4096;

/// How a value becomes a tensor.
#[derive(Clone, Copy)]
pub struct Convert {
    /// The dtype for values without one of their own, such as lists; by default TensorFlow's choice.
    pub dtype: Option<DType>,
    /// Whether the tensor may share the memory of an array.
    pub share: bool,
    /// Whether arrays of another dtype are converted too, as by TensorFlow's `Session.run`.
    pub cast: bool,
}

impl Convert {
    /// Returns a value as a tensor.
    pub fn tensor(self, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        if let Some(scalar) = self.scalar(value)? {
            return Ok(scalar);
        }
        if let Ok(tensor) = value.cast_exact::<PyTensor>() {
            return Ok(tensor.get().0.clone());
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            return self.sequence(value);
        }
        if let Ok(view) = PyUntypedBuffer::get(value)
            && let Some(dtype) = of_format(&view)
            && view.is_c_contiguous()
            && (!self.cast || self.dtype.is_none_or(|wanted| wanted == dtype))
        {
            let shape = Shape::from(view.shape());
            return self.view(dtype, shape, view);
        }
        self.array(value)
    }

    /// Returns a number, a bool or a string as a scalar, in the cases that need no conversion by numpy.
    fn scalar(self, value: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
        Ok(if let Ok(x) = value.cast_exact::<PyFloat>() {
            match self.dtype {
                None | Some(DType::Float) => Some(Tensor::scalar(x.extract::<f64>()? as f32)),
                Some(DType::Double) => Some(Tensor::scalar(x.extract::<f64>()?)),
                Some(_) => None,
            }
        } else if let Ok(x) = value.cast_exact::<PyInt>() {
            match (self.dtype, x.extract::<i64>()) {
                (None | Some(DType::Int32), Ok(x)) if i32::try_from(x).is_ok() => {
                    Some(Tensor::scalar(x as i32))
                }
                (None | Some(DType::Int64), Ok(x)) => Some(Tensor::scalar(x)),
                (Some(DType::Float), Ok(x)) => Some(Tensor::scalar(x as f32)),
                (Some(DType::Double), Ok(x)) => Some(Tensor::scalar(x as f64)),
                _ => None,
            }
        } else if let (Ok(x), None | Some(DType::Bool)) = (value.cast_exact::<PyBool>(), self.dtype)
        {
            Some(Tensor::scalar(x.is_true()))
        } else if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
            match self.dtype {
                None | Some(DType::String) => Some(Tensor::string(string(value)?)),
                Some(_) => None,
            }
        } else {
            None
        })
    }

    fn view(self, dtype: DType, shape: Shape, view: PyUntypedBuffer) -> PyResult<Tensor> {
        let view = View(view);
        let tensor = match self.share && view.0.len_bytes() > SMALL {
            true => Tensor::from_owner(dtype, shape, Arc::new(view)),
            false => Tensor::from_bytes(dtype, shape, view.as_ref()),
        };
        tensor.map_err(crate::error::error)
    }

    /// Converts a list or a tuple.
    fn sequence(self, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let py = value.py();
        let np = numpy(py)?;
        let as_objects = || np.asarray.bind(py).call1((value, "object"));
        let text = matches!(self.dtype, Some(DType::String));
        if text {
            return strings(&as_objects()?);
        }
        let leaf = first_leaf(value)?;
        let is_text = |leaf: &Bound<'_, PyAny>| {
            leaf.is_instance_of::<PyString>() || leaf.is_instance_of::<PyBytes>()
        };
        if leaf.as_ref().is_some_and(is_text) && self.dtype.is_none() {
            return strings(&as_objects()?);
        }
        let has_dtype = |leaf: &Bound<'_, PyAny>| leaf.hasattr(intern!(py, "dtype"));
        let keeps_dtype = match &leaf {
            Some(leaf) => has_dtype(leaf)?,
            None => false,
        };
        let found = np
            .asarray
            .bind(py)
            .call1((value,))
            .map_err(not_rectangular)?;
        let found = self.in_dtype(value, found, !keeps_dtype)?;
        Convert {
            share: false,
            ..self
        }
        .array(&found)
    }

    /// Converts what Python's numbers became in numpy to the wanted dtype, or to TensorFlow's default.
    fn in_dtype<'py>(
        self,
        value: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        is_plain_python: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let own = found.getattr(intern!(py, "dtype"))?;
        let kind: String = own.getattr(intern!(py, "kind"))?.extract()?;
        let is_empty = found.getattr(intern!(py, "size"))?.extract::<usize>()? == 0;
        let wanted = match (self.dtype, of_numpy(&own)?) {
            (Some(wanted), Some(own)) if wanted == own => return Ok(found),
            (Some(wanted), _) => wanted,
            (None, Some(DType::Double)) if is_plain_python => DType::Float,
            (None, Some(DType::Int64)) if is_plain_python => {
                let int32 = numpy_dtype(py, DType::Int32)?;
                let as_int32 = numpy(py)?.asarray.bind(py).call1((value, int32));
                return Ok(as_int32.unwrap_or(found));
            }
            (None, Some(DType::Complex64 | DType::Complex128)) => DType::Complex128,
            (None, _) => return Ok(found),
        };
        let fits = match &*kind {
            "b" => wanted == DType::Bool,
            "i" | "u" => wanted.is_integer() || wanted.is_floating() || wanted.is_complex(),
            "f" => wanted.is_floating() || wanted.is_complex(),
            "c" => wanted.is_complex(),
            _ => false,
        };
        if !fits && !is_empty && !is_of_ml_dtypes(wanted) {
            return Err(not_convertible(value, wanted));
        }
        let to = numpy_dtype(py, wanted)?;
        if is_of_ml_dtypes(wanted) || is_empty {
            return found.call_method1(intern!(py, "astype"), (to,));
        }
        let converted = numpy(py)?.asarray.bind(py).call1((value, to));
        converted.map_err(|_| not_convertible(value, wanted))
    }

    /// Converts an array, or what numpy can make one of.
    fn array(self, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let py = value.py();
        let np = numpy(py)?;
        if !value.is_instance(np.ndarray.bind(py))? {
            return self.other(value);
        }
        let own = value.getattr(intern!(py, "dtype"))?;
        let Some(dtype) = of_numpy(&own)? else {
            return Err(unsupported(&own));
        };
        if dtype == DType::String {
            return strings(value);
        }
        if let Some(wanted) = self.dtype.filter(|wanted| self.cast && *wanted != dtype) {
            if !wanted.is_plain() {
                return Err(not_convertible(value, wanted));
            }
            let to = numpy_dtype(py, wanted)?;
            let cast = value.call_method1(intern!(py, "astype"), (to,))?;
            return Convert {
                dtype: None,
                ..self
            }
            .array(&cast);
        }
        let dims: Vec<usize> = value.getattr(intern!(py, "shape"))?.extract()?;
        let flat = (-1,);
        let mut flat = np
            .ascontiguousarray
            .bind(py)
            .call1((value,))?
            .call_method1("reshape", flat)?;
        if is_of_ml_dtypes(dtype) {
            let bits = if dtype.size() == 2 { "uint16" } else { "uint8" };
            flat = flat.call_method1("view", (bits,))?;
        } else if !own.getattr("isnative")?.extract::<bool>()? {
            let native = own.call_method1("newbyteorder", ("=",))?;
            flat = flat.call_method1("astype", (native,))?;
        }
        let view = PyUntypedBuffer::get(&flat)?;
        self.view(dtype, Shape::from(&dims[..]), view)
    }

    /// Converts other values than arrays: those with DLPack, numbers of numpy, or what numpy converts.
    fn other(self, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let py = value.py();
        let np = numpy(py)?;
        if value.is_instance(np.generic.bind(py))? {
            let array = np.asarray.bind(py).call1((value,))?;
            return Convert {
                share: false,
                ..self
            }
            .array(&array);
        }
        if value.hasattr(intern!(py, "__dlpack__"))? {
            let array = np.from_dlpack.bind(py).call1((value,));
            let array = array.or_else(|_| np.asarray.bind(py).call1((value,)))?;
            return self.array(&array);
        }
        let array = np
            .asarray
            .bind(py)
            .call1((value,))
            .map_err(not_rectangular)?;
        let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
        let is_text = matches!(&*kind, "O" | "S" | "U");
        if is_text && self.dtype.is_some_and(|wanted| wanted != DType::String) {
            return Err(not_convertible(value, self.dtype.unwrap_or(DType::String)));
        }
        let is_number = value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>();
        let array = match is_text || value.hasattr("dtype")? {
            true => array,
            false => self.in_dtype(value, array, is_number || !value.hasattr("__array__")?)?,
        };
        self.array(&array)
    }
}

/// The memory of a Python object; it stays as long as this lives.
struct View(PyUntypedBuffer);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the object keeps that many contiguous bytes at this address until the view is released,
        // which dropping it does. Programs must not write to arrays while a step reads them.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// Returns the dtype of the elements, from their format in the notation of Python's `struct`.
fn of_format(view: &PyUntypedBuffer) -> Option<DType> {
    let format = view.format().to_bytes();
    let code = match format {
        [b'@' | b'=' | b'<', code @ ..] => code,
        code => code,
    };
    let size = view.item_size();
    let signed = [
        (1, DType::Int8),
        (2, DType::Int16),
        (4, DType::Int32),
        (8, DType::Int64),
    ];
    let unsigned = [
        (1, DType::Uint8),
        (2, DType::Uint16),
        (4, DType::Uint32),
        (8, DType::Uint64),
    ];
    let by_size = |list: [(usize, DType); 4]| list.into_iter().find(|d| d.0 == size).map(|d| d.1);
    let dtype = match code {
        b"f" => DType::Float,
        b"d" => DType::Double,
        b"e" => DType::Half,
        b"?" => DType::Bool,
        b"Zf" => DType::Complex64,
        b"Zd" => DType::Complex128,
        b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => by_size(signed)?,
        b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" => by_size(unsigned)?,
        _ => return None,
    };
    (dtype.size() == size).then_some(dtype)
}

/// Returns an array of strings as a tensor.
fn strings(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let dims: Vec<usize> = array.getattr("shape")?.extract()?;
    let flat = array
        .call_method1("reshape", (-1,))?
        .call_method0("tolist")?;
    let items = flat.cast_into::<PyList>()?;
    let items: Vec<Bytes> = items.iter().map(|i| string(&i)).collect::<PyResult<_>>()?;
    let tensor = Tensor::from_strings(Shape::from(&dims[..]), items);
    tensor.map_err(crate::error::error)
}

fn string(value: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Bytes::copy_from_slice(text.to_str()?.as_bytes()));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    Err(invalid(format!(
        "Unsupported object type {}: the elements of object arrays must be bytes or str",
        value.get_type().name()?
    )))
}

/// The first value in nested lists.
fn first_leaf<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut leaf = value.clone();
    while leaf.is_instance_of::<PyList>() || leaf.is_instance_of::<PyTuple>() {
        if leaf.len()? == 0 {
            return Ok(None);
        }
        leaf = leaf.get_item(0)?;
    }
    Ok(Some(leaf))
}

#[cold]
fn not_convertible(value: &Bound<'_, PyAny>, wanted: DType) -> PyErr {
    let text = value.repr().map_or(String::new(), |text| text.to_string());
    let text: String = text.chars().take(100).collect();
    let name = wanted.numpy_name();
    PyTypeError::new_err(format!("Cannot convert {text} to a tensor of dtype {name}"))
}

#[cold]
fn not_rectangular(e: PyErr) -> PyErr {
    crate::error::error(Status::new(
        ferroflow_base::Code::InvalidArgument,
        format!("Can't convert non-rectangular Python sequence to Tensor: {e}"),
    ))
}
