//! Models and their signatures.

use crate::error::{error, invalid};
use crate::input::Convert;
use crate::numpy::numpy_dtype;
use crate::output::{Shared, array};
use crate::session::PySession;
use crate::source::{DEFAULT, Saver, Source};
use ferroflow_base::{Result, not_found};
use ferroflow_runtime::{
    Callable, ModelSignature, PartialShape, RunOptions, Signature, SignatureTensor,
};
use ferroflow_tensor::Tensor;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::sync::{Arc, OnceLock};

/// A loaded model: `load` returns it. Calling it runs its default signature.
///
/// >>> import ferroflow
/// >>> model = ferroflow.load(saved_model)
/// >>> model(features=[[1, 2, 3, 4]])["output_0"].shape
/// (1, 3)
#[pyclass(module = "ferroflow", frozen, weakref)]
pub struct Model {
    pub source: Arc<Source>,
    saver: Option<Saver>,
    signatures: Py<PyDict>,
    default: Option<Py<PySignature>>,
    kind: &'static str,
}

impl Model {
    /// Wraps an opened model.
    pub fn new(py: Python<'_>, source: Source, saver: Option<Saver>) -> PyResult<Model> {
        let source = Arc::new(source);
        let signatures = PyDict::new(py);
        let mut default = None;
        let all = source.signatures().map_err(error)?;
        let is_only = all.len() == 1;
        for (name, ports) in all {
            let is_default = name == DEFAULT || is_only;
            let signature = PySignature::new(py, &source, &name, ports);
            let signature = Bound::new(py, signature)?;
            signatures.set_item(name, &signature)?;
            if is_default {
                default = Some(signature.unbind());
            }
        }
        let kind = match &*source {
            Source::Saved(_) => "SavedModel",
            Source::Graph(_) => "graph",
            Source::Compiled(_) => "compiled model",
        };
        Ok(Model {
            source,
            saver,
            signatures: signatures.unbind(),
            default,
            kind,
        })
    }

    fn default<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PySignature>> {
        let missing = || {
            error(not_found!(
                "the model has no signature '{DEFAULT}'; `signatures` has the ones it has"
            ))
        };
        Ok(self.default.as_ref().ok_or_else(missing)?.bind(py))
    }
}

#[pymethods]
impl Model {
    /// The signatures, by name.
    #[getter]
    fn signatures(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        Ok(self.signatures.bind(py).copy()?.unbind())
    }

    /// What was loaded: `SavedModel`, `graph` or `compiled model`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// The inputs of the default signature: name, dtype and shape by key.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.default(py)?.get().inputs(py)
    }

    /// The outputs of the default signature.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.default(py)?.get().outputs(py)
    }

    /// The session that runs the model, with its variables: for nodes by name, such as training steps.
    #[getter]
    fn session(&self) -> PySession {
        PySession::over(self.source.clone(), self.saver.clone())
    }

    /// Runs the default signature.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.default(py)?.get().__call__(py, args, kwargs)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let found = self.signatures.bind(py).get_item(name)?;
        found.ok_or_else(|| {
            let names = self.signatures.bind(py).keys();
            error(not_found!(
                "the model has no signature '{name}'; it has: {names}"
            ))
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let names = self.signatures.bind(py).keys();
        format!("<ferroflow.Model: a {} with signatures {names}>", self.kind)
    }
}

/// A signature of a model: a function of named tensors. It is compiled by its first call.
///
/// >>> import ferroflow
/// >>> signature = ferroflow.load(saved_model)["serving_default"]
/// >>> signature
/// <ferroflow.Signature serving_default(features: float32[?,4]) -> {output_0: float32[?,3]}>
/// >>> signature.inputs["features"].shape
/// (None, 4)
#[pyclass(name = "Signature", module = "ferroflow", frozen, weakref)]
pub struct PySignature {
    source: Arc<Source>,
    name: String,
    ports: ModelSignature,
    input_keys: Vec<Py<PyString>>,
    output_keys: Vec<Py<PyString>>,
    callable: OnceLock<Arc<Callable>>,
    options: RunOptions,
}

impl PySignature {
    fn new(py: Python<'_>, source: &Arc<Source>, name: &str, ports: ModelSignature) -> Self {
        let keys = |ports: &[SignatureTensor]| {
            let keys = ports.iter().map(|p| PyString::intern(py, &p.key).unbind());
            keys.collect()
        };
        PySignature {
            source: source.clone(),
            name: name.to_string(),
            input_keys: keys(&ports.inputs),
            output_keys: keys(&ports.outputs),
            ports,
            callable: OnceLock::new(),
            options: RunOptions::default(),
        }
    }

    /// The compiled signature.
    fn callable(&self, py: Python<'_>) -> PyResult<&Arc<Callable>> {
        if let Some(callable) = self.callable.get() {
            return Ok(callable);
        }
        let made = py.detach(|| self.compile()).map_err(error)?;
        Ok(self.callable.get_or_init(|| made))
    }

    fn compile(&self) -> Result<Arc<Callable>> {
        let session = self.source.session();
        match &*self.source {
            Source::Saved(model) => model.callable(&self.name),
            Source::Compiled(model) => session.callable(model.signature()),
            Source::Graph(_) => {
                let names = |p: &[SignatureTensor]| p.iter().map(|p| p.name.clone()).collect();
                session.callable(&Signature {
                    feeds: names(&self.ports.inputs),
                    fetches: names(&self.ports.outputs),
                    targets: Vec::new(),
                })
            }
        }
    }

