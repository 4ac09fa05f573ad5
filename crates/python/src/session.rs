//! Sessions: a graph and its variables, run by names of tensors and nodes.

use crate::error::{error, invalid};
use crate::input::Convert;
use crate::model::run;
use crate::output::{Shared, array};
use crate::source::{Saver, Source, graph, options};
use ferroflow_base::not_found;
use ferroflow_runtime::{Callable, RunOptions, Signature};
use ferroflow_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A graph with its variables, as TensorFlow's `Session`.
///
/// The graph is a path, bytes, text, or an object of TensorFlow's: a GraphDef, MetaGraphDef or Graph.
///
/// >>> import ferroflow
/// >>> session = ferroflow.Session('''
/// ...     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }
/// ...     node { name: 'y' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_INT32 } } }''')
/// >>> session.run({"result": "y:0"}, {"x:0": [1, 2]})
/// {'result': array([-1, -2], dtype=int32)}
#[pyclass(name = "Session", module = "ferroflow", frozen, weakref)]
pub struct PySession {
    source: Arc<Source>,
    saver: Option<Saver>,
}

impl PySession {
    /// The session of a model.
    pub fn over(source: Arc<Source>, saver: Option<Saver>) -> PySession {
        PySession { source, saver }
    }

    /// The ops that save and restore: those of the model, or those that TensorFlow's `Saver` makes.
    fn saver(&self) -> PyResult<Saver> {
        if let Some(saver) = &self.saver {
            return Ok(saver.clone());
        }
        let graph = self.source.session().graph();
        if graph.find("save/restore_all").is_none() {
            return Err(error(not_found!(
                "the graph has no saver ops; pass saver=(filename_tensor, save_tensor, restore_op)"
            )));
        }
        Ok(Saver {
            filename: "save/Const:0".into(),
            save: "save/control_dependency:0".into(),
            restore: "save/restore_all".into(),
        })
    }

    fn with_saver(&self, saver: Option<(String, String, String)>) -> PyResult<Saver> {
        match saver {
            None => self.saver(),
            Some((filename, save, restore)) => Ok(Saver {
                filename,
                save,
                restore,
            }),
        }
    }
}

/// What a program fetches, in its own structure.
enum Fetch {
    /// A tensor, by its position among the fetches.
    Tensor(usize),
    /// A node that is run: its value is None.
    Target,
    List(Vec<Fetch>),
    Tuple(Vec<Fetch>),
    Dict(Vec<(Py<PyAny>, Fetch)>),
}

impl Fetch {
    fn new(value: &Bound<'_, PyAny>, signature: &mut Signature) -> PyResult<Fetch> {
        if let Ok(list) = value.cast::<PyList>() {
            let items = list.iter().map(|i| Fetch::new(&i, signature));
            return Ok(Fetch::List(items.collect::<PyResult<_>>()?));
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let items = tuple.iter().map(|i| Fetch::new(&i, signature));
            return Ok(Fetch::Tuple(items.collect::<PyResult<_>>()?));
        }
        if let Ok(dict) = value.cast::<PyDict>() {
            let items = dict.iter();
            let items = items.map(|(k, v)| Ok((k.unbind(), Fetch::new(&v, signature)?)));
            return Ok(Fetch::Dict(items.collect::<PyResult<_>>()?));
        }
        let name = name(value)?;
        Ok(match name.contains(':') {
            true => {
                signature.fetches.push(name);
                Fetch::Tensor(signature.fetches.len() - 1)
            }
            false => {
                signature
                    .targets
                    .push(name.trim_start_matches('^').to_string());
                Fetch::Target
            }
        })
    }

