//! `load`, `compile` and `inspect`.

use crate::checkpoint::Checkpoint;
use crate::error::{error, invalid};
use crate::model::{Model, ports};
use crate::progress;
use crate::source::{DEFAULT, Kind, Source, options, saver_in};
use ferroflow_base::Result;
use ferroflow_model::GraphFile;
use ferroflow_runtime::{
    CompileRequest, Graph, ModelSignature, SERVE, Signature, outputs, placeholders, registry,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn names(tags: &[String]) -> Vec<&str> {
    match tags {
        [] => vec![SERVE],
        tags => tags.iter().map(String::as_str).collect(),
    }
}

/// Loads the model or checkpoint at a path: a SavedModel, a graph, a compiled model, or a checkpoint.
///
/// `progress` is called with the stage, the seconds since it began, and whether it has ended.
///
/// >>> import ferroflow
/// >>> ferroflow.load(saved_model, progress=ferroflow.ProgressBar()).kind
/// 'SavedModel'
#[pyfunction]
#[pyo3(signature = (path, *, tags = Vec::new(), threads = 0, optimize = true, progress = None))]
pub fn load<'py>(
    py: Python<'py>,
    path: PathBuf,
    tags: Vec<String>,
    threads: usize,
    optimize: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let kind = Kind::at(&path).map_err(error)?;
    if let Kind::Checkpoint(prefix) = &kind {
        let open = || Checkpoint::open(prefix);
        let checkpoint = progress::run(py, progress, "loading", open)?.map_err(error)?;
        return Ok(Bound::new(py, checkpoint)?.into_any());
    }
    let tags = names(&tags);
    let open = || Source::open(&path, &kind, &tags, options(threads, optimize)?);
    let source = progress::run(py, progress, "loading", open)?.map_err(error)?;
    let saver = match &source {
        Source::Saved(model) => saver_in(model),
        _ => None,
    };
    Ok(Bound::new(py, Model::new(py, source, saver)?)?.into_any())
}

/// Compiles a signature of a model to a file, which `load` opens quickly; returns its path.
///
/// >>> import ferroflow, os, tempfile
/// >>> folder = tempfile.TemporaryDirectory()
/// >>> path = ferroflow.compile(saved_model, os.path.join(folder.name, "model.bef"))
/// >>> ferroflow.load(path).kind
/// 'compiled model'
/// >>> folder.cleanup()
#[pyfunction]
#[pyo3(signature = (
    model, out, *, signature = None, feeds = Vec::new(), fetches = Vec::new(), targets = Vec::new(),
    tags = Vec::new(), plain = false, progress = None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn compile<'py>(
    py: Python<'py>,
    model: &Bound<'py, PyAny>,
    out: PathBuf,
    signature: Option<String>,
    feeds: Vec<String>,
    fetches: Vec<String>,
    targets: Vec<String>,
    tags: Vec<String>,
    plain: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<PathBuf> {
    let opened;
    let source = match model.cast::<Model>() {
        Ok(model) => &*model.get().source,
        Err(_) => {
            let path: PathBuf = model.extract()?;
            let kind = Kind::at(&path).map_err(error)?;
            if matches!(kind, Kind::Checkpoint(_)) {
                return Err(invalid(format!("{} has no graph", path.display())));
            }
            let tags = names(&tags);
            let open = || Source::open(&path, &kind, &tags, options(0, true)?);
            opened = progress::run(py, progress, "loading", open)?.map_err(error)?;
            &opened
        }
    };
    let work = || {
        let request = request(source, signature, feeds, fetches, targets, plain)?;
        source.session().compile_to(&out, &request)
    };
    progress::run(py, progress, "compiling", work)?.map_err(error)?;
    Ok(out)
}

fn request(
    source: &Source,
    signature: Option<String>,
    feeds: Vec<String>,
    fetches: Vec<String>,
    targets: Vec<String>,
    plain: bool,
) -> Result<CompileRequest> {
    let ports = match source {
        Source::Compiled(_) => {
            return Err(ferroflow_base::invalid_argument!(
                "the model is already compiled"
            ));
        }
        Source::Saved(model) => {
            let ports = model.signature(signature.as_deref().unwrap_or(DEFAULT))?;
            model.check(ports)?;
            ports.clone()
        }
        Source::Graph(_) => ModelSignature::default(),
    };
    if let Source::Graph(session) = source {
        let graph = session.graph();
        let fetches = match fetches.is_empty() && targets.is_empty() {
            true => outputs(&graph),
            false => fetches,
        };
        let feeds = match feeds.is_empty() {
            true => placeholders(&graph, &[], &fetches, &targets)?,
            false => feeds,
        };
        let signature = Signature {
            feeds,
            fetches,
            targets,
        };
        return Ok(CompileRequest {
            signature,
            plain,
            ..Default::default()
        });
    }
    let or_all =
        |names: Vec<String>, all: &[ferroflow_runtime::SignatureTensor]| match names.is_empty() {
            true => all.iter().map(|p| p.key.clone()).collect(),
            false => names,
        };
    let feed_keys = or_all(feeds, &ports.inputs);
    let fetch_keys = or_all(fetches, &ports.outputs);
    let feed = |key: &String| ports.input(key).map_or(key, |i| &i.name).clone();
    let fetch = |key: &String| ports.output(key).map_or(key, |o| &o.name).clone();
    Ok(CompileRequest {
        signature: Signature {
            feeds: feed_keys.iter().map(feed).collect(),
            fetches: fetch_keys.iter().map(fetch).collect(),
            targets,
        },
        feed_keys,
        fetch_keys,
        plain,
        ..Default::default()
    })
}

