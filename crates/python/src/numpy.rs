//! The parts of numpy that are used, imported when first needed: importing it takes longer than importing
//! this package.

use ferroflow_tensor::DType;
use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Functions and types of numpy.
pub struct Numpy {
    /// `numpy.ndarray`
    pub ndarray: Py<PyType>,
    /// `numpy.generic`
    pub generic: Py<PyType>,
    /// `numpy.asarray`
    pub asarray: Py<PyAny>,
    /// `numpy.ascontiguousarray`
    pub ascontiguousarray: Py<PyAny>,
    /// `numpy.from_dlpack`
    pub from_dlpack: Py<PyAny>,
    /// `numpy.dtype`
    pub dtype: Py<PyAny>,
    /// `numpy.empty`
    pub empty: Py<PyAny>,
}

static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
static DTYPES: [PyOnceLock<Py<PyAny>>; 34] = [const { PyOnceLock::new() }; 34];

/// Returns numpy.
pub fn numpy(py: Python<'_>) -> PyResult<&Numpy> {
    NUMPY.get_or_try_init(py, || {
        let np = py.import(intern!(py, "numpy"))?;
        let get = |name: &str| PyResult::Ok(np.getattr(name)?.unbind());
        let get_type = |name: &str| PyResult::Ok(np.getattr(name)?.cast_into::<PyType>()?.unbind());
        Ok(Numpy {
            ndarray: get_type("ndarray")?,
            generic: get_type("generic")?,
            asarray: get("asarray")?,
            ascontiguousarray: get("ascontiguousarray")?,
            from_dlpack: get("from_dlpack")?,
            dtype: get("dtype")?,
            empty: get("empty")?,
        })
    })
}

/// Returns numpy's dtype. Dtypes that numpy lacks are those of `ml_dtypes`; without that package they are
/// unsigned integers of their size.
pub fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<&Bound<'_, PyAny>> {
    let make = || {
        let np = numpy(py)?;
        let make = |name: &str| PyResult::Ok(np.dtype.bind(py).call1((name,))?.unbind());
        match dtype {
            DType::String => make("object"),
            DType::Qint8 => make("int8"),
            DType::Quint8 => make("uint8"),
            DType::Qint16 => make("int16"),
            DType::Quint16 => make("uint16"),
            DType::Qint32 => make("int32"),
            _ if is_of_ml_dtypes(dtype) => match extended(py, dtype) {
                Ok(found) => Ok(np.dtype.bind(py).call1((found,))?.unbind()),
                Err(e) if e.is_instance_of::<PyImportError>(py) => {
                    make(if dtype.size() == 2 { "uint16" } else { "uint8" })
                }
                Err(e) => Err(e),
            },
            _ => make(dtype.numpy_name()),
        }
    };
    let cell = DTYPES.get(dtype as usize).unwrap_or(&DTYPES[0]);
    Ok(cell.get_or_try_init(py, make)?.bind(py))
}

/// Whether the dtype is one that `ml_dtypes` adds to numpy.
pub fn is_of_ml_dtypes(dtype: DType) -> bool {
    dtype == DType::Bfloat16 || dtype as u8 >= DType::Float8E5m2 as u8
}

fn extended(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    py.import("ml_dtypes")?.getattr(dtype.name())
}

/// Returns the dtype that a Python value names: a numpy dtype or type, a name such as `float32`, a
/// TensorFlow dtype or its number.
pub fn dtype_of(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = value.py();
    if let Ok(number) = value.extract::<i32>() {
        let found = DType::from_number(number);
        return found
            .ok_or_else(|| crate::error::invalid(format!("unknown dtype number {number}")));
    }
    if let Ok(name) = value.extract::<String>() {
        if let Some(found) = DType::from_name(&name) {
            return Ok(found);
        }
        let found = DType::ALL.iter().find(|d| d.numpy_name() == name);
        if let Some(found) = found {
            return Ok(*found);
        }
    }
    if let Ok(number) = value.getattr(intern!(py, "as_datatype_enum")) {
        return dtype_of(&number);
    }
    let dtype = numpy(py)?.dtype.bind(py).call1((value,))?;
    of_numpy(&dtype)?.ok_or_else(|| unsupported(&dtype))
}

/// Returns the dtype of a numpy dtype's elements; `None` if no tensor has them.
pub fn of_numpy(dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let py = dtype.py();
    let kind: String = dtype.getattr(intern!(py, "kind"))?.extract()?;
    if matches!(&*kind, "S" | "U" | "O" | "T") {
        return Ok(Some(DType::String));
    }
    let name: String = dtype.getattr(intern!(py, "name"))?.extract()?;
    let mut all = DType::ALL.iter();
    Ok(all
        .find(|d| d.is_plain() && d.numpy_name() == name)
        .copied())
}

/// The error for elements that no tensor has.
#[cold]
pub fn unsupported(dtype: &Bound<'_, PyAny>) -> PyErr {
    crate::error::invalid(format!("Unsupported numpy type: {dtype}"))
}