    fn build<'py>(
        &self,
        py: Python<'py>,
        values: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = |items: &[Fetch]| {
            let items = items.iter().map(|i| i.build(py, values));
            items.collect::<PyResult<Vec<_>>>()
        };
        Ok(match self {
            Fetch::Tensor(i) => values[*i].clone(),
            Fetch::Target => py.None().into_bound(py),
            Fetch::List(items) => PyList::new(py, all(items)?)?.into_any(),
            Fetch::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
            Fetch::Dict(items) => {
                let out = PyDict::new(py);
                for (key, item) in items {
                    out.set_item(key, item.build(py, values)?)?;
                }
                out.into_any()
            }
        })
    }
}

/// The name of a tensor or node: a string, or what TensorFlow's objects are called.
fn name(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_str()?.to_string());
    }
    let name = value.getattr("name").and_then(|name| name.extract());
    name.map_err(|_| {
        let repr = value.repr().map_or(String::new(), |r| r.to_string());
        invalid(format!(
            "{repr} is not a name of a tensor or node, nor a list, tuple or dict of names"
        ))
    })
}

/// The tensors to feed, in the order of `values`.
fn feeds(callable: &Callable, values: &[Bound<'_, PyAny>]) -> PyResult<Vec<Tensor>> {
    let dtypes = callable.feed_dtypes();
    let feeds = values.iter().zip(dtypes).map(|(value, dtype)| {
        let convert = Convert {
            dtype: Some(dtype),
            share: !callable.keeps_feeds(),
            cast: true,
        };
        convert.tensor(value)
    });
    feeds.collect()
}

/// Options with a timeout in seconds.
fn run_options(timeout: Option<f64>) -> PyResult<RunOptions> {
    let seconds = |s: f64| {
        Duration::try_from_secs_f64(s)
            .map_err(|_| invalid(format!("the timeout {s} is not a number of seconds")))
    };
    Ok(RunOptions {
        timeout: timeout.map(seconds).transpose()?,
        ..Default::default()
    })
}

/// A scalar as numpy's scalar, as TensorFlow's sessions return it.
fn unwrapped<'py>(py: Python<'py>, tensor: Tensor, shared: &Shared) -> PyResult<Bound<'py, PyAny>> {
    let is_number = tensor.dtype().is_plain() && tensor.shape().is_scalar();
    let value = array(py, tensor, shared)?;
    match is_number {
        true => value.get_item(PyTuple::empty(py)),
        false => Ok(value),
    }
}

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (graph_def, *, threads = 0, optimize = true))]
    fn new(graph_def: &Bound<'_, PyAny>, threads: usize, optimize: bool) -> PyResult<PySession> {
        let (source, saver) = graph(graph_def, options(threads, optimize).map_err(error)?)?;
        Ok(PySession {
            source: Arc::new(source),
            saver,
        })
    }

    /// Runs a step: feeds tensors by name, runs nodes, returns what is fetched in the structure of
    /// `fetches`. A name without a slot, such as `train`, is that of a node to run.
    #[pyo3(signature = (fetches, feed_dict = None, *, timeout = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        fetches: &Bound<'py, PyAny>,
        feed_dict: Option<&Bound<'py, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut signature = Signature::default();
        let structure = Fetch::new(fetches, &mut signature)?;
        let mut values = Vec::new();
        for (key, value) in feed_dict.into_iter().flat_map(|d| d.iter()) {
            let name = name(&key)?;
            let has_slot = name.contains(':');
            signature
                .feeds
                .push(if has_slot { name } else { name + ":0" });
            values.push(value);
        }
        let session = self.source.session();
        let callable = match session.cached(&signature) {
            Some(callable) => callable,
            None => py.detach(|| session.callable(&signature)).map_err(error)?,
        };
        let feeds = feeds(&callable, &values)?;
        let share = !callable.keeps_feeds();
        let options = run_options(timeout)?;
        let (tensors, shared, _held) = run(py, &self.source, &callable, feeds, share, &options)?;
        let results = tensors.into_iter().map(|t| unwrapped(py, t, &shared));
        let results = results.collect::<PyResult<Vec<_>>>()?;
        structure.build(py, &results)
    }

    /// Compiles a step that is run many times: a function of the feeds, in the order of `feed_list`.
    ///
    /// >>> import ferroflow
    /// >>> session = ferroflow.Session('''
    /// ...     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_INT32 } } }
    /// ...     node { name: 'y' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_INT32 } } }''')
    /// >>> step = session.make_callable("y:0", ["x:0"])
    /// >>> step([3])
    /// array([-3], dtype=int32)
    #[pyo3(signature = (fetches, feed_list = Vec::new()))]
    fn make_callable(
        &self,
        py: Python<'_>,
        fetches: &Bound<'_, PyAny>,
        feed_list: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Step> {
        let mut signature = Signature::default();
        let structure = Fetch::new(fetches, &mut signature)?;
        for feed in &feed_list {
            signature.feeds.push(name(feed)?);
        }
        let session = self.source.session();
        let callable = py.detach(|| session.callable(&signature)).map_err(error)?;
        Ok(Step {
            source: self.source.clone(),
            callable,
            structure,
            options: RunOptions::default(),
        })
    }

    /// Saves the variables with the graph's saver ops; returns the prefix of the checkpoint.
    #[pyo3(signature = (prefix, *, saver = None))]
    fn save(
        &self,
        py: Python<'_>,
        prefix: PathBuf,
        saver: Option<(String, String, String)>,
    ) -> PyResult<String> {
        let saver = self.with_saver(saver)?;
        let text = prefix.to_string_lossy().into_owned();
        let session = self.source.session();
        let feed = [(&*saver.filename, Tensor::string(text.clone().into_bytes()))];
        let saved = py.detach(|| session.run(&feed, &[&saver.save], &[]));
        saved.map_err(error)?;
        Ok(text)
    }

    /// Restores the variables from a checkpoint with the graph's saver ops.
    #[pyo3(signature = (prefix, *, saver = None))]
    fn restore(
        &self,
        py: Python<'_>,
        prefix: PathBuf,
        saver: Option<(String, String, String)>,
    ) -> PyResult<()> {
        let saver = self.with_saver(saver)?;
        let text = prefix.to_string_lossy().into_owned();
        let session = self.source.session();
        let feed = [(&*saver.filename, Tensor::string(text.into_bytes()))];
        let restore = saver.restore.trim_end_matches(":0").to_string();
        let restored = py.detach(|| session.run(&feed, &[], &[&restore]));
        restored.map_err(error).map(|_| ())
    }

    /// The nodes of the graph: pairs of name and op.
    #[getter]
    fn nodes(&self) -> Vec<(String, String)> {
        let graph = self.source.session().graph();
        let nodes = graph
            .iter()
            .map(|(_, n)| (n.name.clone(), n.op().to_string()));
        nodes.collect()
    }

    /// Cancels the steps in progress; later calls fail.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.source.session().close());
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let n = self.source.session().graph().len();
        format!("<ferroflow.Session: a graph of {n} nodes>")
    }
}

/// A compiled step of a session: `Session.make_callable` returns it.
#[pyclass(module = "ferroflow", frozen, weakref)]
pub struct Step {
    source: Arc<Source>,
    callable: Arc<Callable>,
    structure: Fetch,
    options: RunOptions,
}

#[pymethods]
impl Step {
    /// Runs the step.
    #[pyo3(signature = (*values))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let values: Vec<Bound<'_, PyAny>> = values.iter().collect();
        let wanted = self.callable.signature().feeds.len();
        if values.len() != wanted {
            return Err(invalid(format!(
                "the step has {wanted} feeds, but got {}",
                values.len()
            )));
        }
        let feeds = feeds(&self.callable, &values)?;
        let share = !self.callable.keeps_feeds();
        let ran = run(
            py,
            &self.source,
            &self.callable,
            feeds,
            share,
            &self.options,
        )?;
        let (tensors, shared, _held) = ran;
        let results = tensors.into_iter().map(|t| unwrapped(py, t, &shared));
        let results = results.collect::<PyResult<Vec<_>>>()?;
        self.structure.build(py, &results)
    }
}