/// What `inspect` counts.
#[derive(Default)]
struct Counts {
    nodes: usize,
    parameters: usize,
    parameter_bytes: usize,
    ops: BTreeMap<String, usize>,
    unsupported: BTreeMap<String, usize>,
}

impl Counts {
    fn of(graph: &Graph) -> Counts {
        let mut counts = Counts {
            nodes: graph.len(),
            ..Default::default()
        };
        for (_, node) in graph.iter() {
            *counts.ops.entry(node.op().to_string()).or_default() += 1;
            if let Ok(value) = node.attrs.tensor("value")
                && value.dtype().is_floating()
            {
                let n = value.shape().num_elements();
                counts.parameters += n;
                counts.parameter_bytes += n * value.dtype().size();
            }
        }
        counts
    }

    /// Counts a file whose graph may need ops that are not supported.
    fn of_file(file: &GraphFile) -> Counts {
        let mut counts = Counts {
            nodes: file.graph.node.len(),
            ..Default::default()
        };
        let library = file.graph.library.iter().flat_map(|l| &l.function);
        let bodies = library.flat_map(|f| &f.node_def);
        for node in &file.graph.node {
            *counts.ops.entry(node.op.clone()).or_default() += 1;
        }
        for node in file.graph.node.iter().chain(bodies) {
            if registry().op(&node.op).is_none() {
                *counts.unsupported.entry(node.op.clone()).or_default() += 1;
            }
        }
        counts
    }

    fn fill(&self, out: &Bound<'_, PyDict>) -> PyResult<()> {
        out.set_item("nodes", self.nodes)?;
        out.set_item("parameters", self.parameters)?;
        out.set_item("parameter_bytes", self.parameter_bytes)?;
        out.set_item("ops", &self.ops)?;
        out.set_item("unsupported", &self.unsupported)
    }
}

/// Describes the model at a path, as a dict.
#[pyfunction]
#[pyo3(signature = (path, *, tags = Vec::new()))]
pub fn inspect<'py>(
    py: Python<'py>,
    path: PathBuf,
    tags: Vec<String>,
) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let kind = Kind::at(&path).map_err(error)?;
    out.set_item("signatures", PyDict::new(py))?;
    if let Kind::Checkpoint(prefix) = &kind {
        let checkpoint = Checkpoint::open(prefix).map_err(error)?;
        out.set_item("kind", "checkpoint")?;
        out.set_item("variables", checkpoint.variables(py)?)?;
        Counts::default().fill(&out)?;
        return Ok(out);
    }
    if matches!(kind, Kind::Graph) {
        let file = py.detach(|| GraphFile::open(&path)).map_err(error)?;
        let counts = Counts::of_file(&file);
        if !counts.unsupported.is_empty() {
            out.set_item("kind", "graph")?;
            counts.fill(&out)?;
            return Ok(out);
        }
    }
    let tags = names(&tags);
    let open = || Source::open(&path, &kind, &tags, options(1, true)?);
    let source = py.detach(open).map_err(error)?;
    let counts = match &source {
        Source::Compiled(model) => {
            let summary = model.summary();
            Counts {
                nodes: summary.n_nodes,
                parameters: summary.n_parameters,
                parameter_bytes: summary.parameter_bytes,
                ops: summary.ops.clone(),
                ..Default::default()
            }
        }
        Source::Graph(session) => Counts::of(&session.graph()),
        Source::Saved(model) => {
            let mut counts = Counts::of(&model.session().graph());
            for op in model.left_out().values() {
                *counts.unsupported.entry(op.to_string()).or_default() += 1;
            }
            if let Ok(variables) = Checkpoint::open(&model.variables_prefix()) {
                let (n, bytes) = variables.size().map_err(error)?;
                counts.parameters += n;
                counts.parameter_bytes += bytes;
            }
            counts
        }
    };
    counts.fill(&out)?;
    let signatures = PyDict::new(py);
    for (name, signature) in source.signatures().map_err(error)? {
        let (inputs, outputs) = (
            ports(py, &signature.inputs)?,
            ports(py, &signature.outputs)?,
        );
        signatures.set_item(name, (inputs, outputs))?;
    }
    out.set_item("signatures", signatures)?;
    let kind = match source {
        Source::Saved(_) => "SavedModel",
        Source::Graph(_) => "graph",
        Source::Compiled(_) => "compiled model",
    };
    out.set_item("kind", kind)?;
    Ok(out)
}