    /// The tensors to feed, in the order of the inputs.
    fn args(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        share: bool,
    ) -> PyResult<Vec<Tensor>> {
        let n_args = args.len();
        let mut n_named = kwargs.map_or(0, |k| k.len());
        let inputs = &self.ports.inputs;
        if n_args > inputs.len() {
            return Err(self.wrong_arguments(&format!("{n_args} positional arguments")));
        }
        let mut feeds = Vec::with_capacity(inputs.len());
        for (i, (input, key)) in inputs.iter().zip(&self.input_keys).enumerate() {
            let value = match kwargs {
                _ if i < n_args => Some(args.get_item(i)?),
                Some(kwargs) => kwargs.get_item(key.bind(py))?,
                None => None,
            };
            let Some(value) = value else {
                match self.ports.defaults.get(&input.key) {
                    Some(default) => feeds.push(default.clone()),
                    None => return Err(self.not_fed(&input.key)),
                }
                continue;
            };
            n_named = n_named.saturating_sub(usize::from(i >= n_args));
            let convert = Convert {
                dtype: Some(input.dtype),
                share,
                cast: false,
            };
            feeds.push(convert.tensor(&value)?);
        }
        match kwargs {
            Some(kwargs) if n_named > 0 => Err(self.unknown(kwargs, n_args)),
            _ => Ok(feeds),
        }
    }

    fn keys(&self) -> String {
        let keys: Vec<&str> = self.ports.inputs.iter().map(|i| &*i.key).collect();
        keys.join(", ")
    }

    #[cold]
    fn not_fed(&self, key: &str) -> PyErr {
        let keys = self.keys();
        invalid(format!(
            "input '{key}' of the signature is not fed; its inputs are: {keys}"
        ))
    }

    #[cold]
    fn unknown(&self, kwargs: &Bound<'_, PyDict>, n_args: usize) -> PyErr {
        for key in kwargs.keys() {
            let key = key.to_string();
            match self.ports.inputs.iter().position(|i| i.key == key) {
                None => {
                    let keys = self.keys();
                    return invalid(format!(
                        "the signature has no input '{key}'; it has: {keys}"
                    ));
                }
                Some(at) if at < n_args => {
                    return self.wrong_arguments(&format!("input '{key}' twice"));
                }
                Some(_) => {}
            }
        }
        self.wrong_arguments("other arguments")
    }

    #[cold]
    fn wrong_arguments(&self, got: &str) -> PyErr {
        let keys = self.keys();
        PyTypeError::new_err(format!(
            "signature '{}' takes the inputs {keys}, but got {got}",
            self.name
        ))
    }

    fn show(ports: &[SignatureTensor]) -> String {
        let one = |p: &SignatureTensor| format!("{}: {}{}", p.key, p.dtype.numpy_name(), p.shape);
        ports.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

#[pymethods]
impl PySignature {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The inputs: name, dtype and shape by key.
    #[getter]
    pub fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ports(py, &self.ports.inputs)
    }

    /// The outputs: name, dtype and shape by key.
    #[getter]
    pub fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ports(py, &self.ports.outputs)
    }

    /// Runs the signature with arrays by key, or in the order of the inputs; returns arrays by key.
    #[pyo3(signature = (*args, **kwargs))]
    pub fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let callable = self.callable(py)?;
        let share = !callable.keeps_feeds();
        let feeds = self.args(py, args, kwargs, share)?;
        let results = run(py, &self.source, callable, feeds, share, &self.options)?;
        let (tensors, shared, _held) = results;
        let out = PyDict::new(py);
        for (key, tensor) in self.output_keys.iter().zip(tensors) {
            out.set_item(key.bind(py), array(py, tensor, &shared)?)?;
        }
        Ok(out)
    }

    fn __repr__(&self) -> String {
        let inputs = Self::show(&self.ports.inputs);
        let outputs = Self::show(&self.ports.outputs);
        format!(
            "<ferroflow.Signature {}({inputs}) -> {{{outputs}}}>",
            self.name
        )
    }
}

/// The results of a run, the memory that was shared with it, and what keeps that memory: dropped by the
/// caller, under the interpreter's lock.
pub type Ran = (Vec<Tensor>, Shared, Vec<Tensor>);

/// Runs a callable while other Python threads run.
pub fn run(
    py: Python<'_>,
    source: &Source,
    callable: &Callable,
    feeds: Vec<Tensor>,
    is_shared: bool,
    options: &RunOptions,
) -> PyResult<Ran> {
    let (mut shared, mut held) = (Shared::default(), Vec::new());
    if is_shared {
        for feed in feeds.iter().filter(|f| f.byte_len() > 4096) {
            shared.add(feed);
            held.push(feed.clone());
        }
    }
    let session = source.session();
    let results = py.detach(|| session.run_callable(callable, feeds, options));
    Ok((results.map_err(error)?, shared, held))
}

/// Describes inputs or outputs.
pub fn ports<'py>(py: Python<'py>, ports: &[SignatureTensor]) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let spec = py.import("ferroflow._types")?.getattr("TensorSpec")?;
    for port in ports {
        let dtype = match port.dtype.is_plain() {
            true => numpy_dtype(py, port.dtype)?.clone(),
            false => PyString::new(py, port.dtype.name()).into_any(),
        };
        let shape = shape(py, &port.shape)?;
        out.set_item(&port.key, spec.call1((&port.name, dtype, shape))?)?;
    }
    Ok(out)
}

/// A shape as a tuple with None for unknown dimensions; None if the rank is unknown.
pub fn shape<'py>(py: Python<'py>, shape: &PartialShape) -> PyResult<Option<Bound<'py, PyTuple>>> {
    shape.dims().map(|dims| PyTuple::new(py, dims)).transpose()
}
